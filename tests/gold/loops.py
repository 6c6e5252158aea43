"""Greedy loops, plain and speculative, against recorded tokens, drafts and acceptance.

Where a draft differs, the loop is run again along the recorded path: every round then starts from the recorded text,
and a draft of ours may differ from the recorded one only where the decision was a tie within the tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draftsmith.context import Context
from draftsmith.pairing import Pairing
from draftsmith.speculative import Sequence_, Speculator

from .cases import Array, Record, as_tokens
from .compare import Limit, exact_beyond
from .report import Report


@dataclass(frozen=True)
class Engine:
    """A target, perhaps with a drafter; each run clears both contexts."""

    target: Context
    draft: Context | None = None
    pairing: Pairing | None = None


@dataclass(frozen=True)
class Settings:
    """``n_predict``: llama.cpp's ``-n``: stop at more tokens than that, cut drafts to what is left; None: no
    cut. ``from_prompt``: draft already from the last token of the prompt."""

    n_predict: int | None = None
    n_max: int | None = None
    p_min: float = 0.0
    from_prompt: bool = True

    def __str__(self) -> str:
        return f"p_min {self.p_min:g}" if self.n_max is None else f"n_max {self.n_max}, p_min {self.p_min:g}"


def settings(run: Record) -> Settings:
    return Settings(int(run["n_predict"]) if "n_predict" in run else None, int(run["n_max"]), float(run["p_min"]))


@dataclass(frozen=True)
class Ties:
    """How far apart two alternatives may lie and still change places: logits, scores; what p_min is held against."""

    logits: Limit
    certainty: Limit

    def __str__(self) -> str:
        return exact_beyond(self.logits)


@dataclass
class Generation:
    """What a loop emitted, round by round: [drafted, accepted], and the drafts."""

    tokens: list[int] = field(default_factory=list)
    iterations: list[list[int]] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)

    @property
    def n_drafted(self) -> int:
        return sum(n for n, _ in self.iterations)

    @property
    def n_accepted(self) -> int:
        return sum(n for _, n in self.iterations)


def recorded_run(run: Record) -> Generation:
    return Generation(
        as_tokens(run["tokens"]), [as_tokens(i) for i in run["iterations"]], [as_tokens(d) for d in run["drafts"]]
    )


class Loop:
    """A loop at its start: prompt decoded, nothing drafted yet."""

    def __init__(self, engine: Engine, prompt: Sequence[int], how: Settings) -> None:
        engine.target.clear()
        if engine.draft is not None:
            engine.draft.clear()
        self.how = how
        self.speculator = Speculator(engine.target, engine.draft, engine.pairing, how.n_max, 0, how.p_min)
        self.done = Generation()
        if how.from_prompt:
            self.speculator.prefill(list(prompt[:-1]), want_next=False)
            self.sequence = Sequence_(0, len(prompt) - 1, int(prompt[-1]))
        else:
            first = self.speculator.prefill(list(prompt))
            assert first is not None
            self.sequence = Sequence_(0, len(prompt), first)
            self.done.tokens.append(first)

    @property
    def limit(self) -> int:
        """The most drafts of the next round."""
        left = 0 if self.how.n_predict is None else self.how.n_predict - len(self.done.tokens) - 1
        return left if left > 0 else self.speculator.n_max

    def propose(self) -> list[int]:
        return [draft.token for draft in self.speculator.propose([self.sequence], [self.limit])[0]]

    def verify(self, drafts: Sequence[int]) -> None:
        done = self.speculator.verify([self.sequence], [drafts])[0]
        self.done.tokens += done.tokens
        self.done.iterations.append([len(done.drafts), done.accepted])
        self.done.drafts.append(list(done.drafts))


def generate(engine: Engine, prompt: Sequence[int], how: Settings, n_rounds: int = 0) -> Generation:
    """Run to the end; ``n_rounds`` when ``n_predict`` does not say where that is."""
    loop = Loop(engine, prompt, how)
    done = loop.done
    while len(done.tokens) <= how.n_predict if how.n_predict is not None else len(done.iterations) < n_rounds:
        loop.verify(loop.propose())
    return done


def compare(
    report: Report, label: str, engine: Engine, prompt: Sequence[int], recorded: Generation, how: Settings, ties: Ties
) -> Generation:
    """A recorded run. Returns ours, which is the one along the recorded path if they differ."""
    label = f"{label} ({how})"
    found = generate(engine, prompt, how, len(recorded.iterations))
    shared = min(len(found.tokens), len(recorded.tokens))  # a record may end within the last round
    report.equal(f"{label} tokens", found.tokens[:shared], recorded.tokens[:shared])
    if (found.iterations, found.drafts) != (recorded.iterations, recorded.drafts):
        return follow(report, label, engine, prompt, recorded, how, ties)
    report.equal(f"{label} [drafted, accepted]", found.iterations, recorded.iterations)
    report.equal(f"{label} drafts", found.drafts, recorded.drafts)
    return found


def follow(
    report: Report, label: str, engine: Engine, prompt: Sequence[int], recorded: Generation, how: Settings, ties: Ties
) -> Generation:
    """Round by round along the recorded path."""
    assert engine.draft is not None and engine.pairing is not None
    outputs = engine.draft.graphs[engine.pairing.contract.draft].outputs
    watched, blocks = _watched(engine.pairing, outputs)
    loop = Loop(replace(engine, pairing=watched), prompt, how)
    n_ties = 0
    widest = 0.0
    wrong: list[str] = []
    for number, drafts in enumerate(recorded.drafts):
        own = loop.propose()
        if own != drafts:
            verdict = Judgement(0.0, "no block was drafted")
            if blocks:
                block, first_row = blocks[-1]
                verdict = judge(block, own, drafts, first_row, how.p_min, ties, is_chain(outputs))
            n_ties += not verdict.problem
            widest = max(widest, verdict.tie)
            if verdict.problem:
                wrong.append(f"; round {number}: drafted {own}, recorded {drafts}: {verdict.problem}")
        loop.verify(drafts)
    label = f"{label} along the recorded path"
    report.equal(f"{label}, [drafted, accepted]", loop.done.iterations, recorded.iterations)
    n_equal = len(recorded.drafts) - n_ties - len(wrong)
    text = f"{n_equal}/{len(recorded.drafts)} rounds equal, {n_ties} with ties of up to {widest:.1e}"
    report.add(f"{label}, drafts", not wrong, text + "".join(wrong[:1]), str(ties))
    return loop.done


Block = tuple[dict[str, Array], int]
"""The outputs of a drafted block, and the first of their rows that predicts."""


def _watched(pairing: Pairing, known: Iterable[str]) -> tuple[Pairing, list[Block]]:
    """The pairing with a drafter that leaves its blocks in a list."""
    contract = pairing.contract
    known = set(known)
    blocks: list[Block] = []

    def propose(outputs: Mapping[str, Array], first_row: int, n_max: int, p_min: float) -> list[int]:
        blocks.append(({n: np.array(a) for n, a in outputs.items()}, first_row))
        return list(contract.propose(outputs, first_row, n_max, p_min))

    def outputs(p_min: float) -> tuple[str, ...]:
        more = [n for n in ("logits", "confidence", "candidates", "scores", "top_logits") if n in known]
        return tuple(dict.fromkeys([*contract.outputs(p_min), *more]))

    return replace(pairing, contract=replace(contract, propose=propose, outputs=outputs)), blocks


def is_chain(outputs: Iterable[str]) -> bool:
    """Whether each row of a drafter with these outputs depends on the choice in the row before it."""
    return not {"base_logits", "candidates"}.isdisjoint(outputs)


@dataclass
class Judgement:
    """How wide the ties were that two drafts from the same text differ in, and what is more than a tie."""

    tie: float = 0.0
    problem: str = ""

    def __str__(self) -> str:
        return self.problem or f"ties of up to {self.tie:.1e}"


def judge(
    block: Mapping[str, Array], own: Sequence[int], recorded: Sequence[int], first_row: int, p_min: float, ties: Ties,
    chained: bool,
) -> Judgement:  # fmt: skip
    """Two drafts from the same text; ``block``: what ours was chosen from."""
    verdict = Judgement()
    for i, (a, b) in enumerate(zip(own, recorded, strict=False)):
        if a == b:
            continue
        gap = _gap(block, first_row + i, a, b, own[:i], first_row)
        if not gap <= ties.logits.max_abs:
            return Judgement(gap, f"{a} is {gap:.2e} above {b}")
        verdict.tie = max(verdict.tie, gap)
        if chained or len(own) != len(recorded):
            return verdict  # what follows in a chain depends on this choice
    if len(own) == len(recorded):
        return verdict
    certainty = _certainty(block, first_row + min(len(own), len(recorded)))
    if p_min > 0 and certainty is not None and abs(certainty - p_min) <= ties.certainty.max_abs:
        return Judgement(max(verdict.tie, abs(certainty - p_min)))
    return Judgement(0.0, f"{len(own)} drafts for {len(recorded)}, certainty {certainty} at p_min {p_min}")


def _gap(block: Mapping[str, Array], row: int, a: int, b: int, before: Sequence[int], first_row: int) -> float:
    """How far ``a`` lies above ``b`` in what decided this row."""
    logits = block["logits"][row]
    if "candidates" not in block:
        return float(logits[a] - logits[b])
    ids = block["candidates"][row].tolist()
    if b not in ids:  # another candidate set: a tie of logits at the cut
        return float(min(abs(logits[i] - logits[b]) for i in ids))
    previous = block["candidates"][row - 1].tolist().index(before[-1]) if row > first_row else 0
    scores = block["scores"][row][previous]
    return float(scores[ids.index(a)] - scores[ids.index(b)])


def _certainty(block: Mapping[str, Array], row: int) -> float | None:
    """What p_min is held against, where that is known without the drafter: confidence, or the best of ten logits."""
    if "confidence" in block:
        return float(block["confidence"][row])
    if "candidates" not in block and "top_logits" in block:
        z = np.asarray(block["top_logits"][row], np.float64)
        return float(1.0 / np.exp(z - z.max()).sum())
    return None
