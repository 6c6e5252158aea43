"""Loops that the generated source keeps as loops.

``for layer in self.layers:`` and ``for i in counted(...)`` run in Python once per iteration while tracing. What the
loop needs to be written as a C++ ``for`` again, which of the author's variables held which tensor when an
iteration began, is read from the author's own frame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from . import trace, tree
from .errors import GraphError
from .expr import Atom, Scope, SymLike, lift
from .ir import Iteration, Loop, Value
from .layers import LayerView

if TYPE_CHECKING:
    from .bind import BoundModel
    from .specs import LayerGroup


def _snapshot(frame: FrameType) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, local in frame.f_locals.items():
        if name != "self":
            found.update(tree.leaves(local, name))
    return found


def over_layers(model: BoundModel, group: LayerGroup) -> Iterator[LayerView]:
    """Every layer of a group in turn."""
    tracer = trace.current()
    loop = Loop("il", lift(group.count), lift(0), True, group.name, trace.here())
    tracer.loops.append(loop)
    for il in range(int(group.count)):
        loop.snapshots.append(_snapshot(sys._getframe(1)))
        iteration = Iteration(loop, il)
        loop.iterations.append(iteration)
        tracer.iterations.append(iteration)
        try:
            yield LayerView(model, group, il)
        finally:
            tracer.iterations.remove(iteration)
    loop.snapshots.append(_snapshot(sys._getframe(1)))


def counted(start: SymLike, stop: SymLike, name: str = "i") -> Iterator[Atom]:
    """Counts from ``start`` to ``stop - 1``; the counter may be used in dims and offsets.

    ``stop`` may be a run-time dim: the generated loop runs to whatever it is at run time.
    """
    tracer = trace.current()
    first, last = lift(start), lift(stop)
    if int(last) - int(first) > 4096:
        raise GraphError(f"a loop of {int(last) - int(first)} iterations cannot be traced (limit 4096)")
    loop = Loop(name, last, first, False, "", trace.here())
    tracer.loops.append(loop)
    for i in range(int(first), int(last)):
        loop.snapshots.append(_snapshot(sys._getframe(1)))
        iteration = Iteration(loop, i)
        loop.iterations.append(iteration)
        tracer.iterations.append(iteration)
        try:
            yield Atom(Scope.LOOP, name, False, i)
        finally:
            tracer.iterations.remove(iteration)
    loop.snapshots.append(_snapshot(sys._getframe(1)))
