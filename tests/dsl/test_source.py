"""Names and places that values get from the author's own lines."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import ShapeError
from draftsmith.dsl.ir import Kind, Ref, Value
from draftsmith.dsl.source import here, live_in, of_function

from .helpers import session


def leaf(*shape: int, name: str = "x") -> Value:
    return Value(shape, GGMLType.f32, Kind.FEED, name=name, ref=Ref(name))


def module(path: Path, text: str) -> ModuleType:
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def test_plain_assignment() -> None:
    with session():
        x = leaf(4, 3)
        gate = ops.silu(x)
        ops.neg(gate)
        assert gate.name == "gate"
        assert gate.node is not None and gate.node.position is not None
        position = gate.node.position
        assert position.target == "gate" and position.function == "test_plain_assignment"
        assert Path(position.file) == Path(__file__)
        assert position.short == f"dsl/test_source.py:{position.line}"


def test_every_op_of_a_statement_has_its_name() -> None:
    with session() as tracer:
        x = leaf(4, 3)
        out = ops.neg(ops.sqr(x)) + x
        del out
        assert [n.hint for n in tracer.body.nodes] == ["out", "out", "out"]
        assert len({n.statement for n in tracer.body.nodes}) == 1


def test_tuple_targets_get_their_own_element() -> None:
    with session():
        x = leaf(4, 3)
        a, b = ops.neg(x), ops.sqr(ops.abs_(x))
        (c,
         d) = (ops.neg(x),
               ops.sqr(x))
        assert (a.name, b.name, c.name, d.name) == ("a", "b", "c", "d")
        assert b.node is not None and b.node.operands[0] is not None and b.node.operands[0].name == "b"


def test_augmented_and_annotated_assignment() -> None:
    with session():
        x = leaf(4, 3)
        total: Value = ops.neg(x)
        assert total.name == "total"
        total += x
        assert total.name == "total"
        total *= 0.5  # type: ignore[assignment]
        assert total.name == "total"


def test_statements_over_several_lines() -> None:
    with session():
        x = leaf(4, 3)
        long = ops.add(
            ops.neg(x),
            ops.sqr(x),
        )
        assert long.name == "long"
        assert long.node is not None
        first, last = long.node.statement[1:]  # type: ignore[index]
        assert last - first == 3


def test_no_name_without_assignment() -> None:
    with session() as tracer:
        box: dict[str, Any] = {}
        box["y"] = ops.neg(leaf(4, 3))
        ops.sqr(box["y"])
        assert [n.hint for n in tracer.body.nodes] == [None, None]


def helper(x: Value) -> Value:
    return ops.neg(inner(x))


def inner(x: Value) -> Value:
    squared = ops.sqr(x)
    return ops.abs_(squared)


def test_helpers_name_inner_steps() -> None:
    """What an author's helper names keeps that name; what it returns unnamed stays so."""
    with session() as tracer:
        result = helper(leaf(4, 3))
        assert [n.hint for n in tracer.body.nodes] == ["squared", None, None]
        assert result.name is None
        lines = [n.position.function for n in tracer.body.nodes if n.position is not None]
        assert lines == ["inner", "inner", "helper"]


def test_closures_and_comprehensions() -> None:
    with session() as tracer:
        x = leaf(4, 3)

        def nested() -> Value:
            deep = ops.neg(x)
            return ops.sqr(deep)

        many = [ops.scale(nested(), float(i)) for i in range(2)]
        assert len(many) == 2
        assert [n.hint for n in tracer.body.nodes]== ["deep", None, "many", "deep", None, "many"]


def caret(message: str) -> tuple[str, str]:
    """The author's line in a message, and what is marked in it."""
    lines = message.splitlines()
    at = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
    text, marks = lines[at - 1], lines[at]
    return text.strip(), text[marks.index("^") : marks.rindex("^") + 1]


def test_caret_marks_the_call() -> None:
    with session(), pytest.raises(ShapeError) as raised:
        x = leaf(4, 3)
        y = ops.neg(ops.mul_mat(leaf(5, 2, name="w"), x))
        del y
    line, marked = caret(str(raised.value))
    assert line == 'y = ops.neg(ops.mul_mat(leaf(5, 2, name="w"), x))'
    assert marked == 'ops.mul_mat(leaf(5, 2, name="w"), x)'


def test_caret_counts_characters_not_bytes(tmp_path: Path) -> None:
    made = module(tmp_path / "umlaut_source.py", (
        "from draftsmith.dsl import ops\n"
        "def f(größe, θ):\n"
        "    ünïcode = 'ﬁ→∞'; wort = ops.mul_mat(größe, θ)\n"
        "    return wort\n"
    ))
    with session(), pytest.raises(ShapeError) as raised:
        made.f(leaf(5, 2), leaf(4, 3))
    line, marked = caret(str(raised.value))
    assert line == "ünïcode = 'ﬁ→∞'; wort = ops.mul_mat(größe, θ)"
    assert marked.startswith("ops.mul_mat(größe")
    with session() as tracer:
        made.f(leaf(4, 2), leaf(4, 3))
        assert tracer.body.nodes[0].hint == "wort"


def test_several_lines_are_marked_on_the_first() -> None:
    with session(), pytest.raises(ShapeError) as raised:
        ops.mul_mat(
            leaf(5, 2),
            leaf(4, 3),
        )
    line, marked = caret(str(raised.value))
    assert line == "ops.mul_mat(" and marked == "o"


def test_a_place_without_source() -> None:
    known = here()
    assert known is not None
    position = replace(known, file="<string>", line=3, column=0, end_column=4)
    assert position.excerpt() == "  <string>:3"
    code = compile("y = ops.neg(x)\nz = ops.sqr(y)", "<made up>", "exec")
    with session() as tracer:
        exec(code, {"ops": ops, "x": leaf(4, 3)})
        assert [n.hint for n in tracer.body.nodes] == [None, None], "no file to read names from, and no failure"


def test_functions_know_where_they_are() -> None:
    place = of_function(helper)
    assert place is not None and place.function == "helper" and place.short.startswith("dsl/test_source.py:")
    assert of_function(3) is None
    now = here()
    assert now is not None and now.function == "test_functions_know_where_they_are"


LOOP = """\
for x in rows:
    if x:
        a = c
    else:
        a = d
    b = a
    e += b
    for i in f:
        g = i + h
        h = g
    t = x
    u = t if t else u
    v, w = w, v
    print(lambda q: q)
"""


def test_what_an_iteration_takes_from_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    assert live_in(str(path), 1) - {"print", "q"} == {"c", "d", "e", "f", "h", "u", "v", "w"}
    assert live_in(str(path), 3) == frozenset()
    assert live_in(str(tmp_path / "absent.py"), 1) == frozenset()
