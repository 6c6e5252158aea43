"""Choices that a Python file took while it was traced.

Every branch on metadata or on the presence of an optional tensor is recorded with its answer. The generated
source states these at its top and checks them when a model is loaded; together they say which files one
compiled library serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_OPPOSITE = {"==": "!=", "!=": "==", "<=": ">", ">=": "<", "<": ">=", ">": "<="}


@dataclass(frozen=True)
class Guard:
    """One question (a Cond, Flag or Matches) with the answer the trace was made for."""

    question: Any
    answer: bool

    @property
    def key(self) -> str:
        return str(self.question)

    def __str__(self) -> str:
        if self.answer:
            return self.key
        for op, other in _OPPOSITE.items():
            if f" {op} " in self.key:
                return self.key.replace(f" {op} ", f" {other} ", 1)
        return f"not {self.key}"


_log: ContextVar[list[Guard] | None] = ContextVar("draftsmith_guards", default=None)


def record(question: Any, answer: bool) -> None:
    """Note a choice; ignored outside :func:`recording`."""
    log = _log.get()
    if log is not None:
        log.append(Guard(question, answer))


@contextmanager
def recording(log: list[Guard] | None) -> Iterator[None]:
    """Send choices to ``log`` (None: to nowhere) for the duration of a ``with`` block."""
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)
