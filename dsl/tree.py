"""Arguments, results and local variables that hold tensors: flattening and rebuilding them.

Tuples, lists, dicts with text keys, dataclasses and named tuples may hold tensors, nested as deep as one likes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .ir import Value


def children(obj: Any) -> list[tuple[str, Any]] | None:
    """The named members of a container, None for anything else."""
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return [(f.name, getattr(obj, f.name)) for f in dataclasses.fields(obj)]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return list(zip(obj._fields, obj, strict=True))
    if isinstance(obj, (tuple, list)):
        return [(str(i), item) for i, item in enumerate(obj)]
    if isinstance(obj, dict) and all(isinstance(k, str) for k in obj):
        return list(obj.items())
    return None


def leaves(obj: Any, name: str = "") -> list[tuple[str, Value]]:
    """Every tensor in ``obj`` with its path: ``kv.mask``, ``streams.0``."""
    if isinstance(obj, Value):
        return [(name, obj)]
    found: list[tuple[str, Value]] = []
    for key, child in children(obj) or []:
        found += leaves(child, f"{name}.{key}" if name else key)
    return found


def rebuild(obj: Any, change: Callable[[str, Value], Value], name: str = "") -> Any:
    """A copy of ``obj`` with every tensor replaced by ``change(path, tensor)``."""
    if isinstance(obj, Value):
        return change(name, obj)
    members = children(obj)
    if not members or not leaves(obj):
        return obj
    new = [rebuild(child, change, f"{name}.{key}" if name else key) for key, child in members]
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return dataclasses.replace(obj, **dict(zip((k for k, _ in members), new, strict=True)))
    if isinstance(obj, tuple):
        return type(obj)(*new) if hasattr(obj, "_fields") else tuple(new)
    if isinstance(obj, dict):
        return dict(zip(obj, new, strict=True))
    return new
