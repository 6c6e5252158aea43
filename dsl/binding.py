"""The values behind named quantities, while a model is traced or interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import GraphError

_current: ContextVar[Mapping[tuple[str, str], Any] | None] = ContextVar("draftsmith_binding", default=None)


def current_value(scope: str, name: str) -> Any:
    """The value of ``scope.name`` ("hp", "n_embd"); GraphError outside a binding."""
    values = _current.get()
    if values is None:
        raise GraphError(f"{scope}.{name} has no value here: no model is being traced")
    try:
        return values[scope, name]
    except KeyError:
        raise GraphError(f"{scope}.{name} has no value in this graph") from None


@contextmanager
def bound(values: Mapping[tuple[str, str], Any]) -> Iterator[None]:
    """Give named quantities their values for the duration of a ``with`` block; inner blocks add to outer ones."""
    outer = _current.get()
    token = _current.set({**outer, **values} if outer else values)
    try:
        yield
    finally:
        _current.reset(token)
