"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import same
from ..ir import Value
from ..op import Cost, Op, Result, count, nbytes, op


@op
class mul_mat(Op):
    """``a`` [k, n, ...] times ``b`` [k, m, ...]: each row of b against each row of a; f32 [n, m, ...].

    Dims 2 and 3 of ``a`` are repeated to those of ``b`` (grouped-query attention). ``a`` may be of any type that ggml
    multiplies; ``b`` is rounded to the type of ggml's dot product. ``prec_f32`` asks for F32 accumulation.
    """

    operands = ("a", "b")
    attrs = {"prec_f32": False}
    ggml = "ggml_mul_mat"
    extra_ggml = ("ggml_prec_set_acc",)

    def infer(self, a: Value, b: Value, prec_f32: bool) -> Result:
        self.need_same(a.ne[0], b.ne[0], "inner dims differ", a, b)
        for axis in (2, 3):
            if not same(a.ne[axis], b.ne[axis]) and int(b.ne[axis]) % int(a.ne[axis]):
                self.fail(f"dim {axis} of the first operand does not tile the second's", a, b)
        if not a.layout.rows:
            self.fail("the first operand is transposed in memory", a, b, hint="wrap it in cont()")
        if b.dtype.is_quantized or b.dtype in (GGMLType.i32, GGMLType.i64):
            self.fail("the second operand must be f32 or f16", a, b)
        rank = max(2, len(a.shape), len(b.shape))
        return Result((a.ne[1], b.ne[1], b.ne[2], b.ne[3])[:rank])

    def numpy(self, a: Any, b: Any, prec_f32: bool) -> Any:
        rank = max(a.ndim, b.ndim, 2)
        a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
        for axis in range(rank - 2):  # repeat_interleave: group g of b reads slice g // (b/a) of a
            a = np.repeat(a, b.shape[axis] // a.shape[axis], axis=axis)
        return np.matmul(b, a.swapaxes(-1, -2))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_mul_mat(ctx, {args[0]}, {args[1]})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        return [f"ggml_prec_set_acc({var}, GGML_PREC_F32);"] if attrs["prec_f32"] == "true" else []

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        a, b = operands
        assert a is not None and b is not None
        return Cost(2.0 * int(a.ne[0]) * count(result), nbytes(a) + nbytes(b) + nbytes(result))
