"""Random targets and drafters of every variant, small enough to recompute in NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith import registry
from draftsmith.codegen.native import Backends
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.model import Model

from ..models import FakeFile, FakeTensor, Recipe, make_file

Array = NDArray[Any]

E, VOCAB, BLOCK, MASK = 64, 64, 6, 63
TAPPED = [1, 3, 2]
"""Not in order: the features are joined as listed."""
VARIANTS = ("dflash", "dspark", "dflash2", "lilicorr")
FAVOURED = 4
"""How many tokens greedy decoding prefers, so that random drafts are accepted now and then."""

SIZES: dict[str, Any] = {
    "{arch}.embedding_length": E,
    "{arch}.feed_forward_length": 96,
    "{arch}.attention.head_count": 4,
    "{arch}.attention.head_count_kv": 2,
    "{arch}.attention.key_length": 32,
    "{arch}.attention.value_length": 32,
    "{arch}.rope.dimension_count": 32,
    "{arch}.context_length": 256,
    "{arch}.vocab_size": VOCAB,
}
DRAFTER: dict[str, Any] = {
    "{arch}.block_count": 2,
    "{arch}.block_size": BLOCK,
    "{arch}.target_layers": TAPPED,
    "tokenizer.ggml.mask_token_id": MASK,
}
OWN: dict[str, dict[str, Any]] = {
    "dflash2": {
        "{arch}.selector_top_k": 3,
        "{arch}.selector_rank": 8,
        "{arch}.conv_kernel_size": 3,
        "{arch}.conv_group_size": 8,
    },
    "lilicorr": {
        "lilicorr.hidden_size": 32,
        "lilicorr.candidate_topk": 3,
        "lilicorr.mlp_hidden_size": 48,
        "lilicorr.factor_dim": 16,
    },
}
HEADS_OF_64: dict[str, Any] = {
    "{arch}.attention.key_length": 64,
    "{arch}.attention.value_length": 64,
    "{arch}.rope.dimension_count": 64,
}
"""Heads whose quantised caches are rotated."""

F32 = ContextOptions(n_ctx=256, flash_attn=False, type_k=GGMLType.f32, type_v=GGMLType.f32)
"""Nothing rounded: what is compared with NumPy."""


@dataclass(frozen=True)
class Given(FakeTensor):
    """A tensor whose values are given."""

    array: Array = field(default_factory=lambda: np.zeros(0))

    def data(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)


def with_arrays(file: FakeFile, arrays: Mapping[str, Array | None]) -> FakeFile:
    """A copy with other tensors (f32, i64, ...), or without some."""
    tensors: dict[str, FakeTensor] = {n: t for n, t in file.tensors.items() if n not in arrays}
    for name, array in arrays.items():
        if array is not None:
            tensors[name] = Given(name, array.shape[::-1], _TYPES[array.dtype.name], array=array)
    return FakeFile(file.path, dict(file.metadata), tensors)


_TYPES = {"float32": GGMLType.f32, "float16": GGMLType.f16, "int64": GGMLType.i64, "int32": GGMLType.i32}


def with_keys(file: FakeFile, keys: Mapping[str, Any]) -> FakeFile:
    """A copy with other metadata as (type, value); None removes a key."""
    from draftsmith.canonical import CanonicalValue

    metadata = {k: v for k, v in file.metadata.items() if k not in keys}
    metadata |= {k: CanonicalValue(*v) for k, v in keys.items() if v is not None}
    return FakeFile(file.path, metadata, file.tensors)


def array_of(file: FakeFile, name: str) -> Array:
    """The values of a plain tensor, NumPy order."""
    tensor = file.tensors[name]
    assert tensor.type.numpy_dtype is not None
    return tensor.data().view(tensor.type.numpy_dtype).reshape(tensor.ne[::-1])


def _seeded(file: FakeFile, seed: int) -> FakeFile:
    """Every f32 tensor drawn anew: files share the names of tensors, and must not share their values."""
    arrays: dict[str, Array | None] = {}
    for name, tensor in file.tensors.items():
        if tensor.type is GGMLType.f32:
            rng = np.random.default_rng(zlib.crc32(f"{seed} {name}".encode()))
            shape = tensor.ne[::-1]
            drawn = (
                rng.standard_normal(shape) / np.sqrt(tensor.ne[0]) if len(shape) > 1 else rng.uniform(0.6, 1.4, shape)
            )
            if name == "token_embd.weight":
                drawn = drawn * 8
            if name.endswith((".bias", "attn_sinks.weight")) and len(shape) == 1:
                drawn = rng.standard_normal(shape)
            if "conv_base" in name:
                drawn = rng.standard_normal(shape) * 0.5
            arrays[name] = drawn.astype(np.float32)
    return with_arrays(file, arrays)


def target_file(seed: int = 3, tied: bool = False, more: Mapping[str, Any] | None = None) -> FakeFile:
    """A Qwen3 whose greedy text keeps to a handful of tokens: some rows of the head point along a direction that
    all embeddings share.
    """
    recipe = Recipe(optional=() if tied else ("output",))
    file = _seeded(make_file(registry.builtin()["qwen3"], recipe, {**SIZES, **(more or {})}), seed)
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(E)
    embd = (array_of(file, "token_embd.weight") + common).astype(np.float32)
    if tied:
        return with_arrays(file, {"token_embd.weight": embd})
    head = array_of(file, "output.weight").copy()
    head[:FAVOURED] += (0.03 * common).astype(np.float32)
    return with_arrays(file, {"token_embd.weight": embd, "output.weight": head})


def draft_file(
    variant: str = "dflash",
    keys: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    *,
    seed: int = 2,
    scales: bool = False,
    types: Mapping[str, GGMLType] | None = None,
    sizes: Mapping[str, int] | None = None,
    only_layers: Mapping[str, Collection[int]] | None = None,
    split_v: bool = True,
) -> FakeFile:
    """A drafter; ``keys`` as values, ``{arch}`` stands for dflash."""
    wanted = {*optional, *(("attn_v",) if split_v else ()), *(("conf_proj",) if variant == "dspark" else ())}
    if "no_confidence" in wanted:
        wanted -= {"no_confidence", "conf_proj"}
    recipe = Recipe(
        sizes={"n_markov": 16, **(sizes or {})},
        optional=wanted,
        scales=scales,
        types=types or {},
        only_layers=only_layers or {},
    )
    more = {**SIZES, **DRAFTER, **OWN.get(variant, {}), **(keys or {})}
    return _seeded(make_file(registry.builtin()[variant], recipe, more), seed)


class Kit:
    """Loads files; keeps models and contexts for a module of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backends = Backends((), 1)
        self._kept: dict[Any, Any] = {}
        self._contexts: list[Context] = []
        self._n = 0

    def write(self, file: FakeFile) -> Path:
        self._n += 1
        return file.write(self.folder / f"{self._n}.gguf")

    def load(self, file: FakeFile, target: Model | None = None) -> Model:
        return Model.load(self.write(file), self.backends, target)

    def keep(self, key: Any, make: Any) -> Any:
        """What ``make`` returns, made once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def target(self) -> tuple[FakeFile, Model]:
        """The target most tests share."""
        return self.keep("target", lambda: (file := target_file(), self.load(file)))

    def draft(self, variant: str) -> tuple[FakeFile, Model]:
        """The drafter of a variant most tests share."""
        target = self.target()[1]
        return self.keep(variant, lambda: (file := draft_file(variant), self.load(file, target)))

    def context(self, model: Model, options: ContextOptions = F32) -> Context:
        """A context that lives as long as the kit, empty."""
        context: Context = self.keep((id(model), options), lambda: Context(model, options))
        context.clear()
        return context

    def close(self) -> None:
        for item in self._kept.values():
            if isinstance(item, Context):
                item.close()
        self._kept.clear()


def tokens_of(n: int, seed: int = 0) -> list[int]:
    """Random token ids without the mask."""
    drawn: Sequence[int] = np.random.default_rng(seed).integers(0, VOCAB - 1, n).tolist()
    return list(drawn)
