"""What a ggml's headers declare, so that generated source never calls what is not there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from draftsmith.dsl.errors import BuildError

from .cache import ggml_dir, os_errors
from .install import GgmlInstall

# Headers of every ggml; a backend's own header counts only if the backend is there to be linked.
_ALWAYS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "ggml-opt.h", "gguf.h")

_NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
_DECLARATION = re.compile(r"\b(?:GGML_API|GGML_BACKEND_API)\b[^;{}()]*?\b((?:ggml|gguf)_\w+)\s*\(")
_CALL = re.compile(r"\bggml_\w+(?=\()")


def declared_functions(install: GgmlInstall) -> frozenset[str]:
    """Return the names of all functions that the headers of ``install`` declare.

    They are parsed once and kept in the cache under the install's key.
    """
    kept = ggml_dir() / "headers" / f"{install.key}.json"
    try:
        return frozenset(json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    names = _parse(install)
    with os_errors("recording ggml's functions", kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(sorted(names)), encoding="utf-8")
        fresh.replace(kept)
    return names


def check_functions(install: GgmlInstall, names: Iterable[str]) -> None:
    """Raise a ``BuildError`` that lists every function of ``names`` that ``install`` does not declare."""
    missing = sorted(set(names) - declared_functions(install))
    if missing:
        count = "a function" if len(missing) == 1 else f"{len(missing)} functions"
        raise BuildError(
            f"ggml {install.version} ({install.pin}) lacks {count} that the generated source calls: "
            f"{', '.join(missing)}; headers: {install.include_dir}"
        )


def functions_in(text: str) -> frozenset[str]:
    """Return the names of the API functions that a header's text declares."""
    return frozenset(match[1] for match in _DECLARATION.finditer(_NOISE.sub(" ", text)))


def called_functions(source: str) -> frozenset[str]:
    """Return the names of the ggml functions that a C++ text calls."""
    return frozenset(_CALL.findall(source))


def _parse(install: GgmlInstall) -> frozenset[str]:
    headers = [*_ALWAYS, *(f"ggml-{name}.h" for name in install.backends if name != "cpu")]
    names: set[str] = set()
    for path in (Path(install.include_dir, header) for header in headers):
        if path.is_file():
            with os_errors("reading ggml's headers", path):
                names |= functions_in(path.read_text(encoding="utf-8", errors="replace"))
    if not names:
        raise BuildError(f"no function declarations found in the ggml headers of {install.include_dir}")
    return frozenset(names)
