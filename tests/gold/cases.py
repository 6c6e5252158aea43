"""Case folders: what was recorded, and where its files lie."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftsmith.context import KV_TYPES
from draftsmith.dsl.dtypes import GGMLType

Array = NDArray[Any]

DESCRIPTIONS = ("manifest.json", "reference.json")


class CaseError(Exception):
    """A folder that cannot be read: no case in it, a broken file, a missing field."""


class Record(dict[str, Any]):
    """A JSON object that complains about a missing field as an unreadable case."""

    def __missing__(self, key: str) -> Any:
        raise CaseError(f"no field {key!r} beside {', '.join(map(repr, list(self)[:6]))}")


@dataclass(frozen=True)
class Configuration:
    """Type of the K and V cache and use of flash attention, by the suffix of recorded arrays (``q8_0_fa``)."""

    name: str
    cache: GGMLType
    flash_attn: bool

    @property
    def is_reference(self) -> bool:
        return self.cache is GGMLType.f32 and not self.flash_attn


_TYPES = "|".join(t.name for t in KV_TYPES)
CONFIGURATION = rf"(?P<cfg>(?:{_TYPES})(?:_fa)?)"
"""Pattern of a configuration's name."""


def configuration(name: str) -> Configuration:
    return Configuration(name, GGMLType[name.removesuffix("_fa")], name.endswith("_fa"))


REFERENCE = configuration("f32")


@dataclass(frozen=True)
class Case:
    """One folder with its description. All files are found relative to the folder."""

    folder: Path
    file: str
    data: Record

    @property
    def name(self) -> str:
        return str(self.data.get("case", self.folder.name))

    @property
    def kind(self) -> str:
        """``kind`` of a manifest; ``trained-target`` or ``trained-draft`` for the reference.json of a trained model."""
        if self.file == "manifest.json":
            return str(self.data["kind"])
        return "trained-draft" if "drafted_per_round" in self.data else "trained-target"

    def path(self, name: str) -> Path:
        """A file of the case; CaseError when it is not there."""
        path = (self.folder / name).resolve()
        if not path.is_file():
            raise CaseError(f"{name} is missing")
        return path

    def array(self, record: Record, key: str = "") -> Array:
        """The array that a record of a manifest names; ``key``: its name inside an .npz."""
        name = str(record["file"])
        array = npz(self.path(name))[key] if name.endswith(".npz") else _load(self.path(name))
        if "shape" in record and list(array.shape) != list(record["shape"]):
            raise CaseError(
                f"{name}{key and ':'}{key} has the shape {list(array.shape)}, recorded is {record['shape']}"
            )
        return np.asarray(array)

    def output(self, name: str) -> Array:
        """A recorded output."""
        return self.array(self.data["outputs"][name], name)

    def outputs(self, pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Recorded outputs whose whole name fits a pattern."""
        for name in self.data.get("outputs", {}):
            match = re.fullmatch(pattern, name)
            if match:
                yield name, match

    def tokens(self, *names: str) -> list[int]:
        value: Any = self.data
        for name in names:
            value = value[name]
        return [int(t) for t in value]


class _Npz(dict[str, Array]):
    def __missing__(self, key: str) -> Array:
        raise CaseError(f"no array {key!r} in the .npz")


def npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _Npz({name: archive[name] for name in archive.files})
    except (OSError, ValueError, EOFError, KeyError, AttributeError) as e:
        raise CaseError(f"{path.name}: {e}") from None
    except Exception as e:  # zipfile and zlib have errors of their own
        raise CaseError(f"{path.name}: {type(e).__name__}: {e}") from None


def _load(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise CaseError(f"{path.name}: {e}") from None
    if not isinstance(array, np.ndarray):
        raise CaseError(f"{path.name}: not a single array")
    return array


def read_json(path: Path) -> Any:
    """JSON whose objects are Records."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=Record)
    except (OSError, ValueError) as e:
        raise CaseError(f"{path.name}: {e}") from None


def read_case(folder: Path) -> Case:
    """The case that lies directly in a folder."""
    for file in DESCRIPTIONS:
        if (folder / file).is_file():
            data = read_json(folder / file)
            if not isinstance(data, Record):
                raise CaseError(f"{file}: an object is expected")
            return Case(folder, file, data)
    raise CaseError(f"no {' or '.join(DESCRIPTIONS)}")


def find_folders(root: Path) -> list[Path]:
    """Folders at or below ``root`` that hold a case; CaseError when there is none."""
    if not root.is_dir():
        raise CaseError("not a folder")
    found = sorted({path.parent for name in DESCRIPTIONS for path in root.rglob(name)})
    if not found:
        raise CaseError(f"no {' or '.join(DESCRIPTIONS)} in it or below it")
    return found


def as_tokens(values: Iterable[Any]) -> list[int]:
    return [int(v) for v in values]
