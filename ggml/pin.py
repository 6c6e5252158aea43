"""The pinned ggml, read from ``pin.toml`` beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Pin:
    """One source archive and the ggml tree inside it."""

    project: str
    version: str
    file: str
    size: int
    scratch: int
    sha256: str
    ggml_version: str
    root: str
    tree_sha256: str

    @property
    def id(self) -> str:
        """A short name for messages and for the unpacked folder."""
        return f"{self.project}-{self.version}"


@cache
def load_pin() -> Pin:
    """Return the pin that is committed with this package."""
    data = tomllib.loads((Path(__file__).parent / "pin.toml").read_text(encoding="utf-8"))
    sdist, ggml = data["sdist"], data["ggml"]
    return Pin(
        project=sdist["project"],
        version=sdist["version"],
        file=sdist["file"],
        size=sdist["size"],
        scratch=sdist["scratch"],
        sha256=sdist["sha256"],
        ggml_version=ggml["version"],
        root=ggml["root"],
        tree_sha256=ggml["tree_sha256"],
    )
