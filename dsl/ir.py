"""The intermediate representation: values, nodes, bodies, graphs.

Grammar (one page, as jaxpr)::

    Graph   = name, Body, outputs: {name: Value}
    Body    = params, nodes, results, guards
    Node    = Apply(op, operands, attrs) | Call(block, operands, body)      -> results
    Value   = feed | weight | state | param | result of a node;  shape, dtype, layout, name

A body is straight-line code: loops over layers are traced once per iteration, each node remembering its
iteration, and are rolled up again when the graph is printed or emitted (:mod:`codegen.roll`). Values are
assigned once; a write to state is a node whose result is the state after the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from .dtypes import GGMLType
from .expr import Sym, lift, product
from .guards import Guard
from .source import Position

if TYPE_CHECKING:
    from .op import Op

Shape = tuple[Sym, ...]


class Kind(Enum):
    """Where a value comes from."""

    FEED = "feed"
    WEIGHT = "weight"
    STATE = "state"
    PARAM = "param"
    NODE = "node"


@dataclass(frozen=True)
class Layout:
    """What ggml will know of the memory behind a value.

    ``contiguous``: elements follow one another in order (``ggml_is_contiguous``), needed by reshape.
    ``rows``: elements of dimension 0 follow one another (``nb[0]`` is the type's size).
    """

    contiguous: bool = True
    rows: bool = True


CONTIGUOUS = Layout()


@dataclass(frozen=True)
class Ref:
    """What a feed, weight or state value stands for.

    ``field`` is the Python name ("attn_q", "kv.k", "tokens"); ``tensor`` the GGUF name for weights; ``il`` the layer
    in the GGUF's numbering, or None for what belongs to the whole model; ``group`` the group of layers it is one of;
    ``only`` that the group has this one layer and the value was asked for outside a loop.
    """

    field: str
    il: int | None = None
    tensor: str | None = None
    group: str = "layers"
    only: bool = False


class Value:
    """One tensor of a graph. Shapes are in ggml's order: dimension 0 is contiguous."""

    __slots__ = ("dtype", "kind", "layout", "name", "node", "ref", "shape")

    def __init__(
        self,
        shape: Sequence[Sym | int | float],
        dtype: GGMLType,
        kind: Kind,
        *,
        name: str | None = None,
        node: Node | None = None,
        ref: Ref | None = None,
        layout: Layout = CONTIGUOUS,
    ) -> None:
        self.shape: Shape = tuple(lift(d) for d in shape)
        self.dtype = dtype
        self.kind = kind
        self.name = name
        self.node = node
        self.ref = ref
        self.layout = layout

    @property
    def ne(self) -> tuple[Sym, Sym, Sym, Sym]:
        """The shape with ones up to ggml's four dims."""
        return self.shape + (lift(1),) * (4 - len(self.shape))  # type: ignore[return-value]

    @property
    def label(self) -> str:
        """The name for messages."""
        if self.ref is not None:
            return self.ref.field if self.ref.il is None else f"layer.{self.ref.field}"
        return self.name or (self.node.describe() if self.node else "value")

    def __repr__(self) -> str:
        return f"{self.label} {describe_type(self)}"

    # arithmetic reads as in the paper; the ops themselves live in dsl.ops
    def __add__(self, other: Value) -> Value:
        return _arith("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return _arith("sub", self, other)

    def __mul__(self, other: Value | Sym | float) -> Value:
        return _arith("mul" if isinstance(other, Value) else "scale", self, other)

    def __bool__(self) -> bool:
        from .errors import GraphError

        raise GraphError(f"{self!r} has no truth value while tracing; ask `is None` for optional operands")


def _arith(op: str, a: Value, b: Any) -> Value:
    from . import ops

    result: Value = getattr(ops, op)(a, b)
    return result


def describe_type(value: Value) -> str:
    """``f32[n_embd=1024, n_tokens]``: names, with the number where a model gives one."""
    return f"{value.dtype.name}[{', '.join(str(d) for d in value.shape)}]"


def describe_numbers(value: Value) -> str:
    """The shape in numbers: ``[1024, 7]``."""
    return f"[{', '.join(str(int(d)) for d in value.shape)}]"


class Node:
    """Common part of :class:`Apply` and :class:`Call`."""

    __slots__ = ("hint", "iteration", "operands", "position", "results", "statement")

    def __init__(self, operands: Sequence[Value | None], position: Position | None) -> None:
        self.operands: tuple[Value | None, ...] = tuple(operands)
        self.results: tuple[Value, ...] = ()
        self.position = position
        self.hint: str | None = position.target if position else None
        self.statement: object = None
        self.iteration: Iteration | None = None

    def describe(self) -> str:
        raise NotImplementedError

    @property
    def inputs(self) -> Iterator[Value]:
        return (v for v in self.operands if v is not None)


class Apply(Node):
    """One op of the table."""

    __slots__ = ("attrs", "op")

    def __init__(
        self, op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any], position: Position | None
    ) -> None:
        super().__init__(operands, position)
        self.op = op
        self.attrs = dict(attrs)

    def describe(self) -> str:
        return self.op.name


class Call(Node):
    """A call of a block. ``body`` is what this very call traced to; equal bodies share one ``block``."""

    __slots__ = ("block", "body", "layer")

    def __init__(
        self, block: Block, body: Body, operands: Sequence[Value], layer: int | None, position: Position | None
    ) -> None:
        super().__init__(operands, position)
        self.block = block
        self.body = body
        self.layer = layer

    def describe(self) -> str:
        return self.block.name


@dataclass
class Body:
    """Straight-line code with named parameters and results."""

    params: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    result_names: list[str] = field(default_factory=list)
    uses_layer: bool = False
    group: str = "layers"
    layer: int | None = None  # the layer whose weights and state this body names
    position: Position | None = None
    n_passes: int = 0  # passes that have been over it

    @property
    def function_key(self) -> tuple[str, int] | None:
        """File and first line of the Python function that this body is the trace of."""
        return (self.position.file, self.position.line) if self.position else None

    def walk(self) -> Iterator[tuple[Body, Node]]:
        """Every node, those of called bodies included."""
        for node in self.nodes:
            yield self, node
            if isinstance(node, Call):
                yield from node.body.walk()


@dataclass(eq=False)
class Block:
    """A distinct body: one C++ function. ``name`` is the Python function's, with a suffix for variants."""

    name: str
    body: Body
    doc: str
    position: Position | None


@dataclass
class Loop:
    """A Python ``for`` over layers or a counted range. ``snapshots[k]`` is the author's local variables that held
    values when iteration k began; the last one, when the loop ended."""

    var: str
    stop: Sym
    start: Sym
    over_layers: bool
    group: str
    position: Position | None
    iterations: list[Iteration] = field(default_factory=list)
    snapshots: list[dict[str, Value]] = field(default_factory=list)


@dataclass(eq=False)
class Iteration:
    """One pass through a loop's body with the per-layer choices it took, in order."""

    loop: Loop
    index: int
    facts: list[Guard] = field(default_factory=list)


@dataclass
class Graph:
    """One entry point of an architecture."""

    name: str
    body: Body
    outputs: dict[str, Value]
    feeds: dict[str, Value]
    guards: list[Guard]
    loops: list[Loop]
    doc: str
    position: Position | None

    def uses_dim(self, name: str) -> bool:
        """Whether the graph's code depends on a run-time dim."""
        return any(
            atom.name == name
            for _, node in self.body.walk()
            if isinstance(node, Apply)
            for value in node.attrs.values()
            for dim in (value if isinstance(value, (tuple, list)) else (value,))
            if isinstance(dim, Sym)
            for atom in dim.atoms()
        ) or any(atom.name == name for loop in self.loops for atom in loop.stop.atoms())

    def n_nodes(self) -> int:
        """ggml tensors this graph can need: nodes of all bodies, with what an op adds on its own."""
        return sum(node.op.n_tensors if isinstance(node, Apply) else 0 for _, node in self.body.walk())


def nelements(value: Value) -> Sym:
    return product(value.shape)
