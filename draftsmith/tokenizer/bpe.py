"""Byte-level BPE (``tokenizer.ggml.model = gpt2``), run by the Hugging Face ``tokenizers`` library."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from draftsmith.dsl.errors import MetadataError, RequestError
from draftsmith.gguf_file import GGUFFile, shown
from draftsmith.tokenizer.base import Tokenizer
from draftsmith.tokenizer.pretokenizers import PreTokenizer, pre_tokenizer
from draftsmith.tokenizer.vocab import SPECIAL_TYPES, TokenType, Vocab, get_str, get_strings

if TYPE_CHECKING:
    import tokenizers

_MERGES_KEY: Final = "tokenizer.ggml.merges"


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte: itself where it is printable, U+0100 and up otherwise."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


_LETTER_OF_BYTE: Final = _byte_letters()
_BYTE_OF_LETTER: Final = {letter: byte for byte, letter in _LETTER_OF_BYTE.items()}


class BPETokenizer(Tokenizer):
    """Control and user-defined tokens are cut out of the text here, the rest goes to the library.

    The library could do both, but it decides when it is built whether control tokens are looked for,
    and adding thousands of them to it is slow.
    """

    def __init__(self, vocab: Vocab, pre: PreTokenizer, bpe: tokenizers.Tokenizer) -> None:
        super().__init__(vocab, add_bos_default=pre.add_bos)
        self._bpe = bpe
        self._text_names = _any_of(vocab.names_of(TokenType.USER_DEFINED))
        self._all_names = _any_of(vocab.names_of(TokenType.USER_DEFINED, *SPECIAL_TYPES))
        self._complete = all(letter in vocab.index for letter in _BYTE_OF_LETTER)

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> BPETokenizer:
        """MetadataError for keys that do not fit, RequestError for an unknown pre-tokenizer."""
        name = get_str(gguf, "tokenizer.ggml.pre")
        if name is None:
            warnings.warn(
                f"{gguf.path}: key 'tokenizer.ggml.pre' is missing, text is split in the 'default' way, "
                f"which is not the model's own",
                stacklevel=2,
            )
        pre = pre_tokenizer("default" if name is None else name, str(gguf.path))
        vocab = Vocab.from_gguf(gguf)
        return cls(vocab, pre, _build(gguf, vocab, pre))

    def piece(self, id: int) -> bytes:
        token = self.vocab.tokens[self._checked(id)]
        kind = self.vocab.types[id]
        if kind == TokenType.NORMAL:
            try:
                return bytes([_BYTE_OF_LETTER[letter] for letter in token])
            except KeyError:
                return token.encode()  # not written in the byte alphabet: stands for itself
        if kind == TokenType.UNUSED:
            return b""
        return token.encode()

    def _encode_text(self, text: str, parse_special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} "
                f"at character {error.start}"
            ) from None
        ids: list[int] = []
        names = self._all_names if parse_special else self._text_names
        for part, id in _split(text, names, self.vocab.index):
            if id is not None:
                ids.append(id)
            else:
                ids.extend(self._encode_plain(part))
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        ids = list(self._bpe.encode(text, add_special_tokens=False).ids)
        if not self._complete:
            self._refuse_loss(text, ids)
        return ids

    def _refuse_loss(self, text: str, ids: list[int]) -> None:
        """The library drops bytes that no token covers; that must not go unnoticed."""
        if self._bpe.normalizer is not None:
            text = self._bpe.normalizer.normalize_str(text)
        if b"".join(map(self.piece, ids)) == text.encode():
            return
        missing = next((b for b in text.encode() if _LETTER_OF_BYTE[b] not in self.vocab.index), None)
        what = "a part of it" if missing is None else f"byte 0x{missing:02X}"
        raise RequestError(
            f"{self.vocab.path}: cannot encode '{shown(text)}': the vocabulary has no token for {what}"
        )


def _any_of(names: list[str]) -> re.Pattern[str] | None:
    """Matches the leftmost, and there the longest, of ``names``; None where there are none."""
    if not names:
        return None
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))


def _split(
    text: str, names: re.Pattern[str] | None, index: Mapping[str, int]
) -> Iterator[tuple[str, int | None]]:
    """Parts of ``text`` in order: plain text with None, or a token's name with its id."""
    done = 0
    if names is not None:
        for match in names.finditer(text):
            if match.start() > done:
                yield text[done : match.start()], None
            yield match.group(), index[match.group()]
            done = match.end()
    if done < len(text):
        yield text[done:], None


def _build(gguf: GGUFFile, vocab: Vocab, pre: PreTokenizer) -> tokenizers.Tokenizer:
    # Here, because the import takes 0.1 s.
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as HFTokenizer

    # Text must not turn into a control token through merges or as a whole word.
    words = dict(vocab.index)
    for name in vocab.names_of(*SPECIAL_TYPES):
        del words[name]
    model = models.BPE(vocab=words, merges=_merges(gguf, words), ignore_merges=pre.ignore_merges)
    bpe = HFTokenizer(model)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if pre.nfc:
        bpe.normalizer = normalizers.NFC()
    return bpe


def _merges(gguf: GGUFFile, words: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges in order of rank, less those that take or make a piece that is no token.

    Such merges come to nothing, but the library would refuse the file or end in a Rust panic.
    """
    pairs: list[tuple[str, str]] = []
    for i, merge in enumerate(get_strings(gguf, _MERGES_KEY)):
        left, _, right = merge.partition(" ")
        if left in words and right in words and left + right in words:
            pairs.append((left, right))
        elif not (left and right):
            raise MetadataError(
                f"{gguf.path}: key '{_MERGES_KEY}': merge {i} is '{shown(merge)}', "
                f"expected two pieces with a space between"
            )
    return pairs
