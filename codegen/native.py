"""The native runtime as Python objects.

Each class owns one handle. What was made from a handle keeps it alive, so objects may be closed or
collected in any order; use after ``close`` raises ``BackendError``, as does everything that fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import BackendError

from .runtime_lib import runtime

Array = NDArray[Any]
Param = int | float | bool | Sequence[int] | Sequence[float]
Progress = Callable[[int, int], bool | None]

_MAX_PLANS = 256
_BF16 = GGMLType.bf16.id


class Usage(IntFlag):
    """How graphs read a weight, so that it can be placed where that op runs."""

    OTHER = 0
    MUL_MAT = 1
    GET_ROWS = 2
    MUL_MAT_ID = 4


@dataclass(frozen=True, slots=True)
class WeightDesc:
    """A tensor of a file: ``ne`` in ggml order, ``offset`` from the start of the file."""

    name: str
    type: GGMLType
    ne: tuple[int, ...]
    offset: int
    nbytes: int
    usage: Usage = Usage.OTHER


@dataclass(frozen=True, slots=True)
class StateDesc:
    """A tensor that lives between runs: ``ne`` in ggml order, ``il`` its layer or -1."""

    name: str
    type: GGMLType
    ne: tuple[int, ...]
    il: int = -1


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the last graph. ``data`` is the value of a named node of a traced run, in NumPy order."""

    name: str
    op: str
    backend: str
    type: GGMLType
    ne: tuple[int, int, int, int]
    data: Array | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a context: ``n_runs - n_builds`` runs reused a built graph."""

    n_runs: int
    n_builds: int
    n_nodes: int
    n_splits: int
    compute_bytes: int
    state_bytes: int
    build_us: int
    compute_us: int


def set_log_level(level: int) -> None:
    """Show ggml's own log on standard error: 0 nothing, 1 errors (the default), 2 warnings, 3 all."""
    _, lib = runtime()
    lib.ds_set_log_level(level)


def add_rpc_server(endpoint: str) -> None:
    """Make the devices of the ggml RPC server at ``host:port`` known, as RPC0, RPC1 and so on."""
    _, lib = runtime()
    if lib.ds_rpc_add(endpoint.encode()) != 0:
        raise _error()


