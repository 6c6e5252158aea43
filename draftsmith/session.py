"""What most users need: a target, perhaps a drafter, text in and text out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from draftsmith.codegen.native import Backends
from draftsmith.dsl.errors import ContractError, RequestError
from draftsmith.gguf_file import GGUFFile
from draftsmith.tokenizer import Tokenizer, load_tokenizer

from .context import Context, ContextOptions
from .model import Model
from .pairing import Pairing, pair
from .sampling import SamplingOptions
from .speculative import Sequence_, Speculator, Statistics, Timing

Progress = Callable[[int, int], "bool | None"]


@dataclass(frozen=True)
class Conditions:
    """What acceptance depends on; without these a report would be no more than a number."""

    target: str = ""
    draft: str | None = None
    prompt: str = "token ids"
    sampling: str = "temperature 0 (greedy)"
    n_max: int = 0
    n_min: int = 0
    p_min: float = 0.0


@dataclass
class Report:
    """What a generation did. ``seconds`` is wall time from the first prompt token to the last emitted one."""

    conditions: Conditions = field(default_factory=Conditions)
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stop: str = "length"
    timing: Timing = field(default_factory=Timing)
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def decode_seconds(self) -> float:
        return max(self.seconds - self.timing.prefill, 0.0)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens behind the first over the time behind the prompt."""
        return max(len(self.tokens) - 1, 0) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def host_seconds(self) -> float:
        """Time in none of draft, verify, inject and prefill."""
        t = self.timing
        return max(self.seconds - t.prefill - t.draft - t.verify - t.inject, 0.0)

    def _repr_html_(self) -> str:
        from .report_html import render

        return render(self)


