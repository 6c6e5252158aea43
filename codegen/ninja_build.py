"""Compiling C++ into a shared library once, and finding it again by what went into it.

The cache is addressed by content: sources, headers, flags, compiler and libraries make the key, so a
library is never stale and never rebuilt. Two processes may build the same one at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import cache_dir

CXXFLAGS = ("-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-fvisibility=hidden")
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
LOG = "build.log"

_ERROR = re.compile(
    r"^\S.*?: (?:fatal )?error: .*$|^.*undefined reference to .*$|^Undefined symbols.*$", re.MULTILINE
)


class CompileError(BuildError):
    """Generated or hand-written C++ did not compile: a bug of whoever wrote it.

    ``first_error`` is the compiler's first complaint, ``source`` the file it compiled, ``log`` all it said.
    """

    def __init__(self, name: str, first_error: str, source: Path, log: str) -> None:
        super().__init__(
            f"{name} does not compile: {first_error}\n  source: {source}\n  log:    {source.parent / LOG}"
        )
        self.first_error = first_error
        self.source = source
        self.log = log


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command line so far, and what changes when it is replaced or upgraded."""

    command: tuple[str, ...]
    identity: str


def find_compiler() -> Compiler:
    """Return the compiler that ``$CXX`` names, else the usual one on PATH."""
    wanted = os.environ.get("CXX", "").strip()
    candidates = [shlex.split(wanted)] if wanted else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        # every word that is a program counts: in "ccache g++" the second one decides
        programs = [path for word in command if (path := shutil.which(word))]
        if programs and shutil.which(command[0]):
            return Compiler(tuple(command), " ".join([*command, *map(_stat_identity, programs)]))
    looked = (
        f"$CXX is {wanted!r}, which is not a program" if wanted else "looked on PATH for c++, g++, clang++"
    )
    hint = "xcode-select --install" if sys.platform == "darwin" else "the package build-essential or gcc-c++"
    raise BuildError(f"no C++ compiler found ({looked}); install one ({hint}) or set CXX")


def build_library(
    name: str,
    sources: Mapping[str, str] | Sequence[Path],
    *,
    include_dirs: Sequence[Path] = (),
    libs: Sequence[Path] = (),
    key_extra: str = "",
    cxxflags: Sequence[str] = CXXFLAGS,
) -> Path:
    """Return the shared library of ``sources``, compiling it unless that was done before.

    ``sources`` are texts by file name, or files. ``key_extra`` names what else the result depends on,
    such as the key of the ggml that is linked. Raises ``CompileError`` with the compiler's first error.
    """
    texts = _texts(sources)
    compiler = find_compiler()
    key = _key(name, texts, compiler, include_dirs, libs, key_extra, cxxflags)
    folder = cache_dir() / "lib" / key
    library = folder / f"lib{name}{SUFFIX}"
    if library.exists():
        return library

    from filelock import FileLock

    _make_folder(folder.parent)
    with FileLock(folder.parent / f"{key}.lock"):
        if library.exists():
            return library
        work = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=folder.parent))
        try:
            _write_build(work, library.name, texts, compiler, include_dirs, libs, cxxflags)
            _run_ninja(name, work, texts, folder.parent / "failed" / key)
            _publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return library


def _texts(sources: Mapping[str, str] | Sequence[Path]) -> dict[str, str]:
    if isinstance(sources, Mapping):
        return dict(sources)
    return {path.name: path.read_text(encoding="utf-8") for path in sources}


def _key(
    name: str,
    texts: Mapping[str, str],
    compiler: Compiler,
    include_dirs: Iterable[Path],
    libs: Iterable[Path],
    key_extra: str,
    cxxflags: Iterable[str],
) -> str:
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            data = part.encode()
            digest.update(f"{len(data)}:".encode() + data)

    add(name, sys.platform, compiler.identity, key_extra, *cxxflags)
    for file, text in sorted(texts.items()):
        add(file, text)
    for folder in include_dirs:
        add(_headers_digest(folder))
    for path in libs:
        add(str(path))
    return f"{name}-{digest.hexdigest()[:24]}"


