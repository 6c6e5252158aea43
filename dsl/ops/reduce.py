"""Sums along dimension 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Value
from ..op import F32, Result, op
from .cost import PerElement


class Rows(PerElement):
    """f32 rows in, one f32 number a row out."""

    operands = ("a",)

    def infer(self, a: Value) -> Result:
        self.need_dtype(a, F32)
        self.need_rows(a)
        return Result((1, *a.shape[1:]))


@op
class sum_rows(Rows):
    """The sum of each row: [n, ...] -> [1, ...]."""

    ggml = "ggml_sum_rows"

    def numpy(self, a: Any) -> Any:
        return a.sum(axis=-1, keepdims=True, dtype=np.float64).astype(a.dtype)


@op
class mean(Rows):
    """The mean of each row: [n, ...] -> [1, ...]."""

    ggml = "ggml_mean"

    def numpy(self, a: Any) -> Any:
        return a.mean(axis=-1, keepdims=True, dtype=np.float64).astype(a.dtype)


@op
class cumsum(Rows):
    """Running sum along dimension 0; the shape stays."""

    ggml = "ggml_cumsum"

    def infer(self, a: Value) -> Result:
        super().infer(a)
        return Result(a.shape)

    def numpy(self, a: Any) -> Any:
        return np.cumsum(a, axis=-1, dtype=a.dtype)
