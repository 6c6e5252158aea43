"""Tokenizers made from the metadata of a GGUF file.

:func:`load_tokenizer` picks the kind by ``tokenizer.ggml.model``: byte-level BPE (``gpt2``), which the
Hugging Face ``tokenizers`` library runs, or bare token names (``test``, ``none``, ``no_vocab``) for
models without a text form.
"""

from __future__ import annotations

from draftsmith.dsl.errors import MetadataError, RequestError
from draftsmith.gguf_file import GGUFFile, shown
from draftsmith.tokenizer.base import StreamDecoder, Tokenizer
from draftsmith.tokenizer.bpe import BPETokenizer
from draftsmith.tokenizer.names import NamesTokenizer
from draftsmith.tokenizer.vocab import Vocab, get_str

__all__ = ["BPETokenizer", "NamesTokenizer", "StreamDecoder", "Tokenizer", "Vocab", "load_tokenizer"]

# What llama.cpp writes for the kinds that are not read here.
_OTHER_KINDS = {
    "llama": "SentencePiece",
    "bert": "WordPiece",
    "t5": "Unigram",
    "rwkv": "RWKV World",
    "plamo2": "PLaMo-2",
    "gemma4": "SentencePiece-like BPE",
    "whitespace": "BPE on whole words",
    "hybriddna": "DNA k-mers",
}


def load_tokenizer(gguf: GGUFFile) -> Tokenizer:
    """The tokenizer of a model file.

    Raises MetadataError where a ``tokenizer.*`` key is missing or does not fit, and RequestError for a
    kind of tokenizer or pre-tokenizer that is not supported.
    """
    model = get_str(gguf, "tokenizer.ggml.model")
    if model is None:
        raise MetadataError(f"{gguf.path}: key 'tokenizer.ggml.model' is missing")
    if model == "gpt2":
        return BPETokenizer.from_gguf(gguf)
    if model == "test":
        return NamesTokenizer(Vocab.from_gguf(gguf), model)
    if model in ("none", "no_vocab"):
        return NamesTokenizer(Vocab.unnamed(gguf), model)
    kind = f" ({_OTHER_KINDS[model]})" if model in _OTHER_KINDS else ""
    raise RequestError(
        f"{gguf.path}: tokenizer '{shown(model)}'{kind} is not supported yet (key 'tokenizer.ggml.model'); "
        f"supported: gpt2 (byte-level BPE), test, none, no_vocab"
    )
