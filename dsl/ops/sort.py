"""Choosing: argmax, top-k, argsort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike, lift
from ..ir import Value
from ..op import F32, I32, Op, Result, op


@op
class argmax(Op):
    """Index of the largest entry of each row of ``a`` [n, m]; i32 [m]. ggml's CPU kernel keeps the last of equal maxima."""

    operands = ("a",)
    ggml = "ggml_argmax"

    def infer(self, a: Value) -> Result:
        self.need_dtype(a, F32)
        if len(a.shape) > 2:
            self.fail("argmax takes a matrix", a)
        return Result((a.ne[1],), I32)

    def numpy(self, a: Any) -> Any:
        rows = a.reshape(-1, a.shape[-1])
        return (rows.shape[-1] - 1 - np.argmax(rows[:, ::-1], axis=-1)).astype(np.int32)


@op
class top_k(Op):
    """Indices of the ``k`` largest entries of each row, in no particular order; i32 [k, ...]."""

    operands = ("a",)
    attrs = {"k": ...}
    ggml = "ggml_top_k"

    def infer(self, a: Value, k: SymLike) -> Result:
        self.need_dtype(a, F32)
        if int(k) > int(a.ne[0]):
            self.fail(f"k = {int(k)} exceeds the row", a)
        return Result((lift(k), *a.shape[1:]), I32)

    def numpy(self, a: Any, k: Any) -> Any:
        order = np.argsort(-a, axis=-1, kind="stable")[..., : int(k)]
        return order.astype(np.int32)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_top_k(ctx, {args[0]}, {attrs['k']})"
