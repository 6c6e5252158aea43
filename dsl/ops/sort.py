"""Choosing: argmax, top-k, argsort."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike, lift, same
from ..ir import Value
from ..op import F32, I32, Cost, Op, Result, count, nbytes, op
from .cost import PerElement
from .layout import natural, need_even_rows, view_layout


@op
class argmax(PerElement):
    """Index of the largest entry of each row of ``a`` [n, m]; i32 [m]. The last of equal maxima, as ggml on the CPU."""

    operands = ("a",)
    ggml = "ggml_argmax"
    chooses = True

    def infer(self, a: Value) -> Result:
        self.need_dtype(a, F32)
        if not same(a.ne[2], 1) or not same(a.ne[3], 1):
            self.fail("argmax takes a matrix", a, hint="reshape() it to [n, m]")
        self.need_rows(a)
        return Result((a.ne[1],), I32)

    def numpy(self, a: Any) -> Any:
        rows = a.reshape(-1, a.shape[-1])
        return (rows.shape[-1] - 1 - np.argmax(rows[:, ::-1], axis=-1)).astype(np.int32)


class Sorting(Op):
    """f32 rows in, indices out."""

    operands = ("a",)
    chooses = True

    def check(self, a: Value) -> None:
        self.need_dtype(a, F32)
        need_even_rows(self, a)

    def take(self, a: Value, k: SymLike) -> Result:
        self.check(a)
        if int(k) < 1 or (not same(k, a.ne[0]) and int(k) > int(a.ne[0])):
            self.fail(f"k = {int(k)} must be 1 to {int(a.ne[0])}, the length of a row", a)
        return Result((lift(k), *a.shape[1:]), I32)

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        a = operands[0]
        assert a is not None
        return Cost(count(a) * max(1.0, math.log2(int(result.ne[0]))), nbytes(a) + nbytes(result))


def sorted_indices(a: Any, descending: bool) -> Any:
    """Indices in order; equal entries by index (ggml leaves their order open)."""
    return np.argsort(-a if descending else a, axis=-1, kind="stable").astype(np.int32)


@op
class top_k(Sorting):
    """Indices of the ``k`` largest entries of each row, in no particular order; i32 [k, ...]."""

    attrs = {"k": ...}
    ggml = "ggml_top_k"

    def infer(self, a: Value, k: SymLike) -> Result:
        return self.take(a, k)

    def numpy(self, a: Any, k: Any) -> Any:
        return sorted_indices(a, True)[..., : int(k)]


@op
class argsort(Sorting):
    """Indices that sort each row; i32, the shape stays. ``order`` is "asc" or "desc"; that of equal entries is open."""

    attrs = {"order": "asc"}
    ggml = "ggml_argsort"

    def infer(self, a: Value, order: str) -> Result:
        self.check(a)
        if order not in ("asc", "desc"):
            self.fail(f'order {order!r} is neither "asc" nor "desc"', a)
        return Result(a.shape, I32)

    def numpy(self, a: Any, order: str) -> Any:
        return sorted_indices(a, order == "desc")

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_argsort(ctx, {args[0]}, GGML_SORT_ORDER_{node.attrs['order'].upper()})"


@op
class argsort_top_k(Sorting):
    """Indices of the ``k`` largest entries of each row, largest first; i32 [k, ...] (a view of all sorted indices)."""

    attrs = {"k": ...}
    ggml = "ggml_argsort_top_k"
    n_tensors = 2

    def infer(self, a: Value, k: SymLike) -> Result:
        result = self.take(a, k)
        layout = view_layout((lift(k), *a.ne[1:]), natural(a.ne), True)
        return Result(result.shape, I32, layout)

    def numpy(self, a: Any, k: Any) -> Any:
        return sorted_indices(a, True)[..., : int(k)]
