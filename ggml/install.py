"""A ggml that is ready to use: headers and libraries below one prefix."""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.dsl.errors import BuildError

STAMP = "draftsmith.json"
_SUFFIXES = (".so", ".dylib")


@dataclass(frozen=True)
class GgmlInstall:
    """An installed ggml.

    ``pin`` says where the source came from: the pinned archive's name, ``tree:<path>`` or
    ``prefix:<path>`` for one that ``DRAFTSMITH_GGML`` names. ``key`` is a short identity of sources,
    options, compiler and CPU, fit for the key of anything that is built against this install.
    ``libraries`` are in link order of their needs: base, backends, then the registry ``libggml``.
    """

    prefix: Path
    include_dir: Path
    lib_dir: Path
    version: str
    pin: str
    backends: tuple[str, ...]
    key: str
    libraries: tuple[Path, ...]


def read_install(prefix: Path) -> GgmlInstall | None:
    """Return the install that a build of ours completed at ``prefix``, or None."""
    try:
        stamp = json.loads((prefix / STAMP).read_text(encoding="utf-8"))
        install = GgmlInstall(
            prefix=prefix,
            include_dir=prefix / "include",
            lib_dir=prefix / "lib",
            version=stamp["version"],
            pin=stamp["pin"],
            backends=tuple(stamp["backends"]),
            key=stamp["key"],
            libraries=tuple(prefix / "lib" / name for name in stamp["libraries"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return install if all(path.exists() for path in install.libraries) else None


def find_install(root: Path, base: str) -> GgmlInstall | None:
    """Return an install below ``root`` of the same sources, options and CPU, by whatever compiler."""
    for stamp in sorted(root.glob(f"*/{STAMP}")):
        try:
            same = json.loads(stamp.read_text(encoding="utf-8")).get("base") == base
        except (OSError, ValueError, AttributeError):
            continue
        if same and (install := read_install(stamp.parent)):
            return install
    return None


def write_stamp(prefix: Path, stamp: dict[str, Any]) -> None:
    """Complete an install: what ``read_install`` reads, written last."""
    (prefix / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def find_libraries(lib_dir: Path) -> tuple[Path, ...]:
    """Return the ggml libraries of a folder under their unversioned names, in the order of their needs."""
    found = {
        path.stem.removeprefix("lib"): path
        for suffix in _SUFFIXES
        for path in sorted(lib_dir.glob(f"libggml*{suffix}"))
    }
    order = {"ggml-base": 0, "ggml-cpu": 1, "ggml": 3}
    return tuple(found[name] for name in sorted(found, key=lambda name: (order.get(name, 2), name)))


def backends_of(libraries: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the backends that a set of ggml libraries holds: ``("cpu", "rpc")``."""
    names = [path.stem.removeprefix("libggml-") for path in libraries if path.stem.startswith("libggml-")]
    kinds = [name.partition("-")[0] for name in names if name != "base"]  # cpu-haswell is a cpu
    return tuple(dict.fromkeys(kinds))


def is_prefix(root: Path) -> bool:
    """Return whether a folder holds an installed ggml."""
    return (root / "include" / "ggml.h").is_file() and _lib_dir(root) is not None


def describe_prefix(root: Path) -> GgmlInstall:
    """Return a user's own install as it is, without building anything."""
    lib_dir = _lib_dir(root)
    if lib_dir is None:
        raise BuildError(f"{root} has no lib/libggml.so or .dylib")
    libraries = find_libraries(lib_dir)
    names = {path.stem for path in libraries}
    if missing := {"libggml", "libggml-base"} - names:
        raise BuildError(
            f"ggml in {lib_dir}: expected libggml and libggml-base, missing {', '.join(sorted(missing))} "
            "(a ggml of before its split into backends cannot be used)"
        )
    digest = hashlib.sha256(str(root).encode())
    for path in (*libraries, *sorted((root / "include").glob("g*.h"))):
        stat = path.stat()
        digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return GgmlInstall(
        prefix=root,
        include_dir=root / "include",
        lib_dir=lib_dir,
        version=_prefix_version(lib_dir),
        pin=f"prefix:{root}",
        backends=backends_of(libraries),
        key=digest.hexdigest()[:16],
        libraries=libraries,
    )


def _lib_dir(root: Path) -> Path | None:
    folders = [root / "lib", root / "lib64"]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        folders.append(root / "lib" / multiarch)
    names = [f"libggml{suffix}" for suffix in _SUFFIXES]
    return next((path for path in folders if any((path / name).exists() for name in names)), None)


def _prefix_version(lib_dir: Path) -> str:
    config = lib_dir / "cmake" / "ggml" / "ggml-config-version.cmake"
    if config.is_file():
        text = config.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r'PACKAGE_VERSION\s+"([^"]+)"', text):
            return found[1]
    versions = [re.search(r"(\d+\.\d+\.\d+)", path.name) for path in lib_dir.glob("libggml-base*")]
    return next((version[1] for version in versions if version), "unknown")
