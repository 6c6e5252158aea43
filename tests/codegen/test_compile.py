"""Every snapshot compiles without a warning against the ggml in use, and calls only what that ggml declares."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from draftsmith import ggml
from draftsmith.codegen.ninja_build import LOG, CompileError, find_compiler
from draftsmith.codegen.runtime_lib import RUNTIME_DIR, build_architecture
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml.headers import check_functions, declared_functions

from ..conftest import SNAPSHOTS
from ..graphs.variants import BY_TITLE, source

pytestmark = pytest.mark.cpu

STRICT = ("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Wconversion-null", "-Wunused", "-Wpedantic")
HEADERS = ("algorithm", "array", "cmath", "memory", "stdexcept", "string", "vector")


@pytest.fixture(scope="module")
def install() -> ggml.GgmlInstall:
    return ggml.ensure()


def compile_together(files: list[Path], folder: Path, install: ggml.GgmlInstall) -> str:
    """All files as one translation unit, each in a namespace of its own; returns what the compiler says."""
    lines = ['#include "draftsmith.h"', *(f"#include <{name}>" for name in HEADERS)]
    for i, path in enumerate(files):
        lines += [
            f"#define draftsmith_arch draftsmith_arch_{i}",
            'extern "C" const ds_arch * draftsmith_arch(void);',
            f"namespace file_{i} {{",
            f'#include "{path}"',
            "}",
            "#undef draftsmith_arch",
        ]
    unit = folder / "all.cpp"
    unit.write_text("\n".join(lines) + "\n")
    compiler = find_compiler()
    done = subprocess.run(
        [*compiler.command, *STRICT, f"-I{RUNTIME_DIR}", f"-I{install.include_dir}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_snapshots_compile_without_warnings(tmp_path: Path, install: ggml.GgmlInstall) -> None:
    said = compile_together(sorted(SNAPSHOTS.glob("*.cpp")), tmp_path, install)
    assert said == ""


def test_the_compiler_is_asked_to_complain(tmp_path: Path, install: ggml.GgmlInstall) -> None:
    """The check above sees warnings: a file with an unused variable and a shadowed one."""
    text = (SNAPSHOTS / "qwen3.cpp").read_text()
    spoilt = tmp_path / "spoilt.cpp"
    spoilt.write_text(
        text.replace(
            "ggml_context * ctx = b.ctx;", "ggml_context * ctx = b.ctx; int spare = 1; { int b = 2; (void) b; }", 1
        )
    )
    said = compile_together([spoilt], tmp_path, install)
    assert "Wunused-variable" in said and "Wshadow" in said


@pytest.mark.parametrize("title", BY_TITLE)
def test_functions_are_declared(title: str, install: ggml.GgmlInstall) -> None:
    made = source(title)
    assert {"ggml_mul_mat", "ggml_rms_norm", "ggml_set_rows"} <= made.functions
    assert not made.functions & {"ggml_tensor", "ggml_context"}
    check_functions(install, made.functions)


def test_a_missing_function_is_named_before_compiling(install: ggml.GgmlInstall) -> None:
    assert "ggml_conjure" not in declared_functions(install)
    with pytest.raises(BuildError, match="ggml_conjure") as raised:
        check_functions(install, {"ggml_add", "ggml_conjure"})
    assert "ggml_add" not in str(raised.value) and str(install.include_dir) in str(raised.value)
    text = source("qwen3").text.replace("ggml_rms_norm(", "ggml_conjure(")
    with pytest.raises(BuildError, match="lacks a function that the generated source calls: ggml_conjure") as built:
        build_architecture("qwen3", {"qwen3.cpp": text}, install)
    assert not isinstance(built.value, CompileError), (
        "the compiler was asked although the function is known to be missing"
    )


def test_optimised_build_has_no_warnings(install: ggml.GgmlInstall) -> None:
    """Some warnings need the optimiser: the flags of real builds, whose log lies beside the library."""
    library = build_architecture("qwen3", {"qwen3.cpp": source("qwen3").text}, install)
    log = (library.parent / LOG).read_text()
    assert "compile qwen3.cpp" in log and not re.search("warning", log)
