"""Views: ops that only change how memory is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..expr import Sym, SymLike, lift, product
from ..ir import Value, nelements
from ..op import Op, Result, op
from .arrays import np_shape, to_rank
from .layout import Four, natural, strides, view_layout


@op
class _reshape(Op):
    """View with another shape of as many elements; needs a contiguous operand."""

    name = "reshape"
    operands = ("a",)
    attrs = {"dims": ...}
    ggml = "ggml_reshape_1d"
    is_view = True
    extra_ggml = ("ggml_reshape_2d", "ggml_reshape_3d", "ggml_reshape_4d")

    def infer(self, a: Value, dims: Sequence[SymLike]) -> Result:
        self.need_contiguous(a)
        if not 1 <= len(dims) <= 4:
            self.fail(f"a tensor has 1 to 4 dims, found {len(dims)}", a)
        new = [lift(d) for d in dims]
        self.need_same(nelements(a), product(new), "element counts differ", a)
        if int(new[0]) % a.dtype.block_size:
            self.fail(f"rows of {new[0]} do not fill whole {a.dtype.name} blocks of {a.dtype.block_size}", a)
        return Result(new, a.dtype)

    def numpy(self, a: Any, dims: Sequence[Any]) -> Any:
        return a.reshape(np_shape(dims))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        dims = attrs["dims"]
        return f"ggml_reshape_{len(node.attrs['dims'])}d(ctx, {args[0]}, {dims})"


def reshape(a: Value, *dims: SymLike) -> Value:
    """``a`` with shape ``dims`` (ggml order)."""
    return _reshape.of(a, dims=tuple(dims))


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
        ne, st = _moved(a.ne, axes), strides(a)
        layout = view_layout(ne, None if st is None else _moved(st, axes), a.layout.rows and axes[0] == 0)
        return Result(ne[: self.rank(len(a.shape), axes)], a.dtype, layout)

    def rank(self, before: int, axes: Sequence[int]) -> int:
        """The result ends where the operand's last dim went; dims behind are 1."""
        return max(axes[:before]) + 1

    def numpy(self, a: Any, axes: Sequence[int]) -> Any:
        full = to_rank(a, 4)
        order = [0] * 4
        for source, target in enumerate(axes):
            order[3 - target] = 3 - source
        return to_rank(full.transpose(order), self.rank(a.ndim, axes))


def _moved(dims: Four, axes: Sequence[int]) -> Four:
    new: list[Sym] = list(dims)
    for source, target in enumerate(axes):
        new[target] = dims[source]
    return new[0], new[1], new[2], new[3]


def permute(a: Value, *axes: int) -> Value:
    """ggml_permute: where each dimension goes."""
    return _permute.of(a, axes=tuple(axes))


@op
class transpose(Op):
    """Swap dims 0 and 1 (a view)."""

    operands = ("a",)
    ggml = "ggml_transpose"
    is_view = True

    def infer(self, a: Value) -> Result:
        ne, st = _moved(a.ne, (1, 0, 2, 3)), strides(a)
        layout = view_layout(ne, None if st is None else _moved(st, (1, 0, 2, 3)), False)
        return Result(ne[: max(2, len(a.shape))], a.dtype, layout)

    def numpy(self, a: Any) -> Any:
        return to_rank(a, max(2, a.ndim)).swapaxes(-1, -2)


def _sum(start: str, stride: str) -> str:
    factor = start if start.isidentifier() or start.isdigit() else f"({start})"
    return "0" if start == "0" else f"{factor}*{stride}"


class Window(Op):
    """Part of a tensor, by offset and the strides of the whole."""

    operands = ("a",)
    ggml = "ggml_view_1d"
    extra_ggml = ("ggml_view_2d", "ggml_view_3d", "ggml_view_4d", "ggml_row_size")
    is_view = True

    def check(self, a: Value, axis: int, start: SymLike, length: SymLike) -> None:
        if not 0 <= axis < len(a.shape):
            self.fail(f"axis {axis} is not one of the {len(a.shape)} dims", a)
        if int(start) < 0 or int(length) < 1 or int(start) + int(length) > int(a.shape[axis]):
            self.fail(f"entries {start}..{start}+{length} lie outside dim {axis} = {a.shape[axis]}", a)
        self.need_rows(a)


