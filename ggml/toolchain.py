"""The programs that a build needs, found without running any of them."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from draftsmith.dsl.errors import BuildError

# Settings of the user's environment that CMake reads and that change what is built.
BUILD_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAFLAGS", "CUDAARCHS")


@dataclass(frozen=True)
class Compilers:
    """The C and C++ compilers, as paths."""

    c: Path
    cxx: Path


@dataclass(frozen=True)
class Tools:
    """Everything that a build runs."""

    cmake: Path
    ninja: Path
    compilers: Compilers


def require_tools() -> Tools:
    """Return the tools of a build; a missing one is named with what to install."""
    compilers = require_compilers()
    return Tools(_require("cmake", "cmake/data/bin"), _require("ninja", "ninja/data/bin"), compilers)


def find_compilers() -> Compilers | None:
    """Return the compilers that ``$CC`` and ``$CXX`` name, else the usual ones on PATH."""
    c = _find_compiler("CC", ("cc", "gcc", "clang"))
    cxx = _find_compiler("CXX", ("c++", "g++", "clang++"))
    return Compilers(c, cxx) if c and cxx else None


def compiler_identity(cuda: bool) -> str | None:
    """Return what changes when a compiler is replaced or upgraded, None if there is none."""
    compilers = find_compilers()
    if compilers is None:
        return None
    paths = [compilers.c, compilers.cxx]
    if cuda and (nvcc := find_nvcc()):
        paths.append(nvcc)
    return " ".join(_identity(path) for path in paths)


def require_compilers() -> Compilers:
    """Return the compilers or say which one is missing and how to get it."""
    found = find_compilers()
    if found:
        return found
    language, variable, names = (
        ("C", "CC", "cc, gcc, clang")
        if not _find_compiler("CC", ("cc", "gcc", "clang"))
        else ("C++", "CXX", "c++, g++, clang++")
    )
    wanted = os.environ.get(variable)
    looked = f"${variable} is {wanted!r}, which is not a program" if wanted else f"looked on PATH for {names}"
    hint = "xcode-select --install" if sys.platform == "darwin" else "the package build-essential or gcc-c++"
    raise BuildError(f"no {language} compiler found ({looked}); install one ({hint}) or set {variable}")


def find_nvcc() -> Path | None:
    """Return the CUDA compiler, or None."""
    candidates = [os.environ.get("CUDACXX"), "nvcc"]
    candidates += [
        os.path.join(os.environ[name], "bin", "nvcc")
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    candidates.append("/usr/local/cuda/bin/nvcc")
    return next((Path(path) for name in candidates if name and (path := shutil.which(name))), None)


def find_glslc() -> Path | None:
    """Return the Vulkan shader compiler, or None."""
    found = shutil.which("glslc")
    return Path(found) if found else None


def find_vulkan_header() -> Path | None:
    """Return ``vulkan/vulkan.h``, or None."""
    roots = ["/usr/include", "/usr/local/include", "/opt/homebrew/include"]
    if sdk := os.environ.get("VULKAN_SDK"):
        roots.insert(0, os.path.join(sdk, "include"))
    return next((path for root in roots if (path := Path(root, "vulkan", "vulkan.h")).is_file()), None)


def find_spirv_headers() -> Path | None:
    """Return the CMake package of SPIRV-Headers, which ggml's Vulkan backend asks for, or None."""
    roots = [os.environ.get("VULKAN_SDK"), "/usr", "/usr/local", "/opt/homebrew"]
    places = [
        Path(root, part, "cmake", "SPIRV-Headers") for root in roots if root for part in ("share", "lib")
    ]
    return next((path for path in places if (path / "SPIRV-HeadersConfig.cmake").is_file()), None)


def cpu_identity() -> str:
    """Return what a natively tuned build depends on: the machine and the CPU's features."""
    name = f"{sys.platform} {platform.machine()}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            head = file.read(16384)  # the first core is enough
    except OSError:
        return name
    lines = (line.partition(":") for line in head.split("\n\n")[0].splitlines())
    wanted = {"model name", "flags", "Features", "isa", "CPU part", "CPU implementer"}
    return " ".join([name, *(value.strip() for key, _, value in lines if key.strip() in wanted)])


def _find_compiler(variable: str, names: tuple[str, ...]) -> Path | None:
    if wanted := os.environ.get(variable):
        names = tuple(shlex.split(wanted)[:1])
    return next((Path(path) for name in names if (path := shutil.which(name))), None)


def _identity(path: Path) -> str:
    real = path.resolve()
    stat = real.stat()
    return f"{path.name}={real}:{stat.st_size}:{stat.st_mtime_ns}"


def _require(name: str, in_package: str) -> Path:
    """Return a program of the Python environment, else the one on PATH."""
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    # The package's own binary comes first: its script of the same name starts a Python for each call.
    if (spec := find_spec(name)) and spec.submodule_search_locations:
        folders.insert(0, str(Path(spec.submodule_search_locations[0]).parent / in_package))
    for folder in (*folders, None):
        if found := shutil.which(name, path=folder):
            return Path(found)
    raise BuildError(f"{name} not found, neither in this Python environment nor on PATH; pip install {name}")
