"""``draftsmith show``: graphs as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .emit import graph_options
from .options import CacheSettings, GroupedCommand

if TYPE_CHECKING:
    from draftsmith.dsl.bind import BoundModel
    from draftsmith.dsl.ir import Graph


@click.command("show", cls=GroupedCommand)
@click.argument("subject", metavar="ARCH|FILE")
@click.argument("graph", required=False)
@click.option("--passes", is_flag=True, help="Print the graph as traced and after each pass.")
@graph_options
def show(
    subject: str,
    graph: str | None,
    passes: bool,
    target: str | None,
    tap_last: bool,
    arch: tuple[str, ...],
    cache: CacheSettings,
) -> None:
    """Print the graphs of an architecture as text.

    With GRAPH only that one and the blocks it uses.
    """
    chosen = cache.chosen()
    from draftsmith.dsl.bind import Options
    from draftsmith.dsl.errors import RequestError

    from .loading import load_architectures
    from .subject import describe

    try:
        from draftsmith.show import render
    except ModuleNotFoundError as error:
        if error.name != "draftsmith.show":
            raise
        raise RequestError("show is not part of this installation (module draftsmith.show is missing)") from None

    load_architectures(arch)
    stages: list[tuple[str, str]] = []

    def observe(stage: str, model: BoundModel, seen: Graph) -> None:
        if passes and graph in (None, seen.name):
            stages.append((f"{seen.name}: {stage}", render(model, {seen.name: seen})))

    model, graphs = describe(subject, target, Options(tap_last=tap_last, **chosen), observe)
    if graph is not None:
        if graph not in graphs:
            raise RequestError(f"{model.name} has no graph {graph!r}; it has {', '.join(graphs)}")
        graphs = {graph: graphs[graph]}
    if passes:
        for stage, text in stages:
            click.echo(f"==== {stage}\n\n{text}")
        return
    click.echo(render(model, graphs).rstrip("\n"))
