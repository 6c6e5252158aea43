"""What ops say of the memory behind their results, against NumPy's own strides; dims that exist at run time only."""

from __future__ import annotations

import numpy as np
import pytest

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError, ShapeError
from draftsmith.dsl.expr import Atom, Scope
from draftsmith.dsl.ir import Kind, Ref, Value
from draftsmith.dsl.ops.layout import has_even_rows, is_packed, strides

from .helpers import Example, evaluate, session
from .op_examples import EXAMPLES

VIEWS = ("reshape", "permute", "transpose", "slice", "select")
CASES = [pytest.param(name, e, id=f"{name}-{i}") for name in VIEWS for i, e in enumerate(EXAMPLES[name])]


@pytest.mark.parametrize(("name", "example"), CASES)
def test_strides_of_views(name: str, example: Example) -> None:
    _, got, value = evaluate(name, example, np.float32)
    with session():
        st = strides(value)
        assert st is not None
        for n, ours, numpy in zip(value.shape, st, reversed(got.strides), strict=False):
            assert int(n) == 1 or int(ours) * got.itemsize == numpy
        assert value.layout.contiguous == got.flags.c_contiguous
        assert value.layout.rows == (int(st[0]) == 1)


def leaf(*shape: int | Atom, dtype: GGMLType = GGMLType.f32) -> Value:
    return Value(shape, dtype, Kind.FEED, name="x", ref=Ref("x"))


def test_chains_of_views() -> None:
    with session():
        x = leaf(8, 6, 4)
        turned = ops.permute(x, 0, 2, 1, 3)
        assert not turned.layout.contiguous and turned.layout.rows
        back = ops.permute(turned, 0, 2, 1, 3)
        assert back.layout.contiguous and is_packed(back)
        twice = ops.transpose(ops.transpose(x))
        assert is_packed(twice)
        half = ops.slice_(x, 0, 0, 4)
        assert has_even_rows(half) and not half.layout.contiguous
        middle = ops.slice_(x, 1, 1, 2)
        assert not has_even_rows(middle)
        assert is_packed(ops.slice_(x, 2, 1, 2))
        assert is_packed(ops.select(x, 2, 1))
        assert not ops.select(x, 1, 1).layout.contiguous
        assert has_even_rows(ops.select(x, 1, 1))


def test_a_dim_of_length_one_can_have_any_stride() -> None:
    """Contiguous for ggml_reshape, not for ggml_scale."""
    with session():
        x = ops.permute(leaf(8, 1, 4), 0, 2, 1, 3)
        assert x.layout.contiguous and not is_packed(x)
        ops.reshape(x, 32)
        with pytest.raises(ShapeError, match="not contiguous"):
            ops.scale(x, 2.0)


def test_set_rows_keeps_the_layout_of_its_target() -> None:
    with session():
        x = ops.slice_(ops.cont(leaf(8, 6)), 0, 0, 4)
        y = ops.set_rows(x, leaf(4, 2), leaf(2, dtype=GGMLType.i64))
        assert not y.layout.contiguous
        with pytest.raises(ShapeError, match="not contiguous"):
            ops.reshape(y, 24)


def test_run_time_dims_keep_their_names() -> None:
    n = Atom(Scope.DIM, "n_tokens")
    with session({"n_tokens": 5}):
        x = leaf(8, n)
        assert str(ops.repeat_4d(ops.reshape(x, 8, 1, n), 8, 4, n).shape[2]) == "n_tokens"
        assert str(ops.arange(0, n).shape[0]) == "n_tokens"
        assert str(ops.full((4, n), 0.0).shape[1]) == "n_tokens"
        assert str(ops.pad(x, p1=2).shape[1]) == "n_tokens + 2"
        assert str(ops.rope_multi(
            leaf(8, 2, n), leaf(n * 4, dtype=GGMLType.i32), n_dims=8, sections=(2, 1, 1)
        ).shape[2]) == "n_tokens"


def test_a_run_time_dim_equal_by_chance_is_refused() -> None:
    n, m = Atom(Scope.DIM, "n_tokens"), Atom(Scope.DIM, "n_outputs")
    with session({"n_tokens": 5, "n_outputs": 5}), pytest.raises(GraphError, match="run-time dim"):
        ops.swiglu_split(leaf(8, n), leaf(8, m))


def test_store_follows_state_and_nothing_else() -> None:
    cells = Value((2,), GGMLType.i64, Kind.FEED, name="cells", ref=Ref("cells"))
    with session():
        state = Value((8, 6), GGMLType.f16, Kind.STATE, name="k", ref=Ref("kv.k", 0))
        once = ops.store(state, leaf(8, 2), cells)
        twice = ops.store(once, leaf(8, 2), cells)
        assert twice.dtype is GGMLType.f16
        with pytest.raises(ShapeError, match="only state"):
            ops.store(ops.first_rows(once, 4), leaf(8, 2), cells)
