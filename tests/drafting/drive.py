"""The engine step by step, and its results beside those of the NumPy reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.contract import Contract
from draftsmith.model import Model
from draftsmith.pairing import pair
from draftsmith.speculative import Sequence_, Speculator

from ..models import FakeFile
from . import reference
from .models import F32, MASK, Kit
from .reference import Drafted, Drafter

Array = NDArray[Any]


def contract_of(model: Model) -> Contract:
    assert model.cls.contract is not None
    return model.cls.contract


def inject(context: Context, rows: Array, pos: int | Sequence[int] | Array = 0, seq: int = 0) -> Array:
    """Feature rows into the cache; the fused rows."""
    return context.run("inject", Batch.of_features(rows, pos, seq), ("fused",), causal=False)["fused"]


def draft(
    context: Context, tokens: Sequence[int], pos0: int, seq: int = 0, carried: Array | None = None, causal: bool = False
) -> dict[str, Array]:
    """Every output of one block, which is taken out of the cache again."""
    batch = Batch.of_tokens(tokens, pos0, seq)
    if contract_of(context.model).carry is not None:
        assert carried is not None
        batch.block_rows["context"] = np.asarray(carried, np.float32).reshape(1, -1)
    try:
        return context.run("draft", batch, tuple(context.graphs["draft"].outputs), causal=causal)
    finally:
        context.remove(seq, pos0)


def block_of(anchor: int, length: int) -> list[int]:
    return [anchor] + [MASK] * (length - 1)


def lattice(outputs: dict[str, Array]) -> list[dict[tuple[int, int], float]]:
    """The scores of every row by ids, as :class:`Drafted` has them."""
    ids = outputs["candidates"].astype(int)
    found: list[dict[tuple[int, int], float]] = [{}]
    for row in range(1, len(ids)):
        before = [-1] * ids.shape[1] if row == 1 else ids[row - 1].tolist()
        found.append(
            {
                (a, b): float(outputs["scores"][row, i, j])
                for i, a in enumerate(before)
                for j, b in enumerate(ids[row].tolist())
            }
        )
    return found


def assert_drafts(outputs: dict[str, Array], expected: Drafted, tolerance: float = 2e-4) -> None:
    """Native outputs of one block against the reference's."""
    close(outputs["logits"], expected.logits, tolerance)
    if "confidence" in outputs:
        close(outputs["confidence"][-len(expected.confidence) :], np.array(expected.confidence), tolerance)
    if expected.chain:
        assert outputs["argmax"][-len(expected.chain) :].tolist() == expected.chain
    if expected.scores:
        found = lattice(outputs)
        for mine, theirs in zip(found, expected.scores, strict=True):
            assert mine.keys() == theirs.keys()
            close(np.array([mine[k] for k in theirs]), np.array(list(theirs.values())), 10 * tolerance)


def close(found: Array, expected: Array, tolerance: float = 2e-4) -> None:
    """Equal where infinite, else within ``tolerance`` of the largest value."""
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    assert (np.isfinite(found) == finite).all()
    limit = tolerance * max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
    np.testing.assert_allclose(found[finite], expected[finite], atol=limit, rtol=0)


def relative(found: Array, expected: Array) -> float:
    """Root of the squared differences over the squares."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


class Bench:
    """A drafter with random features: the engine and the reference on the same rows."""

    def __init__(
        self,
        kit: Kit,
        file: FakeFile,
        model: Model | None = None,
        options: ContextOptions = F32,
        target: FakeFile | None = None,
    ) -> None:
        shared_file, shared = kit.target()
        self.model = model if model is not None else kit.load(file, shared)
        self.context = kit.context(self.model, options)
        self.reference = Drafter(file, shared_file if target is None else target)
        self.causal = bool(self.reference.f.key("dflash.attention.causal", False))

    def rows(self, n: int, seed: int = 0) -> Array:
        width = len(self.reference.layers) * int(self.reference.f.key("dflash.embedding_length"))
        return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)

    def both(
        self,
        n: int = 9,
        length: int | None = None,
        pos: Sequence[int] | None = None,
        pos0: int | None = None,
        anchor: int = 5,
        rows: Array | None = None,
    ) -> tuple[dict[str, Array], Drafted]:
        """Inject ``n`` rows, draft a block behind; the engine's outputs and the reference's."""
        rows = self.rows(n) if rows is None else rows
        where = np.arange(len(rows)) if pos is None else np.asarray(pos)
        start = int(where[-1]) + 1 if pos0 is None else pos0
        tokens = block_of(anchor, length or self.reference.block)
        self.context.clear()
        fused = inject(self.context, rows, where)
        theirs = self.reference.draft(rows.astype(np.float64), where, tokens, start, self.reference.fuse(rows[-1:])[0])
        return draft(self.context, tokens, start, carried=fused[-1], causal=self.causal), theirs

    def mine(self, rows: Array, anchor: int = 5) -> dict[str, Array]:
        """The engine alone: for files that the reference does not read."""
        self.context.clear()
        fused = inject(self.context, rows)
        return draft(
            self.context, block_of(anchor, self.reference.block), len(rows), carried=fused[-1], causal=self.causal
        )

    def check(self, tolerance: float = 2e-4, **kw: Any) -> dict[str, Array]:
        mine, theirs = self.both(**kw)
        assert_drafts(mine, theirs, tolerance)
        return mine


class Loop:
    """A speculative loop over a pair, with the reference of both models."""

    def __init__(
        self,
        kit: Kit,
        files: tuple[FakeFile, FakeFile],
        models: tuple[Model, Model],
        options: ContextOptions = F32,
        **settings: Any,
    ) -> None:
        self.files = files
        self.pairing = pair(*models)
        self.target, self.draft = kit.context(models[0], options), kit.context(models[1], options)
        self.loop = Speculator(self.target, self.draft, self.pairing, **settings)
        self.reference = Drafter(files[1], files[0])

    @classmethod
    def of(cls, kit: Kit, variant: str, options: ContextOptions = F32, **settings: Any) -> Loop:
        (target_file, target), (draft_file, draft) = kit.target(), kit.draft(variant)
        return cls(kit, (target_file, draft_file), (target, draft), options, **settings)

    def begin(self, prompt: Sequence[int], seq: int = 0) -> Sequence_:
        first = self.loop.prefill(prompt, seq)
        assert first is not None
        return Sequence_(seq, len(prompt), first)

    def outputs(self, s: Sequence_) -> dict[str, Array]:
        """What the drafter computes for a sequence now."""
        width = int(self.draft.bound.hparam("n_embd"))
        carried = self.loop._carried_row(s, width)
        return draft(self.draft, block_of(s.last, self.reference.block), s.n_past, s.id, carried, self.pairing.causal)

    def replayed(self, text: Sequence[int], s: Sequence_) -> Drafted:
        """The same from the committed text alone."""
        committed = list(text[: s.n_past])
        given = reference.features(self.files[0], committed, self.reference.layers)
        tokens = block_of(s.last, self.reference.block)
        return self.reference.draft(given, np.arange(len(given)), tokens, s.n_past, self.reference.fuse(given[-1:])[0])
