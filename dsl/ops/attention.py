"""Softmax and fused attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import GGMLType
from ..expr import SymLike
from ..ir import Value
from ..op import F16, F32, Cost, Op, Result, count, nbytes, op, tile


def softmax(scores: Any, sinks: Any | None) -> Any:
    """Softmax over the last axis; ``sinks`` join the maximum and the denominator only (dflash-family.md FW-8)."""
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    return e / total


def _sink_axis(sinks: Any | None) -> Any | None:
    return None if sinks is None else np.asarray(sinks)[:, None, None]


@op
class soft_max_ext(Op):
    """softmax(a*scale + mask) over dimension 0 of ``a`` [n_kv, n_tokens, n_head]; ``sinks`` f32 [n_head]."""

    operands = ("a", "mask?", "sinks?")
    attrs = {"scale": 1.0, "max_bias": 0.0}
    ggml = "ggml_soft_max_ext"
    extra_ggml = ("ggml_soft_max_add_sinks",)

    def infer(self, a: Value, mask: Value | None, sinks: Value | None, scale: SymLike, max_bias: SymLike) -> Result:
        self.need_dtype(a, F32)
        self.need_contiguous(a)
        if mask is not None:
            self.need_dtype(mask, F32, F16)
            self.need_same(a.ne[0], mask.ne[0], "the mask must have one entry a key", a, mask)
            self.need_same(a.ne[1], mask.ne[1], "the mask must have one row a query", a, mask)
            self.need_contiguous(mask)
        if sinks is not None:
            self.need_dtype(sinks, F32)
            self.need_same(a.ne[2], sinks.ne[0], "one sink a head is needed", a, sinks)
        return Result(a.shape)

    def numpy(self, a: Any, mask: Any, sinks: Any, scale: Any, max_bias: Any) -> Any:
        scores = a * a.dtype.type(float(scale))
        if mask is not None:
            scores = scores + mask.astype(a.dtype)
        return softmax(scores, _sink_axis(sinks)).astype(a.dtype)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_soft_max_ext(ctx, {args[0]}, {args[1]}, {attrs['scale']}, {attrs['max_bias']})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        return [] if args[2] == "nullptr" else [f"ggml_soft_max_add_sinks({var}, {args[2]});"]


@op
class flash_attn_ext(Op):
    """Fused attention: q [head, n_tokens, n_head], k [head, n_kv, n_head_kv], v [head_v, n_kv, n_head_kv] (not
    transposed), mask f16 [n_kv, n_tokens]; f32 [head_v, n_head, n_tokens] (permuted). F32 accumulation is asked for."""

    operands = ("q", "k", "v", "mask?", "sinks?")
    attrs = {"scale": 1.0, "max_bias": 0.0, "logit_softcap": 0.0}
    ggml = "ggml_flash_attn_ext"
    extra_ggml = ("ggml_flash_attn_ext_add_sinks", "ggml_prec_set_acc")

    def infer(
        self, q: Value, k: Value, v: Value, mask: Value | None, sinks: Value | None, scale: SymLike, max_bias: SymLike,
        logit_softcap: SymLike,
    ) -> Result:
        self.need_dtype(q, F32)
        self.need_same(q.ne[0], k.ne[0], "head sizes differ", q, k)
        self.need_same(k.ne[1], v.ne[1], "as many values as keys are needed", k, v)
        self.need_same(k.ne[2], v.ne[2], "as many value heads as key heads are needed", k, v)
        if int(q.ne[2]) % int(k.ne[2]):
            self.fail("query heads are not a multiple of key heads", q, k)
        for x in (q, k, v):
            self.need_rows(x)
        if GGMLType.f32 in (k.dtype, v.dtype):
            self.fail("keys and values must be f16, bf16 or quantised", k, v, hint="cast() them to f16")
        if mask is not None:
            self.need_dtype(mask, F16)
            self.need_same(k.ne[1], mask.ne[0], "the mask must have one entry a key", k, mask)
            self.need_same(q.ne[1], mask.ne[1], "the mask must have one row a query", q, mask)
        if sinks is not None:
            self.need_dtype(sinks, F32)
            self.need_same(q.ne[2], sinks.ne[0], "one sink a head is needed", q, sinks)
        return Result((v.ne[0], q.ne[2], q.ne[1]))

    def numpy(
        self, q: Any, k: Any, v: Any, mask: Any, sinks: Any, scale: Any, max_bias: Any, logit_softcap: Any
    ) -> Any:
        q, k, v = (x.reshape(x.shape[-3:]) if x.ndim == 4 else x for x in (q, k, v))
        group = q.shape[0] // k.shape[0]
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = np.matmul(q, k.astype(q.dtype).swapaxes(-1, -2)) * q.dtype.type(float(scale))
        if float(logit_softcap):
            scores = float(logit_softcap) * np.tanh(scores / float(logit_softcap))
        if mask is not None:
            scores = scores + tile(mask, scores.shape).astype(q.dtype)
        out = np.matmul(softmax(scores, _sink_axis(sinks)), v.astype(q.dtype))
        return np.ascontiguousarray(out.transpose(1, 0, 2)).astype(q.dtype)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_flash_attn_ext(ctx, {', '.join([*args[:4], *attrs.values()])})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        sinks = [] if args[4] == "nullptr" else [f"ggml_flash_attn_ext_add_sinks({var}, {args[4]});"]
        return [*sinks, f"ggml_prec_set_acc({var}, GGML_PREC_F32);"]

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        q, k, v = operands[:3]
        assert q is not None and k is not None and v is not None
        pairs = count(q) / int(q.ne[0]) * int(k.ne[1])
        return Cost(
            2.0 * pairs * (int(q.ne[0]) + int(v.ne[0])), nbytes(q) + nbytes(k) + nbytes(v) + nbytes(result)
        )
