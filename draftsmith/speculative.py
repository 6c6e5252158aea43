"""Speculative decoding: draft a block, verify it in one pass, inject what was computed, keep what matches.

One round (DFlash specification, OV-9): the drafter fills a block behind the last token; the target decodes that token
and the drafts in one batch; its hidden states of all these rows go into the drafter's cache; rows behind the accepted
drafts are removed from both caches. Every emitted token is the target's own choice, so text never depends on the
drafter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.contract import Draft
from draftsmith.dsl.errors import RequestError

from .batch import Batch
from .context import Context
from .pairing import Pairing
from .sampling import Distribution, Sampler, SamplingOptions, pick


@dataclass
class Timing:
    """Seconds spent, by part of a round. ``prefill`` holds all of the prompt; ``inject`` is what rounds gave the
    drafter."""

    draft: float = 0.0
    verify: float = 0.0
    inject: float = 0.0
    prefill: float = 0.0


@dataclass
class Statistics:
    """Counts over the rounds of a generation. ``by_position[i]``: rounds that tried / accepted draft i."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tried: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def count(self, n_drafted: int, n_accepted: int) -> None:
        self.rounds += 1
        self.drafted += n_drafted
        self.accepted += n_accepted
        grow = n_drafted - len(self.tried)
        self.tried += [0] * grow
        self.kept += [0] * grow
        for i in range(n_drafted):
            # a draft is tried when all before it were accepted
            self.tried[i] += i <= n_accepted
            self.kept[i] += i < n_accepted

    @property
    def mean_accepted(self) -> float:
        """Accepted drafts per round."""
        return self.accepted / self.rounds if self.rounds else 0.0

    def acceptance(self) -> list[float | None]:
        """Chance that draft i is accepted, given that those before it were."""
        return [k / t if t else None for k, t in zip(self.kept, self.tried, strict=True)]


@dataclass(frozen=True)
class Round:
    """What one round did for one sequence: the drafts, how many were right, the tokens emitted."""

    drafts: tuple[int, ...]
    accepted: int
    tokens: tuple[int, ...]


@dataclass
class Sequence_:
    """One sequence in progress: ``n_past`` tokens are in the target's cache, ``last`` is decided, not yet decoded."""

    id: int
    n_past: int
    last: int


