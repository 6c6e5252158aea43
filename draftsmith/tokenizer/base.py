"""What every tokenizer can do, and the decoder for a stream of tokens."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable

from draftsmith.dsl.errors import RequestError
from draftsmith.tokenizer.vocab import Vocab


class Tokenizer(ABC):
    """Text to token ids and back.

    Special ids are None where the model has no such token. ``eog_ids`` are the tokens that end a
    generation.
    """

    def __init__(self, vocab: Vocab, *, add_bos_default: bool = False) -> None:
        self.vocab = vocab
        self.n_vocab = len(vocab.tokens)
        self.bos_id = vocab.bos_id
        self.eos_id = vocab.eos_id
        self.eot_id = vocab.eot_id
        self.pad_id = vocab.pad_id
        self.mask_id = vocab.mask_id
        self.eog_ids = vocab.eog_ids
        self.chat_template = vocab.chat_template
        self.add_bos = add_bos_default if vocab.add_bos is None else vocab.add_bos
        self.add_eos = bool(vocab.add_eos)

    def encode(
        self, text: str, parse_special: bool = True, add_bos: bool | None = None, add_eos: bool | None = None
    ) -> list[int]:
        """The token ids of ``text``.

        With ``parse_special`` the names of control tokens in the text (``<|im_end|>``) become those
        tokens; without it they are plain text. ``add_bos`` and ``add_eos`` put the token at the start or
        the end; None does what the model asks for. Raises RequestError where the model has no such
        token, or the text cannot be encoded.
        """
        ids = self._encode_text(text, parse_special)
        if self.add_bos if add_bos is None else add_bos:
            ids.insert(0, self._wanted(self.bos_id, "beginning-of-text", "bos"))
        if self.add_eos if add_eos is None else add_eos:
            ids.append(self._wanted(self.eos_id, "end-of-text", "eos"))
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD. RequestError for a bad id."""
        return b"".join(self._pieces(ids, skip_special)).decode("utf-8", "replace")

    def stream(self, skip_special: bool = False) -> StreamDecoder:
        """A decoder that is fed one token at a time; all it returns, joined, is what decode gives."""
        return StreamDecoder(self, skip_special)

    @abstractmethod
    def piece(self, id: int) -> bytes:
        """The bytes that a token stands for; a part of a character in some cases."""

    @abstractmethod
    def _encode_text(self, text: str, parse_special: bool) -> list[int]:
        """The ids of the text alone."""

    def is_special(self, id: int) -> bool:
        """Whether a token is a control token (or the unknown token), not text."""
        return self.vocab.is_special(self._checked(id))

    def _pieces(self, ids: Iterable[int], skip_special: bool) -> Iterable[bytes]:
        return (self.piece(id) for id in ids if not (skip_special and self.is_special(id)))

    def _checked(self, id: int) -> int:
        if not 0 <= id < self.n_vocab:
            raise RequestError(f"token id {id} is outside the vocabulary of {self.n_vocab} tokens")
        return id

    def _wanted(self, id: int | None, what: str, key: str) -> int:
        if id is None:
            raise RequestError(
                f"{self.vocab.path}: a {what} token is asked for, but the model has none "
                f"(key 'tokenizer.ggml.{key}_token_id')"
            )
        return id


class StreamDecoder:
    """Turns tokens into text as they come.

    A character may be spread over several tokens; its bytes are held back until it is complete.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is complete now; empty while a character is still in parts."""
        if self._skip_special and self._tokenizer.is_special(id):
            return ""
        return self._utf8.decode(self._tokenizer.piece(id))

    def flush(self) -> str:
        """What is left at the end of the stream: U+FFFD for a character that never came whole.

        The decoder may be used for another stream afterwards.
        """
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
