"""Native against NumPy, node by node.

The same batch goes through the compiled graph and through the interpreter; every named value is compared in the order
in which it is computed, so the first that differs is where a fault was made, not where it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.interp import Interpreter, Named
from draftsmith.dsl.ir import Apply, Ref

from .batch import Batch
from .context import Context
from .model import Model, prepare_graph


@dataclass(frozen=True)
class Comparison:
    """One named value. ``nmse``: squared differences over squares of the NumPy value; ``worst``: index of the largest
    difference with both values there; ``where``: the author's line."""

    graph: str
    name: str
    op: str
    shape: tuple[int, ...]
    nmse: float
    max_abs: float
    worst: tuple[int, ...]
    native: float
    numpy: float
    where: str
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.nmse <= self.tolerance


def default_tolerance(model: Model, context: Context) -> float:
    """NMSE that rounding explains: exact types leave float noise, f16 its 11 bits, quantised dot products (which
    round the activations too, as the interpreter does not) a few percent."""
    kinds = {info.type for info in model.file.tensors.values()} | {context.options.type_k, context.options.type_v}
    if model.target is not None:
        kinds |= {model.target.file.tensors[n].type for n in context.bound.borrowed().values()}
    if any(t.is_quantized for t in kinds):
        return 5e-2
    if GGMLType.bf16 in kinds:
        return 1e-3
    if GGMLType.f16 in kinds or context.options.flash_attn:
        return 1e-5
    return 1e-9


class Checker:
    """A context beside its interpreter; both keep their caches from batch to batch."""

    def __init__(self, context: Context, tolerance: float | None = None, dtype: type[np.floating] = np.float32) -> None:
        self.context = context
        self.model = context.model
        self.tolerance = default_tolerance(self.model, context) if tolerance is None else tolerance
        self.interpreter = Interpreter(context.bound, self._weight, dtype=dtype)

    def _weight(self, ref: Ref) -> NDArray[np.floating]:
        assert ref.tensor is not None
        if not ref.tensor.startswith("target:"):
            return self._read(self.model, ref.tensor)
        assert self.model.target is not None
        return self._read(self.model.target, self.context.bound.borrowed()[ref.tensor])

    @staticmethod
    def _read(model: Model, name: str) -> NDArray[np.floating]:
        info = model.file.tensors[name]
        if info.type in (GGMLType.i32, GGMLType.i64):
            return np.frombuffer(info.data(), info.type.numpy_dtype).reshape(info.ne[::-1])
        return info.dequantize()

    def run(self, graph: str, batch: Batch, causal: bool = True) -> Iterator[Comparison]:
        """Run one graph both ways; yields a comparison for each named value, outputs included."""
        context = self.context
        prepared = context.prepare(graph, batch, None, causal)
        outputs = tuple(context.graphs[graph].outputs)
        context.native.run(
            graph, prepared.dims, prepared.inputs, outputs, (), True, max_nodes=context.node_limit(graph, prepared.dims)
        )
        native: dict[str, list[NDArray[np.floating]]] = {}
        for node in context.native.nodes():
            if node.data is not None:
                native.setdefault(node.name, []).append(node.data)
        traced = prepare_graph(context.bound, graph, prepared.dims)
        found: list[Comparison] = []

        def observe(named: Named) -> NDArray[np.floating] | None:
            values = native.get(named.name)
            if not values:
                return None  # not computed natively: nothing that was asked for needs it
            theirs = values.pop(_likeliest(values, named.value)).reshape(named.value.shape)
            if isinstance(named.node, Apply) and named.node.op.chooses:
                # a choice among near ties, or another order, is as good: compare what was chosen and follow it
                found.append(self._compare(graph, named, *_chosen(named, theirs)))
                return theirs.astype(named.value.dtype)
            found.append(self._compare(graph, named, theirs, named.value))
            return None

        self.interpreter.run(traced, prepared.dims, prepared.inputs, observe)
        yield from found

    def _compare(self, graph: str, named: Named, a: NDArray[np.floating], b: NDArray[np.floating]) -> Comparison:
        x, y = a.astype(np.float64), b.astype(np.float64)
        difference = _difference(x, y)
        finite = np.where(np.isfinite(y), y, 0.0)
        scale = float((finite**2).sum()) or 1.0
        nmse = float((difference**2).sum()) / scale
        worst = np.unravel_index(int(np.argmax(difference)), difference.shape) if difference.size else ()
        position = named.node.position
        return Comparison(
            graph,
            named.name,
            named.node.describe(),
            a.shape,
            nmse if np.isfinite(nmse) else float("inf"),
            float(difference.max(initial=0.0)),
            tuple(int(i) for i in worst),
            float(x[worst]) if x.size else 0.0,
            float(y[worst]) if y.size else 0.0,
            position.short if position else "",
            self.tolerance,
        )


