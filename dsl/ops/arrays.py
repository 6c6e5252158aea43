"""Small helpers of the NumPy meanings. Axes are in NumPy's order: ggml's dims reversed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..op import tile


def np_shape(dims: Sequence[Any]) -> tuple[int, ...]:
    """A ggml shape as a NumPy shape."""
    return tuple(int(d) for d in reversed(dims))


def to_rank(x: Any, rank: int) -> Any:
    """``x`` with exactly ``rank`` axes: leading ones are added, or dropped."""
    lead = x.ndim - rank
    return x.reshape((1,) * -lead + x.shape if lead < 0 else x.shape[lead:])


def tile_to(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` repeated to ``shape`` as ggml broadcasts: whole copies, one after the other."""
    return tile(to_rank(x, len(shape)), shape)


def spread(x: Any, axis: int, length: int) -> Any:
    """Each slice of an axis repeated in place, as ggml does for heads: slice i serves i*r .. i*r + r - 1."""
    return np.repeat(x, length // x.shape[axis], axis=axis)


def sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
