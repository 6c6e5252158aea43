"""Copies: of the same values, elsewhere, in another order, type or number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import SymLike, lift, product, same
from ..ir import Value, nelements
from ..op import F16, F32, I32, Result, op
from ..round import round_to
from .arrays import np_shape, tile_to, to_rank
from .cost import Moving
from .types import BF16, FLOATS, READABLE, WRITABLE, need_type


@op
class _cont(Moving):
    """A contiguous copy, optionally with another shape."""

    name = "cont"
    operands = ("a",)
    attrs = {"dims": None}
    ggml = "ggml_cont"
    extra_ggml = ("ggml_cont_1d", "ggml_cont_2d", "ggml_cont_3d", "ggml_cont_4d")

    def infer(self, a: Value, dims: Sequence[SymLike] | None) -> Result:
        if a.dtype.is_quantized and not a.layout.rows:
            self.fail("a transposed quantised tensor cannot be copied", a, hint="cast() it to f32 first")
        if dims is None:
            return Result(a.shape, a.dtype)
        if a.dtype.is_quantized and not a.layout.contiguous:
            self.fail("a quantised view cannot be copied to another shape", a, hint="cont() first, then reshape()")
        if len(dims) > 4:
            self.fail(f"a tensor has at most 4 dims, found {len(dims)}", a)
        new = [lift(d) for d in dims]
        self.need_same(nelements(a), product(new), "element counts differ", a)
        if int(new[0]) % a.dtype.block_size:
            self.fail(f"rows of {new[0]} do not fill whole {a.dtype.name} blocks of {a.dtype.block_size}", a)
        return Result(new, a.dtype)

    def numpy(self, a: Any, dims: Sequence[Any] | None) -> Any:
        return np.ascontiguousarray(a) if dims is None else np.ascontiguousarray(a).reshape(np_shape(dims))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        dims = node.attrs["dims"]
        if dims is None:
            return f"ggml_cont(ctx, {args[0]})"
        return f"ggml_cont_{len(dims)}d(ctx, {args[0]}, {attrs['dims']})"


def cont(a: Value, *dims: SymLike) -> Value:
    """A contiguous copy of ``a``; with ``dims``, of that shape."""
    return _cont.of(a, dims=tuple(dims) or None)


@op
class concat(Moving):
    """Join two tensors of one type along ``axis``; the other dims are equal."""

    operands = ("a", "b")
    attrs = {"axis": 0}
    ggml = "ggml_concat"

    def infer(self, a: Value, b: Value, axis: int) -> Result:
        if not 0 <= axis < 4:
            self.fail(f"axis {axis} is not one of 0 to 3", a, b)
        if a.dtype is not b.dtype:
            self.fail("element types differ", a, b)
        for i in range(4):
            if i != axis:
                self.need_same(a.ne[i], b.ne[i], f"dim {i} differs", a, b)
        if a.dtype not in (*FLOATS, I32) and not (a.layout.rows and b.layout.rows):
            self.fail(f"an operand of type {a.dtype.name} is transposed in memory", a, b, hint="wrap it in cont()")
        rank = max(len(a.shape), len(b.shape), axis + 1)
        shape = [*a.ne[:rank]]
        shape[axis] = a.ne[axis] + b.ne[axis]
        return Result(shape, a.dtype)

    def numpy(self, a: Any, b: Any, axis: int) -> Any:
        rank = max(a.ndim, b.ndim, axis + 1)
        return np.concatenate([to_rank(a, rank), to_rank(b, rank)], axis=rank - 1 - axis)


class Tiling(Moving):
    """Whole copies side by side, along every dim."""

    def check(self, a: Value, *others: Value) -> None:
        need_type(self, a, (*FLOATS, GGMLType.i16, I32), "cannot be repeated", *others, hint="cast() it to f32")
        self.need_rows(a)


@op
class repeat(Tiling):
    """Tile ``a`` to the shape of ``like``."""

    operands = ("a", "like")
    ggml = "ggml_repeat"

    def infer(self, a: Value, like: Value) -> Result:
        self.check(a, like)
        self.need_repeats(a, like)
        rank = max(len(a.shape), len(like.shape))
        return Result(like.ne[:rank], a.dtype)

    def numpy(self, a: Any, like: Any) -> Any:
        rank = max(a.ndim, like.ndim)
        return tile_to(a, to_rank(like, rank).shape)


@op
class _repeat_4d(Tiling):
    """Tile ``a`` to the shape ``dims``."""

    name = "repeat_4d"
    operands = ("a",)
    attrs = {"dims": ...}
    ggml = "ggml_repeat_4d"

    def infer(self, a: Value, dims: Sequence[SymLike]) -> Result:
        self.check(a)
        if not len(a.shape) <= len(dims) <= 4:
            self.fail(f"{len(a.shape)} to 4 dims are needed, found {len(dims)}", a)
        new = [lift(d) for d in dims]
        for axis, (small, big) in enumerate(zip(a.shape, new, strict=False)):
            if not same(small, big) and not same(small, 1) and int(big) % int(small):
                self.fail(f"dim {axis} does not tile the wanted {big}", a)
        return Result(new, a.dtype)

    def numpy(self, a: Any, dims: Sequence[Any]) -> Any:
        return tile_to(a, np_shape(dims))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        ones = ", 1" * (4 - len(node.attrs["dims"]))
        return f"ggml_repeat_4d(ctx, {args[0]}, {attrs['dims']}{ones})"


def repeat_4d(a: Value, *dims: SymLike) -> Value:
    """``a`` tiled to ``dims``."""
    return _repeat_4d.of(a, dims=tuple(dims))


_CASTS = {F32: WRITABLE | {I32}, F16: WRITABLE, BF16: WRITABLE, I32: frozenset({F32, I32})}


@op
class cast(Moving):
    """Copy with another element type: floats to floats or quantised types, quantised to f32, f32 to i32 and back."""

    operands = ("a",)
    attrs = {"dtype": ...}
    ggml = "ggml_cast"

    def infer(self, a: Value, dtype: GGMLType) -> Result:
        targets = _CASTS.get(a.dtype, frozenset({a.dtype, F32} if a.dtype in READABLE else {a.dtype}))
        if dtype not in targets:
            self.fail(f"{a.dtype.name} cannot be converted to {dtype.name}", a)
        if a.dtype.is_quantized or dtype.is_quantized:
            self.need_rows(a)
        if int(a.ne[0]) % dtype.block_size:
            self.fail(f"rows of {a.ne[0]} do not fill whole {dtype.name} blocks of {dtype.block_size}", a)
        return Result(a.shape, dtype)

    def numpy(self, a: Any, dtype: GGMLType) -> Any:
        return round_to(a, dtype)
