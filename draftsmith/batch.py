"""The rows of one run: token ids or feature rows, with position and sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftsmith.dsl.errors import RequestError


@dataclass
class Batch:
    """``tokens`` or ``features`` (one row a token), never both; ``pos`` and ``seq`` of each row. ``block_rows``: host
    inputs with one row for each block of the batch, by name."""

    pos: NDArray[np.int32]
    seq: NDArray[np.int32]
    tokens: NDArray[np.int32] | None = None
    features: NDArray[np.float32] | None = None
    block_rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.features is None):
            raise RequestError("a batch holds token ids or feature rows, found both or neither")
        n = len(self.pos)
        rows = self.tokens if self.tokens is not None else self.features
        assert rows is not None
        if len(rows) != n or len(self.seq) != n:
            raise RequestError(
                f"a batch of {len(rows)} rows needs as many positions and sequence ids, found {n} and {len(self.seq)}"
            )
        if n == 0:
            raise RequestError("an empty batch")
        if self.pos.min() < 0 or self.seq.min() < 0:
            raise RequestError("positions and sequence ids must not be negative")

    @classmethod
    def of_tokens(cls, tokens: ArrayLike, pos: int | ArrayLike = 0, seq: int | ArrayLike = 0) -> Batch:
        """Token ids at consecutive positions from ``pos`` (or at the given ones)."""
        ids = np.asarray(tokens, np.int32).reshape(-1)
        return cls(_positions(pos, len(ids)), _filled(seq, len(ids)), tokens=ids)

    @classmethod
    def of_features(cls, features: ArrayLike, pos: int | ArrayLike = 0, seq: int | ArrayLike = 0) -> Batch:
        rows = np.ascontiguousarray(features, np.float32)
        if rows.ndim != 2:
            raise RequestError(f"features must be a matrix [n_tokens, width], found {rows.ndim} dims")
        return cls(_positions(pos, len(rows)), _filled(seq, len(rows)), features=rows)

    @classmethod
    def join(cls, parts: Sequence[Batch]) -> Batch:
        """Several batches as one."""
        if not parts:
            raise RequestError("an empty batch")
        if len({p.tokens is None for p in parts}) > 1:
            raise RequestError("a batch cannot mix token ids and feature rows")
        return cls(
            np.concatenate([p.pos for p in parts]),
            np.concatenate([p.seq for p in parts]),
            tokens=np.concatenate([p.tokens for p in parts if p.tokens is not None])
            if parts[0].tokens is not None
            else None,
            features=np.concatenate([p.features for p in parts if p.features is not None])
            if parts[0].features is not None
            else None,
        )

    def __len__(self) -> int:
        return len(self.pos)

    def blocks(self) -> list[tuple[int, int]]:
        """First row and length of each run of consecutive positions of one sequence."""
        breaks = (self.seq[1:] != self.seq[:-1]) | (self.pos[1:] != self.pos[:-1] + 1)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(self)]
        return [(a, b - a) for a, b in pairwise(starts)]

    def part(self, start: int, stop: int) -> Batch:
        """Rows ``start`` to ``stop - 1``."""
        return Batch(
            self.pos[start:stop],
            self.seq[start:stop],
            None if self.tokens is None else self.tokens[start:stop],
            None if self.features is None else self.features[start:stop],
        )

    def parts(self, size: int) -> Iterator[tuple[int, Batch]]:
        """Pieces of at most ``size`` rows with their first row."""
        for start in range(0, len(self), size):
            yield start, self.part(start, min(start + size, len(self)))


def _positions(pos: int | ArrayLike, n: int) -> NDArray[np.int32]:
    given = np.asarray(pos, np.int32)
    return np.arange(int(given), int(given) + n, dtype=np.int32) if given.ndim == 0 else given


def _filled(seq: int | ArrayLike, n: int) -> NDArray[np.int32]:
    given = np.asarray(seq, np.int32)
    return np.full(n, given, np.int32) if given.ndim == 0 else given
