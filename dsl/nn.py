"""Building blocks shared by architectures, written in the language itself.

They read as in the papers; each is a few ops. Blocks here become C++ functions of their own, as an author's do.
"""

from __future__ import annotations

from typing import Any

from . import ops
from .arch import option
from .block import block
from .dtypes import GGMLType
from .errors import GraphError
from .expr import SymLike
from .feeds import KVView, flash_attn
from .ir import Value


def linear(w: Any, x: Value) -> Value:
    """``w`` [k, n] applied to rows ``x`` [k, m]; f32 [n, m]. A scale that belongs to ``w`` (NVFP4) multiplies the
    product, before anything else sees it (DFlash specification, NV-1)."""
    if w is None:
        raise GraphError("linear: the matrix is None, an optional weight that this file does not have")
    scale = w.scale if hasattr(w, "scale") else None
    if scale is None:
        return ops.mul_mat(w, x)
    return ops.mul(ops.mul_mat(w, x), scale)


def affine(w: Any, x: Value, bias: Value) -> Value:
    """``linear`` and then a bias [n]."""
    return ops.add(linear(w, x), bias)


def rms_norm(x: Value, weight: Value | None, eps: SymLike) -> Value:
    """RMS norm over dimension 0, times ``weight`` if there is one."""
    if weight is None:
        return ops.rms_norm(x, eps)
    return ops.mul(ops.rms_norm(x, eps), weight)


def embed(table: Value, tokens: Value) -> Value:
    """Rows of the embedding table; f32 [n_embd, n_tokens]."""
    return ops.get_rows(table, tokens)


def heads(x: Value, head: SymLike, n_head: SymLike) -> Value:
    """Rows [head*n_head, n_tokens] as [head, n_head, n_tokens]."""
    return ops.reshape(x, head, n_head, x.ne[1])


def hadamard(x: Value, matrix: Value) -> Value:
    """Every consecutive chunk of dimension 0 times an orthonormal Hadamard matrix [n, n] (KA-3)."""
    n = matrix.ne[0]
    chunks = ops.reshape(x, n, x.ne[0] // n * x.ne[1], x.ne[2])
    return ops.reshape(ops.mul_mat(matrix, chunks, hadamard=True), *x.shape)


def rotate_k(x: Value, kv: KVView) -> Value:
    """``x`` in the space in which the cache keeps keys: unchanged unless the cache is rotated."""
    return hadamard(x, kv.hadamard_k) if kv.hadamard_k is not None else x


def rotate_v(x: Value, kv: KVView) -> Value:
    """``x`` in the space in which the cache keeps values; the same again undoes it."""
    return hadamard(x, kv.hadamard_v) if kv.hadamard_v is not None else x


@block
def write_kv(layer: Any, k: Value, v: Value, kv: KVView) -> tuple[Value, Value]:
    """Store keys and values [head, n_head_kv, n_tokens] in the layer's cache. Every write, injected or drafted, goes
    through here, so that rotation cannot be forgotten in one of them."""
    k = rotate_k(k, kv)
    v = rotate_v(v, kv)
    k_cache = ops.store(kv.k, flat(k), kv.cells)
    v_cache = ops.store(kv.v, flat(v), kv.cells)
    return k_cache, v_cache


def flat(x: Value) -> Value:
    """[head, n_head, n] as rows [head*n_head, n]."""
    return ops.reshape(x, x.ne[0] * x.ne[1], x.ne[2])


@block
def attention(
    layer: Any,
    q: Value,
    k_cache: Value,
    v_cache: Value,
    kv: KVView,
    scale: SymLike,
    n_head_kv: SymLike,
    sinks: Value | None = None,
) -> Value:
    """softmax(q.k*scale + mask).v of queries [head, n_head, n_tokens] over the cache; rows [head_v*n_head, n]."""
    head_k, head_v = k_cache.ne[0] // n_head_kv, v_cache.ne[0] // n_head_kv
    n_kv = kv.mask.ne[0]
    q = rotate_k(q, kv)
    q = ops.permute(q, 0, 2, 1, 3)
    k = ops.reshape(ops.first_rows(k_cache, n_kv), head_k, n_head_kv, n_kv)
    v = ops.reshape(ops.first_rows(v_cache, n_kv), head_v, n_head_kv, n_kv)
    k, v = ops.permute(k, 0, 2, 1, 3), ops.permute(v, 0, 2, 1, 3)
    if flash_attn:
        if option("k_f32"):
            k = ops.cast(k, GGMLType.f16)
        if option("v_f32"):
            v = ops.cast(v, GGMLType.f16)
        out = ops.flash_attn_ext(q, k, v, kv.mask, sinks, scale=scale)
    else:
        kq = ops.mul_mat(k, q, prec_f32=True)
        kq = ops.soft_max_ext(kq, kv.mask, sinks, scale=scale)
        if option("v_quantized"):
            v = ops.cast(v, GGMLType.f32)
        v = ops.cont(ops.transpose(v))
        kqv = ops.mul_mat(v, kq)
        out = ops.cont(ops.permute(kqv, 0, 2, 1, 3), head_v, q.ne[2], q.ne[1])
    out = rotate_v(out, kv)
    return flat(out)


def swiglu(gate: Value, up: Value) -> Value:
    """silu(gate) * up."""
    return ops.swiglu_split(gate, up)


def geglu(gate: Value, up: Value) -> Value:
    """gelu(gate) * up, with the tanh approximation."""
    return ops.geglu_split(gate, up)


def scatter(x: Value, ids: Value, n: SymLike, fill: float) -> Value:
    """Rows [m, n_rows] spread to [n, n_rows]: entry j goes to ``ids[j]`` (i64 [m]), the rest is ``fill``."""
    rows = x.ne[1]
    spread = ops.set_rows(ops.full((1, n, rows), fill), ops.reshape(x, 1, x.ne[0], rows), ids)
    return ops.reshape(spread, n, rows)
