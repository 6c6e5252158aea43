"""Fetching the pinned source archive with pip.

pip is used because it knows the user's index, proxy, certificates and credentials. ``pip download``
of a source archive does more than download, though: to learn the name and version inside, it
installs the archive's build system (here scikit-build-core and what that needs) into a fresh
environment and runs it, which takes a minute and executes code of an archive that nobody has
verified yet. We know name and version already, so pip is told to use no isolated environment
(``--no-build-isolation``) and finds, on ``PYTHONPATH``, a build system of ten lines that answers
with the two and can do nothing else. The download then takes as long as the bytes do, and nothing
of the archive runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from draftsmith.dsl.errors import BuildError

from .cache import ggml_dir, os_errors
from .pin import Pin
from .progress import Progress
from .source import unpack_tree, verify_archive

_METADATA_ONLY = '''\
"""Stands in for the build system of one source archive whose name and version are known."""

from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory, "{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name


def build_wheel(*arguments, **options):
    raise RuntimeError("only metadata is to be had here")
'''


# What pip says when it reaches no index.
_OFFLINE = ("connection broken", "Connection refused", "ConnectionError", "timed out", "name resolution")


def archive_path(pin: Pin) -> Path:
    """Return where the archive is expected; a user without network may put it there."""
    return ggml_dir() / "sdist" / pin.file


def tree_path(pin: Pin) -> Path:
    """Return where the pinned ggml tree is unpacked."""
    return ggml_dir() / "source" / pin.id / "ggml"


def fetch_tree(pin: Pin, progress: Progress) -> Path:
    """Return the verified, unpacked ggml tree, fetching the archive if it is not at hand.

    An archive that was downloaded here is deleted once unpacked; one that the user put in place is
    left alone. Either is verified each time before it is unpacked.
    """
    target = tree_path(pin)
    archive = archive_path(pin)
    own = not archive.exists()
    if own:
        download(pin, archive, progress)
    try:
        with os_errors("reading the ggml archive", archive), open(archive, "rb") as file:
            progress.stage("verify", pin.file)
            verify_archive(file, archive, pin, progress)
            progress.stage("unpack", f"ggml {pin.ggml_version}")
            unpack_tree(file, archive, pin, target, progress)
    finally:
        if own:
            archive.unlink(missing_ok=True)
    return target


def download(pin: Pin, archive: Path, progress: Progress) -> None:
    """Download the archive with pip. It appears at ``archive`` only when complete."""
    progress.stage("fetch", f"{pin.project} {pin.version} with pip")
    progress.update(0, pin.size, "B")
    log = ggml_dir() / "log" / "fetch.log"
    with os_errors("preparing the download", ggml_dir()):
        archive.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        for left in archive.parent.glob("pip-*"):  # by an interrupted download; the build lock is held
            shutil.rmtree(left, ignore_errors=True)
        _check_space(pin, archive.parent)
        work = Path(tempfile.mkdtemp(prefix="pip-", dir=archive.parent))
    try:
        with os_errors(f"downloading {pin.file}", work):
            _run_pip(pin, work, log, progress)
            fetched = work / "out" / pin.file
            if not fetched.is_file():
                found = ", ".join(sorted(path.name for path in (work / "out").iterdir())) or "nothing"
                raise BuildError(f"pip downloaded {found} instead of {pin.file}; log: {log}")
            fetched.replace(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_space(pin: Pin, folder: Path) -> None:
    """Refuse to begin on a disk that is too full: pip reports that in a hundred lines."""
    free = shutil.disk_usage(folder).free
    if free < pin.scratch:
        raise BuildError(
            f"disk full: fetching and unpacking {pin.file} takes {pin.scratch / 1e6:.0f} MB for a while, "
            f"found {free / 1e6:.0f} MB free in {folder} (DRAFTSMITH_CACHE moves the cache)"
        )


def _run_pip(pin: Pin, work: Path, log: Path, progress: Progress) -> None:
    backend = work / "backend" / "scikit_build_core"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build.py").write_text(
        _METADATA_ONLY.format(name=pin.project.replace("-", "_"), version=pin.version), encoding="utf-8"
    )
    temporary = work / "tmp"  # beside the cache: a /tmp in memory may be too small, and we watch it grow
    temporary.mkdir()
    command = [
        *_pip_command(),
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        f"--no-binary={pin.project}",
        f"--dest={work / 'out'}",
        f"{pin.project}=={pin.version}",
    ]
    path = os.pathsep.join(filter(None, [str(backend.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    done = 0
    try:
        while process.poll() is None:
            time.sleep(0.1)
            sizes = [_size(path) for path in temporary.glob(f"*/{pin.file}")]
            # pip moves the file on when it is complete
            progress.update(done := max([done, *sizes]), pin.size, "B")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    reader.join()
    output = "".join(lines)
    # On a full disk pip's words are worth more than the log of them.
    with suppress(OSError) if process.returncode else nullcontext():
        log.write_text(output, encoding="utf-8")
    if process.returncode:
        raise BuildError(_explain(output, pin, log))


def _pip_command() -> list[str]:
    """Return this Python's pip, else one on PATH: an environment made by uv has none."""
    from importlib.util import find_spec

    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise BuildError(
        "pip is needed to fetch ggml and is neither in this Python environment nor on PATH; "
        f"{sys.executable} -m ensurepip installs it"
    )


def _explain(output: str, pin: Pin, log: Path) -> str:
    """Say in one line why pip failed."""
    wanted = f"{pin.project}=={pin.version}"
    by_hand = f"to work offline, put {pin.file} into {archive_path(pin).parent}; log: {log}"
    if "No space left on device" in output:
        return f"disk full while downloading {pin.file}: no space left in {ggml_dir()}; log: {log}"
    if any(sign in output for sign in _OFFLINE):
        return f"cannot download {wanted}: pip reached no package index; {by_hand}"
    if "No matching distribution found" in output:
        return f"cannot download {wanted}: the configured package index has no such source archive; {by_hand}"
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[0] if errors else (output.strip().splitlines() or ["pip said nothing"])[-1].strip()
    return f"cannot download {wanted}: {reason}; {by_hand}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
