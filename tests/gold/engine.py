"""Contexts for recorded configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.model import Model

from .cases import Array, Configuration

ROOM = 64
"""Positions beyond what a replay writes, so that the end of the context never cuts a draft."""


@contextmanager
def opened(
    model: Model, cfg: Configuration, n_tokens: int, n_seqs: int = 1, n_rows: int = 0, tap_last: bool = False, **settings: Any
) -> Iterator[Context]:
    """A context for ``n_tokens`` tokens in ``n_seqs`` sequences, batches of up to ``n_rows`` rows."""
    options = ContextOptions(
        n_ctx=n_tokens + ROOM * n_seqs, n_ubatch=max(512, n_rows), n_seq_max=n_seqs, flash_attn=cfg.flash_attn,
        type_k=cfg.cache, type_v=cfg.cache, tap_last=tap_last, **settings,
    )
    context = Context(model, options)
    try:
        yield context
    finally:
        context.close()


def layer_taps(layers: Sequence[int]) -> tuple[tuple[str, int], ...]:
    return tuple(("layer_input", int(il)) for il in dict.fromkeys(layers))


def decode(context: Context, batch: Batch, outputs: Sequence[str] = ("logits",), layers: Sequence[int] = ()) -> dict[str, Array]:
    """All rows of a batch through a target, in as many runs as it takes."""
    results: list[dict[str, Array]] = [
        context.run("decode", part, outputs, taps=layer_taps(layers)) for _, part in batch.parts(context.options.n_ubatch)
    ]
    return {name: np.concatenate([r[name] for r in results]) for name in results[0]}
