"""``draftsmith demo``: the embedded pair, with and without its drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import verbose_option

if TYPE_CHECKING:
    from pathlib import Path

    from draftsmith.context import Context
    from draftsmith.session import Session

PROMPT = "import os"


@click.command("demo")
@click.option("-n", "--n-predict", type=click.IntRange(min=1), default=96, show_default=True, metavar="N",
              help="Tokens to generate.")
@click.option("-t", "--threads", type=click.IntRange(min=0), default=0, metavar="N", help="Threads of the CPU.")
@verbose_option
@click.pass_context
def demo(ctx: click.Context, n_predict: int, threads: int) -> None:
    """Run the embedded target and drafter and show what the drafter gains.

    Generates the same text with and without the drafter, checks that they are equal, and says where the generated C++
    lies. Needs no file; the first run builds ggml and compiles what was generated. The models are tiny: the figures
    show that everything works, not what a drafter of full size gains.
    """
    from .failure import complain
    from .table import pairs

    with _open(threads) as session:
        texts, speeds, statistics = _both(session, n_predict)
        click.echo(f"{click.style(PROMPT, bold=True)}{texts[0]}\n")
        click.echo(pairs(statistics) + "\n")
        contexts = {"target": session.target, "drafter": session.draft}
        click.echo(pairs([
            ("with drafter", f"{speeds[0]:.1f} tokens/s"),
            ("without", f"{speeds[1]:.1f} tokens/s"),
            ("same text", "yes" if texts[0] == texts[1] else "NO"),
            *((f"{name}'s C++", str(source_path(context))) for name, context in contexts.items() if context),
        ]))  # fmt: skip
    if texts[0] != texts[1]:
        complain("the texts with and without the drafter differ: a fault in Draftsmith, please report it")
        ctx.exit(1)


def _open(threads: int) -> Session:
    from draftsmith.session import Session, default_pair

    from .loading import choose_log_level, loading_display

    choose_log_level()
    with loading_display(True) as progress:
        return Session(*default_pair(), threads=threads, n_ctx=1024, progress=progress)


def _both(session: Session, n_predict: int) -> tuple[list[str], list[float], list[tuple[str, str]]]:
    """Texts and speeds with and without the drafter, and the rows of the statistics with it."""
    from draftsmith.reporting import rows
    from draftsmith.session import Session

    texts, speeds = [], []
    with Session(session.model, n_ctx=1024) as alone:
        for each in (session, alone):
            each.complete(PROMPT, 8)  # so that building graphs is not in the figures
            texts.append("".join(each.generate(PROMPT, n_predict, ignore_eos=True, prompt_kind="Python source")))
            speeds.append(each.report.tokens_per_second)
    return texts, speeds, rows(session.report)


def source_path(context: Context) -> Path:
    """The generated source of a context, where it was compiled."""
    from draftsmith.codegen.runtime_lib import build_architecture

    name = f"{context.source.name}.cpp"
    return build_architecture(context.source.name, {name: context.source.text}).parent / name
