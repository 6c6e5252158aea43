"""Gated linear units: an activation of one half times the other half, of two tensors or of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..dtypes import GGMLType
from ..expr import SymLike
from ..ir import Value
from ..op import F16, F32, Op, Result, op
from .arrays import sigmoid
from .cost import PerElement
from .layout import need_even_rows
from .types import FLOATS
from .unary import gelu_exact, gelu_logistic, gelu_tanh


def _relu(x: Any) -> Any:
    return np.where(x > 0, x, x.dtype.type(0))


def _silu(x: Any) -> Any:
    return x * sigmoid(x)


class Split(PerElement):
    """act(a) * b of two tensors of one shape and type."""

    operands = ("a", "b")
    work = 5.0
    types: ClassVar[tuple[GGMLType, ...]] = FLOATS

    def infer(self, a: Value, b: Value, **_: Any) -> Result:
        self.need_dtype(a, *self.types)
        if a.dtype is not b.dtype:
            self.fail("element types differ", a, b)
        for i in range(4):
            self.need_same(a.ne[i], b.ne[i], f"dim {i} differs", a, b)
        need_even_rows(self, a)
        need_even_rows(self, b)
        return Result(a.shape, a.dtype)


class Halves(PerElement):
    """act(first half) * second half of dimension 0 of one tensor [2*n, ...]; ``swapped`` activates the second half."""

    operands = ("a",)
    attrs: ClassVar[Mapping[str, Any]] = {"swapped": False}
    work = 2.5

    def infer(self, a: Value, swapped: bool) -> Result:
        self.need_dtype(a, *FLOATS)
        if int(a.ne[0]) % 2:
            self.fail(f"dim 0 = {a.ne[0]} has no two halves", a)
        need_even_rows(self, a)
        return Result((a.ne[0] // 2, *a.shape[1:]), a.dtype)

    def act(self, x: Any) -> Any:
        raise NotImplementedError

    def numpy(self, a: Any, swapped: bool) -> Any:
        n = a.shape[-1] // 2
        gate, up = a[..., :n], a[..., n:]
        return self.act(up) * gate if swapped else self.act(gate) * up

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"{self.ggml}{'_swapped' if node.attrs['swapped'] else ''}(ctx, {args[0]})"


@op
class reglu_split(Split):
    """relu(a) * b."""

    ggml = "ggml_reglu_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return _relu(a) * b


@op
class geglu_split(Split):
    """gelu(a) * b, tanh approximation (an f16 table in ggml's CPU kernel: differences about 1e-3)."""

    ggml = "ggml_geglu_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return gelu_tanh(a) * b


@op
class geglu_erf_split(Split):
    """gelu(a) * b, exact."""

    ggml = "ggml_geglu_erf_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return gelu_exact(a) * b


@op
class geglu_quick_split(Split):
    """a * sigmoid(1.702 a) * b (an f16 table in ggml's CPU kernel: differences about 1e-3)."""

    ggml = "ggml_geglu_quick_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return gelu_logistic(a) * b


@op
class swiglu_split(Split):
    """silu(a) * b."""

    ggml = "ggml_swiglu_split"

    def numpy(self, a: Any, b: Any) -> Any:
        return _silu(a) * b


@op
class swiglu_oai(Split):
    """g * sigmoid(alpha*g) * (u + 1) with g = min(a, limit), u = b limited to [-limit, limit] (gpt-oss)."""

    attrs = {"alpha": ..., "limit": ...}
    ggml = "ggml_swiglu_oai"
    work = 8.0
    types = (F32,)

    def infer(self, a: Value, b: Value, **attrs: Any) -> Result:
        _need_limit(self, attrs["limit"], a, b)
        return super().infer(a, b)

    def numpy(self, a: Any, b: Any, alpha: Any, limit: Any) -> Any:
        gate, up = np.minimum(a, a.dtype.type(float(limit))), _limited(b, limit)
        return gate * sigmoid(a.dtype.type(float(alpha)) * gate) * (up + 1)


@op
class swiglu_clamp(Split):
    """silu(min(a, limit)) * (b limited to [-limit, limit]) (DeepSeek-V4's experts)."""

    attrs = {"limit": ...}
    ggml = "ggml_swiglu_clamp"
    work = 7.0
    types = (F32, F16)

    def infer(self, a: Value, b: Value, **attrs: Any) -> Result:
        _need_limit(self, attrs["limit"], a, b)
        return super().infer(a, b)

    def numpy(self, a: Any, b: Any, limit: Any) -> Any:
        return _silu(np.minimum(a, a.dtype.type(float(limit)))) * _limited(b, limit)


def _need_limit(op: Op, limit: SymLike, a: Value, b: Value) -> None:
    if float(limit) < 0:
        op.fail(f"the limit {float(limit)} is negative", a, b)


def _limited(x: Any, limit: Any) -> Any:
    bound = x.dtype.type(float(limit))
    return np.clip(x, -bound, bound)


@op
class reglu(Halves):
    """relu of one half times the other: [2*n, ...] -> [n, ...]."""

    ggml = "ggml_reglu"
    extra_ggml = ("ggml_reglu_swapped",)

    def act(self, x: Any) -> Any:
        return _relu(x)


@op
class geglu(Halves):
    """gelu (tanh approximation) of one half times the other: [2*n, ...] -> [n, ...]."""

    ggml = "ggml_geglu"
    extra_ggml = ("ggml_geglu_swapped",)

    def act(self, x: Any) -> Any:
        return gelu_tanh(x)


@op
class geglu_erf(Halves):
    """Exact gelu of one half times the other: [2*n, ...] -> [n, ...]."""

    ggml = "ggml_geglu_erf"
    extra_ggml = ("ggml_geglu_erf_swapped",)

    def act(self, x: Any) -> Any:
        return gelu_exact(x)


@op
class geglu_quick(Halves):
    """x * sigmoid(1.702 x) of one half times the other: [2*n, ...] -> [n, ...]."""

    ggml = "ggml_geglu_quick"
    extra_ggml = ("ggml_geglu_quick_swapped",)

    def act(self, x: Any) -> Any:
        return gelu_logistic(x)


@op
class swiglu(Halves):
    """silu of one half times the other: [2*n, ...] -> [n, ...]."""

    ggml = "ggml_swiglu"
    extra_ggml = ("ggml_swiglu_swapped",)

    def act(self, x: Any) -> Any:
        return _silu(x)
