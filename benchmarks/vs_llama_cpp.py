"""Draftsmith against llama.cpp: same machine, same threads, same files, same ggml, in turn.

    python benchmarks/vs_llama_cpp.py                          # everything; builds llama.cpp first (minutes)
    python benchmarks/vs_llama_cpp.py --types q8_0 --pairs 15 --llama-build BUILD_FOLDER

Both sides are processes that load the models once and then do one step at a time when told: ours, theirs,
ours, theirs. A ratio is ours / theirs of one such pair; the median over the pairs is printed, and below 1 we
are faster. On Linux a pair during which other processes used the machine's cores is measured again (--quiet),
so that a busy machine delays the result instead of spoiling it.

    pp, tg   prefill and decode; llama.cpp's side does what llama-bench does. "(tool)": llama-bench itself
             and `draftsmith bench`, whole processes in turn, the times that they report
    draft    one draft: upload, block through the drafter, choices back, rows removed. llama.cpp's side is its
             own speculative driver, with sampling in the graph (its default) and on the host; DFlash2 samples
             nothing, its host walks a lattice
    verify   the target's pass over the last token and a full draft, with a choice for every row
    inject   the features of those rows into the drafter's cache
    memory   peak resident memory of a fresh process behind a little of each
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llama_build import LlamaCpp, build_pinned, find
from make_models import BLOCK, TYPES, VARIANTS, write_pair

from draftsmith.bench import machine
from draftsmith.ggml.cache import cache_dir
from draftsmith.ggml.pin import load_pin

HERE = Path(__file__).parent
DEPTH = 64
STEPS = ("pp", "tg", "draft", "verify", "inject")


class Side:
    """One of the two processes."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def _expect(self, wanted: str) -> None:
        line = self._line()
        if line != wanted:
            raise SystemExit(f"{self._process.args!r}: {line or 'no answer'}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._line()
        if not answer or answer.startswith("error"):
            raise SystemExit(f"{self._process.args!r}: {command}: {answer or 'the process ended'}")
        return answer

    def time(self, command: str, times: int = 1) -> float:
        """Mean seconds of a command done a few times in a row."""
        return sum(int(self.ask(command)) for _ in range(times)) / times / 1e9

    def cpu_seconds(self) -> float:
        """Processor time that this process has used (Linux)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("quit\n")
        self._process.stdin.close()
        self._process.wait()


class Watch:
    """How much of the machine others used, from the kernel's own counts; nothing where there are none."""

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._start = (time.perf_counter(), self._busy(), own()) if self.available() else None

    @staticmethod
    def available() -> bool:
        return Path("/proc/stat").exists()

    @staticmethod
    def _busy() -> float:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    def foreign(self) -> float:
        """Cores that others kept busy since this was made."""
        if self._start is None:
            return 0.0
        wall, busy, own = time.perf_counter(), self._busy(), self._own()
        return max(0.0, (busy - self._start[1]) - (own - self._start[2])) / (wall - self._start[0])


@dataclass
class Row:
    """One line of the result. Seconds, or bytes for memory."""

    what: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    disturbed: int = 0

    @property
    def ratio(self) -> float:
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    def spread(self) -> tuple[float, float]:
        """The middle half of the ratios."""
        ratios = sorted(a / b for a, b in zip(self.ours, self.theirs, strict=True))
        return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


@dataclass(frozen=True)
class Settings:
    """What all measurements share."""

    pairs: int
    tools: int
    threads: int
    flash: bool
    kv_type: str
    quiet: float
    patience: float
    clock: str
    steps: tuple[str, ...]
    variants: tuple[str, ...]


def interleave(
    what: str, settings: Settings, pairs: int, ours: Callable[[], float], theirs: Callable[[], float],
    own_cpu: Callable[[], float],
) -> Row:  # fmt: skip
    """Measure in turn until enough pairs were undisturbed, or patience ends."""
    row = Row(what)
    spare: list[tuple[float, float, float]] = []
    deadline = time.monotonic() + settings.patience
    while len(row.ours) < pairs:
        watch = Watch(own_cpu)
        pair = (ours(), theirs())
        foreign = watch.foreign()
        if foreign <= settings.quiet or settings.clock == "cpu":
            row.ours.append(pair[0])
            row.theirs.append(pair[1])
        else:
            spare.append((foreign, *pair))
            time.sleep(0.5)
        if time.monotonic() > deadline:
            missing = max(0, pairs - len(row.ours))
            for _, a, b in sorted(spare)[:missing]:  # the least disturbed ones
                row.ours.append(a)
                row.theirs.append(b)
                row.disturbed += 1
            break
    return row


def compare_steps(kind: str, llama: LlamaCpp, settings: Settings) -> list[Row]:
    """Everything that two loaded processes do in turn; what does not depend on the drafter, with the first."""
    rows = compare_variant(kind, settings.variants[0], settings.steps, llama, settings)
    for variant in settings.variants[1:]:
        own = tuple(step for step in settings.steps if step in ("draft", "inject"))
        rows += compare_variant(kind, variant, own, llama, settings)
    return rows


def compare_variant(kind: str, variant: str, steps: tuple[str, ...], llama: LlamaCpp, settings: Settings) -> list[Row]:
    """The steps with one kind of drafter."""
    target, draft = models(kind, variant)
    rows: list[Row] = []
    ours, theirs = sides(llama, settings, target, draft)

    def run(what: str, command: str, times: int = 1, pairs: int = settings.pairs, peer: Side | None = None) -> None:
        if what.split()[0] not in steps:
            return
        shown = what if what.split()[0] in ("pp", "tg") else f"{variant} {what}"
        other = peer or theirs
        for side in (ours, other):
            side.time(command)  # warm up
        row = interleave(
            f"{kind} {shown}",
            settings,
            pairs,
            lambda: ours.time(command, times),
            lambda: other.time(command, times),
            lambda: ours.cpu_seconds() + other.cpu_seconds() + time.process_time(),
        )
        rows.append(row)
        show(row)

    run("pp 512", "prefill 512", pairs=max(3, settings.pairs // 3))
    run("tg 128", "decode 128", pairs=max(3, settings.pairs // 3))
    for side in (ours, theirs):
        side.ask(f"begin {DEPTH}")
    samples = variant != "dflash2"
    run(f"draft {BLOCK}" + (", sampling in llama.cpp's graph" if samples else ""), "draft", 4)
    run(f"verify {BLOCK}", "verify", 2)
    run(f"inject {BLOCK}", "inject", 2)
    theirs.close()
    if samples:
        on_host = Side(peer_command(llama, settings, target, draft, "host"))
        on_host.ask(f"begin {DEPTH}")
        run(f"draft {BLOCK}, sampling on llama.cpp's host", "draft", 4, peer=on_host)
        on_host.close()
    ours.close()
    return rows


def compare_memory(kind: str, llama: LlamaCpp, settings: Settings) -> list[Row]:
    """Peak resident memory of fresh processes: the target alone, then the pairs."""
    rows: list[Row] = []
    rounds = (f"begin {DEPTH}", "draft", "verify", "inject")
    for what, variant, commands in (
        ("memory, target", None, ("prefill 512", "decode 16")),
        *((f"memory, pair with {name}", name, rounds) for name in settings.variants),
    ):
        target, draft = models(kind, variant or "dflash")
        drafter = draft if variant else None
        found: list[float] = []
        for side in sides(llama, settings, target, drafter):
            for command in commands:
                side.ask(command)
            found.append(int(side.ask("rss")))
            side.close()
        rows.append(Row(f"{kind} {what}", [found[0]], [found[1]]))
        show(rows[-1])
    return rows


def compare_tools(kind: str, llama: LlamaCpp, settings: Settings) -> list[Row]:
    """`draftsmith bench` against llama-bench, whole processes in turn."""
    if not settings.tools:
        return []
    target, _ = models(kind, "dflash")
    common = [
        "-m",
        str(target),
        "-p",
        "512",
        "-n",
        "128",
        "-r",
        "1",
        "-t",
        str(settings.threads),
        "-o",
        "json",
    ]
    kv = settings.kv_type
    flash = "on" if settings.flash else "off"
    our_command = [
        sys.executable,
        "-m",
        "draftsmith",
        "bench",
        *common,
        "--no-draft",
        "-fa",
        flash,
        "--kv-type",
        kv,
    ]
    their_command = [str(llama.bench), *common, "-fa", str(int(settings.flash)), "-ctk", kv, "-ctv", kv]
    rows = [Row(f"{kind} pp 512 (tool)"), Row(f"{kind} tg 128 (tool)")]
    deadline = time.monotonic() + settings.patience
    done = 0
    while done < settings.tools:
        watch = Watch(lambda: time.process_time() + sum(os.times()[2:4]))
        ours = {r["n_tokens"]: r["median_s"] for r in json.loads(_output(our_command))["results"]}
        found = json.loads(_output(their_command))
        theirs = {r["n_prompt"] or r["n_gen"]: r["avg_ns"] / 1e9 for r in found}
        disturbed = watch.foreign() > settings.quiet
        if disturbed and time.monotonic() < deadline:
            continue
        done += 1
        for row, n in zip(rows, (512, 128), strict=True):
            row.ours.append(ours[n])
            row.theirs.append(theirs[n])
            row.disturbed += disturbed
    for row in rows:
        show(row)
    return rows


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def models(kind: str, variant: str) -> tuple[Path, Path]:
    return write_pair(cache_dir() / "benchmarks" / "models" / kind, kind, variant)


def sides(llama: LlamaCpp, settings: Settings, target: Path, draft: Path | None) -> tuple[Side, Side]:
    """Both processes, loaded."""
    ours = [sys.executable, HERE / "serve.py", *_options(settings, target, draft)]
    return Side(ours), Side(peer_command(llama, settings, target, draft, "graph"))


def peer_command(
    llama: LlamaCpp, settings: Settings, target: Path, draft: Path | None, sampler: str
) -> list[str | Path]:
    return [llama.peer(), *_options(settings, target, draft), "--sampler", sampler]


def _options(settings: Settings, target: Path, draft: Path | None) -> list[str | Path]:
    options: list[str | Path] = ["--model", target, "--threads", str(settings.threads), "--ctx", "1024"]
    options += ["--clock", settings.clock, "--flash", str(int(settings.flash)), "--kv-type", settings.kv_type]
    options += ["--block", str(BLOCK)]
    return options + (["--draft", draft] if draft else [])


def show(row: Row) -> None:
    print(line(row), file=sys.stderr, flush=True)


def line(row: Row) -> str:
    """A row of the Markdown table."""
    low, high = row.spread()
    memory = "memory" in row.what
    scale = 2**20 if memory else 1e-3
    unit = "MiB" if memory else "ms"
    ours, theirs = (statistics.median(side) / scale for side in (row.ours, row.theirs))
    pairs = f"{len(row.ours)}" + (f" ({row.disturbed} disturbed)" if row.disturbed else "")
    times = f"{ours:.2f} {unit} | {theirs:.2f} {unit}"
    return f"| {row.what} | {times} | {row.ratio:.3f} | {low:.3f} to {high:.3f} | {pairs} |"


def heading(settings: Settings) -> str:
    m = machine()
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['system']}; {settings.threads} threads, flash attention "
        f"{'on' if settings.flash else 'off'}, cache {settings.kv_type}; {settings.clock} time; "
        f"both sides from {load_pin().id}; rounds behind {DEPTH} tokens\n\n"
        "| what | ours | llama.cpp | ours / theirs | middle half | pairs |\n"
        "|------|-----:|----------:|--------------:|-------------|------:|"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), help=f"types of the weights (default: {','.join(TYPES)})")
    parser.add_argument(
        "--variants", default=",".join(VARIANTS), help=f"kinds of drafter (default: {','.join(VARIANTS)})"
    )
    parser.add_argument("--pairs", type=int, default=15, help="undisturbed pairs of each step (default: 15)")
    parser.add_argument("--tools", type=int, default=3, help="pairs of whole tools; 0: none (default: 3)")
    parser.add_argument("--threads", type=int, default=machine()["cores"], help="of both sides (default: all cores)")
    parser.add_argument("--flash", choices=("on", "off"), default="on", help="flash attention (default: on)")
    parser.add_argument("--kv-type", default="f16", help="type of the caches (default: f16)")
    parser.add_argument(
        "--quiet", type=float, default=0.1, help="cores that others may use during a pair (default: 0.1)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=120,
        help="seconds to wait for undisturbed pairs of one step (default: 120)",
    )
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: processor time of steps, which a busy machine disturbs less; for --threads 1",
    )  # fmt: skip
    parser.add_argument("--steps", default=",".join(STEPS), help=f"which steps (default: {','.join(STEPS)})")
    parser.add_argument("--only", choices=("steps", "memory", "tools"), help="measure only these")
    parser.add_argument("--llama-build", type=Path, help="a llama.cpp build folder to use instead of building one")
    given = parser.parse_args()
    settings = Settings(
        given.pairs,
        given.tools,
        given.threads,
        given.flash == "on",
        given.kv_type,
        given.quiet,
        given.patience,
        given.clock,
        tuple(given.steps.split(",")),
        tuple(given.variants.split(",")),
    )
    llama = find(given.llama_build) if given.llama_build else build_pinned()
    parts = {"steps": compare_steps, "memory": compare_memory, "tools": compare_tools}
    rows: list[Row] = []
    for kind in given.types.split(","):
        for name, part in parts.items():
            if given.only in (None, name):
                rows += part(kind, llama, settings)
    print(heading(settings))
    print("\n".join(line(row) for row in rows))


if __name__ == "__main__":
    main()
