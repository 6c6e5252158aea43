"""Model files made up in memory: any architecture, any sizes, random weights; written as a GGUF where one is needed."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from draftsmith.canonical import CanonicalValue, canonical_file
from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import declared_tensors, read_keys
from draftsmith.dsl.binding import bound
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.expr import Scope
from draftsmith.dsl.specs import Tensor

from .gguf_rewrite import _add

_KINDS = {bool: "bool", int: "u32", float: "f32", str: "str"}


@dataclass(frozen=True)
class FakeTensor:
    """A tensor whose random data depends on its name only."""

    name: str
    ne: tuple[int, ...]
    type: GGMLType
    n_ids: int = 0

    def data(self) -> NDArray[np.uint8]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        shape = self.ne[::-1]
        if self.type is GGMLType.i64:  # a map of ids: all different
            return np.sort(rng.permutation(self.n_ids)[: self.ne[0]]).astype("<i8").view(np.uint8)
        if self.type is GGMLType.nvfp4:
            return _nvfp4(rng, int(np.prod(shape)) // 64)
        matrix = len(self.ne) > 1
        values = rng.standard_normal(shape) / np.sqrt(self.ne[0]) if matrix else rng.uniform(0.6, 1.4, shape)
        if self.type.numpy_dtype is not None:
            return values.astype(self.type.numpy_dtype).reshape(-1).view(np.uint8)
        quantised = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType(self.type.id))
        return quantised.reshape(-1).view(np.uint8)


def _nvfp4(rng: np.random.Generator, n_blocks: int) -> NDArray[np.uint8]:
    """Blocks of 4 scales between 2^-6 and 2^-3, and 32 bytes of codes."""
    scales = rng.integers(1 << 3, 4 << 3, (n_blocks, 4), dtype=np.uint8)
    codes = rng.integers(0, 256, (n_blocks, 32), dtype=np.uint8)
    return np.concatenate([scales, codes], axis=1).reshape(-1)


@dataclass(frozen=True)
class FakeFile:
    """What binding needs of a file."""

    path: Path
    metadata: dict[str, CanonicalValue]
    tensors: dict[str, FakeTensor]

    def write(self, path: Path) -> Path:
        """The same as a GGUF."""
        writer = gguf.GGUFWriter(str(path), "", use_temp_file=False)
        writer.kv_data[0].clear()
        for key, value in self.metadata.items():
            _add(writer, key, value.type, value.value)
        for tensor in self.tensors.values():
            rows = tensor.data()
            if tensor.type.numpy_dtype is not None:
                writer.add_tensor(tensor.name, rows.view(tensor.type.numpy_dtype).reshape(tensor.ne[::-1]))
            else:
                kind = gguf.GGMLQuantizationType(tensor.type.id)
                writer.add_tensor(tensor.name, rows.reshape(*tensor.ne[:0:-1], -1), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@dataclass(frozen=True)
class Recipe:
    """How a file differs from the canonical one.

    ``keys``: metadata by name, ``{arch}`` stands for the architecture's; a list of bools is a per-layer key.
    ``sizes``: hparams that only a tensor tells. ``optional``: fields (of the model or of a layer) that are there;
    ``only_layers`` limits layer fields to some layers. ``scales``: whether every matrix that may have a scale has one.
    ``types``: element types of matrices by field, "" for all others.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    optional: Collection[str] = ()
    only_layers: Mapping[str, Collection[int]] = field(default_factory=dict)
    scales: bool = False
    types: Mapping[str, GGMLType] = field(default_factory=dict)


def make_file(cls: type[Architecture], recipe: Recipe | None = None, more: Mapping[str, Any] | None = None) -> FakeFile:
    """A file of an architecture; ``more`` are further keys."""
    recipe = recipe or Recipe()
    metadata = dict(canonical_file(cls).metadata)
    for key, value in {**recipe.keys, **(more or {})}.items():
        metadata[key.format(arch=cls.gguf_arch)] = _stored(value)
    path = Path(f"<{cls.variant}>")
    values = read_keys(cls, FakeFile(path, metadata, {}), [])
    for name in ("n_markov", *recipe.sizes):
        values[Scope.HPARAM.value, name] = recipe.sizes.get(name, 32)
    tensors: dict[str, FakeTensor] = {}
    with bound(values):
        n_layer = int(values[Scope.HPARAM.value, "n_layer"])
        for spec, name, ne in declared_tensors(cls, n_layer):
            if _present(cls, spec, name, recipe):
                tensors[name] = FakeTensor(name, ne, _type(spec, recipe), int(values[Scope.HPARAM.value, "n_vocab"]))
                if spec.scaled and recipe.scales:
                    scale = f"{name.removesuffix('.weight')}.scale"
                    tensors[scale] = FakeTensor(scale, (1,), GGMLType.f32)
    return FakeFile(path, metadata, tensors)


def _stored(value: Any) -> CanonicalValue:
    if isinstance(value, Sequence) and not isinstance(value, str):
        kind = "bool" if value and isinstance(value[0], bool) else "i32"
        return CanonicalValue(f"arr[{kind}]", list(value))
    return CanonicalValue(_KINDS[type(value)], value)


def _present(cls: type[Architecture], spec: Tensor, name: str, recipe: Recipe) -> bool:
    layers = recipe.only_layers.get(spec.name)
    if layers is not None:
        return any(name.startswith(f"blk.{il}.") for il in layers)
    return not spec.optional or spec.name in recipe.optional or name in cls.requires


def _type(spec: Tensor, recipe: Recipe) -> GGMLType:
    if GGMLType.f32 not in spec.types:
        return spec.types[0]
    if len(spec.types) == 1:
        return GGMLType.f32
    return recipe.types.get(spec.name) or recipe.types.get("", GGMLType.f32)
