"""Candidate lattices: rows of k token ids and k*k scores ``[predecessor][candidate]``.

The order of candidates in a row has no meaning: ids are compared as a set, scores by token.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from .cases import Array
from .compare import Limit, difference
from .report import Report


def width(columns: int) -> int:
    """k of a row of k + k*k columns."""
    k = (isqrt(4 * columns + 1) - 1) // 2
    if k + k * k != columns:
        raise ValueError(f"a lattice row of {columns} columns is not k + k*k wide")
    return k


def compare(
    report: Report, label: str, found: Array, recorded: Array, logits: Array, first_row: int, limit: Limit, tie: Limit
) -> None:
    """Arrays [sequences, rows, columns]; rows before ``first_row`` are zero. Other candidates pass where the recorded logits at the
    cut lie within twice the limit ``tie``; scores are then left out of that row and of the one behind it."""
    columns = recorded.shape[-1]
    k = width(columns)
    found = found.reshape(*recorded.shape[:2], -1)[..., :columns]
    if found.shape != recorded.shape:
        report.add(label, False, f"shape {list(found.shape)} for {list(recorded.shape)}", "equal shapes")
        return
    ids, theirs = found[..., :k].astype(int), recorded[..., :k].astype(int)
    scores = found[..., k:].reshape(*found.shape[:2], k, k)
    their_scores = recorded[..., k:].reshape(*found.shape[:2], k, k)
    ours_by_token, theirs_by_token = [], []
    n_equal = n_rows = 0
    wrong = ""
    for s in range(len(ids)):
        before: Array | None = np.arange(k)  # all predecessors of the first row are the anchor
        for r in range(first_row, ids.shape[1]):
            n_rows += 1
            order = _match(ids[s, r], theirs[s, r])
            if order is None:
                row = logits[s, r]
                swapped = set(ids[s, r]) ^ set(theirs[s, r])
                spread = float(np.ptp(row[list(swapped)])) if len(set(ids[s, r])) == k else np.inf
                if not spread <= 2 * tie.max_abs and not wrong:
                    wrong = f"; sequence {s} row {r}: candidates {sorted(ids[s, r])}, recorded {sorted(theirs[s, r])}"
            else:
                n_equal += 1
                if before is not None:
                    ours_by_token.append(scores[s, r][before][:, order])
                    theirs_by_token.append(their_scores[s, r])
            before = order
    report.add(f"{label} candidates", not wrong, f"{n_equal}/{n_rows} rows equal{wrong}", f"exact beyond a tie of {2 * tie.max_abs:.2g}")
    if not ours_by_token:
        report.add(f"{label} scores", False, "no row has the recorded candidates", str(limit))
        return
    seen = difference(np.array(ours_by_token), np.array(theirs_by_token))
    report.add(f"{label} scores", seen.within(limit), f"{seen} in {len(ours_by_token)} rows", str(limit))


def _match(ours: Array, theirs: Array) -> Array | None:
    """Where each recorded candidate stands among ours; None when they are not the same set."""
    if sorted(ours) != sorted(theirs):
        return None
    at = {int(token): i for i, token in enumerate(ours)}
    return np.array([at[int(token)] for token in theirs])
