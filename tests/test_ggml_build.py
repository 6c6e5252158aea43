"""Building a tiny stand-in for ggml with the real CMake, ninja and compiler."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from draftsmith import ggml
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import build, fetch, resolve, toolchain
from tests.test_ggml_support import Recorder, make_archive, make_tree

pytestmark = pytest.mark.cpu

CPU_ONLY = ggml.Options(cuda=False, metal=False, vulkan=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(path))
    return path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A tree of the user's own, named by DRAFTSMITH_GGML."""
    path = make_tree(tmp_path / "own")
    monkeypatch.setenv("DRAFTSMITH_GGML", str(path))
    return path


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """The tiny archive as the pinned one, put where a user without network would."""
    monkeypatch.delenv("DRAFTSMITH_GGML", raising=False)
    folder = tmp_path / "index"
    folder.mkdir()
    archive, pin = make_archive(folder)
    monkeypatch.setattr(resolve, "load_pin", lambda: pin)
    target = fetch.archive_path(pin)
    target.parent.mkdir(parents=True)
    return archive.rename(target)


def test_pinned_build_from_archive_to_install(pinned: Path, cache: Path) -> None:
    assert ggml.locate(CPU_ONLY) is None
    progress = Recorder()
    install = ggml.ensure(CPU_ONLY, progress)
    assert progress.stages == ["verify", "unpack", "configure", "build", "install"]
    assert progress.success
    assert progress.counts[-1][0] == progress.counts[-1][1] > 0
    assert (install.version, install.pin, install.backends) == ("0.9.7", "fake-pkg-1.0", ("cpu", "rpc"))
    assert install.prefix == cache / "ggml" / "install" / install.key
    assert (install.include_dir / "ggml.h").is_file()
    names = [path.stem for path in install.libraries]
    assert names == ["libggml-base", "libggml-cpu", "libggml-rpc", "libggml"]
    assert all(path.is_file() and path.parent == install.lib_dir for path in install.libraries)
    assert not list((cache / "ggml" / "build").iterdir()), "objects are not kept"
    assert ggml.locate(CPU_ONLY) == install == ggml.ensure(CPU_ONLY)


def test_libraries_find_one_another_wherever_they_lie(pinned: Path, tmp_path: Path) -> None:
    from cffi import FFI

    install = ggml.ensure(CPU_ONLY, Recorder())
    moved = install.prefix.rename(tmp_path / "moved")
    ffi = FFI()
    ffi.cdef("int reg(void);")
    assert ffi.dlopen(str(moved / "lib" / install.libraries[-1].name)).reg() == 1


def test_finding_what_is_built_is_fast(pinned: Path) -> None:
    ggml.ensure(CPU_ONLY, Recorder())
    took = []
    for _ in range(5):
        began = time.perf_counter()
        ggml.ensure(CPU_ONLY)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.005


def test_damaged_source_is_unpacked_again(pinned: Path, cache: Path) -> None:
    ggml.ensure(CPU_ONLY, Recorder())
    source = next((cache / "ggml" / "source").rglob("base.c"))
    source.write_text("tampered")
    progress = Recorder()
    ggml.ensure(CPU_ONLY, progress, force=True)
    assert progress.stages[:2] == ["verify", "unpack"]
    assert "tampered" not in source.read_text()
    progress = Recorder()
    ggml.ensure(CPU_ONLY, progress, force=True)
    assert progress.stages == ["configure", "build", "install"], "an intact source is used as it is"


def test_incomplete_install_is_built_again(pinned: Path) -> None:
    install = ggml.ensure(CPU_ONLY, Recorder())
    install.libraries[0].unlink()
    assert ggml.locate(CPU_ONLY) is None
    assert ggml.ensure(CPU_ONLY, Recorder()).libraries[0].is_file()
    (install.prefix / "draftsmith.json").write_text("{")
    assert ggml.locate(CPU_ONLY) is None
    assert ggml.ensure(CPU_ONLY, Recorder()) == install


