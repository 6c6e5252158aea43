"""Everything that can be said about a GGUF file from its header alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import examine
from draftsmith.dsl.errors import DraftsmithError
from draftsmith.gguf_file import GGUFFile, StringArray, Value, shown

from . import registry
from .model import trace_all
from .tokenizer import load_tokenizer

_SHOWN_ITEMS = 6


@dataclass(frozen=True)
class Candidate:
    """An architecture that was considered for the file."""

    name: str
    fits: bool
    reason: str


@dataclass(frozen=True)
class Inspection:
    """``architecture``: the one that the file is read as; None if none fits. ``problems``: one line each."""

    file: GGUFFile
    candidates: list[Candidate]
    architecture: str | None
    problems: list[str]

    @property
    def metadata(self) -> list[tuple[str, Value]]:
        return [(shown(key), value) for key, value in self.file.metadata.items()]


def inspect_file(path: str | os.PathLike[str]) -> Inspection:
    """Open a file and examine it; GGUFError only for what is no GGUF at all."""
    file = GGUFFile.open(path)
    candidates = [_consider(cls, file) for cls in registry.architectures().values()]
    try:
        cls = registry.for_file(file)
    except DraftsmithError as error:
        return Inspection(file, candidates, None, [_own(error, file)])
    return Inspection(file, candidates, cls.variant, _problems(cls, file))


def as_dict(found: Inspection) -> dict[str, Any]:
    """The inspection for programs. Long arrays are cut, ``length`` says how long they are."""
    file = found.file
    return {
        "path": str(file.path),
        "version": file.version,
        "metadata": {key: _json_value(value) for key, value in file.metadata.items()},
        "tensors": [
            {"name": t.name, "type": t.type.name, "shape": list(t.ne), "bytes": t.nbytes, "offset": t.offset}
            for t in file.tensors.values()
        ],
        "candidates": [{"name": c.name, "fits": c.fits, "reason": c.reason} for c in found.candidates],
        "architecture": found.architecture,
        "problems": found.problems,
    }


def value_text(value: Value) -> str:
    """A metadata value on one line, cut where it is long."""
    try:
        stored = value.value
        if isinstance(stored, str):
            return shown(stored)
        if isinstance(stored, StringArray | np.ndarray):
            items = [shown(str(item)) for item in stored[:_SHOWN_ITEMS]]
            more = f", ... {len(stored)} in all" if len(stored) > len(items) else ""
            return f"[{', '.join(items)}{more}]"
    except DraftsmithError as error:
        return f"({error})"
    return f"{stored:g}" if isinstance(stored, float) else str(stored)


def shape_text(ne: tuple[int, ...]) -> str:
    """Dims in ggml's order."""
    return f"[{', '.join(map(str, ne))}]"


def _consider(cls: type[Architecture], file: GGUFFile) -> Candidate:
    announced = file.metadata.get("general.architecture")
    value = _text(announced)
    if value != cls.gguf_arch:
        says = "nothing" if value is None else f"'{shown(value)}'"
        return Candidate(cls.variant, False, f"general.architecture is {says}, not '{cls.gguf_arch}'")
    present: Mapping[str, Any] = {**file.tensors, **file.metadata}
    lacking = [name for name in cls.requires if name not in present]
    if lacking:
        return Candidate(cls.variant, False, f"{lacking[0]} is missing")
    excluding = [name for name in cls.forbids if name in present]
    if excluding:
        return Candidate(cls.variant, False, f"{excluding[0]} is there")
    return Candidate(cls.variant, True, f"general.architecture is '{cls.gguf_arch}'" + _also(cls))


def _also(cls: type[Architecture]) -> str:
    return f", {', '.join(cls.requires)} there" if cls.requires else ""


def _text(value: Value | None) -> str | None:
    try:
        return value.value if value is not None and isinstance(value.value, str) else None
    except DraftsmithError:
        return None


def _problems(cls: type[Architecture], file: GGUFFile) -> list[str]:
    """What keeps the file from being run; graphs are traced only if keys and tensors fit."""
    model, found = examine(cls, file)
    problems = [problem.text for problem in found]
    if model is not None and not problems:
        try:
            trace_all(model)
        except DraftsmithError as error:
            problems.append(_own(error, file))
    if cls.contract is None:  # a drafter uses its target's tokenizer
        try:
            load_tokenizer(file)
        except DraftsmithError as error:
            problems.append(_own(error, file))
    return problems


def _own(error: DraftsmithError, file: GGUFFile) -> str:
    """The message without the name of the file, which is the same in all."""
    return str(error).removeprefix(f"{file.path}: ")


def _json_value(value: Value) -> dict[str, Any]:
    try:
        stored = value.value
        if isinstance(stored, StringArray | np.ndarray):
            items = [_finite(item if isinstance(item, str) else item.item()) for item in stored[:_SHOWN_ITEMS]]
            return {"type": value.type, "length": len(stored), "value": items}
    except DraftsmithError as error:
        return {"type": value.type, "value": None, "error": str(error)}
    return {"type": value.type, "value": _finite(stored)}


def _finite(item: Any) -> Any:
    """JSON has no nan and no infinity."""
    return str(item) if isinstance(item, float) and not math.isfinite(item) else item
