"""How long the parts of inference take: prefill, decode, and the draft, verify and inject steps of a round.

Tokens are random, so figures say nothing about acceptance. Every figure is wall time around what a caller of
:class:`~draftsmith.context.Context` waits for: host inputs, upload, graph, results back. Each measurement is
warmed up once, which also builds its graphs; counters tell whether one was built again while time was taken.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from draftsmith.dsl.errors import RequestError

from .batch import Batch
from .context import Context
from .session import Session
from .speculative import Sequence_, Speculator


@dataclass(frozen=True)
class Plan:
    """What to measure.

    ``blocks``: rows of a draft with its anchor; empty: the drafter's own. ``depth``: tokens in the caches
    before a round.
    """

    prefill: tuple[int, ...] = (512,)
    decode: tuple[int, ...] = (128,)
    blocks: tuple[int, ...] = ()
    depth: int = 64
    repetitions: int = 5

    def n_ctx(self, block: int) -> int:
        """The context that the longest measurement needs. ``block``: rows of the drafter's own block."""
        return max([*self.prefill, *self.decode, self.depth + max(self.blocks, default=block)])


@dataclass(frozen=True)
class Measurement:
    """One line of a report.

    ``n_tokens``: rows that one repetition computes. ``runs``, ``builds``: graphs run and built over all.
    """

    name: str
    n_tokens: int
    seconds: tuple[float, ...]
    runs: int
    builds: int
    host_seconds: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.median

    @property
    def host_us_per_run(self) -> float:
        """Time outside of the runtime's upload and compute, for each graph that was run."""
        return 1e6 * self.host_seconds / self.runs if self.runs else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n_tokens": self.n_tokens,
            "median_s": self.median,
            "min_s": min(self.seconds),
            "max_s": max(self.seconds),
            "samples_s": list(self.seconds),
            "tokens_per_second": self.tokens_per_second,
            "graph_runs": self.runs,
            "graph_builds": self.builds,
            "host_us_per_run": self.host_us_per_run,
        }


