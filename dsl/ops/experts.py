"""Mixture of experts: matrices and biases chosen by index, one choice a token and slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import same
from ..ir import Value
from ..op import F32, I32, Cost, Op, Result, count, nbytes, op
from .arrays import tile_to, to_rank
from .matmul import precision
from .types import READABLE, need_type


@op
class mul_mat_id(Op):
    """Expert ``ids[e, t]`` of ``experts`` [k, n, n_expert] times ``b`` [k, r, n_tokens]; f32 [n, n_used, n_tokens].

    ``ids`` i32 [n_used, n_tokens]. The r rows a token are used in turn: r is n_used, or 1 for one row that all its
    experts read. ``prec_f32`` asks for f32 accumulation, ``src_f32`` that ``b`` is not rounded below f32.
    """

    operands = ("experts", "b", "ids")
    attrs = {"prec_f32": False, "src_f32": False}
    ggml = "ggml_mul_mat_id"
    extra_ggml = ("ggml_prec_set_acc", "ggml_prec_set_src")

    def infer(self, experts: Value, b: Value, ids: Value, prec_f32: bool, src_f32: bool) -> Result:
        need_type(self, experts, READABLE, "cannot be multiplied", b)
        self.need_dtype(ids, I32)
        self.need_same(experts.ne[0], b.ne[0], "inner dims differ", experts, b)
        self.need_same(b.ne[2], ids.ne[1], "one list of experts a token is needed", b, ids)
        if not same(experts.ne[3], 1) or not same(b.ne[3], 1):
            self.fail("both operands have at most 3 dims", experts, b)
        if not same(ids.ne[2], 1) or not same(ids.ne[3], 1):
            self.fail("ids has at most 2 dims", b, ids)
        if int(ids.ne[0]) % int(b.ne[1]):
            self.fail(f"the {b.ne[1]} rows a token do not tile its {ids.ne[0]} experts", b, ids)
        if b.dtype is not F32:
            self.fail("the second operand must be f32", experts, b, hint="cast() it to f32")
        if not experts.layout.rows or not b.layout.rows:
            self.fail("an operand is transposed in memory", experts, b, hint="wrap it in cont()")
        return Result((experts.ne[1], ids.ne[0], b.ne[2]))

    def numpy(self, experts: Any, b: Any, ids: Any, prec_f32: bool, src_f32: bool) -> Any:
        experts, b, ids = to_rank(experts, 3), to_rank(b, 3), to_rank(ids, 2)
        n_tokens, n_used = ids.shape
        out = np.empty((n_tokens, n_used, experts.shape[1]), dtype=b.dtype)
        for t, e in np.ndindex(n_tokens, n_used):
            out[t, e] = experts[ids[t, e]] @ b[t, e % b.shape[1]]
        return out

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_mul_mat_id(ctx, {', '.join(args)})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        return precision(var, attrs)

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        """Each expert that can be chosen is read once."""
        experts, b, ids = operands
        assert experts is not None and b is not None and ids is not None
        n_expert = int(experts.ne[2])
        read = min(n_expert, count(ids)) / n_expert
        moved = nbytes(experts) * read + nbytes(b) + nbytes(ids) + nbytes(result)
        return Cost(2.0 * int(experts.ne[0]) * count(result), moved)


@op
class add_id(Op):
    """Row ``ids[e, t]`` of ``b`` [n, n_expert] added to ``a`` [n, n_used, n_tokens]: the bias of experts.

    ``ids`` i32 [n_used, n_tokens]; the rest f32.
    """

    operands = ("a", "b", "ids")
    ggml = "ggml_add_id"

    def infer(self, a: Value, b: Value, ids: Value) -> Result:
        self.need_dtype(a, F32)
        self.need_dtype(b, F32)
        self.need_dtype(ids, I32)
        self.need_same(a.ne[0], b.ne[0], "row widths differ", a, b)
        self.need_same(a.ne[1], ids.ne[0], "one id a row is needed", a, ids)
        self.need_same(a.ne[2], ids.ne[1], "one list of ids a token is needed", a, ids)
        if not all(same(n, 1) for n in (*b.ne[2:], *ids.ne[2:])):
            self.fail("biases and ids have at most 2 dims", a, b, ids)
        self.need_rows(a)
        self.need_rows(b)
        return Result(a.shape)

    def numpy(self, a: Any, b: Any, ids: Any) -> Any:
        rows = to_rank(b, 2)[to_rank(ids, 2)]
        return a + tile_to(rows, a.shape)