def test_own_tree(tree: Path, cache: Path) -> None:
    install = ggml.ensure(CPU_ONLY, Recorder())
    assert install.pin == f"tree:{tree}"
    assert install.version == "0.9.7"

    (tree / "src" / "rpc.c").write_text("int rpc(void) { return 1; }\n")
    assert ggml.locate(CPU_ONLY) is None, "an edit makes another ggml"
    progress = Recorder()
    edited = ggml.ensure(CPU_ONLY, progress)
    assert edited.key != install.key
    assert progress.counts[-1][1] == 2, "one file and one library are built anew"
    assert not install.prefix.exists(), "what the earlier state was built to is gone"


def test_own_checkout_with_ggml_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    make_tree(tmp_path / "checkout" / "ggml")
    monkeypatch.setenv("DRAFTSMITH_GGML", str(tmp_path / "checkout"))
    assert ggml.ensure(CPU_ONLY, Recorder()).pin == f"tree:{tmp_path / 'checkout' / 'ggml'}"


def test_compile_error_names_the_line_and_the_log(tree: Path) -> None:
    (tree / "src" / "cpu.c").write_text("int cpu(void) { return nowhere; }\n")
    progress = Recorder()
    with pytest.raises(BuildError) as caught:
        ggml.ensure(CPU_ONLY, progress)
    message = str(caught.value)
    assert message.startswith("compiling ggml failed: ")
    assert "cpu.c:1:" in message and "nowhere" in message and "\n" not in message
    log = Path(message.rpartition("full log: ")[2])
    assert "nowhere" in log.read_text()
    assert progress.success is False
    assert ggml.locate(CPU_ONLY) is None

    (tree / "src" / "cpu.c").write_text("int cpu(void) { return 1; }\n")
    progress = Recorder()
    ggml.ensure(CPU_ONLY, progress)
    assert progress.counts[-1][1] < 7, "what had been compiled is not compiled again"


def test_configure_error(tree: Path) -> None:
    text = (tree / "CMakeLists.txt").read_text()
    (tree / "CMakeLists.txt").write_text(text + 'message(FATAL_ERROR "no such\n  luck")\n')
    with pytest.raises(BuildError, match=r"configuring ggml failed: no such luck.*; full log: /"):
        ggml.ensure(CPU_ONLY, Recorder())


