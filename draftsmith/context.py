"""Running the graphs of one model: caches, host inputs, wanted outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.codegen.emit import Source, emit, guard_params, state_specs
from draftsmith.codegen.native import NativeContext, NativeModel, StateDesc, Stats
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.dsl.bind import BoundModel, Options
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import RequestError
from draftsmith.dsl.feeds import cache_group
from draftsmith.dsl.ir import Graph, Value
from draftsmith.dsl.specs import KVCache

from .batch import Batch
from .cells import Cells
from .model import Model, native_params, prepare_graph

KV_TYPES = tuple(GGMLType[n] for n in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"))
"""Cache types that llama.cpp offers too."""

ROLLBACK = 64
"""How many of its newest tokens a sequence may lose again with the windows of sliding caches still whole: more than a
block."""

Array = NDArray[Any]


@dataclass(frozen=True)
class ContextOptions:
    """Settings of a context, named as llama.cpp names them.

    ``n_ctx``: tokens of all sequences together; 0: what the model was trained for. ``n_ubatch``: rows of one run.
    ``n_seq_max``: sequence ids go from 0 to this minus 1.
    """

    n_ctx: int = 0
    n_ubatch: int = 512
    n_seq_max: int = 1
    flash_attn: bool = True
    type_k: GGMLType = GGMLType.f16
    type_v: GGMLType = GGMLType.f16
    rotate: bool = True
    tap_last: bool = False


@dataclass
class Cache:
    """One set of cells and the constant inputs that go with it."""

    spec: KVCache
    cells: Cells
    layers: list[int]
    constants: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """A run about to happen: run-time dims, host inputs, the cells taken in each cache."""

    dims: dict[str, int]
    inputs: dict[str, Array]
    placed: dict[str, NDArray[np.int64]]


class Context:
    """State of a model for up to ``n_seq_max`` sequences, and its compiled graphs."""

    def __init__(self, model: Model, options: ContextOptions | None = None, max_graphs: int = 6) -> None:
        options = options or ContextOptions()
        self.model = model
        _check_options(options)
        settings = Options(options.flash_attn, options.type_k, options.type_v, options.rotate, options.tap_last)
        if options.type_k.block_size > 1 or options.type_v.block_size > 1:
            _check_cache_types(model.bound(settings))
        traced = model.traced(settings)
        bound = traced.model
        n_ctx = options.n_ctx or int(bound.hparam("n_ctx_train"))
        self.options = replace(options, n_ctx=n_ctx)
        self.bound = bound
        self.caches = self._make_caches()
        self.dims = self._constant_dims()
        self.graphs: dict[str, Graph] = traced.graphs
        self.source: Source = emit(bound, self.graphs)
        library = build_architecture(self.source.name, {f"{self.source.name}.cpp": self.source.text})
        self.native_model = NativeModel(
            library,
            {**native_params(bound), **guard_params(self.graphs.values())},
            model.weights,
            model.target.weights if model.target else None,
            bound.borrowed(),
        )
        self.native = NativeContext(model.backends, self.native_model, self._state(), max_graphs)
        self._node_limits: dict[tuple[str, int], int] = {}
        self._feed_names = {name: tuple(g.feeds) for name, g in self.graphs.items()}
        self._blocked = {name for name, g in self.graphs.items() if g.uses_dim("n_blocks")}

    # -- set-up --------------------------------------------------------------------------------------------
    def _make_caches(self) -> dict[str, Cache]:
        caches: dict[str, Cache] = {}
        options, bound = self.options, self.bound
        for spec in state_specs(bound):
            with bound.binding({}):
                window = int(spec.window) if spec.window is not None else 0
            for il in range(bound.n_layer):
                sliding = spec.sliding is not None and bool(bound.layer_values[il][spec.sliding])
                group = cache_group(spec, sliding)
                if group not in caches:
                    size = options.n_ctx
                    if sliding:
                        size = min(size, (window + ROLLBACK) * options.n_seq_max + options.n_ubatch)
                    caches[group] = Cache(spec, Cells(size, window if sliding else None, ROLLBACK), [])
                caches[group].layers.append(il)
        for cache in caches.values():
            for part, rotated in zip("kv", bound.cache_rotation(cache.spec), strict=True):
                if rotated:
                    n = int(bound.hparam(f"n_rot_{part}_{cache.spec.name}"))
                    cache.constants[f"{cache.spec.name}_hadamard_{part}"] = hadamard(n)
        return caches

    def _constant_dims(self) -> dict[str, int]:
        return {f"n_cells_{group}": cache.cells.size for group, cache in self.caches.items()}

    def _state(self) -> list[StateDesc]:
        descs: list[StateDesc] = []
        with self.bound.binding({}):
            for cache in self.caches.values():
                for il in cache.layers:
                    for part, width, dtype in (
                        ("k", cache.spec.k, self.options.type_k),
                        ("v", cache.spec.v, self.options.type_v),
                    ):
                        descs.append(StateDesc(f"{cache.spec.name}.{part}", dtype, (int(width), cache.cells.size), il))
        return descs

    # -- running -------------------------------------------------------------------------------------------
    def run(
        self,
        graph: str,
        batch: Batch,
        outputs: Sequence[str] = (),
        *,
        rows: Sequence[int] | NDArray[np.int32] | None = None,
        taps: Sequence[tuple[str, int]] = (),
        causal: bool = True,
        trace: bool = False,
    ) -> dict[str, Array]:
        """Run one graph over at most ``n_ubatch`` rows and return the wanted outputs, first axis = row.

        ``rows``: which rows go behind the last layer (all). Taps come back under ``name.il`` with every row. On any
        error the caches are as before.
        """
        prepared = self.prepare(graph, batch, rows, causal)
        try:
            self.native.run(
                graph,
                prepared.dims,
                prepared.inputs,
                outputs,
                taps,
                trace,
                max_nodes=self.node_limit(graph, prepared.dims),
            )
        except BaseException:
            self._release(prepared.placed)
            raise
        results = {name: self.native.result(name, ndim=len(self.graphs[graph].outputs[name].shape)) for name in outputs}
        results |= {f"{name}.{il}": self.native.result(name, il, ndim=2) for name, il in taps}
        return results

    def run_blocks(
        self, graph: str, batch: Batch, outputs: Sequence[str] = (), *, first_row: int = 0, causal: bool = False
    ) -> dict[str, Array]:
        """Run a graph over whole blocks, in as many runs as it takes: a run holds blocks of one length, at most
        ``n_ubatch`` rows, and never part of a block (DFlash specification, SL-4). Results are in the order of the
        batch. ``first_row``: where the graph selects rows, those of each block before this one are not wanted."""
        blocks = batch.blocks()
        results: list[dict[str, Array]] = []
        at = 0
        while at < len(blocks):
            first, length = blocks[at]
            if length > self.options.n_ubatch:
                raise RequestError(f"a block of {length} rows does not fit n_ubatch = {self.options.n_ubatch}")
            n = 1
            while at + n < len(blocks) and blocks[at + n][1] == length and (n + 1) * length <= self.options.n_ubatch:
                n += 1
            part = batch.part(first, first + n * length)
            part.block_rows = {name: rows[at : at + n] for name, rows in batch.block_rows.items()}
            rows = (
                np.arange(n * length, dtype=np.int32).reshape(n, length)[:, first_row:].reshape(-1)
                if first_row
                else None
            )
            results.append(self.run(graph, part, outputs, rows=rows, causal=causal))
            at += n
        return {name: np.concatenate([r[name] for r in results]) for name in outputs}

    def node_limit(self, graph: str, dims: Mapping[str, int]) -> int:
        """An upper bound of the nodes that ggml will see. A loop over the rows of a block grows with its length, so a
        graph that counts blocks is traced once for each length."""
        n_block = dims["n_tokens"] // dims["n_blocks"] if graph in self._blocked else 0
        if (graph, n_block) not in self._node_limits:
            traced = prepare_graph(self.bound, graph, dims) if n_block else self.graphs[graph]
            self._node_limits[graph, n_block] = traced.n_nodes() + 4 * self.bound.n_layer + 64
        return self._node_limits[graph, n_block]

    def prepare(
        self, graph: str, batch: Batch, rows: Sequence[int] | NDArray[np.int32] | None = None, causal: bool = True
    ) -> Prepared:
        """Take cells for a batch and make the host inputs of a graph; on any error the caches are as before."""
        if graph not in self.graphs:
            raise RequestError(f"{self.bound.name} has no graph {graph!r}; it has {', '.join(self.graphs)}")
        self._check_batch(batch)
        self._check_blocks(graph, batch)
        wanted_rows = np.arange(len(batch), dtype=np.int32) if rows is None else np.asarray(rows, np.int32)
        placed: dict[str, NDArray[np.int64]] = {}
        try:
            for group, cache in self.caches.items():
                placed[group] = cache.cells.place(batch.seq, batch.pos)
            dims, inputs = self._inputs(graph, batch, wanted_rows, placed, causal)
        except BaseException:
            self._release(placed)
            raise
        return Prepared(dims, inputs, placed)

    def _release(self, placed: Mapping[str, NDArray[np.int64]]) -> None:
        for group, cells in placed.items():
            self.caches[group].cells.release(cells)

    def _inputs(
        self, graph: str, batch: Batch, rows: NDArray[np.int32], placed: Mapping[str, NDArray[np.int64]], causal: bool
    ) -> tuple[dict[str, int], dict[str, Array]]:
        n_blocks = _count_blocks(batch, self.bound.name) if graph in self._blocked else 1
        dims = {"n_tokens": len(batch), "n_blocks": n_blocks, "n_outputs": max(1, len(rows)), **self.dims}
        inputs: dict[str, Array] = {}
        for group, cache in self.caches.items():
            dims[f"n_{group}"] = cache.cells.n_used
        for name in self._feed_names[graph]:
            inputs[name] = self._feed(name, self.graphs[graph].feeds[name], batch, rows, placed, causal)
        return dims, inputs

    def _feed(
        self,
        name: str,
        value: Value,
        batch: Batch,
        rows: NDArray[np.int32],
        placed: Mapping[str, NDArray[np.int64]],
        causal: bool,
    ) -> Array:
        """The array of one host input."""
        declared = self.bound.feeds.get(name)
        if declared is not None and declared.compute is not None:
            return declared.compute(batch)
        if name in batch.block_rows:
            return _block_rows(name, batch, value)
        if name == "tokens" and batch.tokens is not None:
            return batch.tokens
        if name == "features" and batch.features is not None:
            return batch.features
        if name in ("tokens", "features"):
            given = "token ids" if batch.tokens is not None else "feature rows"
            raise RequestError(f"this graph takes {name}, the batch holds {given}")
        if name == "pos":
            return batch.pos
        if name == "out_rows":
            return rows if len(rows) else np.zeros(1, np.int32)
        for group, cache in self.caches.items():
            if name == f"{group}_cells":
                return placed[group]
            if name == f"{group}_mask":
                return cache.cells.mask(batch.seq, batch.pos, causal, value.dtype.numpy_dtype)
            if name in cache.constants:
                return cache.constants[name]
        raise RequestError(f"nothing provides the host input {name!r}: give its Feed a function")

    def _check_blocks(self, graph: str, batch: Batch) -> None:
        contract = self.model.cls.contract
        if contract is None or not contract.full_blocks or graph != contract.draft:
            return
        size = int(self.bound.hparam(contract.block_size))
        wrong = [length for _, length in batch.blocks() if length != size]
        if wrong:
            raise RequestError(f"{self.bound.name} drafts full blocks of {size} rows, found one of {wrong[0]}")
        if contract.carry is not None and contract.carry[1] not in batch.block_rows:
            raise RequestError(f"{self.bound.name} needs a row {contract.carry[1]!r} for each block (Batch.block_rows)")

    def _check_batch(self, batch: Batch) -> None:
        options = self.options
        if len(batch) > options.n_ubatch:
            raise RequestError(f"a run takes at most n_ubatch = {options.n_ubatch} rows, found {len(batch)}")
        if int(batch.seq.max()) >= options.n_seq_max:
            raise RequestError(f"sequence id {int(batch.seq.max())} is not below n_seq_max = {options.n_seq_max}")
        if batch.tokens is not None:
            n_vocab = int(self.bound.hparam("n_vocab"))
            if batch.tokens.min() < 0 or batch.tokens.max() >= n_vocab:
                bad = (batch.tokens < 0) | (batch.tokens >= n_vocab)
                raise RequestError(f"token id {int(batch.tokens[bad][0])} is outside the vocabulary of {n_vocab}")
        if batch.features is not None and batch.features.shape[1] != self._feature_width:
            raise RequestError(
                f"feature rows of width {self._feature_width} are expected, found {batch.features.shape[1]}"
            )

    @cached_property
    def _feature_width(self) -> int:
        """Columns of the feature rows that the graphs take; 0: none takes any."""
        expected = [f for g in self.graphs.values() for n, f in g.feeds.items() if n == "features"]
        with self.bound.binding(self.dims):
            return int(expected[0].shape[0]) if expected else 0

    @cached_property
    def head_row_group(self) -> int:
        """How many rows the CPU multiplies with the head at once: it reads a quantised matrix once for every 4 rows,
        or 2, and again for a rest, so that 15 rows take longer than 16."""
        head = getattr(self.bound.arch, "output", None)
        return 4 if head is not None and head.dtype.is_quantized else 1

    # -- state -----------------------------------------------------------------------------------------------
    def remove(self, seq: int, start: int, end: int | None = None) -> None:
        """Forget the tokens of a sequence at positions ``start`` to ``end - 1`` (llama_memory_seq_rm)."""
        for cache in self.caches.values():
            cache.cells.remove(seq, start, end)

    def last(self, seq: int) -> int:
        """The newest position of a sequence in the cache, -1 when there is none."""
        return max((cache.cells.last(seq) for cache in self.caches.values()), default=-1)

    @property
    def n_free(self) -> int:
        """How many more tokens fit, of all sequences together; sliding caches make room for themselves."""
        full = [cache.cells.n_free for cache in self.caches.values() if cache.cells.window is None]
        return min(full, default=self.options.n_ctx)

    def clear(self) -> None:
        """Forget everything."""
        for cache in self.caches.values():
            cache.cells.clear()

    def stats(self) -> Stats:
        return self.native.stats()

    def close(self) -> None:
        self.native.close()
        self.native_model.close()


def hadamard(n: int) -> NDArray[np.float32]:
    """The orthonormal Sylvester-Hadamard matrix of size n, a power of two (DFlash specification, KA-2)."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return np.ascontiguousarray(h / np.sqrt(n), np.float32)


