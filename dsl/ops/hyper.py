"""Hyper-connections of DeepSeek-V4: several residual streams, mixed around every sub-layer (arXiv:2512.24880).

hc is the number of streams. ggml's kernels exist for 4 of them where a mixing matrix is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike, same
from ..ir import Value
from ..op import F32, Cost, Op, Result, count, nbytes, op
from .arrays import sigmoid, to_rank

STREAMS = 4
MIXES = (2 + STREAMS) * STREAMS


def _moved(result: Value, operands: Sequence[Value | None]) -> float:
    return sum(nbytes(v) for v in operands if v is not None) + nbytes(result)


def _need_rank(op: Op, value: Value, rank: int, what: str, *others: Value) -> None:
    if not all(same(n, 1) for n in value.ne[rank:]):
        op.fail(f"{what} has at most {rank} dims", *others, value)


@op
class dsv4_hc_comb(Op):
    """The matrix that mixes the streams: mixes [24, n_tokens], scale [3], base [24] -> [dst, src, n_tokens], all f32.

    logits[dst, src] = mixes[8 + dst + 4*src] * scale[2] + base[8 + dst + 4*src]; softmax over dst, plus eps; divided by
    the sums over src (plus eps); then ``n_iter`` - 1 times by those over dst and over src (Sinkhorn).
    """

    operands = ("mixes", "scale", "base")
    attrs = {"eps": ..., "n_iter": ...}
    ggml = "ggml_dsv4_hc_comb"

    def infer(self, mixes: Value, scale: Value, base: Value, eps: SymLike, n_iter: SymLike) -> Result:
        for x in (mixes, scale, base):
            self.need_dtype(x, F32)
        if int(mixes.ne[0]) != MIXES:
            self.fail(f"dim 0 must be (2 + 4)*4 = {MIXES}: ggml mixes {STREAMS} streams", mixes, base)
        self.need_same(mixes.ne[0], base.ne[0], "one base a mix is needed", mixes, base)
        _need_rank(self, mixes, 2, "mixes", base)
        _need_rank(self, scale, 1, "scale", mixes)
        _need_rank(self, base, 1, "base", mixes)
        if int(scale.ne[0]) < 3:
            self.fail("scale must have 3 entries", mixes, scale)
        if int(n_iter) < 1:
            self.fail(f"n_iter = {int(n_iter)} must be at least 1", mixes, base)
        return Result((STREAMS, STREAMS, mixes.ne[1]))

    def numpy(self, mixes: Any, scale: Any, base: Any, eps: Any, n_iter: Any) -> Any:
        eps = mixes.dtype.type(float(eps))
        flat = to_rank(mixes, 2) * scale.reshape(-1)[2] + base.reshape(-1)
        comb = flat[:, 2 * STREAMS :].reshape(-1, STREAMS, STREAMS)  # [token, src, dst]
        comb = np.exp(comb - comb.max(axis=2, keepdims=True))
        comb = comb / comb.sum(axis=2, keepdims=True) + eps
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        for _ in range(int(n_iter) - 1):
            comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
            comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        return comb

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost((8.0 + 4.0 * int(attrs["n_iter"])) * count(result), _moved(result, operands))


class Collapse(Op):
    """x [n_embd, hc, n_tokens] -> [n_embd, n_tokens]."""

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        x = operands[0]
        assert x is not None
        return Cost(2.0 * count(x), _moved(result, operands))


@op
class dsv4_hc_pre(Collapse):
    """Weighted sum of the streams: x [n_embd, hc, n_tokens], weights [hc, n_tokens] -> [n_embd, n_tokens]; all f32."""

    operands = ("x", "weights")
    ggml = "ggml_dsv4_hc_pre"

    def infer(self, x: Value, weights: Value) -> Result:
        self.need_dtype(x, F32)
        self.need_dtype(weights, F32)
        self.need_same(x.ne[1], weights.ne[0], "one weight a stream is needed", x, weights)
        self.need_same(x.ne[2], weights.ne[1], "weights for each token are needed", x, weights)
        _need_rank(self, x, 3, "x", weights)
        _need_rank(self, weights, 2, "weights", x)
        return Result((x.ne[0], x.ne[2]))

    def numpy(self, x: Any, weights: Any) -> Any:
        return np.einsum("thi,th->ti", to_rank(x, 3), to_rank(weights, 2))


@op
class dsv4_hc_pre_gated(Collapse):
    """scale * sum over streams of x * sigmoid(gate): both [n_embd, hc, n_tokens] -> [n_embd, n_tokens], all f32."""

    operands = ("x", "gate")
    attrs = {"scale": 1.0}
    ggml = "ggml_dsv4_hc_pre_gated"

    def infer(self, x: Value, gate: Value, scale: SymLike) -> Result:
        self.need_dtype(x, F32)
        self.need_dtype(gate, F32)
        for i in range(3):
            self.need_same(x.ne[i], gate.ne[i], f"dim {i} differs", x, gate)
        _need_rank(self, x, 3, "x", gate)
        _need_rank(self, gate, 3, "gate", x)
        return Result((x.ne[0], x.ne[2]))

    def numpy(self, x: Any, gate: Any, scale: Any) -> Any:
        gated = to_rank(x, 3) * sigmoid(to_rank(gate, 3))
        return gated.sum(axis=1) * x.dtype.type(float(scale))


@op
class dsv4_hc_post(Op):
    """A sub-layer's output spread over the streams and added to the mixed residual; all f32.

    x [n_embd, n_tokens], residual [n_embd, hc, n_tokens], post [hc, n_tokens], comb [dst, src, n_tokens] ->
    [n_embd, hc, n_tokens]: x*post[dst] + sum over src of residual[src]*comb[dst, src]. Without ``comb`` every stream
    keeps its own residual.
    """

    operands = ("x", "residual", "post", "comb?")
    ggml = "ggml_dsv4_hc_post"

    def infer(self, x: Value, residual: Value, post: Value, comb: Value | None) -> Result:
        for v in (x, residual, post):
            self.need_dtype(v, F32)
        self.need_same(x.ne[0], residual.ne[0], "row widths differ", x, residual)
        self.need_same(x.ne[1], residual.ne[2], "token counts differ", x, residual)
        self.need_same(residual.ne[1], post.ne[0], "one weight a stream is needed", residual, post)
        self.need_same(x.ne[1], post.ne[1], "weights for each token are needed", x, post)
        _need_rank(self, x, 2, "x", residual)
        _need_rank(self, residual, 3, "residual", x)
        _need_rank(self, post, 2, "post", x)
        if comb is not None:
            self.need_dtype(comb, F32)
            for i in (0, 1):
                self.need_same(residual.ne[1], comb.ne[i], f"dim {i} must be the number of streams", residual, comb)
            self.need_same(x.ne[1], comb.ne[2], "a matrix for each token is needed", x, comb)
            _need_rank(self, comb, 3, "comb", x)
        return Result((x.ne[0], residual.ne[1], x.ne[1]))

    def numpy(self, x: Any, residual: Any, post: Any, comb: Any) -> Any:
        x, residual, post = to_rank(x, 2), to_rank(residual, 3), to_rank(post, 2)
        mixed = residual if comb is None else np.einsum("tsi,tsd->tdi", residual, to_rank(comb, 3))
        return x[:, None, :] * post[:, :, None] + mixed

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        _, residual, _, comb = operands
        assert residual is not None
        terms = 2 if comb is None else 1 + 2 * int(residual.ne[1])
        return Cost(float(terms * count(result)), _moved(result, operands))
