"""The contract between a drafter and its target, as data.

Most faults that users of drafters suffer are a breach of this contract that nobody checked: the text stays right
and acceptance falls. So a drafter declares what it needs, and :mod:`draftsmith.pairing` checks it against a target
before the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Proposal(Protocol):
    """Turns the outputs of one block into drafted tokens.

    ``outputs``: the rows of one block of each named output, first axis = position in the block. ``first_row``: first
    row that predicts. ``n_max``: most tokens wanted. ``p_min``: stop before a token less likely than this; what
    "likely" means is the drafter's. Returns the token ids.
    """

    def __call__(
        self, outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float
    ) -> list[int]: ...


class Sampled(Protocol):
    """As :class:`Proposal`, but draws each token: ``draw(ids, logits)`` returns the index drawn and the distribution
    it was drawn from."""

    def __call__(
        self, outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float, draw: Draw
    ) -> list[Draft]: ...


Draw = Callable[[NDArray[Any], NDArray[Any]], "tuple[int, Any]"]


@dataclass(frozen=True)
class Draft:
    """A drafted token with the distribution it was drawn from; None when it was not drawn (an arg max)."""

    token: int
    distribution: Any = None


@dataclass(frozen=True)
class Contract:
    """What a drafter needs of its target and how its block is laid out. Names are hparams or keys of the drafter.

    ``features``: list-valued hparam with target layers whose *input* stream is tapped (id ``n_layer``: the stream
    behind the last one); rows are concatenated in this order. ``width``: hparam that must equal the target's hidden
    size. ``vocab``: hparam that must equal the target's vocabulary. ``block_size``: hparam with the trained block.
    ``mask_token``: hparam with the id that fills the block behind the anchor. ``first_row``: function of the
    drafter's hparams class: the row of the block that predicts the first drafted token (1: masks predict themselves;
    0: the anchor row predicts). ``inject``/``draft``: names of the two graphs. ``outputs``: what ``propose`` reads,
    in greedy mode, by whether p_min is in use. ``sample``, ``sample_outputs``: the same for drawn drafts. ``causal``:
    function of the hparams class: whether rows of a block see only rows before them. ``refuse``: a complaint about
    settings (the bound model, p_min) that this drafter cannot serve, or None. ``selects_rows``: the draft graph takes
    ``out_rows``: only rows that predict go through the head. ``full_blocks``: a block always has ``block_size`` rows,
    however few drafts are wanted. ``carry``: an output of the inject graph and a feed of the draft graph: the
    output's row of the last committed position is what each block is given.
    """

    features: str
    width: str
    vocab: str
    block_size: str
    mask_token: str
    first_row: Callable[[Any], int]
    propose: Proposal
    outputs: Callable[[float], Sequence[str]]
    sample: Sampled
    sample_outputs: Callable[[float], Sequence[str]]
    causal: Callable[[Any], bool] = lambda hp: False
    refuse: Callable[[Any, float], str | None] = lambda model, p_min: None
    selects_rows: bool = False
    full_blocks: bool = False
    carry: tuple[str, str] | None = None
    inject: str = "inject"
    draft: str = "draft"
    tap: str = "layer_input"


def _largest_share(scores: NDArray[Any]) -> float:
    """The largest probability of a softmax, which p_min is compared with."""
    return float(1.0 / np.exp(scores - scores.max()).sum())


def walk_lattice(
    outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float
) -> list[int]:
    """Follow the best score from row to row of ``candidates`` [row, k] and ``scores`` [row, predecessor, candidate];
    stop before a step whose softmax score is below ``p_min`` (DFlash specification, SE-5, LC-10b). The first of equal
    scores wins."""
    drafted: list[int] = []
    at = 0
    for row in range(first_row, min(len(outputs["candidates"]), first_row + n_max)):
        scores = outputs["scores"][row][at].astype(np.float64)
        at = int(np.argmax(scores))
        if p_min > 0 and _largest_share(scores) < p_min:
            break
        drafted.append(int(outputs["candidates"][row][at]))
    return drafted


def sample_lattice(
    outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float, draw: Draw
) -> list[Draft]:
    """As :func:`walk_lattice`, each step drawn from the softmax of the walked predecessor's scores."""
    drafted: list[Draft] = []
    at = 0
    for row in range(first_row, min(len(outputs["candidates"]), first_row + n_max)):
        scores = outputs["scores"][row][at].astype(np.float64)
        if p_min > 0 and _largest_share(scores) < p_min:
            break
        at, distribution = draw(outputs["candidates"][row], scores)
        drafted.append(Draft(int(outputs["candidates"][row][at]), distribution))
    return drafted


def sample_rows(
    outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float, draw: Draw
) -> list[Draft]:
    """Each row's token drawn from its ten largest logits. Pruning looks only at what is known before the draw, so
    that acceptance stays lossless (SL-12)."""
    drafted: list[Draft] = []
    for row in range(first_row, min(len(outputs["logits"]), first_row + n_max)):
        if p_min > 0 and "confidence" in outputs and outputs["confidence"][row] < p_min:
            break
        logits = outputs["logits"][row]
        best = np.argsort(-logits, kind="stable")[:10]
        z = logits[best].astype(np.float64)
        if p_min > 0 and "confidence" not in outputs and _largest_share(z) < p_min:
            break
        at, distribution = draw(best, z)
        drafted.append(Draft(int(best[at]), distribution))
    return drafted


def argmax_rows(
    outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float
) -> list[int]:
    """The plain proposal: each row's most likely token, until one is less likely than ``p_min`` (softmax over the ten
    largest logits, as llama.cpp's drafting sampler has it)."""
    ids = outputs["argmax"][first_row:]
    if p_min <= 0:
        return [int(t) for t in ids[:n_max]]
    drafted: list[int] = []
    for token, logits in zip(ids, outputs["top_logits"][first_row:], strict=True):
        z = np.asarray(logits, dtype=np.float64)
        if _largest_share(z) < p_min or len(drafted) == n_max:
            break
        drafted.append(int(token))
    return drafted
