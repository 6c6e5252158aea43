"""Tensors from nothing but numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import Const, Sym, SymLike, lift
from ..ir import Value
from ..op import F16, F32, Cost, Op, Result, nbytes, op
from ..round import round_to
from .arrays import np_shape
from .cost import Moving
from .layout import need_packed


class Created(Op):
    """Only the result is written."""

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost(0.0, nbytes(result))


@op
class fill(Moving):
    """A tensor of the shape and type of ``a`` (f32 or f16), filled with ``c``; the values of ``a`` do not matter."""

    operands = ("a",)
    attrs = {"c": ...}
    ggml = "ggml_fill"

    def infer(self, a: Value, c: SymLike) -> Result:
        self.need_dtype(a, F32, F16)
        need_packed(self, a)
        return Result(a.shape, a.dtype)

    def numpy(self, a: Any, c: Any) -> Any:
        return np.full_like(a, float(c))

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost(0.0, nbytes(result))


@op
class _full(Created):
    """A new tensor of shape ``dims`` and type f32 or f16, filled with ``value``."""

    name = "full"
    attrs = {"dims": ..., "value": ..., "dtype": F32}
    ggml = "ggml_fill"
    extra_ggml = ("ggml_new_tensor_1d", "ggml_new_tensor_2d", "ggml_new_tensor_3d", "ggml_new_tensor_4d")
    n_tensors = 2

    def infer(self, dims: Sequence[SymLike], value: SymLike, dtype: GGMLType) -> Result:
        if dtype not in (F32, F16):
            self.fail(f"only f32 and f16 tensors can be filled, found {dtype.name}")
        if not 1 <= len(dims) <= 4:
            self.fail(f"a tensor has 1 to 4 dims, found {len(dims)}")
        new = [lift(d) for d in dims]
        if any(int(d) < 1 for d in new):
            self.fail(f"dims must be positive, found [{', '.join(str(d) for d in new)}]")
        return Result(new, dtype)

    def numpy(self, dims: Sequence[Any], value: Any, dtype: GGMLType) -> Any:
        return round_to(np.full(np_shape(dims), float(value), dtype=np.float32), dtype)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        dims, dtype = node.attrs["dims"], node.attrs["dtype"]
        new = f"ggml_new_tensor_{len(dims)}d(ctx, {dtype.c_name}, {attrs['dims']})"
        return f"ggml_fill(ctx, {new}, {attrs['value']})"


def full(dims: Sequence[SymLike], value: SymLike, dtype: GGMLType = F32) -> Value:
    """A new tensor of shape ``dims`` (ggml order), every element ``value``."""
    return _full.of(dims=tuple(dims), value=value, dtype=dtype)


@op
class arange(Created):
    """start, start + step, ... below ``stop``; f32 [ceil((stop - start)/step)]."""

    attrs = {"start": ..., "stop": ..., "step": 1}
    ggml = "ggml_arange"

    def infer(self, start: SymLike, stop: SymLike, step: SymLike) -> Result:
        if float(step) <= 0 or float(stop) <= float(start):
            self.fail(f"{start} to {stop} in steps of {step} holds no number: stop > start and step > 0 are needed")
        n = self.length(start, stop, step)
        if int(n) > 1 << 24:
            self.fail(f"{int(n)} numbers exceed what f32 counts exactly")
        return Result((n,))

    def length(self, start: SymLike, stop: SymLike, step: SymLike) -> Sym:
        parts = [lift(x) for x in (start, stop, step)]
        if all(isinstance(x, Const) for x in parts):
            span = np.float32(float(stop)) - np.float32(float(start))
            return lift(math.ceil(np.float32(span / np.float32(float(step)))))
        if any(x.is_float for x in parts):
            self.fail(f"{start}, {stop} and {step} must be whole numbers where one of them is not constant")
        return (parts[1] - parts[0] + (parts[2] - 1)) // parts[2]

    def numpy(self, start: Any, stop: Any, step: Any) -> Any:
        n = int(self.length(start, stop, step))
        return np.float32(float(start)) + np.float32(float(step)) * np.arange(n, dtype=np.float32)
