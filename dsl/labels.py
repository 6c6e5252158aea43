"""The names by which checks and views know values: one per statement of the author.

The generated source gives them to ggml (``b.g.cb(q, "attention.q", layer.il)``), the interpreter to its own results, so
that native and NumPy values can be laid side by side.
"""

from __future__ import annotations

from .ir import Body, Node


def ends_statement(node: Node, following: Node | None) -> bool:
    """Whether ``node`` is the last that its Python statement makes for its target."""
    return (
        following is None
        or node.statement is None
        or node.statement != following.statement
        or node.hint != following.hint
        or node.iteration is not following.iteration
    )


def labels(body: Body, prefix: str) -> dict[int, str]:
    """Names by id of the node: ``prefix`` and the author's variable, numbered by the order of the lines that assign it.

    Iterations of a loop, and the ways through it, agree on the number of a line; the layer tells their values apart.
    """
    named = [
        node
        for node, following in zip(body.nodes, [*body.nodes[1:], None], strict=False)
        if node.hint is not None and len(node.results) == 1 and ends_statement(node, following)
    ]
    places: dict[str, list[object]] = {}
    for node in named:
        at = places.setdefault(node.hint or "", [])
        if node.statement not in at:
            at.append(node.statement)
    for at in places.values():
        at.sort(key=lambda place: place if isinstance(place, tuple) else ("", 0, 0))
    found: dict[int, str] = {}
    for node in named:
        number = places[node.hint or ""].index(node.statement) + 1
        found[id(node)] = f"{prefix}{node.hint}" + (f".{number}" if number > 1 else "")
    return found


def layer_of(body: Body, node: Node) -> int | None:
    """The layer that a node's label is qualified with."""
    if body.uses_layer:
        return body.layer
    if node.iteration is not None and node.iteration.loop.over_layers:
        return node.iteration.index
    return None
