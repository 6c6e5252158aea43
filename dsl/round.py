"""Rounding through ggml's element types, for the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import GGMLType


def round_to(array: NDArray[Any], dtype: GGMLType) -> NDArray[Any]:
    """``array`` as it reads back after being stored as ``dtype``; the array's own type is kept for reals.

    Rows lie along the last axis. Integers and reals convert as C does.
    """
    if dtype is GGMLType.f32:
        return array if array.dtype == np.float64 else array.astype(np.float32)
    if dtype in (GGMLType.i32, GGMLType.i64):
        return array.astype(dtype.numpy_dtype)
    kind = array.dtype if array.dtype.kind == "f" else np.dtype(np.float32)
    if dtype is GGMLType.f16:
        return array.astype(np.float16).astype(kind)
    import gguf

    single = np.ascontiguousarray(array, dtype=np.float32)
    stored = gguf.GGMLQuantizationType[dtype.name.upper()]
    packed = gguf.quants.quantize(single.reshape(-1, single.shape[-1]), stored)
    back: NDArray[Any] = gguf.quants.dequantize(packed, stored).reshape(array.shape).astype(kind)
    return back