class _Handle:
    """A handle of the runtime, freed once."""

    def __init__(self, pointer: Any, free: Any) -> None:
        self._ffi, self._lib = runtime()
        if pointer == self._ffi.NULL:
            raise _error()
        self._pointer: Any = self._ffi.gc(pointer, free)

    @property
    def handle(self) -> Any:
        """The C pointer."""
        if self._pointer is None:
            raise BackendError(f"this {type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Give the handle back; closing twice does nothing."""
        if getattr(self, "_pointer", None) is not None:
            self._ffi.release(self._pointer)
            self._pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Backends(_Handle):
    """The devices to run on, in order of preference; the CPU is always the last."""

    def __init__(self, devices: Sequence[str] = (), n_threads: int = 0) -> None:
        _, lib = runtime()
        if not 0 <= n_threads < 2**31:
            raise BackendError(
                f"{n_threads} threads: expected 0 (as many as there are physical cores) or more, within 31 bits"
            )
        pointer = lib.ds_backends_new(_strings(devices), len(devices), n_threads)
        super().__init__(pointer, lib.ds_backends_free)

    @property
    def n_threads(self) -> int:
        """Threads of the CPU device."""
        return int(self._lib.ds_backends_n_threads(self.handle))


class Weights(_Handle):
    """The weights of one file, placed on the devices."""

    def __init__(self, backends: Backends, pointer: Any) -> None:
        _, lib = runtime()
        super().__init__(pointer, lib.ds_weights_free)
        self._backends = backends

    @classmethod
    def load(
        cls,
        backends: Backends,
        path: str | os.PathLike[str],
        descs: Iterable[WeightDesc],
        use_mmap: bool = True,
        progress: Progress | None = None,
    ) -> Weights:
        """Load the tensors of ``descs``; ``progress(done, total)`` may return False to cancel."""
        ffi, lib = runtime()
        descs = list(descs)
        array = ffi.new("ds_weight_desc[]", len(descs))
        keep = []
        for item, desc in zip(array, descs, strict=True):
            name = ffi.new("char[]", desc.name.encode())
            keep.append(name)
            item.name = name
            item.type = desc.type.id
            item.usage = int(desc.usage)
            item.ne = _shape(desc.name, desc.ne)
            item.offset = desc.offset
            item.nbytes = desc.nbytes

        raised: list[BaseException] = []
        callback = ffi.NULL
        if progress is not None:

            def on_progress(done: int, total: int, _user: Any) -> int:
                try:
                    return int(progress(done, total) is not False)
                except BaseException as error:
                    raised.append(error)
                    return 0

            callback = ffi.callback("int(uint64_t, uint64_t, void *)", on_progress)

        pointer = lib.ds_weights_load(
            backends.handle, os.fsencode(path), array, len(descs), int(use_mmap), callback, ffi.NULL
        )
        if raised:
            raise raised[0]
        return cls(backends, pointer)

    def report(self) -> dict[str, int]:
        """Return the bytes of weights in each kind of memory: ``{"CPU_Mapped": ..., "CPU_REPACK": ...}``."""
        size = self._lib.ds_weights_report(self.handle, self._ffi.NULL, 0) + 1
        text = self._ffi.new("char[]", size)
        self._lib.ds_weights_report(self.handle, text, size)
        lines = self._ffi.string(text).decode().splitlines()
        pairs = (line.rpartition(": ") for line in lines)
        return {name: int(n_bytes) for name, _, n_bytes in pairs}


class NativeModel(_Handle):
    """A compiled architecture with its weights.

    ``shared`` maps names that the graph asks for to names of ``other``: a drafter borrows its
    target's embeddings with ``{"target.token_embd.weight": "token_embd.weight"}``.
    """

    def __init__(
        self,
        lib_path: str | os.PathLike[str],
        params: Mapping[str, Param],
        own: Weights | None,
        other: Weights | None = None,
        shared: Mapping[str, str] | None = None,
    ) -> None:
        ffi, lib = runtime()
        shared = shared or {}
        array = ffi.new("ds_param[]", len(params))
        keep: list[Any] = []
        for item, (name, value) in zip(array, params.items(), strict=True):
            values = list(value) if isinstance(value, Sequence | np.ndarray) else [value]
            is_float = any(isinstance(v, float | np.floating) for v in values)
            c_name = ffi.new("char[]", name.encode())
            c_values = ffi.new("double[]" if is_float else "int64_t[]", values)
            keep += [c_name, c_values]
            item.name = c_name
            item.n = len(values)
            item.is_float = is_float
            if is_float:
                item.f = c_values
            else:
                item.i = c_values

        pointer = lib.ds_model_new(
            os.fsencode(Path(lib_path)),
            array,
            len(params),
            ffi.NULL if own is None else own.handle,
            ffi.NULL if other is None else other.handle,
            _strings(list(shared)),
            _strings(list(shared.values())),
            len(shared),
        )
        super().__init__(pointer, lib.ds_model_free)
        self._weights = (own, other)
        n_graphs = lib.ds_model_n_graphs(self.handle)
        names = (ffi.string(lib.ds_model_graph_name(self.handle, i)).decode() for i in range(n_graphs))
        self.graphs: dict[str, int] = {name: i for i, name in enumerate(names)}
        """Number of each graph by its name."""


@dataclass(slots=True)
class _Plan:
    """The C arrays of one kind of run; only the data of the inputs changes from run to run."""

    graph: int
    dims: Any
    inputs: Any
    outputs: Any
    taps: Any
    sizes: tuple[int, int, int, int]


class NativeContext(_Handle):
    """State and built graphs of a model: what one sequence, or one batch of them, needs."""

    def __init__(
        self, backends: Backends, model: NativeModel, state: Sequence[StateDesc] = (), max_graphs: int = 6
    ) -> None:
        ffi, lib = runtime()
        array = ffi.new("ds_state_desc[]", len(state))
        keep = []
        for item, desc in zip(array, state, strict=True):
            name = ffi.new("char[]", desc.name.encode())
            keep.append(name)
            item.name = name
            item.il = desc.il
            item.type = desc.type.id
            item.ne = _shape(desc.name, desc.ne)
        pointer = lib.ds_context_new(backends.handle, model.handle, array, len(state), max_graphs)
        super().__init__(pointer, lib.ds_context_free)
        self._parents = (backends, model)
        self._model = model
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._state = {(desc.name, desc.il): desc for desc in state}
        self._info = (ffi.new("int32_t[1]"), ffi.new("int64_t[4]"), ffi.new("uint64_t[1]"))

    def run(
        self,
        graph: str,
        dims: Mapping[str, int],
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        taps: Sequence[tuple[str, int]] = (),
        trace: bool = False,
        *,
        max_nodes: int,
    ) -> None:
        """Run a graph and wait. Results stay until the next run; inputs are copied.

        ``max_nodes`` is an upper bound of the graph's size. With ``trace`` the value of every named
        node is kept for ``nodes()``.
        """
        key = (graph, tuple(dims.items()), tuple(inputs), tuple(outputs), tuple(taps))
        plan = self._plans.get(key) or self._new_plan(key)

        from_buffer = self._ffi.from_buffer
        keep = []
        for item, array in zip(plan.inputs, inputs.values(), strict=True):
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
            buffer = from_buffer(array)
            keep.append(buffer)
            item.data = buffer
            item.nbytes = array.nbytes

        n_dims, n_inputs, n_outputs, n_taps = plan.sizes
        status = self._lib.ds_run(
            self.handle, plan.graph, max_nodes,
            plan.dims, n_dims, plan.inputs, n_inputs, plan.outputs, n_outputs, plan.taps, n_taps, trace,
        )  # fmt: skip
        if status != 0:
            raise _error()

    def result(self, name: str, il: int = -1, ndim: int | None = None) -> Array:
        """Return a wanted output, or with ``il`` a wanted tap, of the last run in NumPy order.

        ggml does not keep the rank of a tensor: trailing dims of 1 (leading ones in NumPy) are dropped
        unless ``ndim`` says how many there are.
        """
        lib, c_name = self._lib, _c_string(name)
        kind, ne, n_bytes = self._info
        if lib.ds_result_info(self.handle, c_name, il, kind, ne, n_bytes) != 0:
            raise _error()
        array = _empty(name, kind[0], tuple(ne), ndim)
        if lib.ds_result_get(self.handle, c_name, il, self._ffi.from_buffer(array), array.nbytes) != 0:
            raise _error()
        return _readable(array, kind[0])

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes of the last graph in the order of their computation."""
        ffi, lib = self._ffi, self._lib
        count = lib.ds_nodes(self.handle)
        if count < 0:
            raise _error()
        node = ffi.new("ds_node *")
        result = []
        for i in range(count):
            if lib.ds_node_get(self.handle, i, node) != 0:
                raise _error()
            kind = GGMLType.from_id(node.type)
            name, op, backend = map(_text, (node.name, node.op, node.backend))
            result.append(NodeInfo(name, op, backend, kind, tuple(node.ne), self._node_data(node)))
        return result

    def _node_data(self, node: Any) -> Array | None:
        dtype = _numpy_dtype(node.type)
        if node.data == self._ffi.NULL or dtype is None:
            return None
        raw = np.frombuffer(self._ffi.buffer(node.data, node.nbytes), dtype=np.uint8)
        shape, strides = tuple(node.ne)[::-1], tuple(node.nb)[::-1]
        view = np.ndarray(shape, dtype, raw.data, strides=strides)  # the node may be a permuted view
        rank = _rank(tuple(node.ne))
        return _readable(np.ascontiguousarray(view).reshape(shape[4 - rank :]), node.type)

    def stats(self) -> Stats:
        """Return the counters of this context."""
        s = self._ffi.new("ds_stats *")
        self._lib.ds_get_stats(self.handle, s)
        return Stats(
            s.n_runs,
            s.n_builds,
            s.n_nodes,
            s.n_splits,
            s.compute_bytes,
            s.state_bytes,
            s.build_us,
            s.compute_us,
        )

    def clear(self) -> None:
        """Zero the state."""
        self._lib.ds_context_clear(self.handle)

    def state_get(self, name: str, il: int = -1) -> Array:
        """Return a copy of a state tensor in NumPy order."""
        desc = self._state_desc(name, il)
        array = _empty(name, desc.type.id, _padded(desc.ne), len(desc.ne))
        if self._lib.ds_state_get(self.handle, _c_string(name), il, self._ffi.from_buffer(array), array.nbytes) != 0:
            raise _error()
        return array

    def state_set(self, name: str, il: int, value: Array) -> None:
        """Replace a state tensor; ``value`` has its dtype and size."""
        desc = self._state_desc(name, il)
        dtype = desc.type.numpy_dtype
        if dtype is not None and value.dtype != dtype and _numpy_dtype(desc.type.id) != value.dtype:
            raise BackendError(f"state '{name}' is {desc.type}, the given array {value.dtype}")
        value = np.ascontiguousarray(value)
        data = self._ffi.from_buffer(value)
        if self._lib.ds_state_set(self.handle, _c_string(name), il, data, value.nbytes) != 0:
            raise _error()

    def _state_desc(self, name: str, il: int) -> StateDesc:
        self.handle  # noqa: B018 - raises when closed
        try:
            return self._state[name, il]
        except KeyError:
            known = ", ".join(n if i < 0 else f"{n}-{i}" for n, i in self._state) or "none"
            full = name if il < 0 else f"{name}-{il}"
            raise BackendError(f"there is no state '{full}'; there is: {known}") from None

    def _new_plan(self, key: tuple[Any, ...]) -> _Plan:
        ffi = self._ffi
        graph, dims, inputs, outputs, taps = key
        number = self._model.graphs.get(graph)
        if number is None:
            known = ", ".join(self._model.graphs) or "none"
            raise BackendError(f"the model has no graph '{graph}'; it has: {known}")
        c_dims = ffi.new("ds_dim[]", [(_c_string(name), value) for name, value in dims])
        c_inputs = ffi.new("ds_input[]", [(_c_string(name), ffi.NULL, 0) for name in inputs])
        c_taps = ffi.new("ds_tap[]", [(_c_string(name), il) for name, il in taps])
        c_outputs = _strings(outputs)
        sizes = (len(dims), len(inputs), len(outputs), len(taps))
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = _Plan(number, c_dims, c_inputs, c_outputs, c_taps, sizes)
        self._plans[key] = plan
        return plan


def _error() -> BackendError:
    _, lib = runtime()
    return BackendError(_text(lib.ds_last_error()) or "the runtime failed without a message")


def _text(c_string: Any) -> str:
    ffi, _ = runtime()
    return str(ffi.string(c_string).decode(errors="replace"))


@cache
def _c_string(text: str) -> Any:
    """Return a C string that is never freed: names are few."""
    ffi, _ = runtime()
    return ffi.new("char[]", text.encode())


def _strings(texts: Sequence[str]) -> Any:
    ffi, _ = runtime()
    return ffi.new("char *[]", [_c_string(text) for text in texts])


def _padded(ne: tuple[int, ...]) -> tuple[int, ...]:
    return ne + (1,) * (4 - len(ne))


def _shape(name: str, ne: tuple[int, ...]) -> tuple[int, ...]:
    if not 1 <= len(ne) <= 4:
        raise BackendError(f"'{name}' has {len(ne)} dims, ggml takes 1 to 4")
    return _padded(ne)


def _rank(ne: tuple[int, ...]) -> int:
    return max([i + 1 for i, n in enumerate(ne) if n != 1], default=1)


@cache
def _numpy_dtype(type_id: int) -> np.dtype[Any] | None:
    """Return the dtype that holds elements of a ggml type; bf16 as raw 16-bit words."""
    return np.dtype("<u2") if type_id == _BF16 else GGMLType.from_id(type_id).numpy_dtype


def _empty(name: str, type_id: int, ne: tuple[int, ...], ndim: int | None) -> Array:
    rank = _rank(ne)
    if ndim is not None:
        if rank > ndim:
            raise BackendError(f"'{name}' has the shape {list(ne)}, which is not of {ndim} dims")
        rank = ndim
    dtype = _numpy_dtype(type_id)
    if dtype is None:
        raise BackendError(f"'{name}' is {GGMLType.from_id(type_id)}, which has no NumPy type")
    return np.empty(ne[:rank][::-1], dtype)


def _readable(array: Array, type_id: int) -> Array:
    """Return bf16 words as float32; every other array as it is."""
    if type_id != _BF16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)
