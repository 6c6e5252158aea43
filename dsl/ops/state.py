"""What outlives a graph: writes to state, and values offered to the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..expr import same
from ..ir import CONTIGUOUS, Apply, Call, Kind, Value
from ..op import I64, Cost, Op, Result, op
from .rows import need_rows_to_write, write_rows, writing_cost


def _is_state(value: Value) -> bool:
    """State itself, state after a write, or what a block was given or gave back as such."""
    if value.kind is not Kind.NODE:
        return value.kind in (Kind.STATE, Kind.PARAM)
    node = value.node
    if isinstance(node, Call):
        return any(r is value and _is_state(inner) for r, inner in zip(node.results, node.body.results, strict=True))
    return isinstance(node, Apply) and node.op.writes_state and node.op.has_result


@op
class _store(Op):
    """Write ``rows`` [width, n] to ``cells`` i64 [n] of a state tensor [width, n_cells]; gives the state afterwards."""

    name = "store"
    operands = ("state", "rows", "cells")
    ggml = "ggml_set_rows"
    writes_state = True

    def infer(self, state: Value, rows: Value, cells: Value) -> Result:
        if not _is_state(state):
            self.fail("only state can be written", state, rows)
        self.need_dtype(cells, I64)
        need_rows_to_write(self, state, rows, cells)
        if not same(state.ne[2], 1) or not same(state.ne[3], 1):
            self.fail("a state tensor has at most 2 dims", state, rows)
        return Result(state.shape, state.dtype, CONTIGUOUS)

    def numpy_typed(self, a: Any, b: Any, ids: Any, dtype: Any) -> Any:
        return write_rows(a, b, ids, dtype)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"b.g.write(ggml_set_rows(ctx, {', '.join(args)}))"

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return writing_cost(operands[1], operands[2])


def store(state: Value, rows: Value, cells: Value) -> Value:
    """Write ``rows`` [width, n] to ``cells`` i64 [n] of a state tensor; reads must use what this returns."""
    return _store.of(state, rows, cells)


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
    """Offer ``a`` to the caller under a name and layer."""
    return _tap.of(a, name=name, il=il)
