"""Which architectures there are: every module of ``graphs/``, and files of the user's own.

Nothing is registered by hand: adding a file adds its architectures.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import draftsmith.graphs
from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import ModelFile, fits
from draftsmith.dsl.errors import GraphError, MetadataError


@lru_cache(maxsize=1)
def builtin() -> dict[str, type[Architecture]]:
    """Architectures of ``graphs/`` by the name under which they are listed."""
    found: dict[str, type[Architecture]] = {}
    for module in pkgutil.iter_modules(draftsmith.graphs.__path__):
        found |= _declared_in(importlib.import_module(f"draftsmith.graphs.{module.name}"))
    return dict(sorted(found.items()))


_from_files: dict[str, type[Architecture]] = {}


def load_file(path: Path) -> dict[str, type[Architecture]]:
    """Architectures of one Python file; they take precedence over built-in ones of the same name."""
    if not path.is_file():
        raise GraphError(f"{path}: no such architecture file")
    name = f"draftsmith_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as e:
        raise GraphError(f"{path}:{e.lineno}: {e.msg}") from None
    found = _declared_in(module)
    if not found:
        raise GraphError(f"{path}: defines no architecture (a class with @arch)")
    _from_files.update(found)
    return found


def architectures() -> dict[str, type[Architecture]]:
    """All known architectures by name."""
    return {**builtin(), **_from_files}


def by_name(name: str) -> type[Architecture]:
    """One architecture by the name that ``draftsmith list`` shows, or by file (``my_arch.py``)."""
    if name.endswith(".py"):
        return next(iter(load_file(Path(name)).values()))
    known = architectures()
    if name not in known:
        raise GraphError(f"unknown architecture {name!r}; known: {', '.join(known)}")
    return known[name]


def for_file(file: ModelFile) -> type[Architecture]:
    """The architecture that a GGUF announces."""
    announced = file.metadata.get("general.architecture")
    if announced is None or announced.type != "str":
        raise MetadataError(f"{file.path}: missing metadata key general.architecture (a string is required)")
    known = architectures()
    fitting = [cls for cls in known.values() if fits(cls, file)]
    if not fitting:
        alike = [n for n, c in known.items() if c.gguf_arch == announced.value]
        if alike:
            raise MetadataError(
                f"{file.path}: a variant of {announced.value!r} that is not known (it fits none of {', '.join(alike)})"
            )
        names = sorted({c.gguf_arch for c in known.values()})
        raise MetadataError(f"{file.path}: unknown architecture {announced.value!r}; known: {', '.join(names)}")
    # the most demanding description wins: it is the more specific one
    return max(fitting, key=lambda cls: len(cls.requires))


def _declared_in(module: ModuleType) -> dict[str, type[Architecture]]:
    return {
        item.variant: item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, Architecture)
        and item.__module__ == module.__name__
        and item.variant
    }
