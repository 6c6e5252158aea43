"""Normalisation along dimension 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expr import SymLike
from ..ir import Value
from ..op import F32, Result, op
from .cost import PerElement


class Norm(PerElement):
    """F32 rows in, F32 rows out."""

    operands = ("a",)
    attrs = {"eps": ...}
    work = 4.0

    def infer(self, a: Value, eps: SymLike) -> Result:
        self.need_dtype(a, F32)
        self.need_rows(a)
        if float(eps) < 0:
            self.fail(f"eps = {float(eps)} is negative", a)
        return Result(a.shape)


@op
class rms_norm(Norm):
    """x / sqrt(mean(x^2) + eps) over dimension 0; no weight."""

    ggml = "ggml_rms_norm"

    def numpy(self, a: Any, eps: Any) -> Any:
        mean = np.mean(a.astype(np.float64) ** 2, axis=-1, keepdims=True)
        return (a / np.sqrt(mean + float(eps))).astype(a.dtype)


@op
class norm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) over dimension 0, population variance; no weight."""

    ggml = "ggml_norm"
    work = 6.0

    def numpy(self, a: Any, eps: Any) -> Any:
        x = a.astype(np.float64)
        x = x - x.mean(axis=-1, keepdims=True)
        return (x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + float(eps))).astype(a.dtype)


@op
class l2_norm(Norm):
    """x / max(||x||, eps) over dimension 0."""

    ggml = "ggml_l2_norm"

    def numpy(self, a: Any, eps: Any) -> Any:
        length = np.sqrt((a.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
        return (a / np.maximum(length, float(eps))).astype(a.dtype)
