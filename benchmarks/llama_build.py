"""The llama.cpp to compare with: from the archive that our ggml is from, with its settings and compilers."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from draftsmith.ggml.build import build_settings
from draftsmith.ggml.cache import cache_dir
from draftsmith.ggml.fetch import archive_path, download
from draftsmith.ggml.options import chosen_options, decide
from draftsmith.ggml.pin import load_pin
from draftsmith.ggml.progress import default_progress
from draftsmith.ggml.source import verify_archive
from draftsmith.ggml.toolchain import require_tools

PEER = Path(__file__).with_name("peer.cpp")
LIBRARIES = ("llama-common", "llama", "ggml", "ggml-base")


@dataclass(frozen=True)
class LlamaCpp:
    """A llama.cpp source tree and the folder that it was built in."""

    source: Path
    build: Path

    @property
    def bench(self) -> Path:
        return self.build / "bin" / "llama-bench"

    def peer(self) -> Path:
        """Compile peer.cpp against it, unless that was done already."""
        name = self.build.resolve().as_posix().strip("/").replace("/", "-")
        program = cache_dir() / "benchmarks" / f"peer-{name}"
        libraries = self.build / "bin"
        newest = max(PEER.stat().st_mtime, (libraries / "llama-bench").stat().st_mtime)
        if program.exists() and program.stat().st_mtime > newest:
            return program
        program.parent.mkdir(parents=True, exist_ok=True)
        includes = [self.source / part for part in ("include", "common", "ggml/include", "vendor")]
        command = [str(require_tools().compilers.cxx), "-std=c++17", "-O2", str(PEER), "-o", str(program)]
        command += [f"-I{path}" for path in includes]
        command += [f"-L{libraries}", *(f"-l{name}" for name in LIBRARIES)]
        command += [f"-Wl,-rpath,{libraries}"]
        subprocess.run(command, check=True)
        return program


def find(build: Path) -> LlamaCpp:
    """A llama.cpp that was built already; its cache names the source."""
    cache = build / "CMakeCache.txt"
    for line in cache.read_text(encoding="utf-8").splitlines():
        if line.startswith("CMAKE_HOME_DIRECTORY:"):
            return LlamaCpp(Path(line.partition("=")[2]), build.resolve())
    raise SystemExit(f"{cache} does not say where its source is")


def build_pinned() -> LlamaCpp:
    """Fetch, verify, unpack and build the llama.cpp inside the pinned archive; a second call only checks."""
    pin = load_pin()
    folder = cache_dir() / "benchmarks" / pin.id
    source, build = folder / "llama.cpp", folder / "build"
    if not source.is_dir():
        _unpack(source)
    tools = require_tools()
    settings = {
        **build_settings(decide(chosen_options())),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": str(tools.ninja),
        "CMAKE_C_COMPILER": str(tools.compilers.c),
        "CMAKE_CXX_COMPILER": str(tools.compilers.cxx),
        "GIT_EXE": "OFF",
        "LLAMA_BUILD_TOOLS": "ON",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_SERVER": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_OPENSSL": "OFF",
    }
    definitions = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run([tools.cmake, "-G", "Ninja", "-S", source, "-B", build, *definitions], check=True)
    subprocess.run([tools.ninja, "-C", build, "llama-bench"], check=True)
    return LlamaCpp(source, build)


def _unpack(target: Path) -> None:
    pin = load_pin()
    progress = default_progress()
    archive = archive_path(pin)
    own = not archive.exists()
    if own:
        download(pin, archive, progress)
    root = pin.root.removesuffix("/ggml")
    fresh = target.with_suffix(".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with open(archive, "rb") as file:
        verify_archive(file, archive, pin, progress)
        with tarfile.open(fileobj=file, mode="r|gz") as members:
            for member in members:
                if member.name.startswith(f"{root}/"):
                    member.name = member.name.removeprefix(f"{root}/")
                    members.extract(member, fresh, filter="data")
    fresh.rename(target)
    if own:
        archive.unlink()
    progress.close(success=True)
