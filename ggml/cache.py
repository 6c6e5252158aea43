"""Where built and fetched things live, and what an OS error there means for the user."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftsmith.dsl.errors import BuildError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def cache_dir() -> Path:
    """Return the cache folder: ``$DRAFTSMITH_CACHE``, else the platform's user cache."""
    if own := os.environ.get("DRAFTSMITH_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):
        return Path(xdg) / "draftsmith"
    base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "draftsmith"


def ggml_dir() -> Path:
    """Return the part of the cache that is this package's: nothing outside is written or deleted."""
    return cache_dir() / "ggml"


@contextmanager
def os_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into one ``BuildError`` that says what was being done."""
    try:
        yield
    except OSError as error:
        raise BuildError(explain(error, doing, path)) from error


def explain(error: OSError, doing: str, path: Path) -> str:
    """Say in one line what went wrong while ``doing`` something to ``path``."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    if error.errno in _FULL:
        return f"disk full while {doing}: no space left for {where} (DRAFTSMITH_CACHE moves the cache)"
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    if error.errno in _DENIED:
        return f"cannot use {where} while {doing}: {reason}; set DRAFTSMITH_CACHE to a folder you may write"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return f"cannot use {where} while {doing}: a file stands where a folder is needed"
    return f"{doing} failed at {where}: {reason}"