def _block_rows(name: str, batch: Batch, value: Value) -> Array:
    rows = np.ascontiguousarray(batch.block_rows[name], np.float32)
    n = len(batch.blocks())
    if rows.ndim != 2 or len(rows) != n:
        raise RequestError(f"{name}: one row for each of the {n} blocks is needed, found shape {rows.shape}")
    return rows


def _count_blocks(batch: Batch, name: str) -> int:
    """The number of equal blocks in a batch (DFlash specification, ER-16)."""
    blocks = batch.blocks()
    lengths = {length for _, length in blocks}
    if len(lengths) > 1:
        raise RequestError(
            f"{name} takes blocks of one length in a run, found lengths {', '.join(map(str, sorted(lengths)))}"
        )
    if len({int(batch.seq[first]) for first, _ in blocks}) < len(blocks):
        raise RequestError(f"{name} takes one block a sequence in a run")
    return len(blocks)


def _check_options(options: ContextOptions) -> None:
    for name, least in (("n_ctx", 0), ("n_ubatch", 1), ("n_seq_max", 1)):
        if getattr(options, name) < least:
            raise RequestError(f"{name} must be at least {least}, found {getattr(options, name)}")
    if options.n_ctx > 1 << 24:
        raise RequestError(f"n_ctx = {options.n_ctx} is beyond the limit of {1 << 24}")
    for name in ("type_k", "type_v"):
        if getattr(options, name) not in KV_TYPES:
            raise RequestError(
                f"a cache cannot be of type {getattr(options, name).name}; known: {', '.join(t.name for t in KV_TYPES)}"
            )


def _check_cache_types(bound: BoundModel) -> None:
    """A row of a cache, and of each head in it, must be whole blocks of the cache's type."""
    for spec in state_specs(bound):
        with bound.binding({}):
            for width, head, dtype in (
                (spec.k, spec.head_k, bound.options.type_k),
                (spec.v, spec.head_v, bound.options.type_v),
            ):
                for n in (int(width), int(head) if head is not None else int(width)):
                    if n % dtype.block_size:
                        raise RequestError(
                            f"cache type {dtype.name} stores blocks of {dtype.block_size} elements, which do not "
                            "divide this model's "
                            f"head size {n}"
                        )
