"""What the tests of ``draftsmith.ggml`` share: a tiny stand-in for ggml's tree and for its archive."""

from __future__ import annotations

import hashlib
import sys
import tarfile
from pathlib import Path

from draftsmith.ggml.pin import Pin
from draftsmith.ggml.source import tree_digest

_CMAKE = """\
cmake_minimum_required(VERSION 3.14)
project(ggml C CXX)
set(GGML_VERSION_MAJOR 0)
set(GGML_VERSION_MINOR 9)
set(GGML_VERSION_PATCH 7)
option(GGML_RPC "" OFF)
include(GNUInstallDirs)
add_library(ggml-base SHARED src/base.c)
add_library(ggml-cpu SHARED src/cpu.c)
add_library(ggml SHARED src/reg.c)
target_link_libraries(ggml-cpu PRIVATE ggml-base)
target_link_libraries(ggml PRIVATE ggml-cpu)
set(all ggml-base ggml-cpu ggml)
if (GGML_RPC)
    add_library(ggml-rpc SHARED src/rpc.c)
    list(APPEND all ggml-rpc)
endif()
install(TARGETS ${all} LIBRARY DESTINATION lib)
install(FILES include/ggml.h include/ggml-rpc.h DESTINATION include)
"""

_GGML_H = """\
#pragma once
#define GGML_API extern
GGML_API const char * ggml_version(void);
GGML_API struct ggml_tensor * ggml_add(struct ggml_tensor * a, struct ggml_tensor * b);
// GGML_API void ggml_commented_out(void);
"""

_RPC_H = """\
#define RPC_PROTO_MAJOR_VERSION    7
#define RPC_PROTO_MINOR_VERSION    1
#define RPC_PROTO_PATCH_VERSION    0
GGML_BACKEND_API void ggml_backend_rpc_start_server(const char * endpoint);
"""


def make_tree(root: Path, changed: dict[str, str] | None = None) -> Path:
    """Write a tree that builds in a second; ``changed`` replaces the text of some files."""
    files = {
        "CMakeLists.txt": _CMAKE,
        "include/ggml.h": _GGML_H,
        "include/ggml-rpc.h": _RPC_H,
        "src/base.c": 'const char * ggml_version(void) { return "0.9.7"; }\n',
        "src/cpu.c": "const char * ggml_version(void);\nint cpu(void) { return ggml_version() != 0; }\n",
        "src/reg.c": "int cpu(void);\nint reg(void) { return cpu(); }\n",
        "src/rpc.c": "int rpc(void) { return 0; }\n",
    }
    files |= changed or {}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def make_archive(folder: Path) -> tuple[Path, Pin]:
    """Write an sdist that vendors the tiny tree, and the pin of it."""
    tree = make_tree(folder / "fake_pkg-1.0" / "vendor" / "ggml")
    (folder / "fake_pkg-1.0" / "outside.txt").write_text("not to be unpacked\n", encoding="utf-8")
    archive = folder / "fake_pkg-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "fake_pkg-1.0", "fake_pkg-1.0")
    return archive, make_pin(archive, tree_digest(tree))


def make_pin(archive: Path, digest: str) -> Pin:
    """Return the pin of an archive as it is now."""
    data = archive.read_bytes()
    return Pin(
        project="fake-pkg",
        version="1.0",
        file=archive.name,
        size=len(data),
        scratch=1000,
        sha256=hashlib.sha256(data).hexdigest(),
        ggml_version="0.9.7",
        root="fake_pkg-1.0/vendor/ggml",
        tree_sha256=digest,
    )


def fake_pip(folder: Path, body: str) -> list[str]:
    """Return a command that takes pip's arguments and runs ``body``, which knows ``dest``."""
    script = folder / "fake_pip.py"
    script.write_text(
        "import os, pathlib, shutil, sys\n"
        "dest = pathlib.Path(next(a for a in sys.argv if a.startswith('--dest=')).removeprefix('--dest='))\n"
        "dest.mkdir(parents=True, exist_ok=True)\n" + body,
        encoding="utf-8",
    )
    return [sys.executable, str(script)]


class Recorder:
    """A progress display that remembers what it was told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.counts: list[tuple[int, int]] = []
        self.success: bool | None = None

    def stage(self, name: str, detail: str = "") -> None:
        """Remember the name."""
        self.stages.append(name)

    def update(self, done: int, total: int, unit: str = "") -> None:
        """Remember the count."""
        self.counts.append((done, total))

    def note(self, text: str) -> None:
        """Remember the text."""
        self.notes.append(text)

    def close(self, success: bool) -> None:
        """Remember how it ended."""
        self.success = success
