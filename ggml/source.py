"""ggml source trees: unpacking the pinned one safely, reading and fingerprinting any."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from draftsmith.dsl.errors import BuildError

from .cache import os_errors
from .pin import Pin
from .progress import Progress

_BLOCK = 1 << 20
_PARTS = ("CMakeLists.txt", "cmake", "include", "src")


def verify_archive(file: BinaryIO, name: Path, pin: Pin, progress: Progress) -> None:
    """Compare the SHA-256 of an open archive with the pin, and rewind it."""
    digest = hashlib.sha256()
    done = 0
    while block := file.read(_BLOCK):
        digest.update(block)
        done += len(block)
        progress.update(done, max(pin.size, done), "B")
    if digest.hexdigest() != pin.sha256:
        raise BuildError(
            f"{name} is not the pinned {pin.file}: "
            f"expected SHA-256 {pin.sha256}, found {digest.hexdigest()} ({done} bytes, expected {pin.size})"
        )
    file.seek(0)


def unpack_tree(file: BinaryIO, name: Path, pin: Pin, target: Path, progress: Progress) -> None:
    """Unpack the ggml tree of a verified archive as ``target``, which appears only when complete."""
    fresh = target.with_name(f"{target.name}.tmp")
    with os_errors("unpacking the ggml source", fresh):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            with tarfile.open(fileobj=file, mode="r|gz") as archive:
                _extract(archive, PurePosixPath(pin.root), fresh, pin, file, progress)
        except (tarfile.TarError, EOFError) as error:
            raise BuildError(f"{name} cannot be unpacked: {error}") from error
        if (found := tree_digest(fresh)) != pin.tree_sha256:
            raise BuildError(f"ggml tree of {name}: expected digest {pin.tree_sha256}, found {found}")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)


def _extract(
    archive: tarfile.TarFile, root: PurePosixPath, target: Path, pin: Pin, file: BinaryIO, progress: Progress
) -> None:
    """Write the files below ``root``; anything but plain files and folders there is refused."""
    for member in archive:
        path = PurePosixPath(member.name)
        if not path.is_relative_to(root):
            continue
        inside = path.relative_to(root)
        if ".." in inside.parts or not (member.isfile() or member.isdir()):
            raise BuildError(f"{pin.file}: refusing to unpack {member.name}: not a plain file inside {root}")
        place = target / inside
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            raise BuildError(f"{pin.file}: {member.name} cannot be read")
        with open(place, "xb") as out:
            shutil.copyfileobj(content, out, _BLOCK)
        progress.update(min(file.tell(), pin.size), pin.size, "B")
    progress.update(pin.size, pin.size, "B")


def tree_digest(root: Path) -> str:
    """Return a digest over the names and contents of every file of a tree."""
    digest = hashlib.sha256()
    for path in sorted(_files(root)):
        digest.update(hashlib.sha256(Path(root, path).read_bytes()).digest() + path.encode() + b"\0")
    return digest.hexdigest()


def tree_fingerprint(root: Path) -> str:
    """Return a digest that changes when a file of a user's own tree does (by size and time)."""
    digest = hashlib.sha256(str(root.resolve()).encode())
    entries = []
    for part in _PARTS:
        path = root / part
        if path.is_file():
            entries.append((part, path.stat()))
        elif path.is_dir():
            # An editor's hidden files may be links to nowhere.
            names = [name for name in _files(path) if not name.rpartition("/")[2].startswith(".")]
            entries += [(f"{part}/{name}", os.stat(f"{path}/{name}")) for name in names]
    for name, stat in sorted(entries, key=lambda entry: entry[0]):
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def tree_version(root: Path) -> str:
    """Return the ggml version that a tree's CMakeLists.txt states, or "unknown"."""
    text = (root / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"GGML_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] if part else "?" for part in parts) if any(parts) else "unknown"


def is_tree(root: Path) -> bool:
    """Return whether a folder is a ggml source tree."""
    return (
        (root / "CMakeLists.txt").is_file()
        and (root / "include" / "ggml.h").is_file()
        and (root / "src").is_dir()
    )


def _files(root: Path) -> list[str]:
    found = []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                else:
                    found.append(name)
    return found
