"""After any number of accepted drafts both caches are as if only the committed text had ever been there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.errors import BackendError
from draftsmith.session import Session
from draftsmith.speculative import Sequence_

from . import reference
from .drive import Bench, Loop, assert_drafts, block_of, close, inject
from .models import BLOCK, F32, VARIANTS, VOCAB, Kit, draft_file, tokens_of

pytestmark = pytest.mark.cpu

PROMPT = tokens_of(7, 11)
N = BLOCK - 1


def scripted(truth: list[int], accepted: int, n: int) -> list[int]:
    """Drafts of which the target accepts exactly this many."""
    drafts = list(truth[:n])
    if accepted < n:
        drafts[accepted] = (truth[accepted] + 1) % VOCAB
    return drafts


@pytest.fixture(scope="module")
def truth(kit: Kit) -> list[int]:
    return reference.greedy(kit.target()[0], PROMPT, 40)


@pytest.mark.parametrize("accepted", range(N + 1))
@pytest.mark.parametrize("variant", VARIANTS)
def test_b31_a25_rollback_equals_a_replay(kit: Kit, truth: list[int], variant: str, accepted: int) -> None:
    """Verify, reject from draft ``accepted`` on, and look at what the drafter computes next; twice in a row."""
    run = Loop.of(kit, variant)
    s = run.begin(PROMPT)
    assert s.last == truth[0]
    done = 0
    for again in (accepted, N - accepted):
        (found,) = run.loop.verify([s], [scripted(truth[done + 1 :], again, N)])
        assert found.accepted == again and list(found.tokens) == truth[done + 1 : done + 2 + again]
        done += 1 + again
        assert (s.n_past, s.last) == (len(PROMPT) + done, truth[done])
        assert run.target.last(0) == run.draft.last(0) == s.n_past - 1
        assert_drafts(run.outputs(s), run.replayed(PROMPT + truth, s))
    assert run.loop.statistics.accepted == N
    assert run.loop.statistics.kept == [int(accepted > i) + int(N - accepted > i) for i in range(N)]


def test_b31_rollback_in_a_sliding_cache_that_is_used_again(kit: Kit, truth: list[int]) -> None:
    """The window must be whole after every removal, although cells behind it are taken for new tokens."""
    made, target = kit.target()
    window = {"{arch}.attention.sliding_window": 8, "{arch}.attention.sliding_window_pattern": [True, True]}
    file = kit.keep("windowed", lambda: draft_file(keys=window))
    model = kit.keep("windowed, loaded", lambda: kit.load(file, target))
    run = Loop(kit, (made, file), (target, model), ContextOptions(**{**vars(F32), "n_ctx": 512, "n_ubatch": 16}))
    long = tokens_of(246, 5)
    plain = Session(target, options=run.target.options)
    text = long + list(plain.generate_tokens(long, 24))
    plain.close()
    s = run.begin(long)
    for accepted in (0, 3, 1, 5, 0):
        next_ = text[s.n_past + 1 :]
        (found,) = run.loop.verify([s], [scripted(next_, accepted, N)])
        assert found.accepted == accepted
    assert run.draft.caches["kv_swa"].cells.size < s.n_past + N
    assert_drafts(run.outputs(s), run.replayed(text, s))


def test_b31_windows_of_sequences_that_share_a_cache_in_use(kit: Kit) -> None:
    """Blocks and injections of several sequences in several runs: what one of them may lose again must not cost it
    its window.
    """
    window, n_seqs = 40, 5
    keys = {"{arch}.attention.sliding_window": window, "{arch}.attention.sliding_window_pattern": [True, True]}
    options = ContextOptions(**{**vars(F32), "n_ctx": 4096, "n_ubatch": BLOCK, "n_seq_max": n_seqs})
    bench = Bench(kit, draft_file(keys=keys), options=options)
    rows = [bench.rows(150 + 3 * s, seed=s) for s in range(n_seqs)]
    for s, mine in enumerate(rows):
        for start in range(0, len(mine), BLOCK):
            inject(bench.context, mine[start : start + BLOCK], start, s)
    for again in range(3):
        blocks = [Batch.of_tokens(block_of(3, BLOCK), len(mine), s) for s, mine in enumerate(rows)]
        found = bench.context.run_blocks("draft", Batch.join(blocks), ("logits",))["logits"].reshape(n_seqs, BLOCK, -1)
        for s, mine in enumerate(rows):
            bench.context.remove(s, len(mine))
            seen = np.arange(len(mine) - window, len(mine))
            close(found[s], bench.reference.draft(mine[seen], seen, block_of(3, BLOCK), len(mine)).logits)
        for s, mine in enumerate(rows):  # of six verified tokens one is kept
            new = bench.rows(BLOCK, seed=100 * again + s)
            inject(bench.context, new, len(mine), s)
            rows[s] = np.concatenate([mine, new[:1]])
        for s, mine in enumerate(rows):
            bench.context.remove(s, len(mine))


def test_b32_rollback_needs_no_speculation(kit: Kit) -> None:
    """A context on its own: remove the last rows, decode others, and get what a fresh one gives."""
    made, target = kit.target()
    context = kit.context(target, F32)
    text = tokens_of(12, 4)
    for keep in (0, 1, 5, 11, 12):
        context.clear()
        context.run("decode", Batch.of_tokens(text), ())
        context.remove(0, keep)
        assert context.last(0) == keep - 1
        other = tokens_of(4, 100 + keep)
        found = context.run("decode", Batch.of_tokens(other, keep), ("logits",))["logits"]
        close(found, reference.forward(made, text[:keep] + other)[0][keep:])


class Fails:
    """Stands before a context's native runs and lets the one that is due fail."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, context: Context, due: int = 0, error: BaseException | None = None
    ) -> None:
        self.run, self.due, self.error = context.native.run, due, error or BackendError("no memory")
        monkeypatch.setattr(context.native, "run", self)

    def __call__(self, *args: Any, **kw: Any) -> None:
        self.due -= 1
        if self.due == -1:
            raise self.error
        self.run(*args, **kw)


