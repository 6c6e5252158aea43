"""Cells of a cache: which are taken, what is given back, and what each token may see."""

from __future__ import annotations

import numpy as np
import pytest

from draftsmith.cells import Cells
from draftsmith.dsl.errors import RequestError


def _rows(seq: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    pos = np.arange(start, stop, dtype=np.int32)
    return np.full(len(pos), seq, np.int32), pos


def _expected(cells: Cells, seq: np.ndarray, pos: np.ndarray, causal: bool) -> np.ndarray:
    out = np.full((len(seq), cells.n_used), -np.inf, np.float32)
    for i, (s, p) in enumerate(zip(seq, pos, strict=True)):
        for c in range(cells.n_used):
            seen = cells.seq[c] == s and (not causal or cells.pos[c] <= p)
            if seen and (cells.window is None or p - cells.pos[c] < cells.window):
                out[i, c] = 0
    return out


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 5])
def test_mask(dtype: type, causal: bool, window: int | None) -> None:
    cells = Cells(256, window)
    cells.place(*_rows(0, 0, 12))
    cells.place(*_rows(1, 0, 7))
    cells.remove(0, 9)
    one = _rows(0, 9, 13)
    cells.place(*one)
    both = tuple(np.concatenate(parts) for parts in zip(_rows(0, 13, 15), _rows(1, 7, 10), strict=True))
    cells.place(*both)
    for seq, pos in (one, both):
        mask = cells.mask(seq, pos, causal, np.dtype(dtype))
        assert mask.dtype == dtype and mask.flags.c_contiguous
        np.testing.assert_array_equal(mask, _expected(cells, seq, pos, causal))


def test_gaps_are_filled_first() -> None:
    cells = Cells(256)
    assert list(cells.place(*_rows(0, 0, 6))) == [0, 1, 2, 3, 4, 5]
    cells.remove(0, 1, 3)
    assert list(cells.place(*_rows(1, 0, 3))) == [1, 2, 6]
    cells.remove(1, 2)
    assert list(cells.place(*_rows(0, 6, 8))) == [6, 7]


def test_a_full_cache_takes_nothing() -> None:
    cells = Cells(256)
    cells.place(*_rows(0, 0, 250))
    with pytest.raises(RequestError, match="7 tokens need a cell each, 6 of 256 are free"):
        cells.place(*_rows(0, 250, 257))
    assert cells.last(0) == 249
    cells.release(cells.place(*_rows(0, 250, 256)))
    assert cells.last(0) == 249 and cells.n_used == 256
