"""``draftsmith list``: which architectures there are."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from draftsmith.dsl.arch import Architecture


@click.command("list")
@click.option("--arch", multiple=True, metavar="FILE.py", help="Include a Python file of your own; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(arch: tuple[str, ...], as_json: bool) -> None:
    """List the architectures and what they need."""
    from draftsmith import registry

    from .loading import load_architectures
    from .table import columns

    load_architectures(arch)
    found = [facts(cls) for cls in registry.architectures().values()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    header = ("name", "GGUF architecture", "kind", "graphs", "needs", "file")
    rows = [
        (f["name"], f["gguf_arch"], f["kind"], ", ".join(f["graphs"]), _needs(f), _short(f["file"])) for f in found
    ]
    click.echo(columns(header, rows))


def facts(cls: type[Architecture]) -> dict[str, Any]:
    """What the list says about one architecture."""
    from draftsmith.dsl.specs import REQUIRED, Key, LayerKey, Tensor, declared

    contract = cls.contract
    keys = [*declared(cls.hparams, Key), *declared(cls.layer, LayerKey)]
    tensors = [*declared(cls, Tensor), *declared(cls.layer, Tensor)]
    needs = None
    if contract is not None:
        needs = {
            "features": f"target streams listed in {_key(cls, contract.features)}",
            "borrows": [spec.shared for spec in tensors if spec.shared is not None],
        }
    return {
        "name": cls.variant,
        "gguf_arch": cls.gguf_arch,
        "kind": "target" if contract is None else "drafter",
        "doc": " ".join((cls.__doc__ or "").split()),
        "file": inspect.getfile(cls),
        "graphs": list(cls.graphs()),
        "target": needs,
        "lends": {role: list(names) for role, names in cls.exports.items()},
        "required_keys": [spec.key.format(arch=cls.gguf_arch) for spec in keys if spec.default is REQUIRED],
        "optional_keys": [spec.key.format(arch=cls.gguf_arch) for spec in keys if spec.default is not REQUIRED],
        "required_tensors": [spec.tensor for spec in tensors if not spec.optional],
        "optional_tensors": [spec.tensor for spec in tensors if spec.optional],
        "told_by": {"requires": list(cls.requires), "forbids": list(cls.forbids)},
    }


def _key(cls: type[Architecture], name: str) -> str:
    from draftsmith.dsl.specs import Key, declared

    return next((s.key.format(arch=cls.gguf_arch) for s in declared(cls.hparams, Key) if s.name == name), name)


def _needs(found: dict[str, Any]) -> str:
    if found["target"] is None:
        return "nothing else"
    borrows = found["target"]["borrows"]
    lent = f", which may lend {' and '.join(borrows)}" if borrows else ""
    return f"a target{lent}"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(path.parents[1]))
