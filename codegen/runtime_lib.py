"""The native runtime: compiled once for the ggml in use, loaded once per process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import draftsmith.ggml
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import GgmlInstall
from draftsmith.ggml.headers import called_functions, check_functions

from .ninja_build import build_library

RUNTIME_DIR = Path(draftsmith.ggml.__file__).parent / "runtime"

_lock = threading.Lock()
_loaded: tuple[Any, Any] | None = None


def runtime() -> tuple[Any, Any]:
    """Return cffi's ``(ffi, lib)`` of the runtime, building ggml and the runtime first if need be."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load(build_runtime(draftsmith.ggml.ensure()))
        return _loaded


def build_runtime(install: GgmlInstall) -> Path:
    """Return the runtime's library for an installed ggml."""
    return build_library(
        "draftsmith-runtime",
        sorted(RUNTIME_DIR.glob("*.cpp")),
        include_dirs=[RUNTIME_DIR, install.include_dir],
        libs=link_libraries(install),
        key_extra=install.key,
    )


def build_architecture(
    name: str, sources: Mapping[str, str] | Sequence[Path], install: GgmlInstall | None = None
) -> Path:
    """Return the library of generated sources, for ``NativeModel``.

    Generated text (not files) that calls a function which this ggml lacks gives a ``BuildError`` before it is compiled.
    """
    install = install or draftsmith.ggml.ensure()
    if isinstance(sources, Mapping):
        check_functions(install, called_functions("\n".join(sources.values())))
    return build_library(
        name,
        sources,
        include_dirs=[RUNTIME_DIR, install.include_dir],
        libs=link_libraries(install),
        key_extra=install.key,
    )


def link_libraries(install: GgmlInstall) -> list[Path]:
    """Return the libraries that the runtime and generated code call: the registry and the ops, no backend."""
    wanted = {"libggml", "libggml-base"}
    found = [path for path in install.libraries if path.name.partition(".")[0] in wanted]
    if len(found) != len(wanted):
        raise BuildError(f"ggml in {install.lib_dir}: expected libggml and libggml-base, found {found}")
    return found


def cdefs() -> str:
    """Return the declarations of ``ds_runtime.h`` that cffi reads."""
    text = (RUNTIME_DIR / "ds_runtime.h").read_text(encoding="utf-8")
    return text.partition("// CDEF_BEGIN")[2].partition("// CDEF_END")[0]


def _load(path: Path) -> tuple[Any, Any]:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(cdefs())
    try:
        return ffi, ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise BuildError(f"the runtime cannot be loaded: {error}") from error
