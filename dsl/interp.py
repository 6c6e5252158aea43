"""The NumPy meaning of a graph: the judge of the native result.

Runs any traced graph in float32 or float64. Every op's meaning is its declaration's ``numpy``; values are as the
runtime keeps them in shape, caches are rounded to their element type when they are written. What ggml rounds on the
way (activations to the type of a quantised dot product, f16 in fused attention) is not imitated: differences of that
size are expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bind import BoundModel
from .dtypes import GGMLType
from .errors import GraphError
from .ir import Apply, Body, Call, Graph, Kind, Node, Ref, Value
from .labels import labels, layer_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Named:
    """A named value of a run: ``name`` as ggml has it ("attention.q-3"), the node that made it and what it was made
    from (for an op; empty for a call)."""

    name: str
    value: Array
    node: Node
    operands: tuple[Array | None, ...]


Observer = Callable[[Named], "Array | None"]


@dataclass
class Interpreter:
    """Evaluates graphs of one model.

    ``weight(ref)`` gives a tensor as reals, ``state`` holds caches by (field, layer) and is updated by a run.
    """

    model: BoundModel
    weight: Callable[[Ref], Array]
    state: dict[tuple[str, int | None], Array] = field(default_factory=dict)
    dtype: type[np.floating[Any]] = np.float32
    _weights: dict[Ref, Array] = field(default_factory=dict)

    def run(
        self, graph: Graph, dims: Mapping[str, int], feeds: Mapping[str, Array], observe: Observer | None = None
    ) -> dict[str, Array]:
        """Evaluate a graph traced for ``dims``; returns its outputs and, under "name.il", its taps. ``observe`` is
        shown every labelled value in order and may return another to go on with (an equally legal order of a top-k)."""
        env: dict[int, Array] = {}
        for name, value in graph.feeds.items():
            if name not in feeds:
                raise GraphError(f"graph {graph.name}: host input {name} is missing")
            array = np.asarray(feeds[name])
            expected = tuple(int(d) for d in reversed(value.shape)) if not value.shape else None
            env[id(value)] = array if expected is None else array.reshape(expected)
        taps: dict[str, Array] = {}
        with self.model.binding(dims):
            self._body(graph.body, env, labels(graph.body, ""), taps, observe)
            results = {name: self._value(value, env) for name, value in graph.outputs.items()}
        return {**results, **taps}

    # -- inner ---------------------------------------------------------------------------------------------
    def _body(
        self,
        body: Body,
        env: dict[int, Array],
        names: Mapping[int, str],
        taps: dict[str, Array],
        observe: Observer | None,
    ) -> None:
        for node in body.nodes:
            if isinstance(node, Call):
                self._call(node, env, taps, observe)
            else:
                assert isinstance(node, Apply)
                env[id(node.results[0])] = self._apply(node, env, taps)
            label = names.get(id(node))
            if observe is not None and label is not None:
                il = layer_of(body, node)
                key = id(node.results[0])
                made_from = tuple(v if v is None else self._value(v, env) for v in node.operands)
                operands = made_from if isinstance(node, Apply) else ()
                other = observe(Named(label if il is None else f"{label}-{il}", env[key], node, operands))
                env[key] = env[key] if other is None else other

    def _call(self, node: Call, env: dict[int, Array], taps: dict[str, Array], observe: Observer | None) -> None:
        inner = {
            id(param): self._value(value, env)
            for param, value in zip(node.body.params, node.operands, strict=True)
            if value is not None
        }
        # equal bodies share the names of the one that is emitted
        emitted = labels(node.block.body, f"{node.block.name}.")
        names = {
            id(mine): emitted[id(theirs)]
            for mine, theirs in zip(node.body.nodes, node.block.body.nodes, strict=True)
            if id(theirs) in emitted
        }
        self._body(node.body, inner, names, taps, observe)
        for result, value in zip(node.results, node.body.results, strict=True):
            env[id(result)] = self._value(value, inner)

    def _apply(self, node: Apply, env: dict[int, Array], taps: dict[str, Array]) -> Array:
        op = node.op
        operands = [None if v is None else self._value(v, env) for v in node.operands]
        if hasattr(op, "numpy_typed"):
            target = node.operands[0]
            assert target is not None
            out: Array = op.numpy_typed(*operands, dtype=target.dtype, **node.attrs)
            ref = _state_ref(target)
            if op.writes_state and ref is not None:
                self.state[ref.field, ref.il] = out
            return out
        if not op.has_result:
            taps[f"{node.attrs['name']}.{int(node.attrs['il'])}"] = operands[0]  # type: ignore[assignment]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            result: Array = op.numpy(*operands, **node.attrs)
        return result

    def _value(self, value: Value, env: Mapping[int, Array]) -> Array:
        known = env.get(id(value))
        if known is not None:
            return known
        assert value.ref is not None, f"{value!r} has no value"
        if value.kind is Kind.WEIGHT:
            return self._real(value.ref, value.dtype)
        if value.kind is Kind.STATE:
            key = (value.ref.field, value.ref.il)
            if key not in self.state:
                shape = tuple(int(d) for d in reversed(value.shape))
                self.state[key] = np.zeros(shape, self.dtype)
            return self.state[key]
        raise GraphError(f"{value!r} has no value in this run")

    def _real(self, ref: Ref, dtype: GGMLType) -> Array:
        if ref not in self._weights:
            array = self.weight(ref)
            self._weights[ref] = array if array.dtype.kind in "iu" else array.astype(self.dtype, copy=False)
        return self._weights[ref]


def _state_ref(value: Value) -> Ref | None:
    """The state that a value is, or was made from by writes."""
    if value.kind is Kind.STATE:
        return value.ref
    node = value.node
    if isinstance(node, Apply) and node.op.writes_state and node.operands[0] is not None:
        return _state_ref(node.operands[0])
    return None
