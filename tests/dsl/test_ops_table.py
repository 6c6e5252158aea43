"""Every op of the table: a legal example whose result is as inferred, illegal calls that are refused, a ggml call."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import ShapeError
from draftsmith.dsl.ir import Apply, describe_numbers, describe_type
from draftsmith.dsl.op import TABLE, Op

from .helpers import Example, all_attrs, evaluate, session, trace_call
from .op_examples import EXAMPLES
from .op_faults import FAULTS, Fault

CASES = [pytest.param(name, e, id=f"{name}-{i}") for name, some in EXAMPLES.items() for i, e in enumerate(some)]
WRONG = [pytest.param(name, f, id=f"{name}-{i}") for name, some in FAULTS.items() for i, f in enumerate(some)]
NO_WRONG_CALL = {"tap", "transpose"}  # they take any tensor


def test_every_op_has_an_example() -> None:
    assert set(EXAMPLES) == set(TABLE)
    assert all(EXAMPLES.values())


def test_every_op_has_a_fault() -> None:
    assert set(FAULTS) == set(TABLE)
    assert {name for name, faults in FAULTS.items() if not faults} == NO_WRONG_CALL


def test_every_op_is_exported() -> None:
    exported = {name: getattr(ops, name) for name in ops.__all__}
    assert set(TABLE) <= {name.rstrip("_") for name in exported}
    classes = {f for f in exported.values() if isinstance(f, type) and issubclass(f, Op)}
    assert all(type(TABLE[c.name]) is c for c in classes)


@pytest.mark.parametrize("name", TABLE)
def test_declaration(name: str) -> None:
    op = TABLE[name]
    assert type(op).__doc__ and type(op).__doc__ is not type(op).__bases__[0].__doc__
    functions = [*([op.ggml] if op.ggml else []), *op.extra_ggml]
    assert name == "tap" or op.ggml
    assert all(re.fullmatch(r"ggml_\w+", f) for f in functions)
    assert len(functions) == len(set(functions))


@pytest.mark.parametrize(("name", "example"), CASES)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_result_is_as_inferred(name: str, example: Example, real: type[np.floating[Any]]) -> None:
    _, got, value = evaluate(name, example, real)
    assert got.shape == tuple(int(d) for d in reversed(value.shape))
    if value.dtype in (GGMLType.i32, GGMLType.i64):
        assert got.dtype == value.dtype.numpy_dtype
    else:
        assert got.dtype in (real, np.float32)
        assert example.operands == () or name == "cast" or got.dtype == real


@pytest.mark.parametrize(("name", "example"), CASES)
def test_call_and_cost(name: str, example: Example) -> None:
    with session() as tracer:
        _, value = trace_call(name, example.operands, example.attrs)
        node = value.node
        assert isinstance(node, Apply)
        assert node is tracer.body.nodes[-1]
        texts = {key: _text(attr) for key, attr in node.attrs.items()}
        args = ["nullptr" if v is None else f"x{i}" for i, v in enumerate(node.operands)]
        lines = [node.op.cpp(args, texts, node), *node.op.cpp_after("y", args, texts)]
        called = set(re.findall(r"\bggml_\w+(?=\()", "\n".join(lines)))
        assert called <= {node.op.ggml, *node.op.extra_ggml}
        assert all(a in "\n".join(lines) for a in args if a != "nullptr")
        cost = node.op.cost(value, node.operands, node.attrs)
        assert cost.flops >= 0 and cost.bytes >= 0
        assert not node.op.is_view or (cost.flops, cost.bytes) == (0, 0)


def _text(attr: Any) -> str:
    if isinstance(attr, bool):
        return "true" if attr else "false"
    return ", ".join(map(str, attr)) if isinstance(attr, tuple) else str(attr)


@pytest.mark.parametrize(("name", "fault"), WRONG)
def test_illegal_call(name: str, fault: Fault) -> None:
    with session() as tracer, pytest.raises(ShapeError) as raised:
        trace_call(name, fault.operands, fault.attrs)
    message = str(raised.value)
    assert message.startswith(f"[{name}] ")
    assert fault.says in message.splitlines()[0]
    with session() as tracer:
        seen = [None if o is None else _seen(o) for o in fault.operands]
    del tracer
    for i in fault.shows:
        value = seen[i]
        assert value is not None
        assert describe_type(value) in message
        assert describe_numbers(value) in message
    assert "    " in message, "the author's line is shown"


def _seen(operand: Any) -> Any:
    value = operand.value("x")
    return value if operand.via is None else operand.via(value)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_attributes_are_those_declared(name: str) -> None:
    for example in EXAMPLES[name]:
        assert all(value is not ... for value in all_attrs(name, example.attrs).values())
