"""Which backends to build, and how "auto" is decided."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from draftsmith.dsl.errors import BuildError

from . import toolchain
from .cache import ggml_dir, os_errors

Switch = bool | Literal["auto"]


@dataclass(frozen=True)
class Options:
    """Backends beside CPU and RPC, which are always built.

    ``"auto"`` switches a backend on where its toolchain is found and a device for it is in sight, so
    that a plain build never spends minutes on kernels that this machine cannot run.
    """

    cuda: Switch = "auto"
    metal: Switch = "auto"
    vulkan: Switch = "auto"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not True and value is not False and value != "auto":
                raise BuildError(f'ggml option {name}: expected True, False or "auto", found {value!r}')


@dataclass(frozen=True)
class Backends:
    """The decided options: what will really be switched on."""

    cuda: bool
    metal: bool
    vulkan: bool

    def names(self) -> tuple[str, ...]:
        """Return the names of all backends of such a build."""
        return ("cpu", "rpc", *(name for name, on in asdict(self).items() if on))


def decide(options: Options) -> Backends:
    """Turn "auto" into yes or no. Looks at files only, so that it costs no time."""
    return Backends(
        cuda=_cuda_in_sight() if options.cuda == "auto" else options.cuda,
        metal=sys.platform == "darwin" if options.metal == "auto" else options.metal,
        vulkan=_vulkan_in_sight() if options.vulkan == "auto" else options.vulkan,
    )


def check_toolchains(backends: Backends) -> None:
    """Refuse a backend whose toolchain is absent, before CMake does it in forty lines."""
    if backends.cuda and toolchain.find_nvcc() is None:
        raise BuildError("CUDA was asked for but nvcc was not found (PATH, $CUDACXX, $CUDA_HOME/bin)")
    if backends.metal and sys.platform != "darwin":
        raise BuildError(f"Metal was asked for but exists on macOS only; this is {sys.platform}")
    if backends.vulkan:
        if toolchain.find_glslc() is None:
            raise BuildError("Vulkan was asked for but glslc was not found on PATH (part of shaderc)")
        if toolchain.find_vulkan_header() is None:
            raise BuildError(
                "Vulkan was asked for but vulkan/vulkan.h was not found (/usr/include, $VULKAN_SDK)"
            )


def chosen_options() -> Options:
    """Return the options of the user's last explicit build, else the defaults."""
    try:
        saved = json.loads(_choice_file().read_text(encoding="utf-8"))
        return Options(**saved)
    except (OSError, ValueError, TypeError, BuildError):
        return Options()


def remember_options(options: Options) -> None:
    """Make these the options of every later build that names none."""
    path = _choice_file()
    with os_errors("recording the build options", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(asdict(options)) + "\n", encoding="utf-8")
        fresh.replace(path)


def _choice_file() -> Path:
    return ggml_dir() / "options.json"


def _cuda_in_sight() -> bool:
    driver = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
    return any(os.path.exists(path) for path in driver) and toolchain.find_nvcc() is not None


def _vulkan_in_sight() -> bool:
    if sys.platform == "darwin" or toolchain.find_glslc() is None:
        return False
    if toolchain.find_vulkan_header() is None or toolchain.find_spirv_headers() is None:
        return False
    try:
        return any(name.startswith("renderD") for name in os.listdir("/dev/dri"))
    except OSError:
        return False
