"""The IR as text: the canonical form by which equal bodies are found, and the words shared with the printed form."""

from __future__ import annotations

from typing import Any

from .dtypes import GGMLType
from .expr import Atom, Const, Flag, Sym
from .ir import Apply, Body, Call, Kind, Node, Value


def attr_text(value: Any) -> str:
    """An attribute with the scope of every name, so that equal texts mean equal code."""
    if isinstance(value, Atom):
        return f"{value.scope.value}.{value.cpp or value.name}"
    if isinstance(value, Const):
        return repr(value.args[0])
    if isinstance(value, Sym):
        return f"{value.op}({', '.join(attr_text(a) for a in value.args)})"
    if isinstance(value, Flag):
        return str(value)
    if isinstance(value, GGMLType):
        return value.name
    if isinstance(value, (tuple, list)):
        return f"({', '.join(attr_text(v) for v in value)})"
    return repr(value)


def reference(value: Value) -> str:
    """How a value that no node made is named, relative to the layer."""
    assert value.ref is not None
    if value.kind is Kind.FEED:
        return f"feed:{value.ref.field}"
    owner = "model" if value.ref.il is None else value.ref.group if value.ref.only else "layer"
    return f"{owner}.{value.ref.field}"


def body_text(body: Body) -> str:
    """Canonical text: two bodies with the same text become one C++ function."""
    names: dict[int, str] = {id(p): f"p{i}" for i, p in enumerate(body.params)}
    lines = [f"params {len(body.params)} layer {body.group if body.uses_layer else None}"]
    for number, node in enumerate(body.nodes):
        lines.append(node_text(node, names, number))
    lines.append("results " + ", ".join(name(r, names) for r in body.results) + " as " + ", ".join(body.result_names))
    return "\n".join(lines)


def name(value: Value | None, names: dict[int, str]) -> str:
    if value is None:
        return "none"
    return names[id(value)] if id(value) in names else reference(value)


def node_text(node: Node, names: dict[int, str], number: int) -> str:
    """One node; enters its results into ``names``."""
    operands = ", ".join(name(v, names) for v in node.operands)
    if isinstance(node, Apply):
        attrs = "".join(f", {k}={attr_text(v)}" for k, v in node.attrs.items())
        text = f"{node.op.name}({operands}{attrs})"
    else:
        assert isinstance(node, Call)
        text = f"call {node.block.name}({operands}; layer {node.layer is not None})"
    for i, result in enumerate(node.results):
        names[id(result)] = f"v{number}.{i}"
    where = ""
    if node.iteration is not None:
        where = f" @{node.iteration.loop.var}[{node.iteration.index}]"
    return text + where
