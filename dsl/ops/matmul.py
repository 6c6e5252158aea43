"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import same
from ..ir import Value
from ..op import F16, F32, Cost, Op, Result, count, nbytes, op
from .arrays import spread, to_rank
from .types import BF16, READABLE, need_type


def precision(var: str, attrs: Mapping[str, str]) -> list[str]:
    """The statements that ask for f32 accumulation and for f32 of the second operand."""
    lines = [f"ggml_prec_set_acc({var}, GGML_PREC_F32);"] if attrs["prec_f32"] == "true" else []
    return lines + ([f"ggml_prec_set_src({var}, GGML_PREC_F32, 1);"] if attrs["src_f32"] == "true" else [])


def need_outer(op: Op, a: Value, b: Value) -> None:
    """Dims 2 and 3 of ``a`` must divide those of ``b``."""
    for axis in (2, 3):
        if not same(a.ne[axis], b.ne[axis]) and int(b.ne[axis]) % int(a.ne[axis]):
            op.fail(f"dim {axis} of the first operand does not tile the second's", a, b)


@op
class mul_mat(Op):
    """``a`` [k, n, ...] times ``b`` [k, m, ...]: each row of b against each row of a; f32 [n, m, ...].

    Dims 2 and 3 of ``a`` are repeated to those of ``b`` (grouped-query attention). ``a`` may be of any type that ggml
    multiplies; ``b`` is f32, or a's own type if that is f16 or bf16, and is rounded to the type of ggml's dot product.
    ``prec_f32`` asks for f32 accumulation, ``src_f32`` that ``b`` is not rounded below f32. ``hadamard`` promises that
    ``a`` is the orthonormal Hadamard matrix in natural order, which ggml then multiplies by a fast transform.
    """

    operands = ("a", "b")
    attrs = {"prec_f32": False, "src_f32": False, "hadamard": False}
    ggml = "ggml_mul_mat"
    extra_ggml = ("ggml_prec_set_acc", "ggml_prec_set_src", "ggml_mul_mat_set_hint")

    def infer(self, a: Value, b: Value, prec_f32: bool, src_f32: bool, hadamard: bool) -> Result:
        self.need_same(a.ne[0], b.ne[0], "inner dims differ", a, b)
        need_outer(self, a, b)
        need_type(self, a, READABLE, "cannot be multiplied", b)
        if not a.layout.rows:
            self.fail("the first operand is transposed in memory", a, b, hint="wrap it in cont()")
        if not b.layout.rows:
            self.fail("the second operand is transposed in memory", a, b, hint="wrap it in cont()")
        fine = b.dtype is F32 or (b.dtype in (F16, BF16) and b.dtype is a.dtype)
        if not fine and not (hadamard and b.dtype is F16):
            self.fail("the second operand must be f32, or of the first's type", a, b, hint="cast() it to f32")
        if hadamard:
            self.need_dtype(a, F32)
            self.need_same(a.ne[0], a.ne[1], "a Hadamard matrix is square", a, b)
            if int(a.ne[0]) & (int(a.ne[0]) - 1):
                self.fail("the size of a Hadamard matrix must be a power of two", a, b)
        rank = max(2, len(a.shape), len(b.shape))
        return Result((a.ne[1], b.ne[1], b.ne[2], b.ne[3])[:rank])

    def numpy(self, a: Any, b: Any, prec_f32: bool, src_f32: bool, hadamard: bool) -> Any:
        rank = max(a.ndim, b.ndim, 2)
        a, b = to_rank(a, rank), to_rank(b, rank)
        for axis in range(rank - 2):
            a = spread(a, axis, b.shape[axis])
        return np.matmul(b, a.swapaxes(-1, -2))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_mul_mat(ctx, {args[0]}, {args[1]})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        lines = precision(var, attrs)
        if attrs["hadamard"] == "true":
            lines.append(f"ggml_mul_mat_set_hint({var}, GGML_HINT_SRC0_IS_HADAMARD);")
        return lines

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        a, b = operands
        assert a is not None and b is not None
        return Cost(2.0 * int(a.ne[0]) * count(result), nbytes(a) + nbytes(b) + nbytes(result))


@op
class out_prod(Op):
    """Sum over k of outer products: ``a`` f32 [n, k, ...] and ``b`` f32 [m, k, ...] give f32 [n, m, ...].

    Dims 2 and 3 of ``a`` are repeated to those of ``b``.
    """

    operands = ("a", "b")
    ggml = "ggml_out_prod"

    def infer(self, a: Value, b: Value) -> Result:
        if a.dtype is not F32 or b.dtype is not F32:
            self.fail("both operands must be f32", a, b, hint="cast() them")
        self.need_same(a.ne[1], b.ne[1], "dim 1 differs", a, b)
        need_outer(self, a, b)
        if not a.layout.rows:
            self.fail("the first operand is transposed in memory", a, b, hint="wrap it in cont()")
        rank = max(2, len(a.shape), len(b.shape))
        return Result((a.ne[0], b.ne[0], b.ne[2], b.ne[3])[:rank])

    def numpy(self, a: Any, b: Any) -> Any:
        rank = max(a.ndim, b.ndim, 2)
        a, b = to_rank(a, rank), to_rank(b, rank)
        for axis in range(rank - 2):
            a = spread(a, axis, b.shape[axis])
        return np.matmul(b.swapaxes(-1, -2), a)

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        a, b = operands
        assert a is not None and b is not None
        return Cost(2.0 * int(a.ne[1]) * count(result), nbytes(a) + nbytes(b) + nbytes(result))
