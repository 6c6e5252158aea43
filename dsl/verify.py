"""What a legal graph is, and the check that one is.

Run after tracing and after every pass: a fault shows where it was made, not in the compiler or on the device.
"""

from __future__ import annotations

from .errors import GraphError
from .ir import Apply, Body, Call, Graph, Kind, Node, Ref, Value


def verify(graph: Graph) -> None:
    """Raise GraphError at the first rule that a graph breaks."""
    feeds = set(map(id, graph.feeds.values()))
    _verify_body(graph.name, graph.body, feeds)
    for name, value in graph.outputs.items():
        if value.kind is Kind.NODE and value.node not in graph.body.nodes:
            raise GraphError(f"graph {graph.name}: output {name} is not made by the graph")


def _verify_body(name: str, body: Body, known: set[int]) -> None:
    defined = set(known) | {id(p) for p in body.params}
    written: set[tuple[str, int | None]] = set()
    for node in body.nodes:
        for value in node.inputs:
            if value.kind is Kind.STATE and value.ref is not None and (value.ref.field, value.ref.il) in written:
                _fail(
                    name, node, f"reads {value!r} as it was before a write that comes first: use what store() returned"
                )
            if value.kind in (Kind.NODE, Kind.PARAM, Kind.FEED) and id(value) not in defined:
                _fail(name, node, f"reads {value!r} before it exists")
        for result in node.results:
            if id(result) in defined:
                _fail(name, node, f"defines {result!r} twice")
            if result.node is not node:
                _fail(name, node, f"its result {result!r} names another node as its origin")
            defined.add(id(result))
        if isinstance(node, Apply) and node.op.in_place:
            _verify_in_place(name, body, node)
        written |= {(r.field, r.il) for r in states_written(node)}
        if isinstance(node, Apply):
            _verify_apply(name, node)
        elif isinstance(node, Call):
            _verify_call(name, node)
    for value in body.results:
        if value.kind in (Kind.NODE, Kind.PARAM) and id(value) not in defined:
            raise GraphError(f"{name}: result {value!r} is not defined")


def _verify_in_place(name: str, body: Body, node: Apply) -> None:
    """What is overwritten must not be read by anything else, whatever order ggml computes in."""
    target = node.operands[0]
    others = [other for other in body.nodes if other is not node and any(v is target for v in other.inputs)]
    if others or any(v is target for v in body.results):
        reader = others[0].describe() if others else "the result"
        _fail(name, node, f"overwrites {target!r}, which {reader} reads as well: write into a cont() of it")


def _verify_apply(name: str, node: Apply) -> None:
    if len(node.results) != 1:
        _fail(name, node, f"an op has one result, found {len(node.results)}")
    if len(node.operands) != len(node.op.operands):
        _fail(name, node, f"expected {len(node.op.operands)} operands, found {len(node.operands)}")
    missing = set(node.op.attrs) ^ set(node.attrs)
    if missing:
        _fail(name, node, f"attributes differ from the declaration: {', '.join(sorted(missing))}")


def _verify_call(name: str, node: Call) -> None:
    if len(node.operands) != len(node.body.params):
        _fail(name, node, f"expected {len(node.body.params)} arguments, found {len(node.operands)}")
    for param, value in zip(node.body.params, node.inputs, strict=True):
        if not _same_type(param, value):
            _fail(name, node, f"parameter {param!r} is given {value!r}")
    for result, value in zip(node.results, node.body.results, strict=True):
        if not _same_type(result, value):
            _fail(name, node, f"result {result!r} is made as {value!r}")
    alike = node.body.n_passes == node.block.body.n_passes
    if alike and len(node.body.nodes) != len(node.block.body.nodes):
        _fail(name, node, f"its body has {len(node.body.nodes)} nodes, the block {len(node.block.body.nodes)}")
    _verify_body(f"{name}/{node.block.name}", node.body, set())


def states_written(node: Node) -> list[Ref]:
    """State that a node, or the body it calls, writes."""
    nodes = [node] if isinstance(node, Apply) else [n for _, n in node.body.walk()] if isinstance(node, Call) else []
    targets = [n.operands[0] for n in nodes if isinstance(n, Apply) and n.op.writes_state and n.op.has_result]
    return [v.ref for v in targets if v is not None and v.kind is Kind.STATE and v.ref is not None]


def _same_type(a: Value, b: Value) -> bool:
    """By number: a block may name a caller's dim anew."""
    return a.dtype is b.dtype and all(x is y or int(x) == int(y) for x, y in zip(a.ne, b.ne, strict=True))


def _fail(name: str, node: Node, message: str) -> None:
    where = f"\n{node.position.excerpt()}" if node.position else ""
    raise GraphError(f"{name}: {node.describe()} {message}{where}")
