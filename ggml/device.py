"""The devices that a ggml can compute on, asked through its own C API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from draftsmith.dsl.errors import BackendError

from .install import GgmlInstall
from .rpc import check_endpoint

_TYPES = ("CPU", "GPU", "IGPU", "ACCEL", "META")

_C_API = """
typedef struct ggml_backend_reg * ggml_backend_reg_t;
typedef struct ggml_backend_device * ggml_backend_dev_t;

size_t             ggml_backend_reg_count(void);
ggml_backend_reg_t ggml_backend_reg_by_name(const char * name);
const char *       ggml_backend_reg_name(ggml_backend_reg_t reg);
size_t             ggml_backend_reg_dev_count(ggml_backend_reg_t reg);
ggml_backend_dev_t ggml_backend_reg_dev_get(ggml_backend_reg_t reg, size_t index);
void *             ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char * name);
void               ggml_backend_load_all_from_path(const char * dir_path);

size_t             ggml_backend_dev_count(void);
ggml_backend_dev_t ggml_backend_dev_get(size_t index);
const char *       ggml_backend_dev_name(ggml_backend_dev_t device);
const char *       ggml_backend_dev_description(ggml_backend_dev_t device);
void               ggml_backend_dev_memory(ggml_backend_dev_t device, size_t * free, size_t * total);
int                ggml_backend_dev_type(ggml_backend_dev_t device);
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device);
"""


@dataclass(frozen=True)
class Device:
    """One device. ``type`` is CPU, GPU, IGPU (shares the host's memory), ACCEL (helps the CPU) or META."""

    name: str
    description: str
    type: str
    backend: str
    memory_free: int
    memory_total: int


def devices(install: GgmlInstall, rpc: Sequence[str] = ()) -> list[Device]:
    """Return ggml's devices in its own order, then those of the RPC servers ``["host:port", ...]``.

    The libraries are loaded into this process. A server is asked for its version first, because ggml
    aborts the process if it cannot talk to one. No server is added to ggml's registry.
    """
    ffi, lib = _load(install.lib_dir)
    handles = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    for endpoint in rpc:
        check_endpoint(install, endpoint)
        handles += _rpc_devices(ffi, lib, endpoint)
    return [_describe(ffi, lib, handle) for handle in handles]


@cache
def _load(lib_dir: Path) -> tuple[Any, Any]:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_C_API)
    suffix = "dylib" if (lib_dir / "libggml.dylib").exists() else "so"
    try:
        lib = ffi.dlopen(os.fspath(lib_dir / f"libggml.{suffix}"))
        if lib.ggml_backend_reg_count() == 0:  # a build whose backends are modules
            lib.ggml_backend_load_all_from_path(os.fsencode(lib_dir))
    except (OSError, AttributeError) as error:
        raise BackendError(f"cannot use the ggml library in {lib_dir}: {error}") from error
    return ffi, lib


def _rpc_devices(ffi: Any, lib: Any, endpoint: str) -> list[Any]:
    registry = lib.ggml_backend_reg_by_name(b"RPC")
    if not registry:
        raise BackendError(f"cannot use {endpoint}: this ggml was built without the RPC backend")
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_rpc_add_server")
    if not address:
        raise BackendError(f"cannot use {endpoint}: this ggml's RPC backend cannot add servers")
    add_server = ffi.cast("ggml_backend_reg_t (*)(const char *)", address)
    server = add_server(endpoint.encode())
    if not server:
        raise BackendError(f"RPC server {endpoint} has no devices")
    return [lib.ggml_backend_reg_dev_get(server, i) for i in range(lib.ggml_backend_reg_dev_count(server))]


def _describe(ffi: Any, lib: Any, handle: Any) -> Device:
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    kind = lib.ggml_backend_dev_type(handle)
    return Device(
        name=_text(ffi, lib.ggml_backend_dev_name(handle)),
        description=_text(ffi, lib.ggml_backend_dev_description(handle)),
        type=_TYPES[kind] if 0 <= kind < len(_TYPES) else f"type {kind}",
        backend=_text(ffi, lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))),
        memory_free=free[0],
        memory_total=total[0],
    )


def _text(ffi: Any, pointer: Any) -> str:
    return ffi.string(pointer).decode(errors="replace").strip() if pointer else ""