def _likeliest(values: list[NDArray[np.floating]], mine: NDArray[np.floating]) -> int:
    """Which of several native values of one name is meant: ggml orders independent calls of a block as it likes."""
    if len(values) == 1:
        return 0
    fitting = [i for i, v in enumerate(values) if v.size == mine.size]
    return min(fitting, key=lambda i: float(_difference(values[i].reshape(mine.shape), mine).sum()), default=0)


def _difference(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.floating]:
    """Absolute differences; where both are the same infinity there is none."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def _chosen(named: Named, theirs: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """The operand's values at native's and at NumPy's indices, each in ascending order."""
    rows = named.operands[0]
    assert rows is not None
    index = theirs.astype(np.int64)
    picked = []
    for ids in (index, named.value.astype(np.int64)):
        wide = ids[..., None] if ids.ndim < rows.ndim else ids
        picked.append(np.sort(np.take_along_axis(rows, wide, axis=-1), axis=-1))
    return picked[0], picked[1]


def check_model(
    context: Context, n_tokens: int = 9, seed: int = 0, tolerance: float | None = None
) -> Iterator[Comparison]:
    """Check every graph of a model on random input: graphs that take features are fed first, then those that take
    tokens, twice, so that the second batch reads what the first stored."""
    checker = Checker(context, tolerance)
    rng = np.random.default_rng(seed)
    by_features = [n for n, g in context.graphs.items() if "features" in g.feeds]
    by_tokens = [n for n, g in context.graphs.items() if "tokens" in g.feeds]
    n_vocab = int(context.bound.hparam("n_vocab"))
    past = 0
    contract = context.model.cls.contract
    with context.bound.binding({}):
        causal = contract is None or bool(contract.causal(context.model.cls.hparams))
    for graph in by_features:
        with context.bound.binding(context.dims):
            width = int(context.graphs[graph].feeds["features"].shape[0])
        rows = rng.standard_normal((n_tokens, width), dtype=np.float32)
        yield from checker.run(graph, Batch.of_features(rows, past), causal=False)
        past += n_tokens
    for graph in by_tokens:
        full = contract is not None and contract.full_blocks
        size = int(context.bound.hparam(contract.block_size)) if full and contract is not None else 0
        for n in (size, size) if full else (n_tokens, 3):
            ids = rng.integers(0, n_vocab, n)
            yield from checker.run(graph, _draft_or_tokens(context, ids, past, rng), causal=causal)
            past += n


def _draft_or_tokens(context: Context, ids: NDArray[np.int64], past: int, rng: np.random.Generator) -> Batch:
    """A batch of tokens, with a random row for each block where the drafter wants one."""
    batch = Batch.of_tokens(ids, past)
    contract = context.model.cls.contract
    if contract is not None and contract.carry is not None:
        width = int(context.bound.hparam(contract.width))
        batch.block_rows[contract.carry[1]] = rng.standard_normal((1, width), dtype=np.float32)
    return batch
