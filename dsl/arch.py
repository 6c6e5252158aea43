"""The architecture class: one subclass per file in ``graphs/``.

    @arch("qwen3")
    class Qwen3(Architecture):
        hparams, layer = hp, Layer
        token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab)

        @graph
        def decode(self, tokens=feeds.tokens, pos=feeds.positions, out_rows=feeds.out_rows): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import source, trace
from .errors import GraphError
from .expr import Flag, Scope
from .feeds import Feed
from .ir import Apply, Body, Graph, Value
from .layers import Layer, LayerView
from .loops import over_layers
from .specs import LayerGroup, Tensor, main_group

if TYPE_CHECKING:
    from .bind import BoundModel
    from .contract import Contract

A = TypeVar("A", bound="type[Architecture]")
F = TypeVar("F", bound=Callable[..., Any])


class Hparams:
    """Base of the class in which an architecture declares its metadata keys."""


class Architecture:
    """Base of all architectures.

    ``gguf_arch``: value of ``general.architecture``. ``variant``: the name under which Draftsmith lists it.
    ``requires``/``forbids``: tensors or keys whose presence tells variants of one ``gguf_arch`` apart. ``exports``:
    what a target lends a drafter, by role: GGUF names in order of preference. ``canonical``, ``canonical_tensors``:
    values of keys, and optional tensors, that the architecture has when it is printed by name alone. ``contract``:
    for drafters, what they ask of a target (:mod:`dsl.contract`).
    """

    gguf_arch: ClassVar[str] = ""
    variant: ClassVar[str] = ""
    requires: ClassVar[tuple[str, ...]] = ()
    forbids: ClassVar[tuple[str, ...]] = ()
    exports: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    contract: ClassVar[Contract | None] = None
    canonical: ClassVar[Mapping[str, Any]] = {}
    canonical_tensors: ClassVar[tuple[str, ...]] = ()
    hparams: ClassVar[type[Hparams]]
    layer: ClassVar[type[Layer]]

    def __init__(self, model: BoundModel) -> None:
        self._model = model

    @property
    def layers(self) -> Iterator[LayerView]:
        """Every layer in turn; the loop stays a loop in C++."""
        return over_layers(self._model, main_group(type(self)))

    def group(self, spec: LayerGroup) -> GroupView:
        return GroupView(self._model, spec)

    def weight(self, spec: Tensor, il: int | None) -> Any:
        return self._model.weight(spec, il)

    @classmethod
    def graphs(cls) -> dict[str, GraphSpec]:
        """The entry points, in the order written."""
        found: dict[str, GraphSpec] = {}
        for base in reversed(cls.__mro__):
            for value in vars(base).values():
                spec = getattr(value, "__draftsmith_graph__", None)
                if spec is not None:
                    found[spec.name] = spec
        return found

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        """Complaints about a file that no single declaration can express (yielded as one line each)."""
        return iter(())


class GroupView:
    """A further group of layers of a model being traced."""

    def __init__(self, model: BoundModel, spec: LayerGroup) -> None:
        self._model, self._spec = model, spec

    def __iter__(self) -> Iterator[LayerView]:
        return over_layers(self._model, self._spec)

    @property
    def only(self) -> LayerView:
        """The one layer of the group."""
        return LayerView(self._model, self._spec, 0, only=True)


class GraphSpec:
    """A graph method with its feeds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.doc = inspect.getdoc(function) or ""
        self.position = source.of_function(function)
        self.feeds: dict[str, Any] = {}
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            if parameter.default is inspect.Parameter.empty:
                raise GraphError(
                    f"graph {self.name}: parameter {parameter.name} needs a feed as its default value, "
                    f"e.g. {parameter.name}=feeds.tokens"
                )
            self.feeds[parameter.name] = parameter.default


def graph(function: F) -> F:
    """Mark a method as an entry point. It returns ``{name: tensor}`` of named outputs, or None."""
    function.__draftsmith_graph__ = GraphSpec(function)  # type: ignore[attr-defined]
    return function


def arch(gguf_arch: str, variant: str | None = None) -> Callable[[A], A]:
    """Class decorator: the name in ``general.architecture``; ``variant`` where one name has several graphs."""

    name = variant or gguf_arch
    if not name.isidentifier():
        raise GraphError(f"@arch: {name!r} cannot name functions and structs in C++; give variant= a plain name")

    def decorate(cls: A) -> A:
        cls.gguf_arch = gguf_arch
        cls.variant = name
        return cls

    return decorate


def tap(name: str, value: Value, layer: LayerView) -> None:
    """Offer an inner value to whoever asks for it by name and layer, e.g. the stream entering layer k.

    For the stream behind the last layer use :func:`tap_last`."""
    from .ops import tap as tap_op

    tap_op(value, name=name, il=layer.il)


def tap_last(name: str, value: Value, model: Architecture) -> None:
    """Offer the value that would enter one layer more: layer id ``n_layer``."""
    from .ops import tap as tap_op

    tap_op(value, name=name, il=model._model.layer_count)


def option(name: str) -> Flag:
    """A setting of the context that the graph depends on."""
    return Flag(Scope.OPTION, name)


def trace_graph(model: BoundModel, name: str, dims: Mapping[str, int]) -> Graph:
    """Run one graph method and return what it built. ``dims`` are the run-time dims' values for this trace."""
    spec = type(model.arch).graphs()[name]
    tracer = trace.Tracer(model.blocks)
    tracer.body.position = spec.position
    with model.binding(dims), trace.tracing(tracer):
        feeds: dict[str, Value] = {}
        for parameter, declared in spec.feeds.items():
            if not isinstance(declared, Feed):
                raise GraphError(f"graph {name}: {parameter} is not a feed but {declared!r}")
            feeds[parameter] = tracer.feed(declared.name, declared.dims, declared.dtype)
            tracer.declared[declared.name] = declared
        returned = spec.function(model.arch, **feeds)
        outputs: dict[str, Value] = dict(returned or {})
        for key, value in outputs.items():
            if not isinstance(value, Value):
                raise GraphError(f"graph {name}: output {key!r} is {type(value).__name__}, expected a tensor")
        for key, value in outputs.items():
            if value.node is not None and value.node.hint is None and len(value.node.results) == 1:
                value.node.hint = value.name = key  # made in the return statement: known by what it is returned as
        body: Body = tracer.body
        body.results = list(outputs.values())
        body.result_names = list(outputs)
        if not outputs and not any(
            isinstance(node, Apply) and node.op.writes_state for _, node in body.walk()
        ):
            raise GraphError(f"graph {name} has no output and writes no state")
    model.feeds.update(tracer.declared)
    needed = {id(v) for _, node in body.walk() for v in node.inputs} | {id(v) for v in body.results}
    feeds = {n: v for n, v in tracer.feeds.items() if id(v) in needed}
    return Graph(name, body, outputs, feeds, tracer.guards, tracer.loops, spec.doc, spec.position)
