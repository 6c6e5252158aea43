"""Sampling: the chain against its definition, and that drafts never change the distribution of what is emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from draftsmith.dsl.contract import Draft, sample_lattice, sample_rows
from draftsmith.dsl.errors import RequestError
from draftsmith.sampling import Distribution, Sampler, SamplingOptions, softmax
from draftsmith.session import Session, default_pair
from draftsmith.speculative import Sequence_

PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
# chi-square values that a right sampler exceeds once in ten thousand runs, by degrees of freedom
CRITICAL = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9}


def chi_square(counts: Counter[int], expected: dict[int, float]) -> tuple[float, float]:
    """The statistic and its limit; rare tokens are joined to one class."""
    n = sum(counts.values())
    assert set(counts) <= set(expected), "a token came out that the target never gives"
    common = [t for t, p in expected.items() if p * n >= 5]
    rare = [t for t in expected if t not in common]
    classes = [([t], expected[t]) for t in common] + ([(rare, sum(expected[t] for t in rare))] if rare else [])
    statistic = sum((sum(counts[t] for t in tokens) - n * p) ** 2 / (n * p) for tokens, p in classes if n * p > 0)
    return statistic, CRITICAL[max(1, len(classes) - 1)]


def by_hand(logits: Sequence[float], temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The chain written out: keep the k best, then the best that make up p, then those near the best, then the
    temperature."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    order = order[:top_k] if top_k else order
    weights = [np.exp(logits[i] - logits[order[0]]) for i in order]
    total, kept = 0.0, []
    for i, w in zip(order, weights, strict=True):
        kept.append(i)
        total += w / sum(weights)
        if total >= top_p:
            break
    near = [i for i in kept if np.exp(logits[i] - logits[order[0]]) >= min_p]
    z = [np.exp((logits[i] - logits[order[0]]) / temperature) for i in near]
    return {i: v / sum(z) for i, v in zip(near, z, strict=True)}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (0.5, 8, 0.9, 0.1),
        (2.0, 1, 1.0, 0.0),
    ],
)
def test_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)
    found = Sampler(SamplingOptions(temperature, top_k, top_p, min_p)).distribution(logits)
    expected = by_hand([float(z) for z in logits], temperature, top_k, top_p, min_p)
    assert dict(zip(found.ids.tolist(), found.p.tolist(), strict=True)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"temperature": float("nan")},
    ],
)
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        SamplingOptions(**bad)  # type: ignore[arg-type]


def test_equal_seeds_draw_equally_and_sequences_apart() -> None:
    logits = np.zeros(50, np.float32)

    def draws(seed: int, seq: int) -> list[int]:
        sampler = Sampler(SamplingOptions(1.0, 0, 1.0, 0.0, seed))
        return [sampler.draw(sampler.distribution(logits), seq) for _ in range(20)]

    assert draws(5, 0) == draws(5, 0)
    assert draws(5, 0) != draws(5, 1)
    assert draws(5, 0) != draws(6, 0)


P_ROWS = np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]))
Q_ROWS = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])


@pytest.mark.parametrize("acceptance", ["match", "reject"])
@pytest.mark.parametrize("drawn", [True, False])
def test_emitted_tokens_follow_the_target(acceptance: str, drawn: bool) -> None:
    """Drafts from a distribution far from the target's, or always the same ones: the first and second token come out
    as the target would say them."""
    sampler = Sampler(SamplingOptions(1.0, 0, 1.0, 0.0, 11, acceptance))
    rng = np.random.default_rng(12)
    first: Counter[int] = Counter()
    second: Counter[int] = Counter()
    accepted = 0
    n = 20000
    for _ in range(n):
        drafts = [Draft(int(rng.choice(4, p=q)), Distribution(np.arange(4), q)) if drawn else Draft(1) for q in Q_ROWS]
        kept, tokens = sampler.accept(P_ROWS, drafts, 0)
        assert len(tokens) == kept + 1
        accepted += kept >= 1
        first[tokens[0]] += 1
        if len(tokens) > 1:
            second[tokens[1]] += 1
    for counts, row in ((first, 0), (second, 1)):
        statistic, limit = chi_square(counts, dict(enumerate(np.exp(P_ROWS[row]))))
        assert statistic < limit
    # SL-12: a draft of q holds with probability sum(min(p, q)); a fixed one, and a matched one, with p
    p = np.exp(P_ROWS[0])
    chance = {("reject", True): np.minimum(p, Q_ROWS[0]).sum(), ("match", True): (p * Q_ROWS[0]).sum()}
    expected = chance.get((acceptance, drawn), p[1])
    assert accepted / n == pytest.approx(expected, abs=4 * np.sqrt(0.25 / n))


def test_pruning_looks_only_at_what_is_known_before_the_draw() -> None:
    """Whether a row is drafted must not depend on the token drawn for it."""
    outputs = {
        "logits": np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0], [9.0, 0.0]]),
        "candidates": np.array([[0, 1]] * 4),
        "scores": np.array([[[0.0, 0.0]] * 2, [[5.0, 0.0]] * 2, [[0.0, 0.0]] * 2, [[9.0, 0.0]] * 2]),
    }
    for sample in (sample_rows, sample_lattice):
        for choice in (0, 1):
            drafts = sample(outputs, 1, 3, 0.9, lambda ids, logits, c=choice: (c, softmax(np.asarray(logits))))
            assert len(drafts) == 1, sample.__name__


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    target, draft = default_pair()
    with Session(target, draft, threads=1, n_ctx=256) as opened:
        yield opened


@pytest.mark.cpu
@pytest.mark.parametrize("acceptance", ["match", "reject"])
def test_rounds_follow_the_target(session: Session, acceptance: str) -> None:
    """Whole rounds on the trained pair: the first token, and the one behind the likeliest first token, against the
    target's own distribution."""
    session.sampling = SamplingOptions(1.0, top_k=4, top_p=1.0, min_p=0.0, seed=21, acceptance=acceptance)
    prompt = session.tokenizer.encode("class Parser:\n    def __init__(self")
    session.clear()
    loop = session.speculator()
    loop.prefill(prompt[:-1], want_next=False)
    n_past, last = len(prompt) - 1, prompt[-1]
    sampler = Sampler(session.sampling)

    def truth(tokens: list[int]) -> dict[int, float]:
        from draftsmith.batch import Batch

        row = session.target.run("decode", Batch.of_tokens(tokens, n_past), ("logits",))["logits"][-1]
        session.target.remove(0, n_past)
        found = sampler.distribution(row)
        return dict(zip(found.ids.tolist(), found.p.tolist(), strict=True))

    expected = truth([last])
    likeliest = max(expected, key=lambda t: expected[t])
    following = truth([last, likeliest])
    first: Counter[int] = Counter()
    second: Counter[int] = Counter()
    for _ in range(400):
        done = loop.step([Sequence_(0, n_past, last)])[0]
        first[done.tokens[0]] += 1
        if len(done.tokens) > 1 and done.tokens[0] == likeliest:
            second[done.tokens[1]] += 1
        session.target.remove(0, n_past)
        assert session.draft is not None
        session.draft.remove(0, n_past)
    assert loop.statistics.accepted > 0
    for counts, distribution in ((first, expected), (second, following)):
        statistic, limit = chi_square(counts, distribution)
        assert statistic < limit
