"""Compiling shared libraries: found again by content, built once by many, errors that point at the source."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftsmith.codegen import ninja_build
from draftsmith.codegen.ninja_build import CXXFLAGS, CompileError, build_library, find_compiler
from draftsmith.codegen.runtime_lib import RUNTIME_DIR, build_runtime, cdefs
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import ensure

pytestmark = pytest.mark.cpu

EXPORT = 'extern "C" __attribute__((visibility("default")))'
ANSWER = {"answer.cpp": f"{EXPORT} int answer() {{ return 42; }}\n"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setattr(ninja_build, "cache_dir", lambda: cache)
    return cache


def test_build_and_find_again(own_cache: Path) -> None:
    library = build_library("answer", ANSWER)
    assert ctypes.CDLL(str(library)).answer() == 42
    assert library.parent.parent == own_cache / "lib"
    assert (library.parent / "answer.cpp").read_text() == ANSWER["answer.cpp"]

    stamp = library.stat().st_mtime_ns
    took = []
    for _ in range(20):
        start = time.perf_counter()
        assert build_library("answer", ANSWER) == library
        took.append(time.perf_counter() - start)
    assert library.stat().st_mtime_ns == stamp
    assert min(took) < 0.005


def test_everything_that_goes_in_is_in_the_key(tmp_path: Path) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "value.h").write_text("#define VALUE 1\n")
    sources = {"v.cpp": f'#include "value.h"\n{EXPORT} int value() {{ return VALUE; }}\n'}

    first = build_library("v", sources, include_dirs=[headers])
    others = [
        build_library("v", sources, include_dirs=[headers], key_extra="another ggml"),
        build_library("v", sources, include_dirs=[headers], cxxflags=[*CXXFLAGS, "-DX"]),
        build_library("v", {"v.cpp": sources["v.cpp"] + "\n"}, include_dirs=[headers]),
        build_library("w", sources, include_dirs=[headers]),
    ]
    (headers / "value.h").write_text("#define VALUE 2\n")
    others.append(build_library("v", sources, include_dirs=[headers]))
    assert len({first, *others}) == 6
    assert ctypes.CDLL(str(others[-1])).value() == 2


def test_two_files_and_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int b(); " + EXPORT + " int a() { return b(); }")
    (tmp_path / "b.cpp").write_text("int b() { return 7; }")
    library = build_library("ab", [tmp_path / "a.cpp", tmp_path / "b.cpp"])
    assert ctypes.CDLL(str(library)).a() == 7


def test_a_compile_error_points_at_the_source(own_cache: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build_library("bad", {"bad.cpp": "int f() {\n    return nothing;\n}\n"})
    error = caught.value
    assert isinstance(error, BuildError)
    assert error.first_error.startswith("bad.cpp:2:12: error: ")
    assert "nothing" in error.first_error
    assert error.source.read_text().startswith("int f()")
    assert "bad.cpp:2:12" in error.log
    assert (error.source.parent / "build.log").read_text() == error.log
    assert str(error).splitlines()[0] == f"bad does not compile: {error.first_error}"
    assert str(error.source) in str(error)
    assert [p.name for p in (own_cache / "lib").iterdir() if p.is_dir()] == ["failed"]


def test_an_undefined_symbol_is_an_error() -> None:
    with pytest.raises(CompileError, match="missing"):
        build_library("u", {"u.cpp": f"int missing(); {EXPORT} int f() {{ return missing(); }}\n"})


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found \(\$CXX is 'no-such-compiler'"):
        build_library("answer", ANSWER)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"looked on PATH for c\+\+, g\+\+, clang\+\+"):
        find_compiler()


def test_a_cache_that_cannot_be_used(own_cache: Path) -> None:
    own_cache.write_text("a file stands here")
    with pytest.raises(BuildError, match="DRAFTSMITH_CACHE"):
        build_library("answer", ANSWER)


def test_a_folder_with_a_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ninja_build, "cache_dir", lambda: tmp_path / "my $cache: here")
    include = tmp_path / "an include"
    include.mkdir()
    (include / "one.h").write_text("#define ONE 1\n")
    library = build_library(
        "one", {"1.cpp": f'#include "one.h"\n{EXPORT} int one() {{ return ONE; }}\n'}, include_dirs=[include]
    )
    assert ctypes.CDLL(str(library)).one() == 1


def test_a_left_over_folder_is_replaced(own_cache: Path) -> None:
    library = build_library("answer", ANSWER)
    library.unlink()
    assert build_library("answer", ANSWER) == library
    assert library.exists()


def test_many_processes_at_once(own_cache: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from draftsmith.codegen import ninja_build\n"
        "ninja_build.cache_dir = lambda: pathlib.Path(sys.argv[1])\n"
        f"print(ninja_build.build_library('answer', {ANSWER!r}))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(own_cache)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {process.communicate(timeout=120)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert said == {f"{build_library('answer', ANSWER)}\n"}
    assert [p.name for p in (own_cache / "lib").iterdir() if p.is_dir()] == [
        build_library("answer", ANSWER).parent.name
    ]


@pytest.mark.usefixtures("own_cache")
def test_the_runtime_compiles_without_warnings() -> None:
    library = build_runtime(ensure())
    assert "warning" not in (library.parent / "build.log").read_text()


def test_cdefs_are_plain_c() -> None:
    text = cdefs()
    assert "#" not in text
    assert text.count("ds_") > 50
    assert (RUNTIME_DIR / "draftsmith.h").is_file()