def _headers_digest(folder: Path) -> str:
    with os.scandir(folder) as entries:
        headers = sorted((e.path, e.stat()) for e in entries if e.name.endswith((".h", ".hpp")))
    return "".join(_file_digest(path, stat.st_mtime_ns, stat.st_size) for path, stat in headers)


@lru_cache(maxsize=1024)
def _file_digest(path: str, mtime_ns: int, size: int) -> str:
    del mtime_ns, size  # they are there to notice a change
    return os.path.basename(path) + hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _stat_identity(program: str) -> str:
    real = os.path.realpath(program)
    stat = os.stat(real)
    return f"{real}:{stat.st_size}:{stat.st_mtime_ns}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"cannot use the cache {folder}: {(error.strerror or str(error)).lower()}; "
            "set DRAFTSMITH_CACHE to a folder you may write"
        ) from error


def _write_build(
    work: Path,
    output: str,
    texts: Mapping[str, str],
    compiler: Compiler,
    include_dirs: Iterable[Path],
    libs: Sequence[Path],
    cxxflags: Iterable[str],
) -> None:
    from ninja.ninja_syntax import Writer

    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")

    # Relative paths only where the sources are concerned: what is compiled does not depend on the folder.
    includes = [f"-I{path}" for path in include_dirs]
    rpaths = [f"-Wl,-rpath,{folder}" for folder in dict.fromkeys(path.parent for path in libs)]
    if sys.platform == "darwin":
        link = ["-dynamiclib", f"-Wl,-install_name,@rpath/{output}", *rpaths]
    else:
        link = ["-shared", "-Wl,--no-undefined", f"-Wl,-soname,{output}", *rpaths]

    with open(work / "build.ninja", "w", encoding="utf-8") as script:
        ninja = Writer(cast(Any, script))  # ninja's own hint asks for a str and writes to it
        ninja.variable("cxx", _shell(compiler.command))
        ninja.variable("cxxflags", _shell([*cxxflags, *includes]))
        ninja.variable("ldflags", _shell(link))
        ninja.variable("libs", _shell(map(str, libs)))
        ninja.newline()
        ninja.rule("cxx", "$cxx $cxxflags -c $in -o $out", description="compile $in")
        ninja.rule("link", "$cxx $ldflags $in $libs -o $out", description="link $out")
        ninja.newline()
        objects = []
        for source in sorted(texts):
            if source.endswith((".cpp", ".cc")):
                objects.append(f"{Path(source).stem}.o")
                ninja.build([objects[-1]], "cxx", [source])
        ninja.build([output], "link", objects)
        ninja.default(output)


def _shell(words: Iterable[str]) -> str:
    return shlex.join(words).replace("$", "$$")


def _run_ninja(name: str, work: Path, texts: Mapping[str, str], failed: Path) -> None:
    import ninja

    program = os.path.join(ninja.BIN_DIR, "ninja")
    environment = {**os.environ, "LC_ALL": "C"}  # English, so that the first error can be found
    try:
        done = subprocess.run(
            [program, "-C", str(work)],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"cannot run {program}: {(error.strerror or str(error)).lower()}") from error
    log = done.stdout + done.stderr
    (work / LOG).write_text(log, encoding="utf-8")
    if done.returncode == 0:
        return

    found = _ERROR.search(log)
    first = (
        found[0].strip()
        if found
        else next((line for line in reversed(log.splitlines()) if line.strip()), "no output")
    )
    shutil.rmtree(failed, ignore_errors=True)
    failed.parent.mkdir(exist_ok=True)
    shutil.copytree(work, failed, ignore=shutil.ignore_patterns("*.o", ".ninja*"))
    blamed = next((file for file in texts if first.startswith(file + ":")), next(iter(sorted(texts))))
    raise CompileError(name, first, failed / blamed, log)


def _publish(work: Path, folder: Path) -> None:
    for path in [*work.glob("*.o"), *work.glob(".ninja*")]:
        path.unlink()
    os.chmod(work, 0o755)  # mkdtemp is for its owner only
    try:
        os.rename(work, folder)
    except OSError:
        # left there by a build that was killed between two steps, or by one without our lock
        if not any(folder.glob(f"*{SUFFIX}")):
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(work, folder)
