"""DRAFTSMITH_GGML, installs of the user's own, the cache folder and the options."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from draftsmith import ggml
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import cache, install, options, source, toolchain
from tests.test_ggml_support import make_tree

LIBRARIES = (
    "libggml-base.so",
    "libggml-cpu-haswell.so",
    "libggml-cpu-x64.so",
    "libggml-cuda.so",
    "libggml.so",
)


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DRAFTSMITH_GGML", raising=False)


def make_prefix(root: Path, lib: str = "lib", names: tuple[str, ...] = LIBRARIES) -> Path:
    (root / "include").mkdir(parents=True)
    (root / "include" / "ggml.h").write_text("GGML_API void ggml_add(void);\n")
    (root / lib).mkdir()
    for name in names:
        (root / lib / name).touch()
    return root


def test_own_install_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = make_prefix(tmp_path / "prefix")
    config = prefix / "lib" / "cmake" / "ggml" / "ggml-config-version.cmake"
    config.parent.mkdir(parents=True)
    config.write_text('set(PACKAGE_VERSION "0.11.2")\n')
    monkeypatch.setenv("DRAFTSMITH_GGML", str(prefix))
    found = ggml.ensure(force=True)
    assert found == ggml.locate() == ggml.ensure()
    assert (found.version, found.backends, found.pin) == ("0.11.2", ("cpu", "cuda"), f"prefix:{prefix}")
    assert found.lib_dir == prefix / "lib"
    assert [path.name for path in found.libraries] == [*sorted(LIBRARIES[:-1]), "libggml.so"]
    assert not (tmp_path / "cache").exists()

    (prefix / "lib" / "libggml.so").write_text("another")
    replaced = ggml.locate()
    assert replaced is not None and replaced.key != found.key


def test_version_of_an_install_without_cmake_files(tmp_path: Path) -> None:
    prefix = make_prefix(tmp_path / "prefix", "lib64", (*LIBRARIES, "libggml-base.so.0.10.1"))
    assert install.describe_prefix(prefix).version == "0.10.1"
    assert install.describe_prefix(make_prefix(tmp_path / "bare")).version == "unknown"


def test_install_of_before_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_GGML", str(make_prefix(tmp_path / "old", names=("libggml.so",))))
    with pytest.raises(BuildError, match="expected libggml and libggml-base, missing libggml-base"):
        ggml.locate()


@pytest.mark.parametrize(("make", "found"), [(True, "none of them"), (False, "no such folder")])
def test_own_path_that_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: bool, found: str
) -> None:
    own = tmp_path / "own"
    if make:
        own.mkdir()
    monkeypatch.setenv("DRAFTSMITH_GGML", str(own))
    for use in (ggml.locate, ggml.ensure):
        with pytest.raises(BuildError, match=f"DRAFTSMITH_GGML={own}: expected .*, found {found}$"):
            use()


def test_fingerprint_follows_files_that_matter(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    before = source.tree_fingerprint(tree)
    (tree / "notes.txt").write_text("not part of the build")
    (tree / "src" / ".#cpu.c").symlink_to("an-editor's-lock")
    assert source.tree_fingerprint(tree) == before
    (tree / "src" / "new.c").touch()
    assert source.tree_fingerprint(tree) != before


def test_version_of_a_tree(tmp_path: Path) -> None:
    assert source.tree_version(make_tree(tmp_path / "a")) == "0.9.7"
    assert source.tree_version(make_tree(tmp_path / "b", {"CMakeLists.txt": "project(x)"})) == "unknown"


def test_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTSMITH_CACHE", "~/mine")
    assert ggml.cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("DRAFTSMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ggml.cache_dir() == tmp_path / "xdg" / "draftsmith"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(sys, "platform", "linux")
    assert ggml.cache_dir() == tmp_path / ".cache" / "draftsmith"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ggml.cache_dir() == tmp_path / "Library" / "Caches" / "draftsmith"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left", "/c/f"), "disk full while testing: no space left for /c/f"),
        (OSError(errno.EDQUOT, "Quota"), "disk full while testing: no space left for /c"),
        (
            OSError(errno.EROFS, "Read-only file system"),
            "cannot use /c while testing: read-only file system; set",
        ),
        (OSError(errno.EIO, "Input/output error"), "testing failed at /c: input/output error"),
        (OSError(), "testing failed at /c: oserror"),
    ],
)
def test_os_errors(error: OSError, expected: str) -> None:
    with pytest.raises(BuildError) as caught, cache.os_errors("testing", Path("/c")):
        raise error
    assert str(caught.value).startswith(expected)


def test_options_are_remembered() -> None:
    assert options.chosen_options() == ggml.Options()
    chosen = ggml.Options(cuda=False, vulkan=True)
    options.remember_options(chosen)
    assert options.chosen_options() == chosen
    (cache.ggml_dir() / "options.json").write_text('{"cuda": "perhaps"}')
    assert options.chosen_options() == ggml.Options(), "a damaged file is as none"


def test_options_are_checked() -> None:
    with pytest.raises(BuildError, match="ggml option cuda: expected True, False or \"auto\", found 'yes'"):
        ggml.Options(cuda="yes")  # type: ignore[arg-type]


def test_auto_needs_toolchain_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    devices = {"/dev/nvidiactl"}
    monkeypatch.setattr(os.path, "exists", lambda path: path in devices)
    monkeypatch.setattr(os, "listdir", lambda path: ["card0", "renderD128"])
    for name in ("find_nvcc", "find_glslc", "find_vulkan_header", "find_spirv_headers"):
        monkeypatch.setattr(toolchain, name, lambda: Path("/found"))
    assert options.decide(ggml.Options()).names() == ("cpu", "rpc", "cuda", "vulkan")
    assert options.decide(ggml.Options(cuda=False)).names() == ("cpu", "rpc", "vulkan")
    devices.clear()
    monkeypatch.setattr(os, "listdir", lambda path: ["card0"])
    assert options.decide(ggml.Options()).names() == ("cpu", "rpc")
    assert options.decide(ggml.Options(cuda=True)).names() == ("cpu", "rpc", "cuda")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert options.decide(ggml.Options()).names() == ("cpu", "rpc", "metal")


def test_metal_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(BuildError, match="Metal was asked for but exists on macOS only; this is linux"):
        options.check_toolchains(options.Backends(cuda=False, metal=True, vulkan=False))
