"""Ops that only change how a tensor is seen, and those that copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import Sym, SymLike, lift, product, same
from ..ir import CONTIGUOUS, Layout, Value, nelements
from ..op import Op, Result, op
from ..round import round_to


def np_shape(dims: Sequence[Any]) -> tuple[int, ...]:
    """A ggml shape as a NumPy shape."""
    return tuple(int(d) for d in reversed(dims))


@op
class _reshape(Op):
    """View with another shape of as many elements; needs a contiguous operand."""

    name = "reshape"
    operands = ("a",)
    attrs = {"dims": ...}
    ggml = "ggml_reshape"
    is_view = True
    extra_ggml = ("ggml_reshape_1d", "ggml_reshape_2d", "ggml_reshape_3d", "ggml_reshape_4d")

    def infer(self, a: Value, dims: Sequence[SymLike]) -> Result:
        self.need_contiguous(a)
        new = [lift(d) for d in dims]
        self.need_same(nelements(a), product(new), "element counts differ", a)
        return Result(new, a.dtype)

    def numpy(self, a: Any, dims: Sequence[Any]) -> Any:
        return a.reshape(np_shape(dims))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        dims = attrs["dims"]
        return f"ggml_reshape_{len(node.attrs['dims'])}d(ctx, {args[0]}, {dims})"


def reshape(a: Value, *dims: SymLike) -> Value:
    """``a`` with shape ``dims`` (ggml order)."""
    return _reshape(a, dims=tuple(dims))


@op
class _permute(Op):
    """Reorder dims: dimension i of the operand becomes dimension ``axes[i]`` of the result (ggml_permute)."""

    name = "permute"
    operands = ("a",)
    attrs = {"axes": ...}
    ggml = "ggml_permute"
    is_view = True

    def infer(self, a: Value, axes: Sequence[int]) -> Result:
        if sorted(axes) != [0, 1, 2, 3]:
            self.fail(f"axes must be an order of 0, 1, 2, 3, found {tuple(axes)}", a)
        new: list[Sym] = [lift(1)] * 4
        for source, target in enumerate(axes):
            new[target] = a.ne[source]
        moved = [t for s, t in enumerate(axes) if not same(a.ne[s], 1)]
        in_order = moved == sorted(moved)
        return Result(new, a.dtype, Layout(a.layout.contiguous and in_order, a.layout.rows and axes[0] == 0))

    def numpy(self, a: Any, axes: Sequence[int]) -> Any:
        full = a.reshape((1,) * (4 - a.ndim) + a.shape)
        order = [0] * 4
        for source, target in enumerate(axes):
            order[3 - target] = 3 - source
        return full.transpose(order)


def permute(a: Value, *axes: int) -> Value:
    """ggml_permute: where each dimension goes."""
    return _permute(a, axes=tuple(axes))


@op
class transpose(Op):
    """Swap dims 0 and 1 (a view)."""

    operands = ("a",)
    ggml = "ggml_transpose"
    is_view = True

    def infer(self, a: Value) -> Result:
        shape = list(a.shape) if len(a.shape) > 1 else [*a.shape, lift(1)]
        shape[0], shape[1] = shape[1], shape[0]
        return Result(shape, a.dtype, Layout(False, False))

    def numpy(self, a: Any) -> Any:
        full = a if a.ndim > 1 else a.reshape(1, -1)
        return full.swapaxes(-1, -2)


@op
class _cont(Op):
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
        new = [lift(d) for d in dims]
        self.need_same(nelements(a), product(new), "element counts differ", a)
        return Result(new, a.dtype)

    def numpy(self, a: Any, dims: Sequence[Any] | None) -> Any:
        return np.ascontiguousarray(a) if dims is None else np.ascontiguousarray(a).reshape(np_shape(dims))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        dims = node.attrs["dims"]
        return f"ggml_cont(ctx, {args[0]})" if dims is None else f"ggml_cont_{len(dims)}d(ctx, {args[0]}, {attrs['dims']})"


def cont(a: Value, *dims: SymLike) -> Value:
    """A contiguous copy of ``a``; with ``dims``, of that shape."""
    return _cont(a, dims=tuple(dims) or None)


@op
class _slice(Op):
    """A view of ``length`` entries of one axis from ``start`` on."""

    name = "slice"
    operands = ("a",)
    attrs = {"axis": ..., "start": ..., "length": ...}
    ggml = "ggml_view"
    is_view = True
    extra_ggml = ("ggml_view_1d", "ggml_view_2d", "ggml_view_3d", "ggml_view_4d")

    def infer(self, a: Value, axis: int, start: SymLike, length: SymLike) -> Result:
        if not 0 <= axis < len(a.shape):
            self.fail(f"axis {axis} is not one of the {len(a.shape)} dims", a)
        if int(start) < 0 or int(length) < 1 or int(start) + int(length) > int(a.shape[axis]):
            self.fail(f"entries {start}..{start}+{length} lie outside dim {axis} = {a.shape[axis]}", a)
        if axis == 0 and (int(start) % a.dtype.block_size or int(length) % a.dtype.block_size):
            self.fail(f"a slice of dim 0 must cover whole {a.dtype.name} blocks of {a.dtype.block_size}", a)
        shape = [*a.shape]
        shape[axis] = lift(length)
        outermost = all(same(d, 1) for d in a.shape[axis + 1 :])
        whole = same(length, a.shape[axis])
        return Result(shape, a.dtype, Layout(a.layout.contiguous and (outermost or whole), a.layout.rows))

    def numpy(self, a: Any, axis: int, start: Any, length: Any) -> Any:
        index = [slice(None)] * a.ndim
        index[a.ndim - 1 - axis] = slice(int(start), int(start) + int(length))
        return a[tuple(index)]

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        a, rank, axis = args[0], len(node.operands[0].shape), node.attrs["axis"]
        ne = [f"{a}->ne[{i}]" for i in range(rank)]
        ne[axis] = attrs["length"]
        strides = [f"{a}->nb[{i}]" for i in range(1, rank)]
        start = attrs["start"]
        factor = start if start.isidentifier() or start.isdigit() else f"({start})"
        stride = f"ggml_row_size({a}->type, {start})" if axis == 0 else f"{factor}*{a}->nb[{axis}]"
        return f"ggml_view_{rank}d(ctx, {', '.join([a, *ne, *strides, '0' if start == '0' else stride])})"


def slice_(a: Value, axis: int, start: SymLike, length: SymLike) -> Value:
    """``length`` entries of dimension ``axis`` of ``a``, beginning at ``start``."""
    return _slice(a, axis=axis, start=start, length=length)


def first_rows(a: Value, n: SymLike) -> Value:
    """The first ``n`` rows of a matrix (cells of a cache)."""
    return slice_(a, 1, 0, n)


@op
class concat(Op):
    """Join two tensors along ``axis``."""

    operands = ("a", "b")
    attrs = {"axis": 0}
    ggml = "ggml_concat"

    def infer(self, a: Value, b: Value, axis: int) -> Result:
        if a.dtype is not b.dtype:
            self.fail("element types differ", a, b)
        for i in range(4):
            if i != axis:
                self.need_same(a.ne[i], b.ne[i], f"dim {i} differs", a, b)
        rank = max(len(a.shape), len(b.shape), axis + 1)
        shape = [*a.ne[:rank]]
        shape[axis] = a.ne[axis] + b.ne[axis]
        return Result(shape, a.dtype)

    def numpy(self, a: Any, b: Any, axis: int) -> Any:
        rank = max(a.ndim, b.ndim, axis + 1)
        a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
        return np.concatenate([a, b], axis=rank - 1 - axis)


@op
class repeat(Op):
    """Tile ``a`` to the shape of ``like``."""

    operands = ("a", "like")
    ggml = "ggml_repeat"

    def infer(self, a: Value, like: Value) -> Result:
        self.need_repeats(a, like)
        return Result(like.shape, a.dtype)

    def numpy(self, a: Any, like: Any) -> Any:
        from ..op import tile

        return tile(a, like.shape)


@op
class cast(Op):
    """Copy with another element type."""

    operands = ("a",)
    attrs = {"dtype": ...}
    ggml = "ggml_cast"

    def infer(self, a: Value, dtype: GGMLType) -> Result:
        self.need_rows(a)
        if int(a.ne[0]) % dtype.block_size:
            self.fail(f"rows of {a.ne[0]} do not fill whole {dtype.name} blocks of {dtype.block_size}", a)
        return Result(a.shape, dtype, CONTIGUOUS)

    def numpy(self, a: Any, dtype: GGMLType) -> Any:
        return round_to(a, dtype)
