"""Tracing: running an author's Python once to learn its graph.

One :class:`Tracer` is active while a graph function runs. Op functions call :func:`apply`; blocks
(:mod:`dsl.block`) open a body of their own; loops (:mod:`dsl.loops`) mark iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from . import guards, source
from .errors import GraphError, ShapeError
from .expr import Atom, Scope, SymLike
from .guards import Guard
from .ir import Apply, Block, Body, Iteration, Kind, Loop, Node, Ref, Value
from .source import Position

if TYPE_CHECKING:
    from .op import Op

_active: ContextVar[Tracer | None] = ContextVar("draftsmith_tracer", default=None)


class Tracer:
    """What is being traced: bodies from the graph's own to the innermost block's, loops, choices."""

    def __init__(self, blocks: dict[str, Block]) -> None:
        self.blocks = blocks  # by canonical text, shared by all graphs of an architecture
        self.bodies: list[Body] = [Body()]
        self.iterations: list[Iteration] = []
        self.depths: list[int] = []  # how many iterations were open when each inner body began
        self.loops: list[Loop] = []
        self.feeds: dict[str, Value] = {}
        self.declared: dict[str, Any] = {}  # feeds by name, with the functions that compute them
        self.guards: list[Guard] = []
        self._seen: set[str] = set()

    @property
    def body(self) -> Body:
        return self.bodies[-1]

    @property
    def iteration(self) -> Iteration | None:
        """The iteration that a node of the current body belongs to."""
        opened = self.depths[-1] if self.depths else 0
        return self.iterations[-1] if len(self.iterations) > opened else None

    def append(self, guard: Guard) -> None:
        """Receive a choice (the interface of :func:`guards.recording`)."""
        scopes, loop_vars = _scopes(guard.question)
        if Scope.DIM in scopes:
            raise GraphError(
                f"a branch on the run-time dim in `{guard.key}`: one generated source serves every batch, "
                f"so Python may not choose by it{_where()}"
            )
        if Scope.LAYER in scopes:
            for iteration in reversed(self.iterations):
                if iteration.loop.over_layers:
                    iteration.facts.append(guard)
                    return
            raise GraphError(f"`{guard.key}` asks about a layer outside a loop over layers{_where()}")
        if loop_vars:
            for iteration in reversed(self.iterations):
                if iteration.loop.var in loop_vars:
                    iteration.facts.append(guard)
                    return
        if guard.key not in self._seen:
            self._seen.add(guard.key)
            self.guards.append(guard)

    def feed(self, field: str, shape: Sequence[SymLike], dtype: Any) -> Value:
        """The host input of that name, made on first use."""
        if field not in self.feeds:
            self.feeds[field] = Value(shape, dtype, Kind.FEED, name=field, ref=Ref(field))
        return self.feeds[field]

    def add(self, node: Node) -> None:
        node.iteration = self.iteration
        if node.position is not None:
            node.statement = node.position.statement
        self.body.nodes.append(node)

    def check_visible(self, value: Value, user: str) -> None:
        """Block bodies see only what was passed to them."""
        if len(self.bodies) == 1 or value.kind in (Kind.WEIGHT, Kind.STATE):
            return
        if value.kind is Kind.PARAM and value in self.body.params:
            return
        if value.kind is Kind.NODE and value.node in self.body.nodes:
            return
        raise GraphError(
            f"{user} uses {value!r}, which was made outside the block: pass it as an argument{_where()}"
        )


def _scopes(question: Any) -> tuple[set[Scope], set[str]]:
    """The scopes a question asks about, and the loop counters in it."""
    if hasattr(question, "atoms"):
        atoms: list[Atom] = question.atoms()
        return {a.scope for a in atoms}, {a.name for a in atoms if a.scope is Scope.LOOP}
    holder = getattr(question, "choice", question)
    return {holder.scope}, set()


def _where() -> str:
    place = source.here()
    return f"\n{place.excerpt()}" if place else ""


def here() -> Position | None:
    return source.here()


def current() -> Tracer:
    """The active tracer; GraphError outside tracing."""
    tracer = _active.get()
    if tracer is None:
        raise GraphError("ops and feeds exist only while a graph is being traced")
    return tracer


@contextmanager
def tracing(tracer: Tracer) -> Iterator[Tracer]:
    token = _active.set(tracer)
    try:
        with guards.recording(tracer):  # type: ignore[arg-type]
            yield tracer
    finally:
        _active.reset(token)


def apply(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Value:
    """Add one op to the graph being traced; the shape rule is checked here, on the author's line."""
    tracer = current()
    for operand in operands:
        if operand is not None:
            tracer.check_visible(operand, f"[{op.name}]")
    try:
        inferred = op.infer(*operands, **attrs)
    except ShapeError:
        raise
    except (TypeError, ValueError) as e:
        op.fail(str(e), *operands)
    if len(tuple(inferred.shape)) > 4:
        op.fail(f"a tensor has at most 4 dims, this result would have {len(tuple(inferred.shape))}", *operands)
    node = Apply(op, operands, attrs, source.here(tracer.body.function_key))
    result = Value(
        inferred.shape, inferred.dtype, Kind.NODE, name=node.hint, node=node, layout=inferred.layout
    )
    node.results = (result,)
    tracer.add(node)
    return result
