"""The speculative loop: what is drafted, how many, for whom; and that none of it shows in the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftsmith.batch import Batch
from draftsmith.codegen.native import Backends
from draftsmith.context import ContextOptions
from draftsmith.dsl.errors import RequestError
from draftsmith.model import Model
from draftsmith.session import Session, default_pair
from draftsmith.speculative import Round, Sequence_

from . import reference
from .drive import Bench, Loop, block_of, close, draft, inject
from .models import BLOCK, F32, VARIANTS, Kit, array_of, draft_file, tokens_of, with_arrays
from .reference import Drafted, log_softmax

pytestmark = pytest.mark.cpu

PROMPT = tokens_of(7, 11)
MANY = ContextOptions(**{**vars(F32), "n_ctx": 512, "n_seq_max": 4})


def proposal(expected: Drafted, first_row: int, n_max: int = BLOCK) -> tuple[list[int], list[float]]:
    """What the specification drafts from the outputs of a block, and how sure it is of each token."""
    tokens, sure, at = [], [], -1
    for row in range(first_row, min(len(expected.logits), first_row + n_max)):
        if expected.scores:
            here = {c: s for (a, c), s in expected.scores[row].items() if a == at}
            at = max(here, key=lambda c: here[c])
            sure.append(float(1 / np.exp(np.array(list(here.values())) - here[at]).sum()))
        elif expected.confidence:
            at = int(expected.logits[row].argmax())
            sure.append(expected.confidence[row - first_row])
        else:
            best = np.sort(expected.logits[row])[-10:]
            at = int(expected.logits[row].argmax())
            sure.append(float(1 / np.exp(best - best[-1]).sum()))
        tokens.append(at)
    return tokens, sure


@pytest.fixture(scope="module")
def text(kit: Kit) -> list[int]:
    """Greedy continuation of the prompt, by NumPy."""
    return reference.greedy(kit.target()[0], PROMPT, 48)


# -- text and drafts
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_b34_greedy_text_is_the_targets(kit: Kit, text: list[int], variant: str) -> None:
    """With f32 caches on a CPU the text is exactly that of plain decoding; and the drafts are those of the
    reference, round by round.
    """
    run = Loop.of(kit, variant)
    s = run.begin(PROMPT)
    said = [s.last]
    while len(said) < 30:
        wanted, _ = proposal(run.replayed(PROMPT + text, s), run.pairing.first_row)
        (found,) = run.loop.step([s])
        assert list(found.drafts) == wanted
        said += found.tokens
    assert said == text[: len(said)]


def test_drafts_are_accepted_now_and_then(kit: Kit) -> None:
    """Otherwise these tests would say little."""
    accepted = 0
    for variant in VARIANTS:
        run = Loop.of(kit, variant)
        s = run.begin(PROMPT)
        for _ in range(15):
            run.loop.step([s])
        accepted += run.loop.statistics.accepted
    assert accepted > 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_second_request_is_as_on_a_fresh_session(kit: Kit, variant: str) -> None:
    target, model = kit.target()[1], kit.draft(variant)[1]

    def said(session: Session, prompt: list[int]) -> tuple[list[int], list[int], list[int]]:
        return (
            list(session.generate_tokens(prompt, 16)),
            session.report.statistics.tried,
            session.report.statistics.kept,
        )

    with Session(target, model, options=F32) as used, Session(target, model, options=F32) as fresh:
        said(used, tokens_of(30, 8))
        broken_off = used.generate_tokens(tokens_of(9, 9), 20)
        next(broken_off)
        broken_off.close()
        assert said(used, PROMPT) == said(fresh, PROMPT)


# -- several sequences
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [512, 13, BLOCK], ids=lambda n: f"n_ubatch {n}")
@pytest.mark.parametrize("variant", VARIANTS)
def test_sequences_together_are_as_each_alone(kit: Kit, variant: str, n_ubatch: int) -> None:
    """Of different lengths, accepting differently; also when the blocks of all do not fit one run."""
    options = ContextOptions(**{**vars(MANY), "n_ubatch": n_ubatch})
    prompts = {0: tokens_of(3, 21), 2: tokens_of(17, 22), 3: tokens_of(9, 23)}

    def rounds(seqs: Sequence[int], n: int = 5) -> dict[int, list[Round]]:
        run = Loop.of(kit, variant, options)
        open_ = [run.begin(prompts[seq], seq) for seq in seqs]
        found: dict[int, list[Round]] = {seq: [] for seq in seqs}
        for _ in range(n):
            for s, r in zip(open_, run.loop.step(open_), strict=True):
                found[s.id].append(r)
        return found

    together = rounds([0, 2, 3])
    alone = {seq: rounds([seq])[seq] for seq in prompts}
    assert together == alone
    assert len({r.tokens for rs in alone.values() for r in rs}) > 1


@pytest.mark.parametrize("n_ubatch", [512, 9], ids=lambda n: f"n_ubatch {n}")
@pytest.mark.parametrize("variant", ["dflash", "dspark", "dflash2"])
def test_blocks_of_unequal_length_are_as_each_alone(kit: Kit, variant: str, n_ubatch: int) -> None:
    model = kit.draft(variant)[1]
    context = kit.context(model, ContextOptions(**{**vars(MANY), "n_ubatch": n_ubatch}))
    bench = Bench(kit, kit.draft(variant)[0], model)
    names = tuple(n for n in context.graphs["draft"].outputs if n != "top_logits")
    parts, expected = [], []
    for seq, (n, length) in enumerate([(4, 3), (9, BLOCK), (2, BLOCK), (6, 2)]):
        rows = bench.rows(n, seed=seq)
        inject(context, rows, 0, seq)
        parts.append(Batch.of_tokens(block_of(seq + 3, length), n, seq))
        expected.append(bench.both(rows=rows, length=length, anchor=seq + 3)[0])
    found = context.run_blocks("draft", Batch.join(parts), names)
    for name in names:
        close(found[name].astype(float), np.concatenate([e[name] for e in expected]).astype(float))


def test_block_that_fits_no_run(kit: Kit) -> None:
    context = kit.context(kit.draft("dspark")[1], ContextOptions(**{**vars(MANY), "n_ubatch": BLOCK}))
    with pytest.raises(RequestError, match=f"a block of {BLOCK + 1} rows does not fit n_ubatch = {BLOCK}"):
        context.run_blocks("draft", Batch.of_tokens(block_of(1, BLOCK + 1)), ("logits",))
    with pytest.raises(RequestError, match="a draft of 5 tokens takes a block of 6 rows, more than n_ubatch = 5"):
        Loop.of(kit, "dflash", ContextOptions(**{**vars(F32), "n_ubatch": 5}))


# -- how many
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_p_min_stops_before_the_first_unlikely_draft(kit: Kit, text: list[int], variant: str) -> None:
    """Likely by the 10 best logits, by the confidence head, or by the softmax of a lattice row (SE-5, MK-8, 2.6);
    n_min drops what is left.
    """
    plain = Loop.of(kit, variant)
    tokens, sure = proposal(plain.replayed(PROMPT + text, s := plain.begin(PROMPT)), plain.pairing.first_row)
    assert [d.token for d in plain.loop.propose([s])[0]] == tokens
    for limit in [0.0, *(p + e for p in sure for e in (-1e-3, 1e-3)), 1.0]:
        n = next((i for i, p in enumerate(sure) if p < limit), len(sure))
        for n_min in (0, 2):
            run = Loop.of(kit, variant, p_min=limit, n_min=n_min)
            (found,) = run.loop.propose([run.begin(PROMPT)])
            assert [d.token for d in found] == (tokens[:n] if n >= n_min else []), (limit, n_min)


@pytest.mark.parametrize("variant", VARIANTS)
def test_n_max_and_limits(kit: Kit, text: list[int], variant: str) -> None:
    """n_max sets the block, except where blocks are always full; limits of a call only cut what was drafted (SL-3)."""
    for n_max in range(BLOCK):
        run = Loop.of(kit, variant, n_max=n_max)
        s = run.begin(PROMPT)
        (found,) = run.loop.propose([s])
        if n_max:
            given = reference.features(run.files[0], PROMPT, run.reference.layers)
            length = BLOCK if variant == "lilicorr" else n_max + run.pairing.first_row
            expected = run.reference.draft(
                given, np.arange(len(given)), block_of(s.last, length), len(given), run.reference.fuse(given[-1:])[0]
            )
            assert [d.token for d in found] == proposal(expected, run.pairing.first_row, n_max)[0]
        else:
            assert found == []
        for limit in (0, 1, 2):
            assert run.loop.propose([s], [limit])[0] == found[:limit]
        assert run.draft.last(0) == len(PROMPT) - 1


@pytest.mark.parametrize(
    "n_ctx", [len(PROMPT) + 1, len(PROMPT) + BLOCK - 1, len(PROMPT) + BLOCK + 1, 30], ids=lambda n: f"n_ctx {n}"
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_context_is_filled_exactly(kit: Kit, text: list[int], variant: str, n_ctx: int) -> None:
    """Near the end drafts are dropped and generation goes on, up to the last token that fits."""
    options = ContextOptions(**{**vars(F32), "n_ctx": n_ctx})
    with Session(kit.target()[1], kit.draft(variant)[1], options=options) as session:
        said = list(session.generate_tokens(PROMPT, 100))
        assert said == text[: n_ctx - len(PROMPT) + 1]
        assert session.report.stop == "context"
        assert session.target.last(0) == n_ctx - 1
        with pytest.raises(RequestError, match=f"the prompt has {n_ctx} tokens, the context {n_ctx}"):
            next(session.generate_tokens(tokens_of(n_ctx), 1))


def test_full_context_of_several_sequences(kit: Kit) -> None:
    """What does not fit any more is drafts first; when nothing fits, one line says so and the caches stay as they
    were.
    """
    run = Loop.of(kit, "dflash", ContextOptions(**{**vars(F32), "n_ctx": 256, "n_seq_max": 2}))
    a, b = run.begin(tokens_of(120, 1), 0), run.begin(tokens_of(116, 2), 1)
    said = 0
    with pytest.raises(RequestError, match="the context is full"):
        for _ in range(60):
            before = (run.target.last(0), run.target.last(1), run.draft.last(0), run.draft.last(1))
            said += sum(len(r.tokens) for r in run.loop.step([a, b]))
    assert before == (run.target.last(0), run.target.last(1), run.draft.last(0), run.draft.last(1))
    assert a.n_past + b.n_past in (255, 256)
    assert said == a.n_past + b.n_past - 236


# -- where generation ends
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["dspark", "lilicorr"])
def test_stop_tokens_inside_an_accepted_block(kit: Kit, text: list[int], variant: str) -> None:
    """Nothing is said behind a stop token, although the round went further."""
    with Session(kit.target()[1], kit.draft(variant)[1], options=F32) as session:
        for stop in dict.fromkeys(text):
            said = list(session.generate_tokens(PROMPT, 40, [stop]))
            at = text.index(stop)
            assert said == text[: min(at + 1, 40)]
            assert session.report.stop == ("stop" if at < 40 else "length")
            assert session.report.tokens == said
        for n in (1, 2, 7):
            assert list(session.generate_tokens(PROMPT, n)) == text[:n]
            assert session.report.stop == "length"


@pytest.fixture(scope="module")
def speaker() -> Session:
    """The embedded pair, which has a tokenizer."""
    backends = Backends((), 1)
    target = Model.load(default_pair()[0], backends)
    return Session(target, Model.load(default_pair()[1], backends, target), n_ctx=256)


def test_stop_strings_split_over_pieces(speaker: Session) -> None:
    prompt = "def add(a, b):\n"
    ids = speaker.tokenizer.encode(prompt)
    tokens = list(speaker.generate_tokens(ids, 24))
    stream = speaker.tokenizer.stream()
    pieces = [stream.push(t) for t in tokens]
    whole = speaker.complete(prompt, 24)
    assert whole == "".join(pieces) + stream.flush() or speaker.report.stop == "stop"
    seams = [
        i for i in range(1, len(pieces)) if pieces[i - 1] and pieces[i] and whole.startswith("".join(pieces[: i + 1]))
    ]
    assert seams
    for i in seams:
        for stop in (pieces[i - 1][-1] + pieces[i][0], pieces[i - 1] + pieces[i], pieces[i][0]):
            said = list(speaker.generate(prompt, 24, [stop, "\x00never"]))
            assert "".join(said) == whole[: whole.index(stop)]
            assert speaker.report.stop == "stop"
    # what only begins like a stop text is said in full
    assert "".join(speaker.generate(prompt, 24, [whole[-1] + "\x00", whole[3:9] + "\x00"])) == whole


# -- numbers
# -----------------------------------------------------------------------------------------------------------------


def test_lc14_underflowing_probabilities(kit: Kit) -> None:
    """Candidates far below the best have a probability of 0 in f32, and still finite scores (a log-softmax, not a
    log of a softmax).
    """
    file = draft_file("lilicorr", optional=("output",))
    loud = with_arrays(file, {"output.weight": array_of(file, "output.weight") * 400})
    bench = Bench(kit, loud)
    mine, theirs = bench.both()
    ordered = np.sort(log_softmax(theirs.logits[1:]), axis=-1)
    assert ordered[:, -3].min() < -104
    assert np.isfinite(mine["scores"]).all()
    found = [mine["scores"][1][0], theirs.scores[1]]
    close(np.sort(found[0]), np.sort(np.array(list(found[1].values()))), 5e-3)


def test_draft_from_nothing(kit: Kit) -> None:
    """A prompt of one token: the first draft sees an empty cache."""
    for variant in VARIANTS:
        run = Loop.of(kit, variant)
        s = Sequence_(0, 0, PROMPT[0])
        out = draft(run.draft, block_of(PROMPT[0], BLOCK), 0, carried=np.zeros(64))
        assert np.isfinite(out["logits"]).all()
        (found,) = run.loop.step([s])
        assert list(found.tokens) == reference.greedy(run.files[0], PROMPT[:1], len(found.tokens))
