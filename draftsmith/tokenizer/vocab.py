"""The vocabulary and the special tokens that a GGUF file declares (keys ``tokenizer.*``).

Which tokens end a generation is decided as ``llama_vocab::impl::load`` of llama.cpp does it: by the
keys, and by well-known names because many files lack the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np

from draftsmith.dsl.errors import MetadataError
from draftsmith.gguf_file import GGUFFile, StringArray, shown


class TokenType(IntEnum):
    """The values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES: Final = (TokenType.CONTROL, TokenType.UNKNOWN)

# In order of preference: a file whose key does not name the end-of-turn token has it under one of these.
_EOT_NAMES: Final = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
# Fill-in-the-middle tokens that separate files: a model that writes one has left the text at hand.
_FIM_END_NAMES: Final = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_EOM_NAMES: Final = ("<|eom_id|>",)
_EOG_NAMES: Final = (
    *_EOT_NAMES,
    *_EOM_NAMES,
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)
# Converters write -1 in an unsigned key for "no such token".
_NO_TOKEN: Final = 2**32 - 1
# Far more than any model has; keeps a damaged file from asking for gigabytes of names.
_MAX_UNNAMED: Final = 10_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """Tokens by id, their types, and the ids with a meaning (None where there is none)."""

    path: Path
    tokens: Sequence[str] = field(repr=False)
    types: bytes = field(repr=False)
    """One :class:`TokenType` per token."""
    index: Mapping[str, int] = field(repr=False)
    """Token to id."""
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    pad_id: int | None
    mask_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool | None
    """What the file asks for; None where it says nothing."""
    add_eos: bool | None
    chat_template: str | None

    def is_special(self, id: int) -> bool:
        return self.types[id] in SPECIAL_TYPES

    def names_of(self, *types: TokenType) -> list[str]:
        """The tokens of these types, by id."""
        wanted = np.isin(np.frombuffer(self.types, dtype=np.uint8), types)
        return [self.tokens[id] for id in np.flatnonzero(wanted).tolist()]

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> Vocab:
        """Read ``tokenizer.ggml.tokens`` and all that belongs to it; MetadataError for what does not fit."""
        tokens = get_strings(gguf, "tokenizer.ggml.tokens").tolist()
        for id, token in enumerate(tokens):
            if not token:  # as llama.cpp calls it
                tokens[id] = f"[EMPTY_{id}]"
        return cls._build(gguf, tokens, _types(gguf, len(tokens)))

    @classmethod
    def unnamed(cls, gguf: GGUFFile) -> Vocab:
        """A vocabulary of which the file states the size only: ``tok_0``, ``tok_1`` ..."""
        key = f"{gguf.architecture}.vocab_size"
        n = get_int(gguf, key)
        if n is None:
            raise MetadataError(
                f"{gguf.path}: key '{shown(key)}' is missing, so the size of the vocabulary is not known"
            )
        if not 0 < n <= _MAX_UNNAMED:
            raise MetadataError(f"{gguf.path}: key '{shown(key)}' is {n}, expected 1 to {_MAX_UNNAMED}")
        return cls._build(gguf, [f"tok_{id}" for id in range(n)], bytes([TokenType.NORMAL]) * n)

    @classmethod
    def _build(cls, gguf: GGUFFile, tokens: Sequence[str], types: bytes) -> Vocab:
        index = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(index) != len(tokens):
            raise _duplicate(gguf.path, tokens, index)
        kinds = bytearray(types)
        eot_id = _special_id(gguf, "eot", len(tokens), index, _EOT_NAMES)
        eog_ids = _eog_ids(gguf, tokens, index, eot_id)
        for id in eog_ids:
            if tokens[id] in _EOG_NAMES:
                # Some files give these another type; llama.cpp overrides it too.
                kinds[id] = TokenType.CONTROL
        n = len(tokens)
        return cls(
            path=gguf.path,
            tokens=tokens,
            types=bytes(kinds),
            index=index,
            bos_id=_special_id(gguf, "bos", n, index),
            eos_id=_special_id(gguf, "eos", n, index),
            eot_id=eot_id,
            pad_id=_special_id(gguf, "padding", n, index),
            mask_id=_special_id(gguf, "mask", n, index),
            eog_ids=eog_ids,
            add_bos=get_bool(gguf, "tokenizer.ggml.add_bos_token"),
            add_eos=get_bool(gguf, "tokenizer.ggml.add_eos_token"),
            chat_template=get_str(gguf, "tokenizer.chat_template"),
        )


