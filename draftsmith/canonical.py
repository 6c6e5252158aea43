"""A file that exists in no place: what an architecture asks for, in small round sizes.

With it an architecture can be traced, printed and emitted by its name alone. Every required key has a plausible
value, optional ones keep their defaults, and only required tensors are there. Keys that are known from llama.cpp get
sizes that fit one another; an architecture with keys of its own may state theirs in its class as
``canonical = {"{arch}.my_key": 4}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import BoundModel, Options, Problem, bind, declared_tensors, examine, read_keys
from draftsmith.dsl.binding import bound
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.expr import Scope
from draftsmith.dsl.specs import REQUIRED, Key, LayerKey, TensorDim, declared

_KNOWN: dict[str, Any] = {
    "{arch}.block_count": 4,
    "{arch}.context_length": 4096,
    "{arch}.embedding_length": 256,
    "{arch}.feed_forward_length": 768,
    "{arch}.expert_feed_forward_length": 128,
    "{arch}.expert_count": 8,
    "{arch}.expert_used_count": 2,
    "{arch}.expert_shared_count": 1,
    "{arch}.leading_dense_block_count": 1,
    "{arch}.attention.head_count": 4,
    "{arch}.attention.head_count_kv": 2,
    "{arch}.attention.key_length": 64,
    "{arch}.attention.value_length": 64,
    "{arch}.attention.sliding_window": 128,
    "{arch}.attention.layer_norm_rms_epsilon": 1e-6,
    "{arch}.rope.dimension_count": 64,
    "{arch}.rope.freq_base": 10000.0,
    "{arch}.vocab_size": 1024,
    "{arch}.block_size": 8,
    "{arch}.target_layers": [1, 2, 3],
    "tokenizer.ggml.mask_token_id": 1023,
}
_INTEGERS = (2, 1, 4, 8, 16, 32, 64, 128, 256, 3, 0)
_TENSOR_DIM = 32
_TYPE_NAMES = {int: "u32", float: "f32", bool: "bool", str: "str", list: "arr[i32]"}


@dataclass(frozen=True)
class CanonicalValue:
    """A metadata value as a GGUF reader gives it."""

    type: str
    value: Any


@dataclass(frozen=True)
class CanonicalTensor:
    """A tensor of zeros."""

    name: str
    ne: tuple[int, ...]
    type: GGMLType

    def data(self) -> NDArray[np.uint8]:
        """The stored bytes, for the few tensors that binding looks into."""
        return np.zeros(self.type.row_bytes(self.ne[0]) * math.prod(self.ne[1:]), np.uint8)


@dataclass(frozen=True)
class CanonicalFile:
    """What :func:`draftsmith.dsl.bind.bind` needs of a file."""

    path: Path
    metadata: Mapping[str, CanonicalValue]
    tensors: Mapping[str, CanonicalTensor]


def canonical_model(
    cls: type[Architecture], options: Options | None = None, target: BoundModel | None = None
) -> BoundModel:
    """An architecture fitted to its canonical file."""
    return bind(cls, canonical_file(cls), options, target)


def canonical_file(cls: type[Architecture]) -> CanonicalFile:
    """The canonical file; GraphError if no values are found that the architecture accepts."""
    metadata = {"general.architecture": CanonicalValue("str", cls.gguf_arch), **dict(_keys(cls))}
    path = Path(f"<{cls.variant}>")
    bare = CanonicalFile(path, metadata, {})
    problems: list[Problem] = []
    values = read_keys(cls, bare, problems)
    for size in declared(cls.hparams, TensorDim):  # sizes that only a tensor tells, and there are no tensors yet
        values.setdefault((Scope.HPARAM.value, size.name), _TENSOR_DIM)
    if not problems:
        with bound(values):
            n_layer = int(values[Scope.HPARAM.value, "n_layer"])
            metadata |= dict(_layer_keys(cls, n_layer))
            tensors = {
                name: CanonicalTensor(name, ne, GGMLType.f32 if GGMLType.f32 in spec.types else spec.types[0])
                for spec, name, ne in declared_tensors(cls, n_layer)
                if not spec.optional or name in cls.requires or spec.tensor in cls.canonical_tensors
            }
        file = CanonicalFile(path, metadata, tensors)
        problems = examine(cls, file)[1]
    if problems:
        raise GraphError(
            f"{cls.variant} has no canonical sizes: {problems[0].text}; state them in the class as "
            f'canonical = {{"{{arch}}.some_key": value}}'
        )
    return file


def _keys(cls: type[Architecture]) -> Iterator[tuple[str, CanonicalValue]]:
    own = cls.canonical
    for spec in declared(cls.hparams, Key):
        # the length of an array may also be stated by a plain key
        key = spec.aliases[0] if spec.length and spec.aliases else spec.key
        named = key.format(arch=cls.gguf_arch)
        if spec.key in own or key in own:
            yield named, CanonicalValue(_TYPE_NAMES[spec.kind], own.get(spec.key, own.get(key)))
        elif spec.default is REQUIRED or named in cls.requires:
            yield named, CanonicalValue(_TYPE_NAMES[spec.kind], _value(spec, key))


def _value(spec: Key[Any], key: str) -> Any:
    """A value of the right type that the declaration accepts, if one is found."""
    guesses: dict[type, tuple[Any, ...]] = {
        int: _INTEGERS,
        float: (1.0, 1e-6, 0.0),
        bool: (False, True),
        str: ("none", ""),
        list: ([1, 2, 3], [0], [1], []),
    }
    known = (_KNOWN[key],) if key in _KNOWN else ()
    candidates = (*known, *(spec.allowed or guesses[spec.kind]))
    return next((value for value in candidates if _accepted(spec, value)), candidates[0])


def _accepted(spec: Key[Any], value: Any) -> bool:
    return (spec.allowed is None or value in spec.allowed) and not (spec.check and spec.check(value))


def _layer_keys(cls: type[Architecture], n_layer: int) -> Iterator[tuple[str, CanonicalValue]]:
    own = cls.canonical
    for spec in declared(cls.layer, LayerKey):
        key = spec.key.format(arch=cls.gguf_arch)
        required = spec.default is REQUIRED or (spec.required_if is not None and bool(spec.required_if(cls.hparams)))
        if spec.key in own:
            values = [spec.kind(own[spec.key][il % len(own[spec.key])]) for il in range(n_layer)]
        elif required:
            values = [spec.kind(1)] * n_layer
        else:
            continue
        yield key, CanonicalValue(f"arr[{_TYPE_NAMES[spec.kind]}]", values)
