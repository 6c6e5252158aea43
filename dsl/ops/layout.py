"""What ggml knows of a view's memory: strides, and the questions that its kernels ask of them.

All strides are in elements of the tensor (ggml's ``nb`` divided by the element size). The rules are those of
``ggml_is_contiguous``, ``ggml_is_contiguous_1`` and ``ggml_is_padded_1d``; dims that are only equal by value, not
by name, do not count as equal, so that an answer holds for every batch and every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..expr import Sym, lift, same
from ..ir import CONTIGUOUS, Layout, Value
from ..op import Op

Four = tuple[Sym, Sym, Sym, Sym]


@dataclass(frozen=True)
class Strided(Layout):
    """The layout of a view, with the stride of each of the four dims."""

    strides: tuple[Sym, ...] = field(default=(), compare=False)


def natural(ne: Sequence[Sym], first: Sequence[Sym] = ()) -> Four:
    """Strides of packed memory; ``first`` are given ones, from which the rest follow."""
    out = list(first) or [lift(1)]
    while len(out) < 4:
        out.append(out[-1] * ne[len(out) - 1])
    return out[0], out[1], out[2], out[3]


def strides(value: Value) -> Four | None:
    """The strides of a value; None where its layout does not tell."""
    layout = value.layout
    if isinstance(layout, Strided):
        a, b, c, d = layout.strides
        return a, b, c, d
    return natural(value.ne) if layout.contiguous else None


def view_layout(ne: Sequence[Sym], st: Four | None, rows: bool) -> Layout:
    """The layout of a view with these dims and strides; ``rows`` is the answer where strides are unknown."""
    if st is None:
        return Layout(False, rows)
    packed = natural(ne)
    if all(same(a, b) for a, b in zip(st, packed, strict=True)):
        return CONTIGUOUS
    contiguous = all(same(n, 1) or same(a, b) for n, a, b in zip(ne, st, packed, strict=True))
    return Strided(contiguous, same(st[0], 1), st)


def is_packed(value: Value) -> bool:
    """Contiguous, and even dims of length 1 have the stride of packed memory."""
    st = strides(value)
    if st is None or not value.layout.contiguous:
        return False
    return all(same(a, b) for a, b in zip(st, natural(value.ne, st[:2]), strict=True)) and same(st[0], 1)


def has_even_rows(value: Value) -> bool:
    """Whether all rows, over all outer dims, lie at one distance from each other (``ggml_is_contiguous_1``)."""
    st = strides(value)
    if st is None:
        return False
    ne = value.ne
    if not same(ne[0], 1) and not same(st[0], 1):
        return False
    return all(same(ne[i], 1) or same(st[i], st[1] * ne[1] * (ne[2] if i == 3 else 1)) for i in (2, 3))


def need_packed(op: Op, value: Value) -> None:
    if not is_packed(value):
        op.fail("operand is not contiguous in memory", value, hint="wrap it in cont()")


def need_even_rows(op: Op, value: Value) -> None:
    if not has_even_rows(value) or not value.layout.rows:
        op.fail("rows of the operand do not lie at one distance in memory", value, hint="wrap it in cont()")
