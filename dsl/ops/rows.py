"""Looking up and storing rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import same
from ..ir import Kind, Value
from ..op import F16, F32, I32, I64, Cost, Op, Result, count, nbytes, op
from ..round import round_to
from .arrays import to_rank
from .types import READABLE, WRITABLE, need_type


@op
class get_rows(Op):
    """Rows of ``a`` [width, n, n2, n3] at ``ids`` i32 [m, n2, n3]; f32 [width, m, n2, n3] (i32 stays i32).

    Each of the n2*n3 tables has its own list of ids.
    """

    operands = ("a", "ids")
    ggml = "ggml_get_rows"

    def infer(self, a: Value, ids: Value) -> Result:
        self.need_dtype(ids, I32)
        need_type(self, a, READABLE | {I32}, "has no row lookup", ids)
        self.need_same(a.ne[2], ids.ne[1], "dim 2 of the table differs from dim 1 of the ids", a, ids)
        self.need_same(a.ne[3], ids.ne[2], "dim 3 of the table differs from dim 2 of the ids", a, ids)
        if not same(ids.ne[3], 1):
            self.fail("ids has at most 3 dims", a, ids)
        self.need_rows(a)
        return Result((a.ne[0], *ids.shape[:3]), I32 if a.dtype is I32 else F32)

    def numpy(self, a: Any, ids: Any) -> Any:
        ids = to_rank(ids, min(ids.ndim, 3))
        tables, lists = to_rank(a, 4), to_rank(ids, 3)
        found = np.take_along_axis(tables, lists[..., None], axis=2)
        return found.reshape(*ids.shape, a.shape[-1])

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        a, ids = operands
        assert a is not None and ids is not None
        read = count(result) / a.dtype.block_size * a.dtype.block_bytes
        return Cost(0.0, read + nbytes(ids) + nbytes(result))


def write_rows(a: Any, b: Any, ids: Any, dtype: Any) -> Any:
    """``a`` with rows ``b``, rounded to ``dtype``, at ``ids``; outer dims of ids repeat over those of b."""
    out = np.array(to_rank(a, 4))
    rows, lists = to_rank(round_to(b, dtype), 4), to_rank(ids, 3)
    for i3, i2 in np.ndindex(rows.shape[:2]):
        out[i3, i2, lists[i3 % lists.shape[0], i2 % lists.shape[1]]] = rows[i3, i2]
    return out.reshape(a.shape)


def need_rows_to_write(op: Op, a: Value, b: Value, ids: Value) -> None:
    """The rules of ggml_set_rows."""
    op.need_dtype(b, F32, F16)
    op.need_dtype(ids, I64, I32)
    need_type(op, a, WRITABLE | {I32}, "cannot be written", b)
    if b.dtype is F16 and a.dtype is not F16:  # ggml's CPU kernel then writes beyond its work buffer
        op.fail(f"f16 rows cannot be written to {a.dtype.name}", a, b, hint="cast() the rows to f32")
    op.need_same(a.ne[0], b.ne[0], "row widths differ", a, b)
    op.need_same(b.ne[1], ids.ne[0], "as many ids as rows are needed", b, ids)
    for axis in (2, 3):
        op.need_same(a.ne[axis], b.ne[axis], f"dim {axis} differs", a, b)
        if not same(ids.ne[axis - 1], 1) and int(b.ne[axis]) % int(ids.ne[axis - 1]):
            op.fail(f"dim {axis - 1} of the ids does not tile dim {axis} of the rows", b, ids)
    if not same(ids.ne[3], 1):
        op.fail("ids has at most 3 dims", b, ids)
    op.need_rows(a)
    op.need_rows(b)


def writing_cost(rows: Value | None, ids: Value | None) -> Cost:
    assert rows is not None and ids is not None
    return Cost(0.0, 2 * nbytes(rows) + nbytes(ids))


@op
class set_rows(Op):
    """Store rows of ``b`` f32 or f16 [width, m, n2, n3] at ``ids`` i64 or i32 [m, ...] of ``a`` [width, n, n2, n3].

    Rows are converted to a's type. Gives ``a`` after the write; the memory is that of ``a``, which must not be read any
    more. Outer dims of ``ids`` repeat over n2 and n3.
    """

    operands = ("a", "b", "ids")
    ggml = "ggml_set_rows"
    in_place = True

    def infer(self, a: Value, b: Value, ids: Value) -> Result:
        if a.kind in (Kind.WEIGHT, Kind.FEED, Kind.STATE):
            hint = "write state with store()" if a.kind is Kind.STATE else "write to a copy: cont()"
            self.fail(f"a {a.kind.value} cannot be written", a, b, hint=hint)
        need_rows_to_write(self, a, b, ids)
        return Result(a.shape, a.dtype, a.layout)

    def numpy(self, a: Any, b: Any, ids: Any) -> Any:
        raise NotImplementedError  # the interpreter calls numpy_typed: rounding depends on a's element type

    def numpy_typed(self, a: Any, b: Any, ids: Any, dtype: Any) -> Any:
        return write_rows(a, b, ids, dtype)

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return writing_cost(operands[1], operands[2])
