"""Functions of one element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir import Value
from ..op import Result, op
from .arrays import sigmoid as logistic
from .cost import PerElement
from .types import FLOATS


class Unary(PerElement):
    """Common rule: f32, f16 or bf16 in, the same shape and type out; dimension 0 must be contiguous."""

    operands = ("a",)

    def infer(self, a: Value, **_: Any) -> Result:
        self.need_dtype(a, *FLOATS)
        self.need_rows(a)
        return Result(a.shape, a.dtype)


@op
class neg(Unary):
    """-a."""

    ggml = "ggml_neg"

    def numpy(self, a: Any) -> Any:
        return -a


@op
class abs_(Unary):
    """|a|."""

    ggml = "ggml_abs"

    def numpy(self, a: Any) -> Any:
        return np.abs(a)


@op
class sgn(Unary):
    """-1, 0 or 1: the sign."""

    ggml = "ggml_sgn"

    def numpy(self, a: Any) -> Any:
        return np.sign(a)


@op
class step(Unary):
    """1 where a > 0, else 0."""

    ggml = "ggml_step"

    def numpy(self, a: Any) -> Any:
        return (a > 0).astype(a.dtype)


@op
class relu(Unary):
    """max(a, 0)."""

    ggml = "ggml_relu"

    def numpy(self, a: Any) -> Any:
        return np.where(a > 0, a, a.dtype.type(0))


@op
class sqr(Unary):
    """a * a."""

    ggml = "ggml_sqr"

    def numpy(self, a: Any) -> Any:
        return a * a


@op
class sqrt(Unary):
    """Square root."""

    ggml = "ggml_sqrt"

    def numpy(self, a: Any) -> Any:
        return np.sqrt(a)


@op
class exp(Unary):
    """e to the power of a."""

    ggml = "ggml_exp"

    def numpy(self, a: Any) -> Any:
        return np.exp(a)


@op
class expm1(Unary):
    """exp(a) - 1."""

    ggml = "ggml_expm1"

    def numpy(self, a: Any) -> Any:
        return np.expm1(a)


@op
class log(Unary):
    """Natural logarithm; -inf at 0."""

    ggml = "ggml_log"

    def numpy(self, a: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.log(a)


@op
class softplus(Unary):
    """log(1 + exp(a)); a itself above 20."""

    ggml = "ggml_softplus"
    work = 3.0

    def numpy(self, a: Any) -> Any:
        return np.where(a > 20, a, np.log1p(np.exp(np.minimum(a, a.dtype.type(20)))))


@op
class sin(Unary):
    """Sine."""

    ggml = "ggml_sin"

    def numpy(self, a: Any) -> Any:
        return np.sin(a)


@op
class cos(Unary):
    """Cosine."""

    ggml = "ggml_cos"

    def numpy(self, a: Any) -> Any:
        return np.cos(a)


@op
class floor(Unary):
    """The next integer below."""

    ggml = "ggml_floor"

    def numpy(self, a: Any) -> Any:
        return np.floor(a)


@op
class ceil(Unary):
    """The next integer above."""

    ggml = "ggml_ceil"

    def numpy(self, a: Any) -> Any:
        return np.ceil(a)


@op
class tanh(Unary):
    """Hyperbolic tangent."""

    ggml = "ggml_tanh"

    def numpy(self, a: Any) -> Any:
        return np.tanh(a)


@op
class sigmoid(Unary):
    """1 / (1 + exp(-a))."""

    ggml = "ggml_sigmoid"
    work = 3.0

    def numpy(self, a: Any) -> Any:
        return logistic(a)


@op
class silu(Unary):
    """a * sigmoid(a)."""

    ggml = "ggml_silu"
    work = 4.0

    def numpy(self, a: Any) -> Any:
        return a * logistic(a)


def gelu_tanh(x: Any) -> Any:
    """The tanh approximation, as ggml_gelu."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def gelu_exact(x: Any) -> Any:
    """x times the normal distribution function."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (0.5 * x * (1 + erf(np.asarray(x, dtype=np.float64) / math.sqrt(2)))).astype(x.dtype)


def gelu_logistic(x: Any) -> Any:
    """x * sigmoid(1.702 x)."""
    return x * logistic(1.702 * x)


@op
class gelu(Unary):
    """GELU, tanh approximation (ggml's CPU kernel reads an f16 table: differences about 1e-3)."""

    ggml = "ggml_gelu"
    work = 8.0

    def numpy(self, a: Any) -> Any:
        return gelu_tanh(a)


@op
class gelu_erf(Unary):
    """GELU, exact."""

    ggml = "ggml_gelu_erf"
    work = 8.0

    def numpy(self, a: Any) -> Any:
        return gelu_exact(a)


@op
class gelu_quick(Unary):
    """a * sigmoid(1.702 a) (an f16 table in ggml's CPU kernel: differences about 1e-3)."""

    ggml = "ggml_gelu_quick"
    work = 5.0

    def numpy(self, a: Any) -> Any:
        return gelu_logistic(a)
