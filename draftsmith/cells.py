"""Which cell of a cache holds which token.

A cache is a set of cells (rows of the K and V tensors). Each holds the token of one sequence at one position, or
nothing. Several sequences share one set of cells; the mask keeps them apart, so blocks of any length may stand in one
batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.errors import RequestError

PAD = 256
"""Cells in use are rounded up to this many, so that a built graph serves 256 tokens in a row."""

Ints = NDArray[np.int32]

_UNSEEN = np.int32(2**31 - 1)
"""A position behind every token."""


def padded(n: int) -> int:
    return -(-n // PAD) * PAD


class Cells:
    """``size`` cells; with ``window``, a sliding one: a cell whose token no later query of its sequence can see may
    be reused, also when up to ``slack`` of the newest tokens are removed again (drafts that are not accepted)."""

    def __init__(self, size: int, window: int | None = None, slack: int = 0) -> None:
        self.size = padded(size)
        self.window = window
        self.slack = slack
        self.pos: Ints = np.full(self.size, -1, np.int32)
        self.seq: Ints = np.full(self.size, -1, np.int32)
        self._end = 0  # no cell at or behind this one is in use
        self._taken = 0

    def place(self, seq: Ints, pos: Ints) -> NDArray[np.int64]:
        """Take a cell for each token; RequestError, taking none, when there are too few."""
        n = len(pos)
        if self._taken == self._end and self._end + n <= self.size:  # no gaps: the usual case
            return self._take(np.arange(self._end, self._end + n, dtype=np.int64), seq, pos)
        free = np.flatnonzero(self.pos < 0)
        if len(free) < n and self.window is not None:
            free = np.union1d(free, np.flatnonzero(self._unreachable()))
        if len(free) < n:
            raise RequestError(
                f"the context is full: {n} tokens need a cell each, {len(free)} of {self.size} are free (raise --ctx)"
            )
        return self._take(free[:n].astype(np.int64), seq, pos)

    def _take(self, cells: NDArray[np.int64], seq: Ints, pos: Ints) -> NDArray[np.int64]:
        self._taken += int(np.count_nonzero(self.pos[cells] < 0))
        self.pos[cells], self.seq[cells] = pos, seq
        self._end = max(self._end, int(cells[-1]) + 1 if len(cells) else 0)
        return cells

    def _unreachable(self) -> NDArray[np.bool_]:
        """Cells outside the window of the next token of their sequence, ``slack`` tokens earlier."""
        assert self.window is not None
        reachable_from = np.zeros(int(self.seq.max(initial=0)) + 1, np.int32)
        used = self.pos >= 0
        np.maximum.at(reachable_from, self.seq[used], self.pos[used])
        newest = np.where(used, reachable_from[np.maximum(self.seq, 0)], 0)
        unreachable: NDArray[np.bool_] = used & (newest + 1 - self.slack - self.pos >= self.window)
        return unreachable

    def release(self, cells: NDArray[np.int64]) -> None:
        """Give cells back (a failed batch)."""
        self._empty(cells)

    def remove(self, seq: int, start: int, end: int | None = None) -> None:
        """Forget the tokens of a sequence at positions ``start`` to ``end - 1``."""
        gone = (self.seq[: self._end] == seq) & (self.pos[: self._end] >= start)
        if end is not None:
            gone &= self.pos[: self._end] < end
        self._empty(np.flatnonzero(gone))

    def clear(self) -> None:
        self.pos[:], self.seq[:], self._end, self._taken = -1, -1, 0, 0

    def _empty(self, cells: NDArray[np.int64]) -> None:
        if not len(cells):
            return
        self.pos[cells], self.seq[cells] = -1, -1
        self._taken -= len(cells)
        if cells[-1] == self._end - 1:
            used = np.flatnonzero(self.pos[: self._end] >= 0)
            self._end = int(used[-1]) + 1 if len(used) else 0

    @property
    def n_used(self) -> int:
        """How many leading cells a batch has to look at: rounded up, at least one pad."""
        return min(self.size, max(PAD, padded(self._end)))

    @property
    def n_free(self) -> int:
        """How many cells hold nothing."""
        return self.size - self._taken

    def last(self, seq: int) -> int:
        """The newest position of a sequence, -1 when it has none."""
        return int(self.pos[self.seq == seq].max(initial=-1))

    def mask(self, seq: Ints, pos: Ints, causal: bool, dtype: Any) -> NDArray[Any]:
        """0 where a token may see a cell, -inf elsewhere; [n_tokens, n_used]."""
        n = self.n_used
        cell_pos, cell_seq = self.pos[:n], self.seq[:n]
        if len(seq) == 1 or (seq == seq[0]).all():
            other = cell_seq != seq[0]
            if causal:  # one comparison tells sequence and order
                cell_pos = np.where(other, _UNSEEN, cell_pos)
                hidden = cell_pos > pos[:, None]
            else:
                hidden = np.repeat(other[None], len(seq), axis=0)
        else:
            hidden = cell_seq != seq[:, None]
            if causal:
                hidden |= cell_pos > pos[:, None]
        if self.window is not None:
            hidden |= pos[:, None] - cell_pos >= self.window
        return _minus_infinity_where(hidden, np.dtype(dtype))


def _minus_infinity_where(hidden: NDArray[np.bool_], dtype: np.dtype[Any]) -> NDArray[Any]:
    """And 0 elsewhere. The bits of -inf times 0 or 1 are several times faster than a choice."""
    word = np.dtype(f"u{dtype.itemsize}")
    bits = np.array(-np.inf, dtype).view(word)[()]
    mask: NDArray[Any] = np.multiply(hidden, bits, dtype=word).view(dtype)
    return mask
