"""``draftsmith generate``: text in, text out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .options import (
    OUTPUT,
    PROMPT,
    SAMPLING,
    GroupedCommand,
    GroupedOption,
    SessionSettings,
    is_verbose,
    session_options,
    verbose_option,
)

F = TypeVar("F", bound=Callable[..., Any])


def _option(*names: str, group: str, **kwargs: Any) -> Callable[[F], F]:
    return click.option(*names, cls=GroupedOption, group=group, **kwargs)


@click.command("generate", cls=GroupedCommand)
@_option("-p", "--prompt", metavar="TEXT", group=PROMPT, help="The text to continue, as it is (no chat template).")
@_option(
    "-f",
    "--file",
    metavar="FILE",
    group=PROMPT,
    help="Read the prompt from a file, - is standard input; a line feed at its end is dropped.",
)
@_option(
    "-n",
    "--n-predict",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    metavar="N",
    group=PROMPT,
    help="Most tokens to generate.",
)
@_option("--stop", multiple=True, metavar="TEXT", group=PROMPT, help="End before this text; may be repeated.")
@_option("--ignore-eos", is_flag=True, group=PROMPT, help="Go on behind the tokens that end a text.")
@_option(
    "--temp",
    "--temperature",
    "temperature",
    type=float,
    default=0.0,
    show_default=True,
    metavar="T",
    group=SAMPLING,
    help="0: greedy, the most likely token each time.",
)
@_option(
    "--top-k",
    type=int,
    metavar="K",
    group=SAMPLING,
    show_default="40",
    help="Sample from the K most likely tokens; 0: from all.",
)
@_option(
    "--top-p",
    type=float,
    metavar="P",
    group=SAMPLING,
    show_default="0.95",
    help="Sample from the most likely tokens that make up P; 1: from all.",
)
@_option(
    "--min-p",
    type=float,
    metavar="P",
    group=SAMPLING,
    show_default="0.05",
    help="Sample from tokens at least P times as likely as the best; 0: from all.",
)
@_option(
    "-s",
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    group=SAMPLING,
    show_default="random",
    help="Equal seeds give equal texts.",
)
@_option(
    "--accept",
    "acceptance",
    type=click.Choice(["match", "reject"]),
    group=SAMPLING,
    show_default="match",
    help="How drafts are accepted; both keep the target's distribution. match: as llama.cpp; reject: drafts are drawn "
    "from the drafter's distribution, and more of them hold.",
)
@_option(
    "--stats/--no-stats", default=None, group=OUTPUT, show_default="stats", help="Print statistics behind the text."
)
@_option(
    "--json", "as_json", is_flag=True, group=OUTPUT, help="Print one JSON object with text, tokens and statistics."
)
@_option("-q", "--quiet", is_flag=True, group=OUTPUT, help="Print nothing but the text and errors.")
@session_options
@verbose_option
def generate(
    settings: SessionSettings,
    prompt: str | None,
    file: str | None,
    n_predict: int,
    stop: tuple[str, ...],
    ignore_eos: bool,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    acceptance: str | None,
    stats: bool | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Continue a prompt, with or without a drafter.

    The text goes to standard output as it comes, everything else to standard error. A drafter
    changes the speed, never what the target would say. Options are named as in llama.cpp.
    """
    if quiet and stats:
        raise click.UsageError("--stats and --quiet exclude one another")
    if "" in stop:
        raise click.UsageError("--stop: the text is empty")
    settings.check()
    from .loading import open_session
    from .prompt import read_prompt

    text = read_prompt(prompt, file)
    chosen = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed, "acceptance": acceptance}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    idle = [name for name in given if name != "seed"]  # scripts give a seed whatever they do
    if temperature == 0 and idle:
        option = f"--{idle[0].replace('_', '-')}".replace("--acceptance", "--accept")
        raise click.UsageError(f"{option} is for sampling, but the temperature is 0 (give --temp)")
    if acceptance is not None and not settings.has_drafter:
        raise click.UsageError("--accept is for a drafter, but none takes part")
    from draftsmith.sampling import SamplingOptions

    sampling = SamplingOptions(temperature, **given)
    with open_session(settings, quiet, sampling) as session:
        pieces = session.generate(text, n_predict, stop, ignore_eos, prompt_kind=_kind(file))
        if as_json:
            _print_json(session, "".join(pieces), stats is not False)
            return
        _stream(pieces)
        if not quiet:
            _explain_end(session)
            if stats is not False:
                _print_statistics(session)
            if is_verbose():
                _print_placement(session)


def _kind(file: str | None) -> str:
    """Acceptance depends on what is continued; at least say that no chat template was applied."""
    source = {None: "", "-": " from standard input"}.get(file, f" from {file}")
    return f"plain text{source}, no chat template"


def _stream(pieces: Any) -> None:
    """Print pieces as they come; the output ends with a line feed."""
    last = ""
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            last = piece or last
    finally:
        if last and not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _explain_end(session: Any) -> None:
    if session.report.stop == "context":
        from .failure import note

        note(f"the context of {session.target.options.n_ctx} tokens is full (--ctx)")


def _print_statistics(session: Any) -> None:
    from draftsmith.reporting import rows

    from .table import pairs

    click.echo("\n" + pairs(rows(session.report)), err=True)


def _print_placement(session: Any) -> None:
    from . import placement
    from .table import pairs

    click.echo("\n" + pairs(placement.rows(session)), err=True)


def _print_json(session: Any, text: str, with_stats: bool) -> None:
    from draftsmith.reporting import as_dict

    report = session.report
    found: dict[str, Any] = {"text": text, "tokens": report.tokens, "stop": report.stop}
    if with_stats:
        found["stats"] = as_dict(report)
    click.echo(json.dumps(found, ensure_ascii=False))
