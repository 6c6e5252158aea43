"""The lightning indexer of sparse attention: how relevant each cached row is to each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import same
from ..ir import Value
from ..op import F16, F32, Cost, Op, Result, count, nbytes, op
from .arrays import tile_to, to_rank
from .types import READABLE, need_type


@op
class lightning_indexer(Op):
    """sum over heads of relu(q . k) * weights, plus the mask; f32 [n_kv, n_tokens] or [n_kv, n_tokens, 1, n_stream].

    q f32 [head, n_head, n_tokens, n_stream], k [head, 1, n_kv, n_stream], weights f32 [n_head, n_tokens, 1, n_stream]
    with all scales in them, mask f16 [n_kv, n_tokens, 1, 1 or n_stream].
    """

    operands = ("q", "k", "weights", "mask")
    ggml = "ggml_lightning_indexer"

    def infer(self, q: Value, k: Value, weights: Value, mask: Value) -> Result:
        self.need_dtype(q, F32)
        need_type(self, k, READABLE, "cannot hold index keys", q)
        self.need_dtype(weights, F32)
        self.need_dtype(mask, F16)
        self.need_same(q.ne[0], k.ne[0], "head sizes differ", q, k)
        self.need_same(k.ne[2], mask.ne[0], "the mask must have one entry a key", k, mask)
        self.need_same(q.ne[1], weights.ne[0], "one weight a head is needed", q, weights)
        self.need_same(q.ne[2], weights.ne[1], "one row of weights a token is needed", q, weights)
        self.need_same(q.ne[2], mask.ne[1], "the mask must have one row a token", q, mask)
        self.need_same(q.ne[3], k.ne[3], "dim 3 of queries and keys differs", q, k)
        self.need_same(q.ne[3], weights.ne[3], "dim 3 of queries and weights differs", q, weights)
        if not same(k.ne[1], 1):
            self.fail("index keys have one head: [head, 1, n_kv, n_stream] is needed", q, k)
        if not same(weights.ne[2], 1) or not same(mask.ne[2], 1):
            self.fail("dim 2 of weights and mask must be 1", weights, mask)
        if not same(mask.ne[3], 1) and int(q.ne[3]) % int(mask.ne[3]):
            self.fail("dim 3 of the mask does not tile the queries'", q, mask)
        for x in (q, k, weights, mask):
            self.need_rows(x)
        rank = 4 if len(q.shape) == 4 else 2
        return Result((k.ne[2], q.ne[2], 1, q.ne[3])[:rank])

    def numpy(self, q: Any, k: Any, weights: Any, mask: Any) -> Any:
        rank, dtype = (4 if q.ndim == 4 else 2), q.dtype
        q, k, weights, mask = (to_rank(x, 4).astype(dtype) for x in (q, k, weights, mask))
        scores = np.maximum(np.einsum("sthd,skd->sthk", q, k[:, :, 0]), 0)
        total = np.einsum("sthk,sth->stk", scores, weights[:, 0])[:, None]
        return to_rank(total + tile_to(mask, total.shape), rank)

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        q, k = operands[:2]
        assert q is not None and k is not None
        moved = sum(nbytes(x) for x in operands if x is not None) + nbytes(result)
        return Cost(2.0 * count(q) * int(k.ne[2]) + 3.0 * count(q) / int(q.ne[0]) * int(k.ne[2]), moved)
