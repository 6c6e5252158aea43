"""Blocks: Python functions that become C++ functions.

A function marked ``@block`` is traced for every call; equal bodies are one block. Its tensor arguments become
parameters, a layer argument gives access to that layer's weights and state, everything else (numbers, dims,
flags, None) is part of the body. A block sees only what it is given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from . import source, trace, tree
from .errors import GraphError
from .expr import Atom, Scope, Sym, substitute
from .ir import Apply, Block, Body, Call, Kind, Value
from .layers import LayerView
from .text import body_text

F = TypeVar("F", bound=Callable[..., Any])


def block(function: F) -> F:
    """Mark a function or method as a block."""
    signature = inspect.signature(function)
    name = function.__name__.strip("_")
    doc = inspect.getdoc(function) or ""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = trace.current()
        place = source.here(tracer.body.function_key)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        layers = [a for a in given.arguments.values() if isinstance(a, LayerView)]
        if len(layers) > 1:
            raise GraphError(
                f"block {name} takes one layer, found {len(layers)}: pass what belongs to the other as tensors"
                + (f"\n{place.excerpt()}" if place else "")
            )
        layer = layers[0] if layers else None
        body = Body(
            layer=int(layer.il) if layer else None,
            uses_layer=bool(layers),
            group=layer._group.name if layer else "layers",
            position=source.of_function(function),
        )
        operands: list[Value] = []
        taken: dict[str, int] = {}
        renamed: dict[int, Atom] = {}  # fingerprint of a caller's dim -> the block's own
        original: dict[int, Sym] = {}

        def parameter(path: str, value: Value) -> Value:
            tracer.check_visible(value, f"block {name}")
            if _belongs(value, layer):
                return value  # a weight or state that the body can name by itself
            for known, param in zip(operands, body.params, strict=True):
                if known is value:
                    return param
            short = path.rsplit(".", 1)[-1]
            if not short.isidentifier():
                short = path.replace(".", "_")
            taken[short] = taken.get(short, 0) + 1
            if taken[short] > 1:
                short = path.replace(".", "_")
            shape = [_local(dim, short, axis, renamed) for axis, dim in enumerate(value.shape)]
            param = Value(shape, value.dtype, Kind.PARAM, name=short, layout=value.layout)
            operands.append(value)
            body.params.append(param)
            return param

        arguments = {
            key: value if isinstance(value, LayerView) else tree.rebuild(value, parameter, key)
            for key, value in given.arguments.items()
            if key != "self"
        }
        owner = [given.arguments["self"]] if "self" in given.arguments else []
        tracer.bodies.append(body)
        tracer.depths.append(len(tracer.iterations))
        try:
            returned = function(*owner, **arguments)
        finally:
            tracer.bodies.pop()
            tracer.depths.pop()

        for param, operand in zip(body.params, operands, strict=True):
            for inner, outer in zip(param.shape, operand.shape, strict=True):
                original[inner.fingerprint] = outer
        return _finish(tracer, name, doc, body, operands, original, returned, layer, place)

    call.__draftsmith_block__ = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _local(dim: Sym, param: str, axis: int, renamed: dict[int, Atom]) -> Sym:
    """The block's own name for a dim that differs from caller to caller; other dims keep theirs."""
    if not isinstance(dim, Atom) or dim.local is None:
        return dim
    if dim.fingerprint not in renamed:
        renamed[dim.fingerprint] = Atom(Scope.PARAM, dim.local, False, dim.value, dim.local, f"{param}->ne[{axis}]")
    return renamed[dim.fingerprint]


def _measured(body: Body) -> set[str]:
    """Parameters whose dims the body's code reads."""
    return {
        (atom.cpp or "").partition("->")[0]
        for node in body.nodes
        if isinstance(node, Apply)
        for value in node.attrs.values()
        for dim in (value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(dim, Sym)
        for atom in dim.atoms()
        if atom.scope is Scope.PARAM
    }


def _belongs(value: Value, layer: LayerView | None) -> bool:
    """Whether the body names this value itself instead of taking it as a parameter: state of the layer or the model,
    and matrices that may have a scale beside them (a parameter would lose it)."""
    if value.kind is Kind.STATE or (value.kind is Kind.WEIGHT and getattr(value, "flag", None) is not None):
        assert value.ref is not None
        return value.ref.il is None or (layer is not None and value.ref.il == int(layer.il))
    return False


def _finish(
    tracer: trace.Tracer,
    name: str,
    doc: str,
    body: Body,
    operands: list[Value],
    original: dict[int, Sym],
    returned: Any,
    layer: LayerView | None,
    place: source.Position | None,
) -> Any:
    """Close a body: drop what it was given but never reads, name its results, find the block with the same text, add
    the call to the outer body."""
    needed = {id(v) for node in body.nodes for v in node.inputs} | {id(v) for _, v in tree.leaves(returned)}
    measured = _measured(body)
    kept = [(p, o) for p, o in zip(body.params, operands, strict=True) if id(p) in needed or p.name in measured]
    body.params, operands = [p for p, _ in kept], [o for _, o in kept]
    named = tree.leaves(returned, "")
    if isinstance(returned, (tuple, list)) and not hasattr(returned, "_fields"):
        named = [(value.name or f"r{i}", value) for i, (_, value) in enumerate(named)]
    body.results = [value for _, value in named]
    body.result_names = _unique([path.replace(".", "_") or "result" for path, _ in named])
    text = f"{name}:{body_text(body)}"
    known = tracer.blocks.get(text)
    if known is None:
        used = {b.name for b in tracer.blocks.values()}
        unique = name
        number = 2
        while unique in used:
            unique = f"{name}_{number}"
            number += 1
        known = tracer.blocks[text] = Block(unique, body, doc, body.position)
    node = Call(known, body, operands, int(layer.il) if layer else None, place)
    outer: dict[int, Value] = {}
    for value, result_name in zip(body.results, body.result_names, strict=True):
        hint = node.hint if len(body.results) == 1 else result_name
        outer.setdefault(
            id(value),
            Value(
                [substitute(d, original) for d in value.shape],
                value.dtype,
                Kind.NODE,
                name=hint or known.name,
                node=node,
                layout=value.layout,
            ),
        )
    node.results = tuple(outer[id(v)] for v in body.results)
    tracer.add(node)
    return tree.rebuild(returned, lambda _path, value: outer[id(value)])


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for n in names:
        seen[n] = seen.get(n, 0) + 1
        out.append(n if seen[n] == 1 else f"{n}_{seen[n]}")
    return out
