"""Looking up and storing rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import same
from ..ir import CONTIGUOUS, Kind, Value
from ..op import F16, F32, I32, I64, Cost, Op, Result, nbytes, op
from ..round import round_to


@op
class get_rows(Op):
    """Rows of ``a`` [width, n, ...] at ``ids`` i32 [m, ...]; f32 [width, m, ...] (i32 stays i32)."""

    operands = ("a", "ids")
    ggml = "ggml_get_rows"

    def infer(self, a: Value, ids: Value) -> Result:
        self.need_dtype(ids, I32)
        self.need_same(a.ne[2], ids.ne[1], "dim 2 of the table differs from dim 1 of the ids", a, ids)
        self.need_rows(a)
        return Result((a.ne[0], *ids.shape), I32 if a.dtype is I32 else F32)

    def numpy(self, a: Any, ids: Any) -> Any:
        if ids.ndim == 1:
            return a.reshape(-1, a.shape[-1])[ids]
        lead = np.indices(ids.shape[:-1])
        index = tuple(axis[..., None] for axis in lead)
        return a[(*index, ids)]

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost(0.0, 2 * nbytes(result))


@op
class set_rows(Op):
    """Store rows of ``b`` f32 [width, n] at ``ids`` i64 [n] of ``a``, converting to a's type; gives ``a`` after the write."""

    operands = ("a", "b", "ids")
    ggml = "ggml_set_rows"

    def infer(self, a: Value, b: Value, ids: Value) -> Result:
        self.need_dtype(b, F32, F16)
        self.need_dtype(ids, I64, I32)
        self.need_same(a.ne[0], b.ne[0], "row widths differ", a, b)
        self.need_same(b.ne[1], ids.ne[0], "as many ids as rows are needed", b, ids)
        if not same(b.ne[2], a.ne[2]) or not same(b.ne[3], a.ne[3]):
            self.fail("outer dims differ", a, b)
        self.need_rows(b)
        return Result(a.shape, a.dtype, CONTIGUOUS)

    def numpy(self, a: Any, b: Any, ids: Any) -> Any:
        raise NotImplementedError  # the interpreter calls numpy_typed: rounding depends on a's element type

    def numpy_typed(self, a: Any, b: Any, ids: Any, dtype: Any) -> Any:
        out = a.copy()
        rows = round_to(b, dtype)
        if ids.ndim == 1 and rows.ndim == 2:
            out[ids] = rows
            return out
        for index in np.ndindex(rows.shape[:-2]):
            where = tuple(i % s for i, s in zip(index, ids.shape[:-1], strict=False)) if ids.ndim > 1 else ()
            out[(*index, ids[where])] = rows[index]
        return out

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        b = operands[1]
        assert b is not None
        return Cost(0.0, 2 * nbytes(b))


@op
class _store(Op):
    """Write rows to state: set_rows on a state tensor. Its result is the state after the write."""

    name = "store"
    operands = ("state", "rows", "cells")
    ggml = "ggml_set_rows"
    writes_state = True

    def infer(self, state: Value, rows: Value, cells: Value) -> Result:
        if state.kind is Kind.NODE and not (state.node is not None and getattr(state.node, "op", None) is self):
            self.fail("only state can be written", state)
        self.need_dtype(rows, F32, F16)
        self.need_dtype(cells, I64)
        self.need_same(state.ne[0], rows.ne[0], "row widths differ", state, rows)
        self.need_same(rows.ne[1], cells.ne[0], "as many cells as rows are needed", rows, cells)
        self.need_rows(rows)
        return Result(state.shape, state.dtype, CONTIGUOUS)

    def numpy_typed(self, a: Any, b: Any, ids: Any, dtype: Any) -> Any:
        out = a.copy()
        out[ids] = round_to(b, dtype)
        return out

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"b.g.write(ggml_set_rows(ctx, {', '.join(args)}))"

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        rows = operands[1]
        assert rows is not None
        return Cost(0.0, 2 * nbytes(rows))


def store(state: Value, rows: Value, cells: Value) -> Value:
    """Write ``rows`` [width, n] to ``cells`` i64 [n] of a state tensor; reads must use what this returns."""
    return _store(state, rows, cells)


@op
class _tap(Op):
    """Offer a value to the caller by name and layer; no result."""

    name = "tap"
    operands = ("a",)
    attrs = {"name": ..., "il": ...}
    ggml = ""
    n_tensors = 0
    writes_state = True  # never dead
    has_result = False

    def infer(self, a: Value, name: str, il: Any) -> Result:
        return Result(a.shape, a.dtype, a.layout)

    def numpy(self, a: Any, name: str, il: Any) -> Any:
        return a

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"b.g.tap({attrs['name']}, {attrs['il']}, {args[0]})"

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost(0.0, 0.0)


def tap(a: Value, name: str, il: Any) -> Value:
    return _tap(a, name=name, il=il)