@pytest.mark.parametrize("error", [BackendError("no memory"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["target", "draft", "inject"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_round_leaves_the_caches_as_they_were(
    kit: Kit, truth: list[int], monkeypatch: pytest.MonkeyPatch, variant: str, where: str, error: BaseException
) -> None:
    run = Loop.of(kit, variant)
    s = run.begin(PROMPT)
    run.loop.verify([s], [scripted(truth[1:], 2, N)])
    before = (s.n_past, s.last, run.target.last(0), run.draft.last(0))
    expected = run.replayed(PROMPT + truth, s)
    with monkeypatch.context() as patch:
        # the drafter runs twice in a round: for the block, then for the injection
        Fails(patch, run.target if where == "target" else run.draft, int(where == "inject"), error)
        with pytest.raises(type(error)):
            run.loop.step([s])
    assert (s.n_past, s.last, run.target.last(0), run.draft.last(0)) == before
    assert_drafts(run.outputs(s), expected)
    (found,) = run.loop.verify([s], [scripted(truth[4:], 1, N)])
    assert list(found.tokens) == truth[4:6]
    assert_drafts(run.outputs(s), run.replayed(PROMPT + truth, s))


def test_rounds_that_fail_again_and_again_keep_the_last_committed_row(
    kit: Kit, truth: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification in pieces: the first piece is injected each time before the second one fails."""
    run = Loop.of(kit, "lilicorr", ContextOptions(**{**vars(F32), "n_ubatch": BLOCK}))
    s = run.begin(PROMPT)
    expected = run.replayed(PROMPT + truth, s)
    for _ in range(4):
        with monkeypatch.context() as patch:
            Fails(patch, run.target, 1)
            with pytest.raises(BackendError):
                run.loop.verify([s], [scripted(truth[1:], 0, 2 * BLOCK)])
    assert_drafts(run.outputs(s), expected)


def test_context_row_follows_partial_acceptance(kit: Kit, truth: list[int]) -> None:
    """A correlator is given the fused row of the last committed position; before anything is committed, zeros."""
    run = Loop.of(kit, "lilicorr")
    s = run.begin(PROMPT)
    for accepted in (3, 0, 5):
        done = s.n_past - len(PROMPT)
        run.loop.verify([s], [scripted(truth[done + 1 :], accepted, N)])
        text = (PROMPT + truth)[: s.n_past]
        row = run.reference.fuse(reference.features(run.files[0], text, run.reference.layers)[-1:])[0]
        close(run.loop._carried_row(s, len(row)), row)
    fresh = Loop.of(kit, "lilicorr")
    start = Sequence_(0, 0, PROMPT[0])
    assert not fresh.loop._carried_row(start, 64).any()
    assert np.isfinite(fresh.outputs(start)["scores"]).all()
    assert len(fresh.loop.propose([start])[0]) == N
