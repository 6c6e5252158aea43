"""Softmax and fused attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike, same
from ..ir import Value
from ..op import F16, F32, Cost, Op, Result, count, nbytes, op
from .arrays import spread, tile_to, to_rank
from .cost import PerElement
from .layout import need_packed
from .types import READABLE, need_type


def softmax(scores: Any, sinks: Any | None) -> tuple[Any, Any]:
    """exp(scores - top) and its sum over the last axis; ``sinks`` join the maximum and the sum only
    (DFlash specification, FW-8)."""
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top = np.where(np.isinf(top), scores.dtype.type(0), top)
    e = np.exp(scores - top)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    return e, total


def slopes(n_head: int, max_bias: float, dtype: Any) -> Any:
    """ALiBi: how much of the mask each head adds, [n_head, 1, 1]; 1 without a bias."""
    if max_bias <= 0:
        return dtype.type(1)
    power = 1 << (n_head.bit_length() - 1)
    heads = np.arange(n_head)
    low, high = 2.0 ** (-max_bias / power), 2.0 ** (-max_bias / 2 / power)
    slope = np.where(heads < power, low ** (heads + 1), high ** (2 * (heads - power) + 1))
    return slope.astype(dtype)[:, None, None]


def masked(scores: Any, mask: Any | None, max_bias: Any) -> Any:
    """``scores`` [ne3, n_head, n_tokens, n_kv] plus the mask of the first n_tokens rows, repeated over heads."""
    if mask is None:
        return scores
    rows = to_rank(mask, 4)[:, :, : scores.shape[2]].astype(scores.dtype)
    return scores + slopes(scores.shape[1], float(max_bias), scores.dtype) * tile_to(rows, scores.shape)


def _sink_axis(sinks: Any | None, dtype: Any) -> Any | None:
    return None if sinks is None else np.asarray(sinks, dtype=dtype).reshape(-1)[:, None, None]


def need_mask(op: Op, a: Value, mask: Value | None, max_bias: SymLike) -> None:
    """What both kinds of attention ask of a mask; ``a`` has the heads in dim 2 and batches in dim 3."""
    if mask is None:
        if float(max_bias) > 0:
            op.fail("max_bias (ALiBi) needs a mask", a)
        return
    for axis in (2, 3):
        if not same(mask.ne[axis], 1) and not same(mask.ne[axis], a.ne[axis]) and int(a.ne[axis]) % int(mask.ne[axis]):
            op.fail(f"dim {axis} of the mask does not tile that of the scores", a, mask)
    if not mask.layout.contiguous:
        op.fail("the mask is not contiguous in memory", a, mask, hint="wrap it in cont()")


def need_sinks(op: Op, a: Value, sinks: Value | None) -> None:
    if sinks is None:
        return
    op.need_dtype(sinks, F32)
    op.need_same(a.ne[2], sinks.ne[0], "one sink a head is needed", a, sinks)
    if not all(same(n, 1) for n in sinks.ne[1:]):
        op.fail("sinks must be a vector", a, sinks)
    need_packed(op, sinks)


@op
class soft_max(PerElement):
    """exp(a) / sum(exp(a)) over dimension 0; f32."""

    operands = ("a",)
    ggml = "ggml_soft_max"
    work = 4.0

    def infer(self, a: Value) -> Result:
        self.need_dtype(a, F32)
        self.need_contiguous(a)
        return Result(a.shape)

    def numpy(self, a: Any) -> Any:
        e, total = softmax(a, None)
        return e / total


@op
class soft_max_ext(PerElement):
    """softmax(a*scale + mask) over dimension 0 of ``a`` [n_kv, n_tokens, n_head, ...]; ``sinks`` f32 [n_head].

    ``mask`` f32 or f16 [n_kv, at least n_tokens, ...]; its dims 2 and 3 tile those of ``a``. ``max_bias`` weighs it by
    head (ALiBi).
    """

    operands = ("a", "mask?", "sinks?")
    attrs = {"scale": 1.0, "max_bias": 0.0}
    ggml = "ggml_soft_max_ext"
    extra_ggml = ("ggml_soft_max_add_sinks",)
    work = 6.0

    def infer(self, a: Value, mask: Value | None, sinks: Value | None, scale: SymLike, max_bias: SymLike) -> Result:
        self.need_dtype(a, F32)
        self.need_contiguous(a)
        if mask is not None:
            self.need_dtype(mask, F32, F16)
            self.need_same(a.ne[0], mask.ne[0], "the mask must have one entry a key", a, mask)
            if not same(a.ne[1], mask.ne[1]) and int(mask.ne[1]) < int(a.ne[1]):
                self.fail("the mask must have a row for each query", a, mask)
        need_mask(self, a, mask, max_bias)
        need_sinks(self, a, sinks)
        return Result(a.shape)

    def numpy(self, a: Any, mask: Any, sinks: Any, scale: Any, max_bias: Any) -> Any:
        scores = masked(to_rank(a, 4) * a.dtype.type(float(scale)), mask, max_bias)
        e, total = softmax(scores, _sink_axis(sinks, a.dtype))
        return (e / total).reshape(a.shape).astype(a.dtype)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        return f"ggml_soft_max_ext(ctx, {args[0]}, {args[1]}, {attrs['scale']}, {attrs['max_bias']})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        return [] if args[2] == "nullptr" else [f"ggml_soft_max_add_sinks({var}, {args[2]});"]


@op
class flash_attn_ext(Op):
    """Fused attention; f32 [head_v, n_head, n_tokens, ...] (permuted).

    q f32 [head, n_tokens, n_head, ...], k [head, n_kv, n_head_kv, ...], v [head_v, n_kv, n_head_kv, ...] (not
    transposed), mask f16 [n_kv, n_tokens, ...], sinks f32 [n_head]. k and v are f32, f16, bf16 or quantised. A query
    that sees no key gives 0. ``n_kv_max`` is a hint: at most so many entries of any mask row are finite (0: unknown).
    F32 accumulation is asked for.
    """

    operands = ("q", "k", "v", "mask?", "sinks?")
    attrs = {"scale": 1.0, "max_bias": 0.0, "logit_softcap": 0.0, "n_kv_max": 0}
    ggml = "ggml_flash_attn_ext"
    extra_ggml = ("ggml_flash_attn_ext_add_sinks", "ggml_flash_attn_ext_set_n_kv_max", "ggml_prec_set_acc")

    def infer(
        self, q: Value, k: Value, v: Value, mask: Value | None, sinks: Value | None, scale: SymLike, max_bias: SymLike,
        logit_softcap: SymLike, n_kv_max: SymLike,
    ) -> Result:
        self.need_dtype(q, F32)
        need_type(self, k, READABLE, "cannot hold keys", q)
        need_type(self, v, READABLE, "cannot hold values", q)
        self.need_same(q.ne[0], k.ne[0], "head sizes differ", q, k)
        self.need_same(k.ne[1], v.ne[1], "as many values as keys are needed", k, v)
        self.need_same(k.ne[2], v.ne[2], "as many value heads as key heads are needed", k, v)
        self.need_same(q.ne[3], k.ne[3], "dim 3 of queries and keys differs", q, k)
        self.need_same(q.ne[3], v.ne[3], "dim 3 of queries and values differs", q, v)
        if int(q.ne[2]) % int(k.ne[2]):
            self.fail("query heads are not a multiple of key heads", q, k)
        for x in (q, k, v):
            self.need_rows(x)
        if mask is not None:
            self.need_dtype(mask, F16)
            self.need_same(k.ne[1], mask.ne[0], "the mask must have one entry a key", k, mask)
            self.need_same(q.ne[1], mask.ne[1], "the mask must have one row a query", q, mask)
        need_mask(self, q, mask, max_bias)
        need_sinks(self, q, sinks)
        if int(n_kv_max) < 0:
            self.fail(f"n_kv_max = {int(n_kv_max)} is negative", q, k)
        rank = max(3, len(q.shape))
        return Result((v.ne[0], q.ne[2], q.ne[1], q.ne[3])[:rank])

    def numpy(
        self, q: Any, k: Any, v: Any, mask: Any, sinks: Any, scale: Any, max_bias: Any, logit_softcap: Any,
        n_kv_max: Any,
    ) -> Any:
        rank, dtype = max(3, q.ndim), q.dtype
        q, k, v = (to_rank(x, 4).astype(dtype) for x in (q, k, v))
        k, v = spread(k, 1, q.shape[1]), spread(v, 1, q.shape[1])
        scores = np.matmul(q, k.swapaxes(-1, -2)) * dtype.type(float(scale))
        if float(logit_softcap):
            cap = dtype.type(float(logit_softcap))
            scores = cap * np.tanh(scores / cap)
        e, total = softmax(masked(scores, mask, max_bias), _sink_axis(sinks, dtype))
        out = np.matmul(np.divide(e, total, out=np.zeros_like(e), where=total > 0), v)
        return to_rank(np.ascontiguousarray(out.transpose(0, 2, 1, 3)), rank)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        shown = [value for name, value in attrs.items() if name != "n_kv_max"]
        return f"ggml_flash_attn_ext(ctx, {', '.join([*args[:4], *shown])})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        sinks = [] if args[4] == "nullptr" else [f"ggml_flash_attn_ext_add_sinks({var}, {args[4]});"]
        hint = attrs["n_kv_max"]
        bound = [] if hint == "0" else [f"ggml_flash_attn_ext_set_n_kv_max({var}, {hint});"]
        return [*sinks, *bound, f"ggml_prec_set_acc({var}, GGML_PREC_F32);"]

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        q, k, v = operands[:3]
        assert q is not None and k is not None and v is not None
        pairs = count(q) / int(q.ne[0]) * int(k.ne[1])
        moved = sum(nbytes(x) for x in operands if x is not None) + nbytes(result)
        return Cost(2.0 * pairs * (int(q.ne[0]) + int(v.ne[0])), moved)
