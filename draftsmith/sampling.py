"""Stochastic sampling, and acceptance that keeps the target's distribution.

A :class:`Sampler` turns logits into a distribution as llama.cpp's chain does: top-k, top-p, min-p, then temperature.
Drafts are accepted in one of two ways (DFlash specification, SL-11, SL-12), both of which emit exactly what plain
sampling from the target would:

* *match*: draw the target's token of each row; go on while it equals the draft. Right for any drafts.
* *reject*: accept a draft d with probability min(1, p(d)/q(d)), else draw from what p has beyond q. Needs the
distribution q that each draft was really drawn from, and accepts more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.contract import Draft
from draftsmith.dsl.errors import RequestError

Floats = NDArray[np.float64]
ACCEPTANCE = ("match", "reject")


@dataclass(frozen=True)
class SamplingOptions:
    """Named as in llama.cpp. ``temperature`` 0: greedy, the rest is then without effect. ``top_k`` 0, ``top_p`` 1,
    ``min_p`` 0 switch a step off. ``acceptance``: "match" or "reject"."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    acceptance: str = "match"

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise RequestError(f"the temperature must not be negative, found {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must not be negative, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must lie in (0, 1], found {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p must lie in [0, 1], found {self.min_p}")
        if self.acceptance not in ACCEPTANCE:
            raise RequestError(f"acceptance must be one of {', '.join(ACCEPTANCE)}, found {self.acceptance!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __str__(self) -> str:
        if self.greedy:
            return "temperature 0 (greedy)"
        seed = "random" if self.seed is None else self.seed
        return (
            f"temperature {self.temperature:g}, top_k {self.top_k}, top_p {self.top_p:g}, min_p {self.min_p:g}, "
            f"seed {seed}, "
            f"acceptance by {self.acceptance}"
        )


@dataclass(frozen=True)
class Distribution:
    """Probabilities ``p`` of tokens ``ids``; every other token has none."""

    ids: NDArray[np.int64]
    p: Floats

    def of(self, token: int) -> float:
        at = np.flatnonzero(self.ids == token)
        return float(self.p[at[0]]) if len(at) else 0.0


@dataclass
class Sampler:
    """Distributions and draws. Every sequence draws from a stream of its own, so that its text depends on the seed
    alone."""

    options: SamplingOptions
    _streams: dict[int, np.random.Generator] = field(default_factory=dict)

    def stream(self, seq: int) -> np.random.Generator:
        if seq not in self._streams:
            root = np.random.SeedSequence(self.options.seed)
            self._streams[seq] = np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=(seq,)))
        return self._streams[seq]

    def distribution(self, logits: NDArray[np.floating]) -> Distribution:
        """The target's distribution for a row of logits."""
        o = self.options
        z = logits.astype(np.float64)
        ids = np.arange(len(z))
        if 0 < o.top_k < len(z):
            ids = np.argpartition(-z, o.top_k - 1)[: o.top_k]
        ids = ids[np.argsort(-z[ids], kind="stable")]
        p = softmax(z[ids])
        if o.top_p < 1:
            # the token that crosses the limit stays
            keep = int(np.searchsorted(np.cumsum(p), o.top_p)) + 1
            ids, p = ids[:keep], p[:keep]
        if o.min_p > 0:
            ids = ids[p >= o.min_p * p[0]]
        return Distribution(ids, softmax(z[ids] / o.temperature))

    def draft_distribution(self, ids: NDArray[np.integer], logits: NDArray[np.floating]) -> Distribution:
        """What a draft is drawn from: the drafter's scores at this temperature."""
        return Distribution(ids.astype(np.int64), softmax(logits.astype(np.float64) / self.options.temperature))

    def draw(self, distribution: Distribution, seq: int) -> int:
        """One token."""
        return int(distribution.ids[pick(distribution.p, self.stream(seq))])

    def accept(self, rows: NDArray[np.floating], drafts: Sequence[Draft], seq: int) -> tuple[int, list[int]]:
        """How many drafts hold and the tokens to emit: the accepted ones and one more. ``rows``: the target's logits,
        one row for each draft and one behind."""
        by = _by_rejection if self.options.acceptance == "reject" else _by_match
        return by([self.distribution(row) for row in rows], drafts, self.stream(seq))


def _by_match(p: Sequence[Distribution], drafts: Sequence[Draft], rng: np.random.Generator) -> tuple[int, list[int]]:
    tokens: list[int] = []
    for i, target in enumerate(p):
        token = int(target.ids[pick(target.p, rng)])
        tokens.append(token)
        if i == len(drafts) or token != drafts[i].token:
            break
    return len(tokens) - 1, tokens


def _by_rejection(
    p: Sequence[Distribution], drafts: Sequence[Draft], rng: np.random.Generator
) -> tuple[int, list[int]]:
    tokens: list[int] = []
    for draft, target in zip(drafts, p, strict=False):
        proposal = draft.distribution
        # a draft without a distribution was no draw: all its mass lies on itself
        q = 1.0 if proposal is None else proposal.of(draft.token)
        if rng.random() * q < target.of(draft.token):
            tokens.append(draft.token)
            continue
        rest = np.array(
            [
                max(0.0, pi - ((1.0 if token == draft.token else 0.0) if proposal is None else proposal.of(int(token))))
                for token, pi in zip(target.ids, target.p, strict=True)
            ]
        )
        # p and q equal to rounding: nothing is left beyond q, any draw from p is right
        weights = rest / rest.sum() if rest.sum() > 0 else target.p
        return len(tokens), [*tokens, int(target.ids[pick(weights, rng)])]
    last = p[len(drafts)]
    return len(tokens), [*tokens, int(last.ids[pick(last.p, rng)])]


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max())
    weights: Floats = e / e.sum()
    return weights


def pick(p: Floats, rng: np.random.Generator) -> int:
    """An index drawn with probabilities ``p``."""
    return min(int(np.searchsorted(np.cumsum(p), rng.random() * p.sum(), side="right")), len(p) - 1)
