"""Elementwise arithmetic and activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import SymLike
from ..ir import Value
from ..op import F16, F32, Op, Result, op, tile


class Binary(Op):
    """Common rule: the second operand tiles the first; the result has the first's shape and type."""

    operands = ("a", "b")

    def infer(self, a: Value, b: Value) -> Result:
        self.need_dtype(a, F32, F16)
        self.need_dtype(b, F32, F16)
        self.need_repeats(b, a)
        self.need_rows(b)
        return Result(a.shape, a.dtype)


@op
class add(Binary):
    """a + b, b repeated to a's shape."""

    ggml = "ggml_add"

    def numpy(self, a: Any, b: Any) -> Any:
        return a + tile(b, a.shape)


@op
class sub(Binary):
    """a - b, b repeated to a's shape."""

    ggml = "ggml_sub"

    def numpy(self, a: Any, b: Any) -> Any:
        return a - tile(b, a.shape)


@op
class mul(Binary):
    """Elementwise product, b repeated to a's shape."""

    ggml = "ggml_mul"

    def numpy(self, a: Any, b: Any) -> Any:
        return a * tile(b, a.shape)


@op
class div(Binary):
    """a / b, b repeated to a's shape."""

    ggml = "ggml_div"

    def numpy(self, a: Any, b: Any) -> Any:
        return a / tile(b, a.shape)


class Unary(Op):
    """Common rule: F32 or F16 in, the same shape and type out."""

    operands = ("a",)

    def infer(self, a: Value, **_: Any) -> Result:
        self.need_dtype(a, F32, F16)
        self.need_rows(a)
        return Result(a.shape, a.dtype)


@op
class scale(Unary):
    """a * s."""

    attrs = {"s": ...}
    ggml = "ggml_scale"

    def infer(self, a: Value, s: SymLike) -> Result:
        self.need_dtype(a, F32)
        return Result(a.shape, a.dtype)

    def numpy(self, a: Any, s: Any) -> Any:
        return a * a.dtype.type(float(s))


@op
class scale_bias(Unary):
    """a * s + b."""

    attrs = {"s": ..., "b": ...}
    ggml = "ggml_scale_bias"

    def numpy(self, a: Any, s: Any, b: Any) -> Any:
        return a * a.dtype.type(float(s)) + a.dtype.type(float(b))


@op
class clamp(Unary):
    """Limit to [low, high]."""

    attrs = {"low": ..., "high": ...}
    ggml = "ggml_clamp"

    def numpy(self, a: Any, low: Any, high: Any) -> Any:
        return np.clip(a, float(low), float(high))


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _gelu(x: Any) -> Any:
    """The tanh approximation, as ggml_gelu."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


@op
class silu(Unary):
    """x * sigmoid(x)."""

    ggml = "ggml_silu"

    def numpy(self, a: Any) -> Any:
        return a * _sigmoid(a)


@op
class gelu(Unary):
    """GELU, tanh approximation (ggml's CPU kernel reads an f16 table: differences about 1e-3)."""

    ggml = "ggml_gelu"

    def numpy(self, a: Any) -> Any:
        return _gelu(a)


@op
class sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    ggml = "ggml_sigmoid"

    def numpy(self, a: Any) -> Any:
        return _sigmoid(a)


@op
class tanh(Unary):
    """Hyperbolic tangent."""

    ggml = "ggml_tanh"

    def numpy(self, a: Any) -> Any:
        return np.tanh(a)


class Gated(Op):
    """act(a) * b of two tensors of one shape (ggml's fused GLU ops)."""

    operands = ("a", "b")

    def infer(self, a: Value, b: Value, **_: Any) -> Result:
        self.need_dtype(a, F32, F16)
        if a.dtype is not b.dtype:
            self.fail("element types differ", a, b)
        for i in range(4):
            self.need_same(a.ne[i], b.ne[i], f"dim {i} differs", a, b)
        return Result(a.shape, a.dtype)


@op
class swiglu_split(Gated):
    """silu(a) * b."""

    ggml = "ggml_swiglu_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return a * _sigmoid(a) * b


@op
class geglu_split(Gated):
    """gelu(a) * b, tanh approximation."""

    ggml = "ggml_geglu_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return _gelu(a) * b


@op
class fill(Op):
    """A tensor of ``a``'s shape filled with ``c``."""

    operands = ("a",)
    attrs = {"c": ...}
    ggml = "ggml_fill"

    def infer(self, a: Value, c: SymLike) -> Result:
        self.need_dtype(a, F32, GGMLType.f16)
        return Result(a.shape, a.dtype)

    def numpy(self, a: Any, c: Any) -> Any:
        return np.full_like(a, float(c))