class Speculator:
    """The loop over a target context and, optionally, a drafter context."""

    def __init__(
        self,
        target: Context,
        draft: Context | None = None,
        pairing: Pairing | None = None,
        n_max: int | None = None,
        n_min: int = 0,
        p_min: float = 0.0,
        sampling: SamplingOptions | None = None,
    ) -> None:
        self.sampler = None if sampling is None or sampling.greedy else Sampler(sampling)
        self._decides = "argmax" if self.sampler is None else "logits"
        self.target = target
        self.draft = draft
        self.pairing = pairing
        self.timing = Timing()
        self.statistics = Statistics()
        self.n_max = 0
        self.n_min = n_min
        self.p_min = p_min
        if pairing is not None:
            wanted = pairing.max_draft if n_max is None else n_max
            if wanted < 0:
                raise RequestError(f"n_max must not be negative, found {wanted}")
            self.n_max = min(wanted, pairing.max_draft)
            self.n_min = min(n_min, self.n_max)  # a longer draft than the block gives cannot be asked for (SL-2)
            complaint = pairing.contract.refuse(draft.bound, p_min) if draft is not None else None
            if complaint:
                raise RequestError(complaint)
            rows = pairing.block_tokens(self.n_max)
            if self.n_max > 0 and draft is not None and rows > draft.options.n_ubatch:
                raise RequestError(
                    f"a draft of {self.n_max} tokens takes a block of {rows} rows, more than "
                    f"n_ubatch = {draft.options.n_ubatch}"
                )
        self._taps = pairing.taps if pairing is not None else ()
        self._carried: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self.taps = tuple(dict.fromkeys(self._taps))
        """What the drafter needs of each run of the target: a drafter may list a layer twice."""

    # -- prompt ----------------------------------------------------------------------------------------
    def prefill(self, tokens: Sequence[int], seq: int = 0, pos: int = 0, want_next: bool = True) -> int | None:
        """Decode a prompt and give its features to the drafter; returns the token that follows it."""
        if not len(tokens):
            return None
        start, inject = time.perf_counter(), self.timing.inject
        batch = Batch.of_tokens(tokens, pos, seq)
        choice: int | None = None
        for first, part in batch.parts(self.target.options.n_ubatch):
            last = first + len(part) == len(batch)
            rows = [len(part) - 1] if last and want_next else []
            results = self.target.run("decode", part, (self._decides,) if rows else (), rows=rows, taps=self.taps)
            self.inject(part, results)
            if not rows:
                continue
            if self.sampler is None:
                choice = int(results["argmax"][0])
            else:
                choice = self.sampler.draw(self.sampler.distribution(results["logits"][0]), seq)
        self.timing.inject = inject  # what the prompt took is part of its prefill
        self.timing.prefill += time.perf_counter() - start
        return choice

    def inject(self, batch: Batch, results: dict[str, NDArray[np.float32]]) -> None:
        """Give the drafter the target's features of a batch."""
        if self.draft is None or self.pairing is None:
            return
        start = time.perf_counter()
        features = np.concatenate([results[f"{name}.{il}"] for name, il in self._taps], axis=1)
        rows = Batch(batch.pos, batch.seq, features=np.ascontiguousarray(features, np.float32))
        carry = self.pairing.contract.carry
        for _, part in rows.parts(self.draft.options.n_ubatch):
            outputs = self.draft.run(self.pairing.contract.inject, part, carry[:1] if carry else (), causal=False)
            if carry:
                self._remember(part, outputs[carry[0]])
        self.timing.inject += time.perf_counter() - start

    def _remember(self, batch: Batch, rows: NDArray[np.float32]) -> None:
        """Keep the newest injected rows of every sequence: after a partial acceptance an earlier one is the last."""
        for seq in np.unique(batch.seq):
            mine = batch.seq == seq
            pos, kept = self._carried.get(int(seq), (batch.pos[:0], rows[:0]))
            enough = 2 * (self.n_max + 1)
            self._carried[int(seq)] = (
                np.concatenate([pos, batch.pos[mine]])[-enough:],
                np.concatenate([kept, rows[mine]])[-enough:],
            )

    def _carried_row(self, s: Sequence_, width: int) -> NDArray[np.float32]:
        """The row of the last committed position; zeros when nothing is committed yet (DFlash specification, LC-12)."""
        pos, rows = self._carried.get(s.id, (np.empty(0, np.int32), np.empty((0, width), np.float32)))
        at = np.flatnonzero(pos == s.n_past - 1)
        return rows[at[-1]] if len(at) else np.zeros(width, np.float32)

    # -- rounds ----------------------------------------------------------------------------------------
    def propose(self, sequences: Sequence[Sequence_], limits: Sequence[int] | None = None) -> list[list[Draft]]:
        """Draft for every sequence in one batch of equal blocks; the blocks' rows are removed again.

        ``limits``: the most drafts wanted for each, applied after drafting (SL-3).
        """
        limits = [self.n_max] * len(sequences) if limits is None else limits
        if self.draft is None or self.pairing is None or self.n_max == 0 or not any(n > 0 for n in limits):
            return [[] for _ in sequences]
        start = time.perf_counter()
        pairing, contract = self.pairing, self.pairing.contract
        rows = pairing.block_tokens(self.n_max)
        skipped = self._skipped_rows(len(sequences), rows)
        drawn = self.sampler is not None and self.sampler.options.acceptance == "reject"
        wanted = tuple(contract.sample_outputs(self.p_min) if drawn else contract.outputs(self.p_min))
        batch = Batch.join(
            [Batch.of_tokens([s.last] + [pairing.mask_token] * (rows - 1), s.n_past, s.id) for s in sequences]
        )
        if contract.carry:
            width = int(self.draft.bound.hparam(contract.width))
            batch.block_rows[contract.carry[1]] = np.stack([self._carried_row(s, width) for s in sequences])
        try:
            outputs = self.draft.run_blocks(contract.draft, batch, wanted, first_row=skipped, causal=pairing.causal)
        finally:
            for s in sequences:
                self.draft.remove(s.id, s.n_past)
        proposals: list[list[Draft]] = []
        for i, (s, limit) in enumerate(zip(sequences, limits, strict=True)):
            given = rows - skipped
            block = {n: a[i * given : (i + 1) * given] for n, a in outputs.items()}
            first = pairing.first_row - skipped
            drafts = self._draw_drafts(block, first, s) if drawn else self._pick_drafts(block, first)
            drafts = drafts[: max(0, limit)]
            proposals.append(drafts if len(drafts) >= self.n_min else [])
        self.timing.draft += time.perf_counter() - start
        return proposals

    def _skipped_rows(self, n_blocks: int, rows: int) -> int:
        """Rows at the front of each block that need not go through the head: those that predict nothing, unless
        leaving them out makes the head slower because it multiplies rows in groups."""
        assert self.draft is not None and self.pairing is not None
        if not self.pairing.contract.selects_rows:
            return 0
        group, first = self.draft.head_row_group, self.pairing.first_row
        fewer, all_rows = (-(-n_blocks * n // group) for n in (rows - first, rows))
        return first if fewer < all_rows or group == 1 else 0

    def _pick_drafts(self, block: dict[str, NDArray[Any]], first_row: int) -> list[Draft]:
        assert self.pairing is not None
        tokens = self.pairing.contract.propose(block, first_row, self.n_max, self.p_min)
        return [Draft(t) for t in tokens]

    def _draw_drafts(self, block: dict[str, NDArray[Any]], first_row: int, s: Sequence_) -> list[Draft]:
        assert self.pairing is not None and self.sampler is not None
        sampler = self.sampler

        def draw(ids: NDArray[Any], logits: NDArray[Any]) -> tuple[int, Distribution]:
            distribution = sampler.draft_distribution(ids, logits)
            return pick(distribution.p, sampler.stream(s.id)), distribution

        return self.pairing.contract.sample(block, first_row, self.n_max, self.p_min, draw)

    def verify(self, sequences: Sequence[Sequence_], drafts: Sequence[Sequence[Draft | int]]) -> list[Round]:
        """Decode last token and drafts of every sequence in one batch; keep what the target agrees to.

        On any error both caches are as before the call.
        """
        start = time.perf_counter()
        proposals = [[d if isinstance(d, Draft) else Draft(int(d)) for d in each] for each in drafts]
        batch = Batch.join(
            [
                Batch.of_tokens([s.last, *(d.token for d in each)], s.n_past, s.id)
                for s, each in zip(sequences, proposals, strict=True)
            ]
        )
        before = self.timing.inject
        try:
            found: list[NDArray[Any]] = []
            for _, part in batch.parts(self.target.options.n_ubatch):
                results = self.target.run("decode", part, (self._decides,), taps=self.taps)
                found.append(results[self._decides])
                self.inject(part, results)
        except BaseException:
            for s in sequences:
                self._forget(s)
            raise
        rows = np.concatenate(found)
        rounds: list[Round] = []
        row = 0
        for s, each in zip(sequences, proposals, strict=True):
            accepted, tokens = self._accept(rows[row : row + len(each) + 1], each, s)
            row += len(each) + 1
            s.n_past += 1 + accepted
            s.last = tokens[-1]
            self._forget(s)
            self.statistics.count(len(each), accepted)
            rounds.append(Round(tuple(d.token for d in each), accepted, tuple(tokens)))
        self.timing.verify += time.perf_counter() - start - (self.timing.inject - before)
        return rounds

    def _accept(self, rows: NDArray[Any], drafts: Sequence[Draft], s: Sequence_) -> tuple[int, list[int]]:
        """How many drafts hold, and the tokens to emit: the accepted ones and one of the target's own."""
        if self.sampler is not None:
            return self.sampler.accept(rows, drafts, s.id)
        accepted = 0
        while accepted < len(drafts) and int(rows[accepted]) == drafts[accepted].token:
            accepted += 1
        return accepted, [int(t) for t in rows[: accepted + 1]]

    def _forget(self, s: Sequence_) -> None:
        """Remove what lies behind the committed tokens from both caches."""
        self.target.remove(s.id, s.n_past)
        if self.draft is not None:
            self.draft.remove(s.id, s.n_past)
        if s.id in self._carried:
            pos, rows = self._carried[s.id]
            self._carried[s.id] = pos[pos < s.n_past], rows[pos < s.n_past]

    def step(self, sequences: Sequence[Sequence_], limits: Sequence[int] | None = None) -> list[Round]:
        """One round for every sequence. ``limits`` bound the drafts of each."""
        bounded = [min(self.n_max if limits is None else limits[i], self._room(s)) for i, s in enumerate(sequences)]
        return self.verify(sequences, self.propose(sequences, self._shared(bounded)))

    def _shared(self, limits: list[int]) -> list[int]:
        """Limits that all sequences together leave room for: near the end of the context drafts go first, generation
        goes on."""
        left = self.target.n_free - len(limits)
        if self.draft is not None and self.pairing is not None:
            left = min(left, self.draft.n_free - len(limits))
            if len(limits) * self.pairing.block_tokens(self.n_max) > self.draft.n_free:
                left = 0
        while sum(limits) > max(left, 0):
            limits[limits.index(max(limits))] -= 1
        return limits

    def _room(self, s: Sequence_) -> int:
        """How many drafts still fit the context behind the last token; 0 also when the drafter's block would not."""
        used = s.n_past + 1
        left = self.target.options.n_ctx - used
        if self.draft is not None and self.pairing is not None:
            block = self.pairing.block_tokens(self.n_max)
            if s.n_past + block > self.draft.options.n_ctx:
                return 0
        return max(0, left)
