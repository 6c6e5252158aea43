"""Copies of a GGUF with something changed, for tests of what happens with files that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from draftsmith.gguf_file import GGUFFile, StringArray

_TYPES = {
    "u8": gguf.GGUFValueType.UINT8,
    "i8": gguf.GGUFValueType.INT8,
    "u16": gguf.GGUFValueType.UINT16,
    "i16": gguf.GGUFValueType.INT16,
    "u32": gguf.GGUFValueType.UINT32,
    "i32": gguf.GGUFValueType.INT32,
    "f32": gguf.GGUFValueType.FLOAT32,
    "bool": gguf.GGUFValueType.BOOL,
    "str": gguf.GGUFValueType.STRING,
    "u64": gguf.GGUFValueType.UINT64,
    "i64": gguf.GGUFValueType.INT64,
    "f64": gguf.GGUFValueType.FLOAT64,
}

Keys = Mapping[str, "tuple[str, Any] | None"]
Tensors = Mapping[str, "NDArray[Any] | None"]


def rewrite(source: Path, path: Path, keys: Keys | None = None, tensors: Tensors | None = None) -> Path:
    """Copy ``source`` to ``path``.

    ``keys``: new values as (type, value), e.g. ``("u32", 4)`` or ``("arr[i32]", [1, 2])``; None removes the key.
    ``tensors``: new contents (float32 or float16, NumPy order of dims); None removes the tensor.
    """
    file = GGUFFile.open(source)
    metadata: dict[str, tuple[str, Any] | None] = {k: (v.type, _plain(v.value)) for k, v in file.metadata.items()}
    metadata |= keys or {}
    announced = metadata.pop("general.architecture")
    writer = gguf.GGUFWriter(str(path), "", use_temp_file=False)
    writer.kv_data[0].clear()
    for key, entry in {"general.architecture": announced, **metadata}.items():
        if entry is not None:
            _add(writer, key, *entry)
    changed = dict(tensors or {})
    for name, info in file.tensors.items():
        if name in changed:
            continue
        kind = gguf.GGMLQuantizationType(info.type.id)
        rows = info.data().reshape(*info.ne[:0:-1], -1)
        plain = info.type.numpy_dtype
        if plain is not None:
            writer.add_tensor(name, rows.view(plain))
        else:
            writer.add_tensor(name, rows, raw_dtype=kind)
    for name, array in changed.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, kind: str, value: Any) -> None:
    if kind.startswith("arr["):
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, _TYPES[kind[4:-1]])
    else:
        writer.add_key_value(key, value, _TYPES[kind])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, StringArray) else value.tolist() if isinstance(value, np.ndarray) else value