@op
class _slice(Window):
    """A view of ``length`` entries of one axis from ``start`` on."""

    name = "slice"
    attrs = {"axis": ..., "start": ..., "length": ...}

    def infer(self, a: Value, axis: int, start: SymLike, length: SymLike) -> Result:
        self.check(a, axis, start, length)
        if axis == 0 and (int(start) % a.dtype.block_size or int(length) % a.dtype.block_size):
            self.fail(f"a slice of dim 0 must cover whole {a.dtype.name} blocks of {a.dtype.block_size}", a)
        ne, st, rank = list(a.ne), strides(a), len(a.shape)
        ne[axis] = lift(length)
        layout = view_layout(ne, None if st is None else natural(ne, st[:rank]), True)
        return Result(ne[:rank], a.dtype, layout)

    def numpy(self, a: Any, axis: int, start: Any, length: Any) -> Any:
        index = [slice(None)] * a.ndim
        index[a.ndim - 1 - axis] = slice(int(start), int(start) + int(length))
        return a[tuple(index)]

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        a, rank, axis = args[0], len(node.operands[0].shape), node.attrs["axis"]
        ne = [f"{a}->ne[{i}]" for i in range(rank)]
        ne[axis] = attrs["length"]
        given = [f"{a}->nb[{i}]" for i in range(1, rank)]
        start = attrs["start"]
        offset = _sum(start, f"{a}->nb[{axis}]")
        if axis == 0 and start != "0":
            offset = f"ggml_row_size({a}->type, {start})"
        return f"ggml_view_{rank}d(ctx, {', '.join([a, *ne, *given, offset])})"


def slice_(a: Value, axis: int, start: SymLike, length: SymLike) -> Value:
    """``length`` entries of dimension ``axis`` of ``a``, beginning at ``start``."""
    return _slice.of(a, axis=axis, start=start, length=length)


def first_rows(a: Value, n: SymLike) -> Value:
    """The first ``n`` rows of a matrix (cells of a cache)."""
    return slice_(a, 1, 0, n)


@op
class _select(Window):
    """A view of entry ``index`` of one axis, which disappears from the shape."""

    name = "select"
    attrs = {"axis": ..., "index": ...}

    def infer(self, a: Value, axis: int, index: SymLike) -> Result:
        if axis == 0:
            self.fail("dim 0 cannot be dropped: its entries do not lie in one row", a, hint="slice_() keeps the dim")
        self.check(a, axis, index, 1)
        st, rank = strides(a), len(a.shape) - 1
        ne = [n for i, n in enumerate(a.ne) if i != axis] + [lift(1)]
        kept = None if st is None else natural(ne, [s for i, s in enumerate(st) if i != axis][:rank])
        return Result(ne[:rank], a.dtype, view_layout(ne, kept, True))

    def numpy(self, a: Any, axis: int, index: Any) -> Any:
        return a[(slice(None),) * (a.ndim - 1 - axis) + (int(index),)]

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        a, rank, axis = args[0], len(node.operands[0].shape), node.attrs["axis"]
        kept = [i for i in range(rank) if i != axis]
        ne, given = [f"{a}->ne[{i}]" for i in kept], [f"{a}->nb[{i}]" for i in kept[1:]]
        offset = _sum(attrs["index"], f"{a}->nb[{axis}]")
        return f"ggml_view_{rank - 1}d(ctx, {', '.join([a, *ne, *given, offset])})"


def select(a: Value, axis: int, index: SymLike) -> Value:
    """Entry ``index`` of dimension ``axis`` (1 or more) of ``a``, without that dimension."""
    return _select.of(a, axis=axis, index=index)
