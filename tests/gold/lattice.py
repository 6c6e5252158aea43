"""Candidate lattices: per row k token ids and k*k scores ``[predecessor][candidate]``.

The order of candidates in a row has no meaning: ids are compared as a set, scores by token.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from .cases import Array
from .compare import Limit, difference
from .report import Report


def split(packed: Array) -> tuple[Array, Array]:
    """Ids and scores of recorded rows of k + k*k columns."""
    columns = packed.shape[-1]
    k = (isqrt(4 * columns + 1) - 1) // 2
    if k + k * k != columns:
        raise ValueError(f"a lattice row of {columns} columns is not k + k*k wide")
    return packed[..., :k].astype(int), packed[..., k:].reshape(*packed.shape[:-1], k, k)


def compare(
    report: Report, label: str, ids: Array, scores: Array, recorded: Array, logits: Array, first_row: int, limit: Limit, tie: Limit
) -> None:
    """``ids`` [sequences, rows, k], ``scores`` [sequences, rows, k, k]; rows before ``first_row`` predict nothing. Other
    candidates pass where the recorded logits at the cut lie within twice the limit ``tie``; the scores of that row and of the
    one behind it are then left out."""
    their_ids, their_scores = split(recorded)
    if ids.shape != their_ids.shape or scores.shape != their_scores.shape:
        report.add(label, False, f"candidates {list(ids.shape)} for {list(their_ids.shape)}", "equal shapes")
        return
    k = ids.shape[-1]
    ours: list[Array] = []
    theirs: list[Array] = []
    n_rows = n_equal = 0
    wrong = ""
    for s in range(len(ids)):
        before: Array | None = np.arange(k)  # the predecessors of the first row are the anchor, all of them
        for r in range(first_row, ids.shape[1]):
            n_rows += 1
            order = _order(ids[s, r], their_ids[s, r])
            if order is None:
                changed = sorted({int(t) for t in ids[s, r]} ^ {int(t) for t in their_ids[s, r]})
                spread = float(np.ptp(logits[s, r, changed])) if len(set(ids[s, r].tolist())) == k else np.inf
                if not spread <= 2 * tie.max_abs and not wrong:
                    wrong = f"; sequence {s} row {r}: {sorted(ids[s, r].tolist())}, recorded {sorted(their_ids[s, r].tolist())}"
            else:
                n_equal += 1
                if before is not None:
                    ours.append(scores[s, r][before][:, order])
                    theirs.append(their_scores[s, r])
            before = order
    allowed = f"exact beyond a tie of {2 * tie.max_abs:.2g}"
    report.add(f"{label} candidates", not wrong, f"{n_equal}/{n_rows} rows equal{wrong}", allowed)
    if not ours:
        report.add(f"{label} scores", False, "no row has the recorded candidates", str(limit))
        return
    seen = difference(np.array(ours), np.array(theirs))
    report.add(f"{label} scores", seen.within(limit), f"{seen} in {len(ours)} rows", str(limit))


def _order(ours: Array, theirs: Array) -> Array | None:
    """Where each recorded candidate stands among ours; None when they are not the same set."""
    if sorted(ours.tolist()) != sorted(theirs.tolist()):
        return None
    at = {int(token): i for i, token in enumerate(ours)}
    return np.array([at[int(token)] for token in theirs])
