"""``draftsmith bench``: time prefill, decode and the steps of a draft round."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from .loading import open_session
from .options import (
    OUTPUT,
    PROMPT,
    GroupedCommand,
    GroupedOption,
    SessionSettings,
    session_options,
    verbose_option,
)

if TYPE_CHECKING:
    from draftsmith.bench import Measurement


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Positive numbers with commas between them; "0" or nothing: none."""
    try:
        sizes = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        sizes = (-1,)
    if any(n < 0 for n in sizes):
        raise click.BadParameter(f"{value!r} is not a list of sizes such as 128,512", ctx, param)
    return tuple(n for n in sizes if n)


@click.command("bench", cls=GroupedCommand)
@click.option(
    "-p",
    "--n-prompt",
    "prefill",
    metavar="N,...",
    callback=_sizes,
    default="512",
    show_default=True,
    cls=GroupedOption,
    group=PROMPT,
    help="Lengths of prompts to prefill; 0: none.",
)
@click.option(
    "-n",
    "--n-gen",
    "decode",
    metavar="N,...",
    callback=_sizes,
    default="128",
    show_default=True,
    cls=GroupedOption,
    group=PROMPT,
    help="How many tokens to decode one by one; 0: none.",
)
@click.option(
    "-b",
    "--block",
    "blocks",
    metavar="N,...",
    callback=_sizes,
    default="",
    cls=GroupedOption,
    group=PROMPT,
    help="Rows of the drafts to measure.  [default: the drafter's block]",
)
@click.option(
    "-d",
    "--depth",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    cls=GroupedOption,
    group=PROMPT,
    help="Tokens in the caches before a round.",
)
@click.option(
    "-r",
    "--repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    cls=GroupedOption,
    group=PROMPT,
    help="How often each is measured.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["md", "json"]),
    default="md",
    show_default=True,
    cls=GroupedOption,
    group=OUTPUT,
    help="Markdown for people, JSON for programs.",
)
@session_options
@verbose_option
def bench(
    settings: SessionSettings,
    prefill: tuple[int, ...],
    decode: tuple[int, ...],
    blocks: tuple[int, ...],
    depth: int,
    repetitions: int,
    output: str,
) -> None:
    """Time prefill, decode and the steps of a draft round.

    Tokens are random: speed and memory are what is measured, not acceptance. The context is as large as the
    longest measurement unless --ctx says otherwise.
    """
    from draftsmith.bench import Plan, markdown, report

    plan = Plan(prefill, decode, blocks, depth, repetitions)
    if not settings.n_ctx:
        settings = replace(settings, n_ctx=plan.n_ctx(_LARGEST_BLOCK))
    session = open_session(settings)
    try:
        found = report(session, plan, _show if sys.stderr.isatty() else lambda m: None)
    finally:
        session.close()
    click.echo(json.dumps(found, indent=2) if output == "json" else markdown(found))


_LARGEST_BLOCK = 64
"""Room for the block of a drafter that is not loaded yet."""


def _show(m: Measurement) -> None:
    click.echo(f"{m.name}: {1e3 * m.median:.2f} ms, {m.tokens_per_second:.1f} tokens/s", err=True)
