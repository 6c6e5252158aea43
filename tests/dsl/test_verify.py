"""What a legal graph is: graphs broken by hand, one rule after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.ir import Apply, Call, Graph, Kind, Ref, Value
from draftsmith.dsl.verify import verify
from draftsmith.model import sample_dims

from ..codegen.loops import LOOPS, trace_one

Break = Callable[[Graph], None]


def first_of(graph: Graph, kind: type) -> int:
    return next(i for i, n in enumerate(graph.body.nodes) if isinstance(n, kind))


def reversed_order(graph: Graph) -> None:
    graph.body.nodes.reverse()


def defined_twice(graph: Graph) -> None:
    graph.body.nodes.append(graph.body.nodes[0])


def foreign_result(graph: Graph) -> None:
    node = graph.body.nodes[0]
    node.results[0].node = graph.body.nodes[1]


def unknown_output(graph: Graph) -> None:
    other = trace_one(LOOPS["carried"], 2)[1]["run"]
    graph.outputs["stray"] = other.outputs["out"]


def unknown_result(graph: Graph) -> None:
    graph.body.results.append(trace_one(LOOPS["carried"], 2)[1]["run"].outputs["out"])


def feed_not_declared(graph: Graph) -> None:
    graph.feeds.clear()


def operand_missing(graph: Graph) -> None:
    node = graph.body.nodes[first_of(graph, Apply)]
    node.operands = node.operands[:-1]


def two_results(graph: Graph) -> None:
    node = graph.body.nodes[first_of(graph, Apply)]
    more = Value(node.results[0].shape, node.results[0].dtype, Kind.NODE, node=node)
    node.results = (*node.results, more)


def attribute_lost(graph: Graph) -> None:
    node = next(n for _, n in graph.body.walk() if isinstance(n, Apply) and n.op.attrs)
    node.attrs.popitem()


def attribute_too_many(graph: Graph) -> None:
    node = graph.body.nodes[first_of(graph, Apply)]
    assert isinstance(node, Apply)
    node.attrs["colour"] = 1


def call(graph: Graph) -> Call:
    node = graph.body.nodes[first_of(graph, Call)]
    assert isinstance(node, Call)
    return node


def argument_missing(graph: Graph) -> None:
    call(graph).operands = ()


def argument_of_another_type(graph: Graph) -> None:
    param = call(graph).body.params[0]
    param.dtype = GGMLType.f16


def argument_of_another_shape(graph: Graph) -> None:
    param = call(graph).body.params[0]
    param.shape = (*param.shape[:-1], param.shape[-1] + 1)


def result_of_another_type(graph: Graph) -> None:
    call(graph).results[0].dtype = GGMLType.f16


def body_cut(graph: Graph) -> None:
    node = call(graph)
    node.body = replace(node.body, nodes=[*node.body.nodes, node.body.nodes[-1]])


def body_reversed(graph: Graph) -> None:
    call(graph).body.nodes.reverse()


def stale_state(graph: Graph) -> None:
    """The read of what a layer stored reads the state as it was instead."""
    write = graph.body.nodes[first_of_op(graph, "store")]
    for node in graph.body.nodes:
        node.operands = tuple(write.operands[0] if v is write.results[0] else v for v in node.operands)


def first_of_op(graph: Graph, name: str) -> int:
    return next(i for i, n in enumerate(graph.body.nodes) if isinstance(n, Apply) and n.op.name == name)


FAULTS: list[tuple[str, Break, str]] = [
    ("defined_inside", reversed_order, r"reads .* before it exists"),
    ("carried", defined_twice, r"defines .* twice"),
    ("carried", foreign_result, "names another node as its origin"),
    ("carried", unknown_output, "output stray is not made by the graph"),
    ("carried", unknown_result, "is not defined"),
    ("carried", feed_not_declared, r"reads x f32\[n_embd, n_tokens\] before it exists"),
    ("carried", operand_missing, "expected 2 operands, found 1"),
    ("carried", two_results, "an op has one result, found 2"),
    ("last_is_special", attribute_lost, "attributes differ from the declaration: s"),
    ("carried", attribute_too_many, "attributes differ from the declaration: colour"),
    ("inner_blocks", argument_missing, "arguments, found 0"),
    ("inner_blocks", argument_of_another_type, r"parameter x f16.* is given"),
    ("inner_blocks", argument_of_another_shape, r"parameter x f32\[n_embd, n_tokens \+ 1\] is given"),
    ("inner_blocks", result_of_another_type, r"result .* is made as"),
    ("inner_blocks", body_cut, r"its body has \d nodes, the block"),
    ("inner_blocks", body_reversed, r"before it exists"),
    ("read_before_write", stale_state, r"as it was before a write that comes first: use what store\(\) returned"),
]


@pytest.mark.parametrize(("name", "fault", "says"), FAULTS, ids=[f.__name__ for _, f, _ in FAULTS])
def test_broken_graph(name: str, fault: Break, says: str) -> None:
    model, graphs = trace_one(LOOPS[name], 2)
    with model.binding(sample_dims(model)):
        verify(graphs["run"])
        fault(graphs["run"])
        with pytest.raises(GraphError, match=says) as raised:
            verify(graphs["run"])
    assert str(raised.value).startswith((name, f"graph {name}"))


def test_the_author_meets_the_rule_of_state() -> None:
    """A second read through layer.kv after store() would see old rows in the interpreter and new ones in ggml."""

    def run(self, x=LOOPS["read_before_write"].__defaults__[0], rows=LOOPS["read_before_write"].__defaults__[1]):  # type: ignore[no-untyped-def,index]
        for layer in self.layers:
            ops.store(layer.kv.k, x, layer.kv.cells)
            x = ops.get_rows(layer.kv.k, rows)
        return {"out": x}

    model, graphs = trace_one(run, 2)
    with model.binding(sample_dims(model)), pytest.raises(GraphError, match="use what store") as raised:
        verify(graphs["run"])
    assert "x = ops.get_rows(layer.kv.k, rows)" in str(raised.value)


def test_a_write_to_another_layer_is_no_conflict() -> None:
    def run(self, x=LOOPS["carried"].__defaults__[0], rows=LOOPS["read_before_write"].__defaults__[1]):  # type: ignore[no-untyped-def,index]
        for layer in self.layers:
            old = ops.get_rows(layer.kv.k, rows)
            ops.store(layer.kv.k, x, layer.kv.cells)
            x = old
        return {"out": x}

    model, graphs = trace_one(run, 3)
    with model.binding(sample_dims(model)):
        verify(graphs["run"])


def test_state_is_told_apart_by_field_and_layer() -> None:
    assert Ref("kv.k", 0) != Ref("kv.k", 1) and Ref("kv.k", 0) != Ref("kv.v", 0) and Ref("kv.k", 0) == Ref("kv.k", 0)
