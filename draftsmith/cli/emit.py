"""``draftsmith emit``: the generated C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import CacheSettings, GroupedCommand, cache_options


def graph_options(command: Any) -> Any:
    """Adds what a graph depends on, for commands that only look at it."""
    for option in (
        click.option("--tap-last", is_flag=True, help="For a drafter that reads the stream behind the last layer."),
        click.option("--target", metavar="ARCH|FILE", help="For a drafter: the target that lends it tensors."),
        click.option("--arch", multiple=True, metavar="FILE.py",
                     help="A Python file with architectures of your own; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return cache_options(command)


@click.command("emit", cls=GroupedCommand)
@click.argument("subject", metavar="ARCH|FILE")
@click.option("-o", "--out", metavar="DIR", help="Write DIR/NAME.cpp instead of printing.")
@graph_options
def emit(
    subject: str,
    out: str | None,
    target: str | None,
    tap_last: bool,
    arch: tuple[str, ...],
    cache: CacheSettings,
) -> None:
    """Write the C++ that is generated for an architecture.

    The choices that a source depends on (guards) are taken from a GGUF file; for an architecture by its name, or a
    Python file, they are those of a file with required tensors only.
    """
    chosen = cache.chosen()
    from draftsmith.codegen.emit import emit as emit_source
    from draftsmith.dsl.bind import Options

    from .loading import load_architectures
    from .subject import describe

    load_architectures(arch)
    source = emit_source(*describe(subject, target, Options(tap_last=tap_last, **chosen)))
    if out is None:
        click.echo(source.text, nl=False)
        return
    path = _write(Path(out), f"{source.name}.cpp", source.text)
    click.echo(str(path))


def _write(folder: Path, name: str, text: str) -> Path:
    from draftsmith.dsl.errors import RequestError

    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
    return path
