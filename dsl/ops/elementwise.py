"""Arithmetic of two tensors, scaling and limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expr import SymLike
from ..ir import Value
from ..op import F16, F32, Result, op
from .arrays import tile_to
from .cost import PerElement
from .layout import need_even_rows, need_packed
from .types import BF16, FLOATS


class Binary(PerElement):
    """Common rule: the second operand tiles the first; the result has the first's shape and type.

    The second may be any view. Its type is the first's, or f32 beside f16 and bf16.
    """

    operands = ("a", "b")

    def infer(self, a: Value, b: Value) -> Result:
        self.need_dtype(a, *FLOATS)
        if b.dtype is not a.dtype and not (b.dtype is F32 and a.dtype in (F16, BF16)):
            self.fail("the second operand must be of the first's element type", a, b, hint="cast() it")
        self.need_repeats(b, a)
        self.need_rows(a)
        return Result(a.shape, a.dtype)


@op
class add(Binary):
    """a + b, b repeated to a's shape."""

    ggml = "ggml_add"

    def numpy(self, a: Any, b: Any) -> Any:
        return a + tile_to(b, a.shape)


@op
class sub(Binary):
    """a - b, b repeated to a's shape."""

    ggml = "ggml_sub"

    def numpy(self, a: Any, b: Any) -> Any:
        return a - tile_to(b, a.shape)


@op
class mul(Binary):
    """Elementwise product, b repeated to a's shape."""

    ggml = "ggml_mul"

    def numpy(self, a: Any, b: Any) -> Any:
        return a * tile_to(b, a.shape)


@op
class div(Binary):
    """a / b, b repeated to a's shape."""

    ggml = "ggml_div"

    def numpy(self, a: Any, b: Any) -> Any:
        return a / tile_to(b, a.shape)


class Scaling(PerElement):
    """f32, packed in memory."""

    operands = ("a",)

    def infer(self, a: Value, **_: Any) -> Result:
        self.need_dtype(a, F32)
        need_packed(self, a)
        return Result(a.shape)


@op
class scale(Scaling):
    """a * s."""

    attrs = {"s": ...}
    ggml = "ggml_scale"

    def numpy(self, a: Any, s: Any) -> Any:
        return a * a.dtype.type(float(s))


@op
class scale_bias(Scaling):
    """a * s + b."""

    attrs = {"s": ..., "b": ...}
    ggml = "ggml_scale_bias"
    work = 2.0

    def numpy(self, a: Any, s: Any, b: Any) -> Any:
        return a * a.dtype.type(float(s)) + a.dtype.type(float(b))


@op
class clamp(PerElement):
    """Limit to [low, high]."""

    operands = ("a",)
    attrs = {"low": ..., "high": ...}
    ggml = "ggml_clamp"

    def infer(self, a: Value, low: SymLike, high: SymLike) -> Result:
        self.need_dtype(a, F32, F16)
        if float(low) > float(high):
            self.fail(f"the lower limit {float(low)} exceeds the upper one {float(high)}", a)
        need_even_rows(self, a)
        return Result(a.shape, a.dtype)

    def numpy(self, a: Any, low: Any, high: Any) -> Any:
        return np.maximum(np.minimum(a, a.dtype.type(float(high))), a.dtype.type(float(low)))
