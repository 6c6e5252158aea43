"""A GGUF with its architecture and its weights on the devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.codegen.native import Backends, Usage, WeightDesc, Weights
from draftsmith.codegen.passes import Observer, run_passes
from draftsmith.dsl.arch import Architecture, trace_graph
from draftsmith.dsl.bind import BoundModel, Options, bind, check_readers
from draftsmith.dsl.errors import WeightError
from draftsmith.dsl.expr import Scope
from draftsmith.dsl.ir import Apply, Graph, Kind
from draftsmith.dsl.verify import verify
from draftsmith.gguf_file import GGUFFile, shown

from . import registry

SAMPLE_DIMS = {"n_tokens": 8, "n_outputs": 3, "n_blocks": 2}
"""Run-time dims while tracing for emission. The text does not depend on them."""


def sample_dims(model: BoundModel) -> dict[str, int]:
    """Dims for a trace that is only looked at: plausible sizes for every cache."""
    from draftsmith.codegen.emit import state_specs

    dims = dict(SAMPLE_DIMS)
    contract = model.cls.contract
    if contract is not None and contract.full_blocks:
        dims["n_tokens"] = dims["n_blocks"] * int(model.hparam(contract.block_size))
    for spec in state_specs(model):
        for group in (spec.name, f"{spec.name}_swa"):
            dims |= {f"n_{group}": 256, f"n_cells_{group}": 512}
    return dims


def prepare_graph(model: BoundModel, name: str, dims: Mapping[str, int], observe: Observer | None = None) -> Graph:
    """One graph: traced, verified, and taken through the passes; ``observe`` sees it after "trace" and after each."""
    graph = trace_graph(model, name, dims)
    with model.binding(dims):
        verify(graph)
        if observe is not None:
            observe("trace", graph)
        run_passes(graph, observe)
    return graph


def trace_all(
    model: BoundModel, dims: Mapping[str, int] | None = None, observe: Observer | None = None
) -> dict[str, Graph]:
    """Every graph of a model, ready to be printed, emitted or run."""
    dims = dims or sample_dims(model)
    graphs = {name: prepare_graph(model, name, dims, observe) for name in model.cls.graphs()}
    check_readers(model)
    return graphs


@dataclass(frozen=True)
class Traced:
    """A model's graphs for one set of options."""

    model: BoundModel
    graphs: dict[str, Graph]


class Model:
    """A loaded model. Contexts with different settings share it.

    ``target``: for a drafter, the model that lends it embeddings, head and features.
    """

    def __init__(
        self, file: GGUFFile, cls: type[Architecture], backends: Backends, weights: Weights, target: Model | None
    ) -> None:
        self.file = file
        self.cls = cls
        self.backends = backends
        self.weights = weights
        self.target = target
        self._traced: dict[Options, Traced] = {}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | GGUFFile,
        backends: Backends | None = None,
        target: Model | None = None,
        use_mmap: bool = True,
        progress: Callable[[int, int], bool | None] | None = None,
    ) -> Model:
        """Validate a GGUF completely, then load it."""
        file = path if isinstance(path, GGUFFile) else GGUFFile.open(path)
        architecture = registry.for_file(file)
        bound = bind(architecture, file, target=target.bound() if target else None)
        if bound.needs_target and target is None:
            raise WeightError(
                f"{file.path}: {bound.name} has no embeddings or head of its own and needs a target "
                "(--model) to lend them"
            )
        traced = Traced(bound, trace_all(bound))
        usage = weight_usage(traced.graphs)
        owned = backends or (target.backends if target else Backends())
        descs = [
            WeightDesc(name, info.type, info.ne, info.offset, info.nbytes, usage.get(name, Usage.OTHER))
            for name, info in file.tensors.items()
        ]
        weights = Weights.load(owned, file.path, descs, use_mmap, progress)
        model = cls(file, architecture, owned, weights, target)
        model._traced[bound.options] = traced
        return model

    def bound(self, options: Options | None = None) -> BoundModel:
        """The architecture fitted to this file for the settings of one context."""
        known = self._traced.get(options or Options())
        if known is not None:
            return known.model
        return bind(self.cls, self.file, options, self.target.bound() if self.target else None)

    def traced(self, options: Options) -> Traced:
        """The graphs for the settings of one context; traced once for each."""
        if options not in self._traced:
            bound = self.bound(options)
            self._traced[options] = Traced(bound, trace_all(bound))
        return self._traced[options]

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def title(self) -> str:
        """What reports call it: the file's name, and its own one where it has another."""
        own = self.file.metadata.get("general.name")
        if own is None or own.type != "str" or own.value == self.path.stem:
            return self.path.stem
        return f"{self.path.stem} ({shown(str(own.value))})"

    def close(self) -> None:
        self.weights.close()


def weight_usage(graphs: Mapping[str, Graph]) -> dict[str, Usage]:
    """How the graphs read each tensor of the file."""
    usage: dict[str, Usage] = {}
    for graph in graphs.values():
        for _, node in graph.body.walk():
            for i, value in enumerate(node.operands):
                if value is None or value.kind is not Kind.WEIGHT or value.ref is None or value.ref.tensor is None:
                    continue
                kind = _USAGE.get((node.op.name, i), Usage.OTHER) if isinstance(node, Apply) else Usage.OTHER
                usage[value.ref.tensor] = usage.get(value.ref.tensor, Usage.OTHER) | kind
    return usage


_USAGE = {("mul_mat", 0): Usage.MUL_MAT, ("mul_mat_id", 0): Usage.MUL_MAT_ID, ("get_rows", 0): Usage.GET_ROWS}


def native_params(model: BoundModel) -> dict[str, Any]:
    """Hyperparameters by the names that generated sources ask for."""
    params: dict[str, Any] = {
        name: value
        for (scope, name), value in model.values.items()
        if scope == Scope.HPARAM.value and isinstance(value, (int, float))
    }
    for name in model.layer_values[0] if model.layer_values else ():
        params[f"layer.{name}"] = [layer[name] for layer in model.layer_values]
    return params
