"""The tokenizer of models that have no text: tokens are written by name."""

from __future__ import annotations

from draftsmith.dsl.errors import RequestError
from draftsmith.gguf_file import shown
from draftsmith.tokenizer.base import Tokenizer
from draftsmith.tokenizer.vocab import Vocab


class NamesTokenizer(Tokenizer):
    """Text is a list of token names with white space between (``tok_3 tok_17``)."""

    def __init__(self, vocab: Vocab, model: str) -> None:
        super().__init__(vocab)
        self._model = model

    def piece(self, id: int) -> bytes:
        return self.vocab.tokens[self._checked(id)].encode() + b" "

    def _encode_text(self, text: str, parse_special: bool) -> list[int]:
        return [self._id(name) for name in text.split()]

    def _id(self, name: str) -> int:
        id = self.vocab.index.get(name)
        if id is None:
            tokens = self.vocab.tokens or ["(none)"]
            raise RequestError(
                f"{self.vocab.path}: the model has no text tokenizer (tokenizer.ggml.model = {self._model}), "
                f"expected names such as '{shown(f'{tokens[0]} {tokens[-1]}')}', "
                f"found '{shown(name)}'"
            )
        return id
