"""Draftsmith's side of vs_llama_cpp.py: the line protocol of peer.cpp over :class:`draftsmith.bench.Bench`.

One command a line on standard input, one answer a line on standard output: nanoseconds, or ``error: ...``.
"""

from __future__ import annotations

import argparse
import sys
import time

from draftsmith.bench import Bench, peak_rss
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import DraftsmithError
from draftsmith.session import Session


def answer(bench: Bench, block: int, line: str) -> str:
    """Run one command."""
    what, _, number = line.partition(" ")
    if what == "rss":
        return str(peak_rss())
    if what == "reused":
        stats = [c.stats() for c in bench.contexts()]
        return " ".join(str(s.n_runs - s.n_builds) for s in stats)
    if what == "begin":
        bench.begin(int(number))
        return "0"
    if what in ("prefill", "decode"):
        return str(round(1e9 * getattr(bench, what)(int(number))))
    if what in ("draft", "verify", "inject"):
        return str(round(1e9 * getattr(bench, what)(block)))
    raise ValueError(f"unknown command: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=0)
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--flash", type=int, default=1)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args()
    kind = GGMLType[given.kv_type]
    try:
        session = Session(
            given.model, given.draft, threads=given.threads, n_ctx=given.ctx, flash_attn=bool(given.flash),
            type_k=kind, type_v=kind,
        )  # fmt: skip
    except DraftsmithError as error:
        print(f"error: {error}", flush=True)
        sys.exit(1)
    bench = Bench(session, clock=time.process_time if given.clock == "cpu" else time.perf_counter)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        if line.strip() == "quit":
            break
        try:
            print(answer(bench, given.block, line.strip()), flush=True)
        except (DraftsmithError, ValueError) as error:
            print(f"error: {error}", flush=True)


if __name__ == "__main__":
    main()
