"""Which ggml is in use: found at once if it is built, built once if it is not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftsmith.dsl.errors import BuildError

from . import toolchain
from .build import PROJECT, Plan, build_settings, run_build
from .cache import ggml_dir, os_errors
from .fetch import fetch_tree, tree_path
from .install import GgmlInstall, describe_prefix, find_install, is_prefix, read_install
from .options import Backends, Options, check_toolchains, chosen_options, decide
from .pin import load_pin
from .progress import Progress, default_progress
from .source import is_tree, tree_digest, tree_fingerprint


def locate(options: Options | None = None) -> GgmlInstall | None:
    """Return the ggml in use if it is ready, without fetching or building anything.

    Without ``options`` those of the last explicit ``draftsmith ggml build`` apply.
    """
    own = own_path()
    if own is not None and is_prefix(own):
        return describe_prefix(own)
    return _installed(_plan(options, own))


def ensure(
    options: Options | None = None, progress: Progress | None = None, *, force: bool = False
) -> GgmlInstall:
    """Return the ggml in use, fetching and building it first if need be.

    ``progress`` is shown on standard error unless given. With ``force`` it is built anew, except for
    an install of the user's own, which is never touched.
    """
    own = own_path()
    if own is not None and is_prefix(own):
        return describe_prefix(own)
    plan = _plan(options, own)
    if not force and (found := _installed(plan)):
        return found
    progress = progress or default_progress()
    install = None
    try:
        with build_lock(progress):
            install = _build(plan, progress, force)
    finally:
        progress.close(success=install is not None)
    return install


def own_path() -> Path | None:
    """Return the tree or install that ``DRAFTSMITH_GGML`` names, None if it is not set."""
    value = os.environ.get("DRAFTSMITH_GGML")
    if not value:
        return None
    own = Path(value).expanduser().absolute()
    if is_tree(own) or is_tree(own / "ggml") or is_prefix(own):
        return own
    raise BuildError(
        f"DRAFTSMITH_GGML={own}: expected a ggml source tree (CMakeLists.txt, include/ggml.h, src/), "
        "a llama.cpp checkout (ggml/) or an install (include/ggml.h, lib/libggml.so or .dylib), "
        f"found {'none of them' if own.is_dir() else 'no such folder'}"
    )


@contextmanager
def build_lock(progress: Progress) -> Iterator[None]:
    """Keep two processes from building or cleaning at once; says so while it waits."""
    from filelock import FileLock, Timeout

    path = ggml_dir() / "lock"
    with os_errors("preparing the cache", ggml_dir()):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is building ggml; waiting for it ({path})")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _installed(plan: Plan) -> GgmlInstall | None:
    """Return the result of an earlier build; on a machine without compilers, of any compiler's."""
    if install := read_install(plan.prefix):
        return install
    return None if toolchain.find_compilers() else find_install(plan.prefix.parent, plan.base)


def _build(plan: Plan, progress: Progress, force: bool) -> GgmlInstall:
    if not force and (found := _installed(plan)):  # the process that held the lock has built it
        return found
    tools = toolchain.require_tools()  # better before a download than after it
    check_toolchains(plan.backends)
    if force:
        shutil.rmtree(plan.work, ignore_errors=True)
    if not plan.pin.startswith("tree:"):
        _ensure_pinned_tree(progress)
    return run_build(plan, tools, progress)


def _ensure_pinned_tree(progress: Progress) -> None:
    """Make sure that the unpacked tree is the pinned one, to the byte."""
    pin = load_pin()
    tree = tree_path(pin)
    with os_errors("reading the ggml source", tree):
        intact = is_tree(tree) and tree_digest(tree) == pin.tree_sha256
    if not intact:
        fetch_tree(pin, progress)


def _plan(options: Options | None, own: Path | None) -> Plan:
    backends = decide(options or chosen_options())
    if own is None:
        pin = load_pin()
        tree, origin, content = tree_path(pin), pin.id, pin.sha256
    else:
        tree = own if is_tree(own) else own / "ggml"
        origin = f"tree:{tree}"
        with os_errors("reading the ggml source", tree):
            content = tree_fingerprint(tree)
    fields = _key_fields(backends)
    compilers = toolchain.compiler_identity(cuda=backends.cuda)
    key = _digest(content, {**fields, "compilers": compilers})
    # The objects of a user's own tree are kept under its path, so that an edit rebuilds little.
    work = key if own is None else _digest(str(tree), {**fields, "compilers": compilers})
    return Plan(
        tree=tree,
        pin=origin,
        backends=backends,
        key=key,
        base=_digest(content, fields),
        work=ggml_dir() / "build" / work,
        keep_work=own is not None,
    )


def _key_fields(backends: Backends) -> dict[str, object]:
    """Return what a build depends on beside its sources and compilers."""
    return {
        "settings": build_settings(backends),
        "project": PROJECT.read_text(encoding="utf-8"),
        "environment": {name: os.environ[name] for name in toolchain.BUILD_VARIABLES if os.environ.get(name)},
        "cpu": toolchain.cpu_identity(),
    }


def _digest(content: str, fields: dict[str, object]) -> str:
    text = json.dumps({"content": content, **fields}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
