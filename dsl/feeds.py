"""Host inputs of a graph.

Common feeds are built in: token ids, positions, wanted rows, target features, the mask and cell indices of a
cache. An unusual one is :class:`Feed` with a NumPy function beside the graph. The runtime evaluates feeds for
every batch; the graph only sees a tensor of the declared shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import trace
from .dtypes import GGMLType
from .expr import Atom, Flag, Scope, Sym, SymLike, exact
from .ir import Kind, Ref, Value

if TYPE_CHECKING:
    from .bind import BoundModel
    from .specs import KVCache

n_tokens = Atom(Scope.DIM, "n_tokens")
"""Rows of the batch."""
n_outputs = Atom(Scope.DIM, "n_outputs")
"""Rows that are wanted behind the last layer."""
n_blocks = Atom(Scope.DIM, "n_blocks")
"""Blocks in a batch made of equal blocks, one a sequence. A graph that uses it gets only such batches."""
n_block = exact(n_tokens, n_blocks)
"""Rows of each block of such a batch."""

flash_attn = Flag(Scope.OPTION, "flash_attn")
"""Whether attention is one fused op."""


@dataclass(frozen=True, eq=False)
class Feed:
    """A host input: ``compute`` gets the batch (``draftsmith.batch.Batch``) and returns the array, in NumPy order
    (``dims`` reversed), of the dtype. Built-in feeds have no function: the runtime knows their names."""

    name: str
    dtype: GGMLType
    dims: tuple[SymLike, ...]
    compute: Callable[[Any], NDArray[Any]] | None = None


tokens: Any = Feed("tokens", GGMLType.i32, (n_tokens,))
"""Token ids of the batch."""
positions: Any = Feed("pos", GGMLType.i32, (n_tokens,))
"""Position of each token in its sequence. Not a token count: after an image the two differ."""
out_rows: Any = Feed("out_rows", GGMLType.i32, (n_outputs,))
"""Which rows of the batch are wanted."""



def use(feed: Feed) -> Value:
    """A host input that only some variants of a graph need: asked for inside the graph."""
    tracer = trace.current()
    tracer.declared[feed.name] = feed
    return tracer.feed(feed.name, feed.dims, feed.dtype)


def token_positions() -> Value:
    """One position a row: :data:`positions`, asked for inside a graph."""
    return use(positions)


def mrope_positions() -> Value:
    """Four positions a row, all of one kind after the other: ``[p, p, p, 0]`` for text (DFlash specification, OV-6)."""
    return use(Feed("mrope_pos", GGMLType.i32, (4 * n_tokens,), _mrope_rows))


def _mrope_rows(batch: Any) -> NDArray[np.int32]:
    return np.concatenate([batch.pos, batch.pos, batch.pos, np.zeros_like(batch.pos)])


def features(width: SymLike) -> Any:
    """Rows of target features, one a token, instead of token ids."""
    return Feed("features", GGMLType.f32, (width, n_tokens))


class KVView(NamedTuple):
    """One layer's cache with what a batch needs to use it.

    ``k``, ``v``: rows of all cells, ``[width, n_cells]``. ``cells``: where the batch's rows go, i64 ``[n_tokens]``.
    ``mask``: 0 or -inf for each token and cell in use (rounded up), ``[n_kv, n_tokens]``.
    ``hadamard_k``, ``hadamard_v``: the matrices [n, n] that rotate what is stored; None where the cache is not rotated.
    """

    k: Value
    v: Value
    cells: Value
    mask: Value
    hadamard_k: Value | None
    hadamard_v: Value | None


def cache_group(spec: KVCache, sliding: bool) -> str:
    """The name of the set of cells that a layer's cache uses: all layers of a kind share positions."""
    return f"{spec.name}_swa" if sliding else spec.name


def kv_view(model: BoundModel, spec: KVCache, il: int, sliding: bool) -> KVView:
    tracer = trace.current()
    group = cache_group(spec, sliding)
    n_kv = Atom(Scope.DIM, f"n_{group}", local=f"n_{spec.name}")
    n_cells = Atom(Scope.DIM, f"n_cells_{group}", local="n_cells")

    def state(part: str, width: Sym, dtype: GGMLType) -> Value:
        field = f"{spec.name}.{part}"
        return Value((width, n_cells), dtype, Kind.STATE, name=field, ref=Ref(field, il))

    def rotation(part: str) -> Value | None:
        if not Flag(Scope.OPTION, f"rotate_{part}_{spec.name}"):
            return None
        n = Atom(Scope.HPARAM, f"n_rot_{part}_{spec.name}")
        return tracer.feed(f"{spec.name}_hadamard_{part}", (n, n), GGMLType.f32)

    return KVView(
        k=state("k", spec.k, model.options.type_k),
        v=state("v", spec.v, model.options.type_v),
        cells=tracer.feed(f"{group}_cells", (n_tokens,), GGMLType.i64),
        mask=tracer.feed(f"{group}_mask", (n_kv, n_tokens), GGMLType.f16),
        hadamard_k=rotation("k"),
        hadamard_v=rotation("v"),
    )
