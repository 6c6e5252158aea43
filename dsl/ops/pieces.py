"""Filling a tensor piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike
from ..ir import Kind, Value
from ..op import F32, I32, Cost, Op, Result, nbytes, op


@op
class put(Op):
    """``a`` with the entries from ``start`` of ``axis`` replaced by those of ``b``, in the memory of ``a``.

    A loop that makes one row at a time fills a tensor with it instead of joining ever longer ones. ``a`` must have been
    made for this (``cont``, ``full``): nothing may read it as it was. f32 or i32, contiguous; ``b`` has a's dims except
    ``axis``.
    """

    operands = ("a", "b")
    attrs = {"axis": ..., "start": ...}
    ggml = "ggml_set_inplace"
    in_place = True

    def infer(self, a: Value, b: Value, axis: int, start: SymLike) -> Result:
        if a.kind in (Kind.WEIGHT, Kind.FEED, Kind.STATE):
            self.fail(f"a {a.kind.value} cannot be written", a, b, hint="write to a copy: cont()")
        self.need_dtype(a, F32, I32)
        if a.dtype is not b.dtype:
            self.fail("element types differ", a, b)
        self.need_contiguous(a)
        self.need_rows(b)
        if not 0 <= axis < len(a.shape):
            self.fail(f"axis {axis} is not one of the {len(a.shape)} dims", a, b)
        for i in range(4):
            if i != axis:
                self.need_same(a.ne[i], b.ne[i], f"dim {i} differs", a, b)
        if int(start) < 0 or int(start) + int(b.ne[axis]) > int(a.ne[axis]):
            self.fail(f"entries from {start} on lie outside dim {axis}", a, b)
        if nbytes(a) >= 1 << 30:  # ggml keeps strides and offset in 32 bits
            self.fail("a tensor of 1 GiB or more cannot be filled piece by piece", a, b)
        return Result(a.shape, a.dtype)

    def numpy(self, a: Any, b: Any, axis: int, start: Any) -> Any:
        out = np.array(a)
        at = a.ndim - 1 - axis
        piece = b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
        index = [slice(None)] * a.ndim
        index[at] = slice(int(start), int(start) + piece.shape[at])
        out[tuple(index)] = piece
        return out

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        a, b = args
        start = attrs["start"]
        factor = start if start.isidentifier() or start.isdigit() else f"({start})"
        offset = "0" if start == "0" else f"{factor}*{a}->nb[{node.attrs['axis']}]"
        return f"ggml_set_inplace(ctx, {a}, {b}, {a}->nb[1], {a}->nb[2], {a}->nb[3], {offset})"

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        b = operands[1]
        assert b is not None
        return Cost(0.0, 2 * nbytes(b))
