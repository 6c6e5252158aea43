"""Candidate lattices: per row k token ids and k*k scores ``[predecessor][candidate]``.

The order of candidates in a row has no meaning: ids are compared as a set, scores by token.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from .cases import Array
from .compare import Limit, difference, exact_beyond
from .report import Report

Lattice = tuple[Array, Array]
"""Ids [sequences, rows, k] and scores [sequences, rows, k, k]."""


def split(packed: Array) -> Lattice:
    """Recorded rows of k + k*k columns."""
    columns = packed.shape[-1]
    k = (isqrt(4 * columns + 1) - 1) // 2
    if k + k * k != columns:
        raise ValueError(f"a lattice row of {columns} columns is not k + k*k wide")
    return packed[..., :k].astype(int), packed[..., k:].reshape(*packed.shape[:-1], k, k)


def compare(
    report: Report,
    label: str,
    found: Lattice,
    recorded: Lattice,
    logits: Array,
    first_row: int,
    limits: tuple[Limit, Limit],
) -> None:
    """Rows before ``first_row`` predict nothing. ``limits``: of scores, and of the recorded logits. Other candidates
    pass where those at the cut lie within the limit; the scores of that row and the next are then left out."""
    (ids, scores), (their_ids, their_scores) = found, recorded
    if ids.shape != their_ids.shape or scores.shape != their_scores.shape:
        report.add(label, False, f"candidates {list(ids.shape)} for {list(their_ids.shape)}", "equal shapes")
        return
    limit, cut = limits
    k = ids.shape[-1]
    ours: list[Array] = []
    theirs: list[Array] = []
    n_rows = n_equal = 0
    wrong = ""
    for s, r in np.ndindex(ids.shape[:2]):
        if r < first_row:
            continue
        if r == first_row:
            before: Array | None = np.arange(k)  # the predecessors of the first row are the anchor, all of them
        n_rows += 1
        order = _order(ids[s, r], their_ids[s, r])
        if order is None:
            changed = sorted(set(ids[s, r].tolist()) ^ set(their_ids[s, r].tolist()))
            repeated = len(set(ids[s, r].tolist())) < k
            if (repeated or not np.ptp(logits[s, r, changed]) <= cut.max_abs) and not wrong:
                wrong = f"; sequence {s} row {r}: found {sorted(ids[s, r].tolist())}, "
                wrong += f"recorded {sorted(their_ids[s, r].tolist())}"
        else:
            n_equal += 1
            if before is not None:
                rows = recorded_rows(their_scores[s, r])
                ours.append(scores[s, r][before][rows][:, order])
                theirs.append(their_scores[s, r][rows])
        before = order
    report.add(f"{label} candidates", not wrong, f"{n_equal}/{n_rows} rows equal{wrong}", exact_beyond(cut))
    if not ours:
        report.add(f"{label} scores", False, "no row has the recorded candidates", str(limit))
        return
    seen = difference(np.concatenate(ours), np.concatenate(theirs))
    report.add(f"{label} scores", seen.within(limit), f"{seen} in {len(ours)} rows", str(limit))


def recorded_rows(scores: Array) -> slice:
    """Where all predecessors are the anchor, some references record its scores once and leave the other rows zero."""
    return slice(1) if scores[0].any() and not scores[1:].any() else slice(None)


def _order(ours: Array, theirs: Array) -> Array | None:
    """Where each recorded candidate stands among ours; None when they are not the same set."""
    if sorted(ours.tolist()) != sorted(theirs.tolist()):
        return None
    at = {int(token): i for i, token in enumerate(ours)}
    return np.array([at[int(token)] for token in theirs])
