"""Building a ggml source tree with CMake and ninja into a prefix of the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from draftsmith.dsl.errors import BuildError

from .cache import ggml_dir, os_errors
from .install import GgmlInstall, backends_of, find_libraries, read_install, write_stamp
from .options import Backends
from .progress import Progress
from .source import tree_version
from .toolchain import Tools, find_nvcc

PROJECT = Path(__file__).parent / "cmake" / "CMakeLists.txt"


@dataclass(frozen=True)
class Plan:
    """One build: which tree, which backends, under which key."""

    tree: Path
    pin: str
    backends: Backends
    key: str
    base: str  # the key but for the compilers
    work: Path  # the build folder, which an interrupted build leaves for the next
    keep_work: bool  # a user's own tree is rebuilt after each edit, so its objects are kept

    @property
    def prefix(self) -> Path:
        """Where the result is installed."""
        return prefix_path(self.key)

    @property
    def log(self) -> Path:
        """Where every line of CMake and of the compilers goes."""
        return ggml_dir() / "log" / f"{self.key}.log"


def prefix_path(key: str) -> Path:
    """Return where a build of this key is installed."""
    return ggml_dir() / "install" / key


def run_build(plan: Plan, tools: Tools, progress: Progress) -> GgmlInstall:
    """Configure, compile and install. The prefix appears complete or not at all."""
    fresh = plan.prefix.with_name(f"{plan.key}.tmp")
    with os_errors("building ggml", plan.work):
        for folder in (plan.work, plan.log.parent, plan.prefix.parent):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        # A copy, so that a build folder survives a move of this package.
        shutil.copyfile(PROJECT, plan.work / "CMakeLists.txt")
        with open(plan.log, "w", encoding="utf-8") as log:
            with _hint(plan.backends):
                _configure(plan, tools, fresh, log, progress)
                _compile(plan, tools, log, progress)
            progress.stage("install", f"as {plan.key}")
            _run([str(tools.cmake), "--install", str(plan.work / "out")], log, "installing ggml")
        return _publish(plan, fresh)


@contextmanager
def _hint(backends: Backends) -> Iterator[None]:
    """Add to the error of a build with a GPU's backend how to do without it."""
    try:
        yield
    except BuildError as error:
        flags = [f"--no-{name}" for name, on in asdict(backends).items() if on]
        if not flags:
            raise
        raise BuildError(f"{error}; to do without: draftsmith ggml build {' '.join(flags)}") from error


def _configure(plan: Plan, tools: Tools, fresh: Path, log: TextIO, progress: Progress) -> None:
    progress.stage("configure", " ".join(plan.backends.names()))
    out = plan.work / "out"
    command = [str(tools.cmake), "-G", "Ninja", "-S", str(plan.work), "-B", str(out)]
    command += [f"-D{name}={value}" for name, value in _settings(plan, tools, fresh).items()]
    resumed = (out / "build.ninja").is_file()
    if not resumed:
        shutil.rmtree(out, ignore_errors=True)
    try:
        _run(command, log, "configuring ggml")
    except BuildError:
        if not resumed:
            raise
        # What an interrupted or older build left may be what CMake stumbles over: once more from nothing.
        shutil.rmtree(out, ignore_errors=True)
        _run(command, log, "configuring ggml")


def _settings(plan: Plan, tools: Tools, fresh: Path) -> dict[str, str]:
    settings = {
        "DRAFTSMITH_GGML_SOURCE": str(plan.tree),
        "CMAKE_MAKE_PROGRAM": str(tools.ninja),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": str(fresh),
        "CMAKE_INSTALL_LIBDIR": "lib",
        **build_settings(plan.backends),
    }
    if not os.environ.get("CC"):
        settings["CMAKE_C_COMPILER"] = str(tools.compilers.c)
    if not os.environ.get("CXX"):
        settings["CMAKE_CXX_COMPILER"] = str(tools.compilers.cxx)
    if plan.backends.cuda:
        settings["CMAKE_CUDA_COMPILER"] = str(find_nvcc())
        if architectures := os.environ.get("CUDAARCHS"):
            settings["CMAKE_CUDA_ARCHITECTURES"] = architectures
    if not plan.pin.startswith("tree:"):
        # The unpacked archive has no history of its own; the repository around the cache is not it.
        settings["GIT_EXE"] = "OFF"
        settings["GGML_BUILD_COMMIT"] = plan.pin
    return settings


