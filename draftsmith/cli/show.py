"""``draftsmith show``: graphs as text."""

from __future__ import annotations

import click

from .emit import graph_options
from .options import CacheSettings, GroupedCommand


@click.command("show", cls=GroupedCommand)
@click.argument("subject", metavar="ARCH|FILE")
@click.argument("graph", required=False)
@graph_options
def show(
    subject: str,
    graph: str | None,
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
    model, graphs = describe(subject, target, Options(tap_last=tap_last, **chosen))
    if graph is not None:
        if graph not in graphs:
            raise RequestError(f"{model.name} has no graph {graph!r}; it has {', '.join(graphs)}")
        graphs = {graph: graphs[graph]}
    click.echo(render(model, graphs).rstrip("\n"))