class Session:
    """A target with an optional drafter.

    >>> session = Session("target.gguf", draft="draft.gguf")          # doctest: +SKIP
    >>> print(session.complete("def main", n_predict=64))             # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model,
        draft: str | os.PathLike[str] | Model | None = None,
        *,
        options: ContextOptions | None = None,
        threads: int = 0,
        devices: Sequence[str] = (),
        n_max: int | None = None,
        n_min: int = 0,
        p_min: float = 0.0,
        sampling: SamplingOptions | None = None,
        use_mmap: bool = True,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        """``settings`` are fields of ContextOptions (n_ctx, type_k, flash_attn, ...)."""
        options = replace(options or ContextOptions(), **settings)
        if isinstance(model, Model):
            self.model = model
        else:
            file = GGUFFile.open(model)
            self.model = Model.load(file, Backends(devices, threads), None, use_mmap, progress)
        self.draft_model: Model | None = None
        self.pairing: Pairing | None = None
        if draft is not None:
            self.draft_model = (
                draft
                if isinstance(draft, Model)
                else Model.load(draft, self.model.backends, self.model, use_mmap, progress)
            )
            self.pairing = pair(self.model, self.draft_model)
        elif self.model.cls.contract is not None:
            raise ContractError(
                f"{self.model.path}: {self.model.cls.variant} is a drafter; give it a target "
                "(--model TARGET --draft FILE)"
            )
        self._tokenizer: Tokenizer | None = None
        tap_last = self.pairing is not None and self.model.bound().n_layer in self.pairing.layers
        self.target = Context(self.model, replace(options, tap_last=tap_last))
        self.draft: Context | None = None
        if self.draft_model is not None:
            self.draft = Context(self.draft_model, replace(options, n_ctx=self.target.options.n_ctx))
        self.n_max, self.n_min, self.p_min = n_max, n_min, p_min
        self.sampling = sampling or SamplingOptions()
        self.report = Report()

    @property
    def tokenizer(self) -> Tokenizer:
        """Made on first use."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.model.file)
        return self._tokenizer

    def speculator(self) -> Speculator:
        """A fresh loop over this session's contexts (which keep what they hold)."""
        return Speculator(self.target, self.draft, self.pairing, self.n_max, self.n_min, self.p_min, self.sampling)

    def clear(self) -> None:
        """Forget all sequences; the next request is as on a fresh session."""
        self.target.clear()
        if self.draft is not None:
            self.draft.clear()

    def generate_tokens(
        self,
        prompt: Sequence[int],
        n_predict: int = 128,
        stop_tokens: Sequence[int] = (),
        from_prompt: bool = False,
        prompt_kind: str = "token ids",
    ) -> Iterator[int]:
        """Continuation of a prompt, token by token. ``report`` is complete when the iterator ends.

        ``prompt_kind`` names the prompt in the report ("code", "chat"): acceptance depends on it.

        ``from_prompt``: draft already from the prompt's last token instead of from the first generated one, as
        llama.cpp's speculative example does.
        """
        if not len(prompt):
            raise RequestError("the prompt is empty: there is no token to continue")
        if n_predict < 1:
            raise RequestError(f"n_predict must be positive, found {n_predict}")
        n_ctx = self.target.options.n_ctx
        if len(prompt) + 1 > n_ctx:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, the context {n_ctx} (raise --ctx or shorten the prompt)"
            )
        self.clear()
        loop = self.speculator()
        report = self.report = Report(
            self._conditions(loop, prompt_kind), len(prompt), timing=loop.timing, statistics=loop.statistics
        )
        start = time.perf_counter()
        stops = frozenset(stop_tokens)
        sequence, pending = self._begin(loop, prompt, from_prompt)
        while True:
            for token in pending:
                report.tokens.append(token)
                report.seconds = time.perf_counter() - start
                yield token
                if token in stops:
                    report.stop = "stop"
                    return
                if len(report.tokens) == n_predict:
                    return
            if sequence.n_past >= n_ctx:
                report.stop = "context"
                return
            # llama.cpp cuts drafts to what is left to say; otherwise the last round counts in full, so that the mean
            # accepted length is that of whole rounds
            limits = [n_predict - len(report.tokens) - 1 or loop.n_max] if from_prompt else None
            pending = list(loop.step([sequence], limits)[0].tokens)
            report.seconds = time.perf_counter() - start

    def _conditions(self, loop: Speculator, prompt_kind: str) -> Conditions:
        draft = self.draft_model.title if self.draft_model is not None else None
        return Conditions(
            self.model.title,
            draft,
            prompt_kind,
            str(self.sampling),
            n_max=loop.n_max,
            n_min=loop.n_min,
            p_min=loop.p_min,
        )

    def _begin(self, loop: Speculator, prompt: Sequence[int], from_prompt: bool) -> tuple[Sequence_, list[int]]:
        if from_prompt:
            loop.prefill(prompt[:-1], want_next=False)
            return Sequence_(0, len(prompt) - 1, int(prompt[-1])), []
        first = loop.prefill(prompt)
        assert first is not None
        return Sequence_(0, len(prompt), first), [first]

    def generate(
        self,
        prompt: str,
        n_predict: int = 128,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        prompt_kind: str = "plain text",
    ) -> Iterator[str]:
        """Continuation of a text, piece by piece; stops at end-of-generation tokens and at ``stop`` texts."""
        ids = self.tokenizer.encode(prompt)
        if not ids:
            raise RequestError("the prompt is empty: there is no token to continue")
        stream = self.tokenizer.stream()
        eog = frozenset() if ignore_eos else self.tokenizer.eog_ids
        held = ""
        for token in self.generate_tokens(ids, n_predict, tuple(eog), prompt_kind=prompt_kind):
            if token in eog:
                break
            held += stream.push(token)
            found = [at for s in stop if (at := held.find(s)) >= 0]
            if found:
                self.report.stop = "stop"
                yield held[: min(found)]
                return
            keep = max((_overlap(held, s) for s in stop), default=0)
            if len(held) > keep:
                yield held[: len(held) - keep]
                held = held[len(held) - keep :]
        held += stream.flush()
        if held:
            yield held

    def complete(self, prompt: str, n_predict: int = 128, stop: Sequence[str] = ()) -> str:
        """The whole continuation at once."""
        return "".join(self.generate(prompt, n_predict, stop))

    def close(self) -> None:
        """Give the contexts back; models may be in use elsewhere and go when nothing holds them."""
        for context in (self.draft, self.target):
            if context is not None:
                context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        draft = f", draft={self.draft_model.title!r}" if self.draft_model is not None else ""
        return f"Session({self.model.title!r}{draft}, n_ctx={self.target.options.n_ctx})"


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


def default_pair() -> tuple[Path, Path]:
    """The embedded target and drafter."""
    folder = Path(__file__).resolve().parent / "data"
    return folder / "tiny-qwen3-f16.gguf", folder / "tiny-qwen3-dflash-f16.gguf"
