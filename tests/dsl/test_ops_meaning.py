"""The NumPy meaning of every op against an independent formulation, in float64 and float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.op import TABLE

from .helpers import Example, all_attrs, evaluate
from .op_examples import EXAMPLES
from .op_reference import REFERENCE, Grid

CASES = [pytest.param(name, e, id=f"{name}-{i}") for name, some in EXAMPLES.items() for i, e in enumerate(some)]
ROUNDING = {GGMLType.f32: 1e-9, GGMLType.f16: 1e-3, GGMLType.q8_0: 2e-2}


def expected(name: str, arrays: list[Any], attrs: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """The reference at every element."""
    element = REFERENCE[name](*[None if a is None else Grid(a) for a in arrays], **attrs)
    out = np.empty((1,) * (4 - len(shape)) + shape)
    for index in np.ndindex(out.shape):
        out[index] = element(*index[::-1])
    return out.reshape(shape)


@pytest.mark.parametrize(("name", "example"), CASES)
@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_numpy_meaning(name: str, example: Example, real: type[np.floating[Any]]) -> None:
    arrays, got, value = evaluate(name, example, real)
    doubles = [a if a is None or a.dtype.kind == "i" else a.astype(np.float64) for a in arrays]
    want = expected(name, doubles, all_attrs(name, example.attrs), got.shape)
    if name == "top_k":  # the order is open
        got, want = np.sort(got, axis=-1), np.sort(want, axis=-1)
    close = ROUNDING.get(value.dtype, 0.0)
    if real is np.float32 or not example.operands:
        close = max(close, 2e-5)
    np.testing.assert_allclose(got, want, rtol=close, atol=close)


def test_every_op_has_a_reference() -> None:
    assert set(REFERENCE) == set(TABLE)
