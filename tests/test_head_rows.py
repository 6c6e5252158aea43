"""Which rows of a block go through the drafter's head: a matter of speed that must not change what is drafted."""

from __future__ import annotations

import pytest

from draftsmith.session import Session, default_pair
from draftsmith.speculative import Sequence_, Speculator

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("group", "n_blocks", "n_draft", "skipped"),
    [(1, 1, 7, 1), (1, 3, 7, 1), (4, 1, 7, 0), (4, 1, 4, 1), (4, 1, 5, 0), (4, 2, 4, 1), (4, 4, 7, 1)],
)
def test_rows_left_out_and_drafts(
    group: int, n_blocks: int, n_draft: int, skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = default_pair()
    with Session(target, draft, threads=1, n_ctx=256 * n_blocks, n_seq_max=n_blocks) as session:
        assert session.draft is not None
        loop = Speculator(session.target, session.draft, session.pairing, n_draft)
        sequences = [Sequence_(i, 9, 5 + i) for i in range(n_blocks)]
        for s in sequences:
            loop.prefill([7 + s.id + 3 * i for i in range(9)], s.id)
        wanted = loop.propose(sequences)
        monkeypatch.setattr(session.draft, "head_row_group", group)
        assert loop._skipped_rows(n_blocks, n_draft + 1) == skipped
        assert loop.propose(sequences) == wanted


def test_the_head_of_the_embedded_target_is_found() -> None:
    target, draft = default_pair()
    with Session(target, draft, threads=1, n_ctx=256) as session:
        assert session.draft is not None
        assert session.draft.bound.borrowed()["target:output"] in session.model.file.tensors
        assert session.draft.head_row_group == 1  # not quantised