class Bench:
    """The measurements over one session. Each method does one repetition and returns seconds."""

    def __init__(
        self, session: Session, seed: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.session = session
        self._clock = clock
        self.target = session.target
        self.draft_context = session.draft
        self._rng = np.random.default_rng(seed)
        self._n_vocab = int(self.target.bound.hparam("n_vocab"))
        self._depth = 0
        self._loops: dict[int, Speculator] = {}

    def contexts(self) -> list[Context]:
        return [c for c in (self.target, self.draft_context) if c is not None]

    @property
    def own_block(self) -> int:
        """Rows of a full draft; 0 without a drafter."""
        pairing = self.session.pairing
        return pairing.block_tokens(pairing.max_draft) if pairing is not None else 0

    def prefill(self, n: int) -> float:
        """A prompt of ``n`` tokens into an empty cache; the choice behind the last one."""
        self.target.clear()
        tokens = self._tokens(n)
        loop = Speculator(self.target)
        start = self._clock()
        loop.prefill(tokens)
        return self._clock() - start

    def decode(self, n: int) -> float:
        """``n`` tokens one by one into an empty cache; the choice behind each."""
        self.target.clear()
        tokens = self._tokens(n)
        start = self._clock()
        for pos in range(n):
            self.target.run("decode", Batch.of_tokens(tokens[pos : pos + 1], pos), ("argmax",))
        return self._clock() - start

    def begin(self, depth: int) -> None:
        """Put a prompt into both caches; rounds start behind it."""
        self.session.clear()
        self._loop(self.own_block).prefill(self._tokens(depth))
        self._depth = depth

    def draft(self, block: int) -> float:
        """A draft of ``block`` rows: upload, block through the drafter, choices back, rows removed again."""
        loop = self._loop(block)
        sequence = Sequence_(0, self._depth, self._tokens(1)[0])
        start = self._clock()
        drafts = loop.propose([sequence])
        seconds = self._clock() - start
        if len(drafts[0]) != loop.n_max:
            raise RequestError(
                f"a block of {block} rows gave {len(drafts[0])} drafts instead of {loop.n_max}"
            )
        return seconds

    def verify(self, block: int) -> float:
        """The last token and a full draft through the target: choices and features of every row."""
        return self._verify_and_inject(block)[0]

    def inject(self, block: int) -> float:
        """The features of as many rows into the drafter's cache."""
        return self._verify_and_inject(block)[1]

    def _verify_and_inject(self, block: int) -> tuple[float, float]:
        loop = self._loop(block)
        tokens = self._tokens(loop.n_max + 1)
        start = self._clock()
        batch = Batch.of_tokens(tokens, self._depth)
        results = self.target.run("decode", batch, ("argmax",), taps=loop.taps)
        self.target.remove(0, self._depth)
        between = self._clock()
        loop.inject(batch, results)
        assert self.draft_context is not None
        self.draft_context.remove(0, self._depth)
        return between - start, self._clock() - between

    def _loop(self, block: int) -> Speculator:
        """The speculative loop for blocks of so many rows."""
        if block not in self._loops:
            pairing = self.session.pairing
            if pairing is None:
                raise RequestError("there is no drafter to measure (give one with --draft)")
            if not pairing.first_row < block <= self.own_block:
                least = pairing.first_row + 1
                raise RequestError(f"a block of {block} rows; this drafter's has {least} to {self.own_block}")
            self._loops[block] = Speculator(
                self.target, self.draft_context, pairing, block - pairing.first_row
            )
        return self._loops[block]

    def _tokens(self, n: int) -> list[int]:
        found: list[int] = self._rng.integers(0, self._n_vocab, n).tolist()
        return found

    # -- whole reports -------------------------------------------------------------------------------------
    def measurements(self, plan: Plan) -> Iterator[Measurement]:
        """Everything of a plan, one after the other."""
        for n in plan.prefill:
            yield self._measure(f"pp{n}", n, partial(self.prefill, n), plan.repetitions)
        for n in plan.decode:
            yield self._measure(f"tg{n}", n, partial(self.decode, n), plan.repetitions)
        if self.draft_context is None:
            if plan.blocks:
                raise RequestError("block sizes are for a drafter, and there is none (give one with --draft)")
            return
        for block in plan.blocks or (self.own_block,):
            for name, step in (("draft", self.draft), ("verify", self.verify), ("inject", self.inject)):
                self._loop(block)
                self.begin(plan.depth)
                yield self._measure(f"{name}{block}", block, partial(step, block), plan.repetitions)

    def _measure(self, name: str, n_tokens: int, step: Callable[[], float], repetitions: int) -> Measurement:
        step()  # builds the graphs, brings weights into the caches of the CPU
        before = self._counters()
        seconds: list[float] = []
        start = time.perf_counter()
        for _ in range(repetitions):
            seconds.append(step())
        wall = time.perf_counter() - start
        runs, builds, inside = (b - a for a, b in zip(before, self._counters(), strict=True))
        return Measurement(name, n_tokens, tuple(seconds), runs, builds, max(wall - inside / 1e6, 0.0))

    def _counters(self) -> tuple[int, int, int]:
        """Graphs run, graphs built, microseconds spent in the runtime for both."""
        found = [c.stats() for c in self.contexts()]
        return (
            sum(s.n_runs for s in found),
            sum(s.n_builds for s in found),
            sum(s.compute_us + s.build_us for s in found),
        )

    def memory(self) -> dict[str, Any]:
        """Bytes: weights by kind of memory, caches, compute buffers, and the process's peak."""
        models = [self.session.model, *([self.session.draft_model] if self.session.draft_model else [])]
        weights: dict[str, int] = {}
        for model in models:
            for kind, n_bytes in model.weights.report().items():
                weights[kind] = weights.get(kind, 0) + n_bytes
        stats = [c.stats() for c in self.contexts()]
        return {
            "weights": weights,
            "state": sum(s.state_bytes for s in stats),
            "compute": sum(s.compute_bytes for s in stats),
            "peak_rss": peak_rss(),
        }


def report(
    session: Session, plan: Plan, watch: Callable[[Measurement], None] = lambda m: None
) -> dict[str, Any]:
    """All measurements of a plan as data; ``watch`` sees each as soon as it is done."""
    from draftsmith import ggml

    bench = Bench(session)
    results: list[Measurement] = []
    for measurement in bench.measurements(plan):
        results.append(measurement)
        watch(measurement)
    install = ggml.ensure()
    options = session.target.options
    return {
        "machine": machine(),
        "ggml": {"version": install.version, "source": install.pin, "backends": list(install.backends)},
        "settings": {
            "model": session.model.path.name,
            "draft": session.draft_model.path.name if session.draft_model else None,
            "threads": session.model.backends.n_threads,
            "n_ctx": options.n_ctx,
            "n_ubatch": options.n_ubatch,
            "flash_attn": options.flash_attn,
            "type_k": options.type_k.name,
            "type_v": options.type_v.name,
            "depth": plan.depth,
            "repetitions": plan.repetitions,
        },
        "results": [m.as_dict() for m in results],
        "memory": bench.memory(),
    }


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_rss() -> int:
    """The most memory that this process had resident, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def markdown(found: dict[str, Any]) -> str:
    """A report as Markdown: what ran where, the times, the memory."""
    s, m, g = found["settings"], found["machine"], found["ggml"]
    pair = s["model"] + (f" with {s['draft']}" if s["draft"] else "")
    head = (
        f"{pair}; {m['cpu']}, {s['threads']} threads; ggml {g['version']} ({', '.join(g['backends'])}); "
        f"flash attention {'on' if s['flash_attn'] else 'off'}, cache {s['type_k']}/{s['type_v']}, "
        f"{s['repetitions']} repetitions, rounds behind {s['depth']} tokens"
    )
    rows = [
        (
            r["name"], f"{1e3 * r['median_s']:.2f}", f"{1e3 * r['min_s']:.2f}", f"{1e3 * r['max_s']:.2f}",
            f"{r['tokens_per_second']:.1f}", f"{r['host_us_per_run']:.0f}", str(r["graph_runs"]),
            str(r["graph_builds"]),
        )
        for r in found["results"]
    ]  # fmt: skip
    memory = found["memory"]
    sizes = [*((f"weights, {kind}", n) for kind, n in memory["weights"].items()), ("caches", memory["state"])]
    sizes += [("compute buffers", memory["compute"]), ("process, peak", memory["peak_rss"])]
    header = ("what", "median ms", "min ms", "max ms", "tokens/s", "host µs a run", "graph runs", "builds")
    return "\n\n".join(
        [head, _table(header, rows), _table(("memory", "MiB"), [(n, f"{v / 2**20:.1f}") for n, v in sizes])]
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in others)]) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])]) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
