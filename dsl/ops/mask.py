"""Triangles of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike
from ..ir import Value
from ..op import F32, Result, op
from .cost import Moving


@op
class diag_mask_inf(Moving):
    """-inf where column > row + ``n_past``, for matrices f32 [n_columns, n_rows, ...]: a causal mask."""

    operands = ("a",)
    attrs = {"n_past": 0}
    ggml = "ggml_diag_mask_inf"

    def infer(self, a: Value, n_past: SymLike) -> Result:
        self.need_dtype(a, F32)
        self.need_contiguous(a)
        self.need_rows(a)
        if int(n_past) < 0:
            self.fail(f"n_past = {int(n_past)} is negative", a)
        return Result(a.shape)

    def numpy(self, a: Any, n_past: Any) -> Any:
        rows = a.shape[-2] if a.ndim > 1 else 1
        column, row = np.arange(a.shape[-1]), np.arange(rows)[:, None]
        hidden = column > row + int(n_past)
        return np.where(hidden if a.ndim > 1 else hidden[0], a.dtype.type(-np.inf), a)


_KINDS = {
    "upper_diag": ("GGML_TRI_TYPE_UPPER_DIAG", np.greater_equal),
    "upper": ("GGML_TRI_TYPE_UPPER", np.greater),
    "lower_diag": ("GGML_TRI_TYPE_LOWER_DIAG", np.less_equal),
    "lower": ("GGML_TRI_TYPE_LOWER", np.less),
}


@op
class tri(Moving):
    """Keep one triangle of square matrices f32 [n, n, ...], 0 elsewhere.

    ``kind``: "lower" (column < row), "lower_diag" (with the diagonal), "upper", "upper_diag".
    """

    operands = ("a",)
    attrs = {"kind": ...}
    ggml = "ggml_tri"

    def infer(self, a: Value, kind: str) -> Result:
        self.need_dtype(a, F32)
        self.need_contiguous(a)
        if kind not in _KINDS:
            self.fail(f"kind {kind!r} is none of {', '.join(_KINDS)}", a)
        self.need_same(a.ne[0], a.ne[1], "the matrices are not square", a)
        return Result(a.shape)

    def numpy(self, a: Any, kind: str) -> Any:
        if a.ndim == 1:
            return a if kind.endswith("diag") else np.zeros_like(a)
        column, row = np.arange(a.shape[-1]), np.arange(a.shape[-2])[:, None]
        return np.where(_KINDS[kind][1](column, row), a, a.dtype.type(0))

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_tri(ctx, {args[0]}, {_KINDS[node.attrs['kind']][0]})"
