"""``draftsmith inspect``: what is in a file, which architecture it fits, and everything that is wrong with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .failure import USER_ERROR

if TYPE_CHECKING:
    from draftsmith.inspection import Inspection


@click.command("inspect")
@click.argument("file")
@click.option("--arch", multiple=True, metavar="FILE.py", help="Consider a Python file of your own; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def inspect(ctx: click.Context, file: str, arch: tuple[str, ...], as_json: bool) -> None:
    """Show what is in a GGUF file and what does not fit.

    Prints metadata, tensors, the architectures that were considered and every problem, not only the first one.
    Exits with 2 if there is a problem. Reads the header only, and needs no ggml.
    """
    from draftsmith.inspection import as_dict, inspect_file

    from .loading import load_architectures

    load_architectures(arch)
    found = inspect_file(file)
    if as_json:
        click.echo(json.dumps(as_dict(found), indent=2, ensure_ascii=False))
    else:
        _print(found)
    ctx.exit(USER_ERROR if found.problems else 0)


def _print(found: Inspection) -> None:
    from draftsmith.inspection import shape_text, value_text

    from .table import columns, pairs, size

    file = found.file
    total = sum(t.nbytes for t in file.tensors.values())
    click.echo(pairs([
        ("file", f"{file.path}, GGUF {file.version}, {len(file.metadata)} keys"),
        ("tensors", f"{len(file.tensors)}, {size(total)}"),
    ]))  # fmt: skip
    _section("metadata", columns(("key", "type", "value"), [(k, v.type, value_text(v)) for k, v in found.metadata]))
    rows = [(t.name, t.type.name, shape_text(t.ne), f"{t.nbytes:,}") for t in file.tensors.values()]
    _section("tensors", columns(("name", "type", "shape", "bytes"), rows, right=(3,)))
    candidates = [(c.name, "fits" if c.fits else "no", c.reason) for c in found.candidates]
    _section("architectures", columns(("name", "fits", "why"), candidates))
    if found.problems:
        _section(f"problems ({len(found.problems)})", "\n".join(found.problems))
    else:
        click.echo(f"\n{click.style('no problems', bold=True)}: read as {found.architecture}")


def _section(title: str, text: str) -> None:
    click.echo(f"\n{click.style(title, bold=True)}\n{text}")