def _types(gguf: GGUFFile, n_tokens: int) -> bytes:
    key = "tokenizer.ggml.token_type"
    found = gguf.metadata.get(key)
    if found is None:
        return bytes([TokenType.NORMAL]) * n_tokens
    types = found.value
    if not isinstance(types, np.ndarray) or found.type not in ("arr[i32]", "arr[u32]"):
        raise MetadataError(f"{gguf.path}: key '{key}' is of type {found.type}, expected arr[i32]")
    if len(types) != n_tokens:
        raise MetadataError(
            f"{gguf.path}: key '{key}' has {len(types)} elements, expected one for each of {n_tokens}"
        )
    bad = (types < 0) | (types > max(TokenType))
    if bad.any():
        id = int(np.argmax(bad))
        raise MetadataError(f"{gguf.path}: key '{key}': token {id} is of type {types[id]}, expected 0 to 6")
    return types.astype(np.uint8).tobytes()


def _special_id(
    gguf: GGUFFile, what: str, n_tokens: int, index: Mapping[str, int], names: Sequence[str] = ()
) -> int | None:
    """The id under ``tokenizer.ggml.<what>_token_id``, or that of the first of ``names`` that exists."""
    key = f"tokenizer.ggml.{what}_token_id"
    id = get_int(gguf, key)
    if id is None or id in (-1, _NO_TOKEN):
        return next((index[name] for name in names if name in index), None)
    if not 0 <= id < n_tokens:
        raise MetadataError(
            f"{gguf.path}: key '{key}' is {id}, expected an id below {n_tokens}, the vocabulary size"
        )
    return id


def _eog_ids(
    gguf: GGUFFile, tokens: Sequence[str], index: Mapping[str, int], eot_id: int | None
) -> frozenset[int]:
    n = len(tokens)
    ids = {
        eot_id,
        _special_id(gguf, "eos", n, index),
        _special_id(gguf, "eom", n, index, _EOM_NAMES),
        *(_special_id(gguf, what, n, index, names) for what, names in _FIM_END_NAMES.items()),
        *(index.get(name) for name in _EOG_NAMES),
    }
    ids.discard(None)
    found = {tokens[id] for id in ids if id is not None}
    # Models whose <|end|> closes a channel or a message and not the reply (o200k_harmony, Solar Open).
    if {"<|return|>", "<|call|>"} <= found or ({"<|call|>", "<|calls|>"} & found and "<|flush|>" in found):
        ids.discard(index.get("<|end|>"))
    # Models whose </s> is plain text (Gemma 4, PLaMo).
    if {"<|tool_response>", "<|plamo:eos|>"} & found:
        ids.discard(index.get("</s>"))
    return frozenset(id for id in ids if id is not None)


def _duplicate(path: Path, tokens: Sequence[str], index: Mapping[str, int]) -> MetadataError:
    first = next(id for id, token in enumerate(tokens) if index[token] != id)
    return MetadataError(
        f"{path}: key 'tokenizer.ggml.tokens': tokens {first} and {index[tokens[first]]} "
        f"are both '{shown(tokens[first])}', expected all tokens to differ"
    )


def get_str(gguf: GGUFFile, key: str) -> str | None:
    """A string of the metadata; None where it is absent."""
    found = gguf.metadata.get(key)
    if found is None:
        return None
    value = found.value
    if not isinstance(value, str):
        raise MetadataError(f"{gguf.path}: key '{key}' is of type {found.type}, expected str")
    return value


def get_int(gguf: GGUFFile, key: str) -> int | None:
    """An integer of the metadata, of any width; None where it is absent."""
    found = gguf.metadata.get(key)
    if found is None:
        return None
    value = found.value
    if not isinstance(value, int) or isinstance(value, bool):
        raise MetadataError(f"{gguf.path}: key '{shown(key)}' is of type {found.type}, expected u32")
    return value


def get_bool(gguf: GGUFFile, key: str) -> bool | None:
    """A bool of the metadata; None where it is absent."""
    found = gguf.metadata.get(key)
    if found is None:
        return None
    value = found.value
    if not isinstance(value, bool):
        raise MetadataError(f"{gguf.path}: key '{key}' is of type {found.type}, expected bool")
    return value


def get_strings(gguf: GGUFFile, key: str) -> StringArray:
    """An array of strings of the metadata, which must be there."""
    found = gguf.metadata.get(key)
    if found is None:
        raise MetadataError(f"{gguf.path}: key '{key}' is missing")
    value = found.value
    if not isinstance(value, StringArray):
        raise MetadataError(f"{gguf.path}: key '{key}' is of type {found.type}, expected arr[str]")
    return value
