"""The commands ``draftsmith ggml ...`` and ``draftsmith devices``."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .cache import cache_dir, ggml_dir, os_errors
from .device import devices
from .fetch import archive_path, tree_path
from .install import GgmlInstall, read_install
from .options import Options, Switch, chosen_options, decide, remember_options
from .pin import load_pin
from .progress import default_progress
from .resolve import build_lock, ensure, locate, own_path


@click.group("ggml")
def ggml_group() -> None:
    """Build, inspect or remove the ggml that everything here runs on."""


@ggml_group.command("build")
@click.option("--cuda/--no-cuda", default=None, help="NVIDIA GPUs; needs nvcc.")
@click.option("--metal/--no-metal", default=None, help="Apple GPUs.")
@click.option("--vulkan/--no-vulkan", default=None, help="Vulkan GPUs; needs glslc and the Vulkan headers.")
@click.option("--force", is_flag=True, help="Build anew even if it is built already.")
def build_command(cuda: bool | None, metal: bool | None, vulkan: bool | None, force: bool) -> None:
    """Fetch and build ggml.

    CPU and RPC are always built. A backend that is neither asked for nor refused is built where its
    toolchain and a device for it are found. The choice is kept for every later command.
    """
    options = Options(cuda=_switch(cuda), metal=_switch(metal), vulkan=_switch(vulkan))
    install = ensure(options, force=force)
    remember_options(options)
    click.echo(f"ggml {install.version} ({', '.join(install.backends)}) is ready at {install.prefix}")


@ggml_group.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info_command(as_json: bool) -> None:
    """Show what is pinned, what is in use and where it is."""
    facts = _facts()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    pinned, used = facts["pinned"], facts["in_use"]
    rows = [
        ("pinned", f"ggml {pinned['ggml']} from {pinned['file']}"),
        ("sha256", pinned["sha256"]),
        ("cache", f"{facts['cache']} ({_megabytes(facts['cache_bytes'])})"),
        ("own ggml", facts["draftsmith_ggml"] or "none (DRAFTSMITH_GGML is not set)"),
        ("options", ", ".join(f"{name} {_word(value)}" for name, value in facts["options"].items())),
        ("backends", ", ".join(facts["backends"])),
    ]
    if used is None:
        rows.append(("in use", "not built yet; draftsmith ggml build does it, and so does the first run"))
    else:
        rows += [
            ("in use", f"ggml {used['version']} ({used['pin']}), key {used['key']}"),
            ("prefix", f"{used['prefix']} ({_megabytes(used['bytes'])})"),
            ("libraries", ", ".join(used["libraries"])),
        ]
    rows += [
        ("also built", f"{other['prefix']} ({', '.join(other['backends'])})") for other in facts["others"]
    ]
    for name, text in rows:
        click.echo(f"{name:<11}{text}")


@ggml_group.command("clean")
@click.option("--old", is_flag=True, help="Remove only what is not in use.")
@click.option("--all", "everything", is_flag=True, help="Remove the unpacked source and archives too.")
def clean_command(old: bool, everything: bool) -> None:
    """Remove built ggmls, half-done builds and their logs from the cache."""
    if old and everything:
        raise click.UsageError("--old and --all exclude one another")
    if not ggml_dir().is_dir():
        click.echo(f"nothing to remove in {ggml_dir()}")
        return
    progress = default_progress()
    with build_lock(progress):
        doomed = _removable(old, everything)
        size = sum(_size(path) for path in doomed)
        for path in doomed:
            with os_errors("cleaning the cache", path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    click.echo(f"removed {_megabytes(size)} from {ggml_dir()}")


@click.command("devices")
@click.option("--rpc", multiple=True, metavar="HOST:PORT", help="Also ask this RPC server; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def devices_command(rpc: tuple[str, ...], as_json: bool) -> None:
    """List the devices that ggml can compute on."""
    found = devices(ensure(), rpc)
    if as_json:
        click.echo(json.dumps([asdict(device) for device in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "type", "backend", "description", box=None, pad_edge=False, header_style="bold")
    table.add_column("free", justify="right")
    table.add_column("total", justify="right")
    for device in found:
        sizes = (_gibibytes(device.memory_free), _gibibytes(device.memory_total))
        table.add_row(device.name, device.type, device.backend, device.description, *sizes)
    Console().print(table)


def _switch(value: bool | None) -> Switch:
    return "auto" if value is None else value


def _facts() -> dict[str, Any]:
    """Return what ``info`` shows, as JSON has it."""
    pin = load_pin()
    options = chosen_options()
    own = own_path()
    used = locate()
    others = [
        install
        for path in sorted((ggml_dir() / "install").glob("*"))
        if "." not in path.name  # else it is half done
        and (install := read_install(path))
        and (used is None or install.key != used.key)
    ]
    archive = archive_path(pin)
    return {
        "pinned": {"ggml": pin.ggml_version, "file": pin.file, "sha256": pin.sha256},
        "archive": str(archive) if archive.is_file() else None,
        "source": str(tree_path(pin)) if tree_path(pin).is_dir() else None,
        "cache": str(cache_dir()),
        "cache_bytes": _size(ggml_dir()),
        "draftsmith_ggml": str(own) if own else None,
        "options": asdict(options),
        "backends": used.backends if used else decide(options).names(),
        "in_use": _install_facts(used) if used else None,
        "others": [_install_facts(install) for install in others],
    }


def _install_facts(install: GgmlInstall) -> dict[str, Any]:
    return {
        "version": install.version,
        "pin": install.pin,
        "key": install.key,
        "prefix": str(install.prefix),
        "backends": list(install.backends),
        "libraries": [path.name for path in install.libraries],
        "bytes": sum(_size(path.resolve()) for path in install.libraries),
    }


def _removable(old: bool, everything: bool) -> list[Path]:
    root = ggml_dir()
    folders = ["install", "build", "headers", "log"] + (["source", "sdist"] if everything else [])
    entries = [entry for folder in folders for entry in sorted((root / folder).glob("*"))]
    if old and (used := locate()):
        return [entry for entry in entries if entry.name.partition(".")[0] != used.key]
    return entries


def _size(path: Path) -> int:
    """Return the bytes of a file or of all files below a folder; links count nothing."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
        if not os.path.islink(os.path.join(folder, name))
    )


def _word(value: Switch) -> str:
    return value if isinstance(value, str) else "on" if value else "off"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
