"""Passes: what is done to a traced graph before it is printed, interpreted or emitted.

Each pass has a name, changes bodies in place, and is followed by verification. A block's body and the bodies of its
calls have the same structure and are changed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from draftsmith.dsl.expr import same
from draftsmith.dsl.ir import Apply, Body, Call, Graph, Node, Value
from draftsmith.dsl.verify import verify

Pass = Callable[[Body], None]
Observer = Callable[[str, Graph], None]


def fold_reshapes(body: Body) -> None:
    """A reshape of a reshape is one reshape; a reshape to the shape there already is, is nothing."""
    replaced: dict[int, Value] = {}
    for node in body.nodes:
        node.operands = tuple(None if v is None else replaced.get(id(v), v) for v in node.operands)
        if not isinstance(node, Apply) or node.op.name != "reshape":
            continue
        source = node.operands[0]
        assert source is not None
        inner = source.node
        if isinstance(inner, Apply) and inner.op.name == "reshape" and inner in body.nodes:
            node.operands = inner.operands
            source = node.operands[0]
            assert source is not None
        result = node.results[0]
        if len(result.shape) == len(source.shape) and all(map(same, result.shape, source.shape)):
            replaced[id(result)] = source
    body.results = [replaced.get(id(v), v) for v in body.results]
    for loop in {id(n.iteration.loop): n.iteration.loop for n in body.nodes if n.iteration is not None}.values():
        loop.snapshots = [{n: replaced.get(id(v), v) for n, v in held.items()} for held in loop.snapshots]


def drop_dead(body: Body) -> None:
    """Nodes that no result, write to state or tap depends on. What one iteration of a loop keeps, the others keep, so
    that they stay alike."""
    shared: set[object] = set()
    while True:
        needed = {id(v) for v in body.results}
        kept: list[Node] = []
        for node in reversed(body.nodes):
            if has_effect(node) or any(id(r) in needed for r in node.results) or _place(node) in shared:
                kept.append(node)
                needed.update(id(v) for v in node.inputs)
        more = {_place(node) for node in kept} - {None} - shared
        if not more:
            break
        shared |= more
    body.nodes = kept[::-1]


def _place(node: Node) -> object:
    """What tells the nodes of one iteration apart, the same in all; None outside loops."""
    return None if node.iteration is None else (id(node.iteration.loop), node.position, node.describe())


def has_effect(node: Node) -> bool:
    """Whether a node, or the body it calls, writes state or offers a tap."""
    if isinstance(node, Apply):
        return node.op.writes_state
    assert isinstance(node, Call)
    return any(has_effect(inner) for inner in node.body.nodes)


PASSES: dict[str, Pass] = {"fold_reshapes": fold_reshapes, "drop_dead": drop_dead}
"""In the order in which they run."""


def run_passes(graph: Graph, observe: Observer | None = None) -> None:
    """Run every pass over a graph and the blocks it calls; ``observe(name, graph)`` sees the graph after each. A
    value of the model must be bound: verification compares shapes."""
    for number, (name, change) in enumerate(PASSES.items()):
        for body in _bodies(graph.body):
            if body.n_passes == number:  # a block may have come from a graph that is further
                change(body)
                body.n_passes += 1
        graph.outputs = dict(zip(graph.outputs, graph.body.results, strict=True))
        verify(graph)
        if observe is not None:
            observe(name, graph)


def _bodies(body: Body) -> Iterator[Body]:
    """A body and all that it calls: the bodies of the calls and those that stand for their blocks."""
    yield body
    for node in body.nodes:
        if isinstance(node, Call):
            yield from _bodies(node.body)
            if node.block.body is not node.body:
                yield from _bodies(node.block.body)
