"""Contexts for recorded configurations, and the loop as the reference ran it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.model import Model
from draftsmith.pairing import Pairing
from draftsmith.speculative import Sequence_, Speculator

from .cases import REFERENCE, Array, Configuration

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
    import numpy as np

    return {name: np.concatenate([r[name] for r in results]) for name in results[0]}


@dataclass
class Generation:
    """What a greedy loop emitted, round by round."""

    tokens: list[int] = field(default_factory=list)
    iterations: list[list[int]] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)

    @property
    def n_drafted(self) -> int:
        return sum(n for n, _ in self.iterations)

    @property
    def n_accepted(self) -> int:
        return sum(n for _, n in self.iterations)


def generate(
    target: Context, draft: Context | None, pairing: Pairing | None, prompt: Sequence[int], *, n_predict: int | None = None,
    n_rounds: int = 0, n_max: int | None = None, p_min: float = 0.0,
) -> Generation:
    """llama.cpp's loop: draft already behind the prompt's last token; with ``n_predict`` (the program's ``-n``) go on until there
    are more tokens than that and cut drafts to what is left, without it do ``n_rounds`` rounds."""
    target.clear()
    if draft is not None:
        draft.clear()
    loop = Speculator(target, draft, pairing, n_max, 0, p_min)
    loop.prefill(list(prompt[:-1]), want_next=False)
    sequence = Sequence_(0, len(prompt) - 1, int(prompt[-1]))
    done = Generation()
    while len(done.tokens) <= n_predict if n_predict is not None else len(done.iterations) < n_rounds:
        left = 0 if n_predict is None else n_predict - len(done.tokens) - 1
        step = loop.step([sequence], [left if left > 0 else loop.n_max])[0]
        done.tokens += step.tokens
        done.iterations.append([len(step.drafts), step.accepted])
        done.drafts.append(list(step.drafts))
    return done


__all__ = ["REFERENCE", "Generation", "decode", "generate", "layer_taps", "opened"]
