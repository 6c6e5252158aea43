"""``draftsmith check``: native results against NumPy, node by node."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .options import OUTPUT, CacheSettings, GroupedCommand, GroupedOption, cache_options

if TYPE_CHECKING:
    from draftsmith.check import Comparison


@click.command("check", cls=GroupedCommand)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--target", metavar="FILE", help="For a drafter: the target that lends it embeddings and head.")
@click.option("--arch", multiple=True, metavar="FILE.py", help="A Python file with architectures of your own.")
@click.option("-n", "--n-tokens", type=click.IntRange(min=1, max=256), default=9, show_default=True, metavar="N",
              help="Rows of the first batch of each graph.")
@click.option("-s", "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="Of the random tokens and features.")
@click.option("--tolerance", type=click.FloatRange(min=0), metavar="NMSE",
              help="Largest squared difference over squares; default: what the element types explain.")
@click.option("-t", "--threads", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
              help="Threads of the CPU.")
@cache_options
@click.option("--all", "show_all", is_flag=True, cls=GroupedOption, group=OUTPUT, help="Print every comparison.")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group=OUTPUT, help="Print all comparisons as JSON.")
def check(
    file: str | None,
    target: str | None,
    arch: tuple[str, ...],
    n_tokens: int,
    seed: int,
    tolerance: float | None,
    threads: int,
    cache: CacheSettings,
    show_all: bool,
    as_json: bool,
) -> None:
    """Compare native results with NumPy, node by node.

    Every graph of the model runs on random input, compiled and in the interpreter, and every named value is compared.
    Prints the first that differs with both values; the exit code is then 1. Without FILE the embedded drafter is
    checked.
    """
    from draftsmith.check import check_model
    from draftsmith.codegen.native import Backends
    from draftsmith.context import Context, ContextOptions
    from draftsmith.model import Model
    from draftsmith.session import default_pair

    from .loading import load_architectures

    load_architectures(arch)
    if file is None:
        own_target, own_draft = default_pair()
        file, target = str(own_draft), target or str(own_target)
    backends = Backends((), threads)
    lender = Model.load(target, backends) if target else None
    model = Model.load(file, backends, lender)
    options = ContextOptions(n_ctx=max(512, 4 * n_tokens), **cache.chosen())
    found = list(check_model(Context(model, options), n_tokens, seed, tolerance))
    wrong = next((c for c in found if not c.ok), None)
    if as_json:
        click.echo(json.dumps([{**asdict(c), "ok": c.ok} for c in found], indent=2))
    else:
        _print(found, wrong, show_all)
    sys.exit(1 if wrong else 0)


def _print(found: list[Comparison], wrong: Comparison | None, show_all: bool) -> None:
    if show_all:
        for c in found:
            mark = "ok  " if c.ok else "DIFF"
            click.echo(f"{mark} {c.graph}/{c.name:32} {c.op:16} nmse {c.nmse:.1e}  max {c.max_abs:.2e}  {c.where}")
    worst = max(found, key=lambda c: c.nmse)
    click.echo(
        f"{len(found)} values compared, worst nmse {worst.nmse:.1e} at {worst.graph}/{worst.name} "
        f"(tolerance {worst.tolerance:.0e})"
    )
    if wrong is None:
        click.echo("native and NumPy agree")
        return
    at = ", ".join(map(str, wrong.worst))
    click.echo(
        f"first difference: {wrong.graph}/{wrong.name} = {wrong.op} {list(wrong.shape)} [{wrong.where}]\n"
        f"  nmse {wrong.nmse:.2e}, largest at [{at}]: native {wrong.native!r}, NumPy {wrong.numpy!r}"
    )
