"""Tracing and interpreting a few ops without an architecture around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.binding import bound
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.ir import Apply, Kind, Ref, Value
from draftsmith.dsl.op import TABLE
from draftsmith.dsl.round import round_to
from draftsmith.dsl.trace import Tracer, apply, tracing

Array = NDArray[Any]
Recipe = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """The usual data: normally distributed."""
    return rng.standard_normal(shape)


@dataclass(frozen=True)
class Operand:
    """One operand of an example: shape in ggml order, element type, random data.

    ``via`` is applied to the tensor first (a view, a copy): the op sees its result. ``kind`` is where it comes from.
    """

    shape: tuple[int, ...]
    dtype: GGMLType = GGMLType.f32
    data: Recipe = normal
    via: Callable[[Value], Value] | None = None
    kind: Kind = Kind.FEED

    def value(self, name: str) -> Value:
        return Value(self.shape, self.dtype, self.kind, name=name, ref=Ref(name))

    def array(self, rng: np.random.Generator, real: type[np.floating[Any]]) -> Array:
        """Random data as the interpreter holds it: rounded to the element type, reals in the wanted precision."""
        raw = self.data(rng, self.shape[::-1])
        if self.dtype in (GGMLType.i32, GGMLType.i64):
            return raw.astype(self.dtype.numpy_dtype)
        return round_to(raw.astype(np.float32), self.dtype).astype(real)


@dataclass(frozen=True)
class Example:
    """One call of an op. ``close`` is the relative error that ggml's own kernel may have against NumPy."""

    operands: tuple[Operand | None, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    close: float = 1e-5


@contextmanager
def session(dims: Mapping[str, int] | None = None) -> Iterator[Tracer]:
    """A tracer with values for run-time dims, as while a graph function runs."""
    with bound({("dim", name): n for name, n in (dims or {}).items()}), tracing(Tracer({})) as tracer:
        yield tracer


def all_attrs(name: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call with the op's defaults, in the op's order."""
    known = TABLE[name].attrs
    unknown = set(attrs) - set(known)
    assert not unknown, f"{name} has no attributes {unknown}"
    return {key: attrs.get(key, default) for key, default in known.items()}


def trace_call(name: str, operands: Sequence[Operand | None], attrs: Mapping[str, Any]) -> tuple[list[Value], Value]:
    """Trace one call inside a session: the tensors it reads, and its result. Operands left out are None."""
    operands = [*operands, *[None] * (len(TABLE[name].operands) - len(operands))]
    sources = [None if o is None else o.value(f"x{i}") for i, o in enumerate(operands)]
    seen = [v if o is None or v is None or o.via is None else o.via(v) for o, v in zip(operands, sources, strict=True)]
    return [v for v in sources if v is not None], apply(TABLE[name], seen, all_attrs(name, attrs))


def run_node(node: Apply, arrays: Sequence[Array | None]) -> Array:
    """The NumPy meaning of one node."""
    op: Any = node.op
    if hasattr(op, "numpy_typed"):
        target = node.operands[0]
        assert target is not None
        return np.asarray(op.numpy_typed(*arrays, dtype=target.dtype))
    return np.asarray(op.numpy(*arrays, **node.attrs))


def interpret(tracer: Tracer, inputs: Mapping[Value, Array]) -> dict[Value, Array]:
    """All values of a traced straight line of ops."""
    known = dict(inputs)
    for node in tracer.body.nodes:
        assert isinstance(node, Apply)
        known[node.results[0]] = run_node(node, [None if v is None else known[v] for v in node.operands])
    return known


def evaluate(
    name: str, example: Example, real: type[np.floating[Any]], seed: int = 0
) -> tuple[list[Array | None], Array, Value]:
    """Run one example: the arrays the op saw, what it gave, and the value with the inferred type."""
    rng = np.random.default_rng(seed)
    with session() as tracer:
        sources, result = trace_call(name, example.operands, example.attrs)
        given = [o for o in example.operands if o is not None]
        known = interpret(tracer, {v: o.array(rng, real) for v, o in zip(sources, given, strict=True)})
        assert result.node is not None
        return [None if v is None else known[v] for v in result.node.operands], known[result], result