def build_settings(backends: Backends) -> dict[str, str]:
    """Return the settings that decide what the libraries contain; part of a build's key."""
    switches = {f"GGML_{name.upper()}": on for name, on in asdict(backends).items()}
    switches |= {
        "BUILD_SHARED_LIBS": True,
        "GGML_NATIVE": True,
        "GGML_RPC": True,
        "GGML_LLAMAFILE": True,  # as llama.cpp has it: faster matrix products for several columns
        "GGML_CUDA_GRAPHS": True,  # likewise
        "GGML_CCACHE": False,
        "GGML_BUILD_TESTS": False,
        "GGML_BUILD_EXAMPLES": False,
    }
    return {name: "ON" if on else "OFF" for name, on in switches.items()}


def _compile(plan: Plan, tools: Tools, log: TextIO, progress: Progress) -> None:
    progress.stage("build")

    def count(line: str) -> None:
        if step := re.match(r"\[(\d+)/(\d+)\]", line):
            progress.update(int(step[1]), int(step[2]))

    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    command = [str(tools.ninja), "-C", str(plan.work / "out")]
    if jobs := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL"):
        command.append(f"-j{jobs}")
    _run(command, log, "compiling ggml", environment, count)


def _run(
    command: list[str],
    log: TextIO,
    doing: str,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[str], None] = lambda line: None,
) -> None:
    """Run a command into the log; if it fails, say in one line why."""
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    lines = []
    try:
        for line in process.stdout or ():
            lines.append(line)
            log.write(line)
            watch(line)
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        raise BuildError(f"{doing} failed: {_reason(lines, process.returncode)}; full log: {log.name}")


def _reason(lines: list[str], status: int) -> str:
    """Pick the line of a failed command's output that names the fault."""
    if any("No space left on device" in line for line in lines):
        return f"disk full, no space left in {ggml_dir()}"
    if status < 0 or any("Killed signal" in line for line in lines):
        return "the compiler was killed (out of memory? CMAKE_BUILD_PARALLEL_LEVEL=1 uses less)"
    for number, line in enumerate(lines):
        if line.startswith("CMake Error"):
            # The text stands in the lines below its place.
            text = " ".join(part.strip() for part in lines[number + 1 : number + 6] if part.strip())
            return text or line.strip()
        if re.search(r"\b(fatal )?error\b:|undefined reference|cannot find -l", line):
            return line.strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")


def _publish(plan: Plan, fresh: Path) -> GgmlInstall:
    """Check what was installed, stamp it and move it to its place."""
    libraries = find_libraries(fresh / "lib")
    found = backends_of(libraries)
    wanted = set(plan.backends.names())
    if missing := wanted - set(found):
        raise BuildError(f"ggml was built without {', '.join(sorted(missing))}; full log: {plan.log}")
    stamp = {
        "key": plan.key,
        "base": plan.base,
        "pin": plan.pin,
        "version": tree_version(plan.tree),
        "backends": found,
        "libraries": [path.name for path in libraries],
        "platform": sys.platform,
    }
    write_stamp(fresh, stamp)
    old = plan.prefix.with_name(f"{plan.key}.old")
    shutil.rmtree(old, ignore_errors=True)
    if plan.prefix.exists():
        plan.prefix.rename(old)
    fresh.rename(plan.prefix)
    shutil.rmtree(old, ignore_errors=True)
    install = read_install(plan.prefix)
    if install is None:
        raise BuildError(f"the ggml install at {plan.prefix} is incomplete; full log: {plan.log}")
    if plan.keep_work:
        _drop_older(plan, install)
    else:
        shutil.rmtree(plan.work, ignore_errors=True)
    return install


def _drop_older(plan: Plan, install: GgmlInstall) -> None:
    """Remove what earlier states of a user's own tree were built to; each edit makes a new install."""
    for path in plan.prefix.parent.iterdir():
        other = read_install(path)
        if other is None or other.key == install.key:
            continue
        if (other.pin, other.backends) == (install.pin, install.backends):
            shutil.rmtree(path, ignore_errors=True)