def test_half_a_build_folder_starts_from_nothing(tree: Path, cache: Path) -> None:
    ggml.ensure(CPU_ONLY, Recorder())
    (work,) = (cache / "ggml" / "build").iterdir()
    (work / "out" / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
    (tree / "src" / "rpc.c").write_text("int rpc(void) { return 2; }\n")
    assert ggml.ensure(CPU_ONLY, Recorder()).libraries
    (work / "out" / "build.ninja").unlink()
    (tree / "src" / "rpc.c").write_text("int rpc(void) { return 3; }\n")
    assert ggml.ensure(CPU_ONLY, Recorder()).libraries


def test_missing_backend_is_noticed(tree: Path) -> None:
    text = (tree / "CMakeLists.txt").read_text()
    (tree / "CMakeLists.txt").write_text(text.replace("if (GGML_RPC)", "if (FALSE)"))
    with pytest.raises(BuildError, match="ggml was built without rpc"):
        ggml.ensure(CPU_ONLY, Recorder())
    assert ggml.locate(CPU_ONLY) is None


def test_second_build_waits_and_uses_the_first(tree: Path, cache: Path) -> None:
    first = Recorder()
    second = Recorder()
    (cache / "ggml").mkdir(parents=True)
    lock = FileLock(cache / "ggml" / "lock")
    installs: list[ggml.GgmlInstall] = []
    with lock:
        threads = [
            threading.Thread(target=lambda p=progress: installs.append(ggml.ensure(CPU_ONLY, p)))
            for progress in (first, second)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while not (first.notes and second.notes) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not installs
    for thread in threads:
        thread.join(timeout=60)
    assert len(installs) == 2 and installs[0] == installs[1]
    assert "another process is building ggml; waiting" in first.notes[0]
    assert sorted([len(first.stages), len(second.stages)]) == [0, 3], "one builds, the other finds"


def test_no_compiler(tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match=r"no C compiler found \(looked on PATH for cc, gcc, clang\)"):
        ggml.ensure(CPU_ONLY, Recorder())
    monkeypatch.undo()
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DRAFTSMITH_GGML", str(tree))
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found \(\$CXX is 'no-such-compiler -O3'"):
        ggml.ensure(CPU_ONLY, Recorder())


def test_without_compilers_what_is_built_still_serves(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install = ggml.ensure(CPU_ONLY, Recorder())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ggml.ensure(CPU_ONLY) == install
    assert ggml.locate(ggml.Options(cuda=True, metal=False, vulkan=False)) is None


@pytest.mark.parametrize("name", ["cmake", "ninja"])
def test_no_cmake_or_ninja(tree: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda cmd, path=None: None if cmd == name else which(cmd, path=path)
    )
    with pytest.raises(BuildError, match=f"{name} not found, .*; pip install {name}"):
        ggml.ensure(CPU_ONLY, Recorder())


def test_cmake_and_ninja_of_the_environment_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("cmake", "ninja"):
        fake = tmp_path / name
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tools = toolchain.require_tools()
    assert tmp_path not in (tools.cmake.parent, tools.ninja.parent)


def test_disk_full(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/object.o")

    monkeypatch.setattr(build, "write_stamp", full)
    with pytest.raises(
        BuildError, match=r"disk full while building ggml: no space left for /cache/object\.o"
    ):
        ggml.ensure(CPU_ONLY, Recorder())
    assert ggml.locate(CPU_ONLY) is None
    assert build._reason(["[1/2] x", "ld: final link failed: No space left on device"], 1).startswith(
        "disk full"
    )


def test_killed_compiler() -> None:
    lines = ["c++: fatal error: Killed signal terminated program cc1plus", "compilation terminated."]
    assert "out of memory?" in build._reason(lines, 1)
    assert "out of memory?" in build._reason([], -9)


def test_cache_that_cannot_be_used(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    cache.write_text("a file")
    with pytest.raises(BuildError, match="a file stands where a folder is needed"):
        ggml.ensure(CPU_ONLY, Recorder())
    cache.unlink()

    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(cache))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(BuildError, match="permission denied; set DRAFTSMITH_CACHE to a folder you may write"):
        ggml.ensure(CPU_ONLY, Recorder())


def test_asking_for_an_absent_toolchain(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "find_glslc", lambda: None)
    with pytest.raises(BuildError, match="CUDA was asked for but nvcc was not found"):
        ggml.ensure(ggml.Options(cuda=True, metal=False, vulkan=False), Recorder())
    with pytest.raises(BuildError, match="Vulkan was asked for but glslc was not found"):
        ggml.ensure(ggml.Options(cuda=False, metal=False, vulkan=True), Recorder())


def test_failure_with_a_gpu_backend_says_how_to_do_without(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "check_toolchains", lambda backends: None)
    (tree / "src" / "cpu.c").write_text("#error no such GPU\n")
    with pytest.raises(BuildError, match=r"to do without: draftsmith ggml build --no-vulkan$"):
        ggml.ensure(ggml.Options(cuda=False, metal=False, vulkan=True), Recorder())


def test_key_changes_with_what_the_build_depends_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = resolve._plan(CPU_ONLY, tree)
    assert resolve._plan(CPU_ONLY, tree) == plain
    assert resolve._plan(ggml.Options(cuda=True, metal=False, vulkan=False), tree).key != plain.key
    with monkeypatch.context() as patch:
        patch.setenv("CFLAGS", "-O1")
        assert resolve._plan(CPU_ONLY, tree).key != plain.key
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "cpu_identity", lambda: "another CPU")
        assert resolve._plan(CPU_ONLY, tree).key != plain.key
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "compiler_identity", lambda cuda: "another compiler")
        other = resolve._plan(CPU_ONLY, tree)
        assert other.key != plain.key and other.base == plain.base


def test_stamp_is_readable(tree: Path) -> None:
    install = ggml.ensure(CPU_ONLY, Recorder())
    stamp = json.loads((install.prefix / "draftsmith.json").read_text())
    assert stamp["key"] == install.key and stamp["backends"] == ["cpu", "rpc"]
