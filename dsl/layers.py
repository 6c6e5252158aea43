"""A layer as the author sees it: ``layer.attn_q``, ``layer.kv``, ``layer.is_swa``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import trace
from .errors import GraphError
from .expr import Atom, Flag, Scope, lift
from .feeds import KVView, kv_view
from .specs import KVCache, LayerGroup, LayerKey, Tensor

if TYPE_CHECKING:
    from .bind import BoundModel


class Layer:
    """Base of the class in which an architecture declares what one layer has. Never instantiated."""


class LayerView:
    """One layer of a model being traced: number ``index`` of its group."""

    def __init__(self, model: BoundModel, group: LayerGroup, index: int, only: bool = False) -> None:
        self._model = model
        self._group = group
        self._index = index
        self._only = only

    @property
    def il(self) -> Atom:
        """The layer's number in GGUF names, as a quantity of the layer: comparing it is a choice that tells layers
        apart."""
        return Atom(Scope.LAYER, "il", False, int(lift(self._group.first)) + self._index)

    @property
    def is_first(self) -> Flag:
        return Flag(Scope.LAYER, "is_first", self._index == 0)

    @property
    def is_last(self) -> Flag:
        return Flag(Scope.LAYER, "is_last", self._index == int(self._group.count) - 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        specs = self._model.group_specs[self._group.name]
        spec = specs.get(name)
        if isinstance(spec, Tensor):
            return self._model.weight(spec, int(self.il), self._group.name, self._index, self._only)
        if isinstance(spec, KVCache):
            return self._cache(spec)
        if isinstance(spec, LayerKey):
            value = self._model.layer_values[self._index][name]
            if spec.kind is bool:
                return Flag(Scope.LAYER, name, value)
            return Atom(Scope.LAYER, name, spec.kind is float, value)
        place = trace.here()
        raise GraphError(
            f"a layer of {self._model.name} declares no {name!r}; it has {', '.join(specs)}"
            + (f"\n{place.excerpt()}" if place else "")
        )

    def _cache(self, spec: KVCache) -> KVView:
        sliding = spec.sliding is not None and bool(getattr(self, spec.sliding))
        return kv_view(self._model, spec, self._index, sliding)
