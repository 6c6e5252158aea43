"""Listing devices, and the care that is taken with RPC servers."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith import ggml
from draftsmith.dsl.errors import BackendError
from draftsmith.ggml import rpc

SERVER = """
import sys
from cffi import FFI
ffi = FFI()
ffi.cdef('''
    void * ggml_backend_dev_get(size_t index);
    void ggml_backend_rpc_start_server(
        const char * endpoint, const char * cache_dir, size_t n_threads, size_t n_devices, void ** devices);
''')
lib = ffi.dlopen(sys.argv[1])
devices = ffi.new("void *[1]", [lib.ggml_backend_dev_get(0)])
lib.ggml_backend_rpc_start_server(sys.argv[2].encode(), ffi.NULL, 1, 1, devices)
"""


@pytest.fixture
def install() -> ggml.GgmlInstall:
    """The ggml in use, which these tests do not build."""
    found = ggml.locate()
    if found is None:
        pytest.skip("ggml is not built; draftsmith ggml build")
    return found


@pytest.fixture
def headers_only(tmp_path: Path) -> ggml.GgmlInstall:
    """An install that knows its RPC protocol, 7.1.0, and nothing else."""
    (tmp_path / "ggml-rpc.h").write_text(
        "#define RPC_PROTO_MAJOR_VERSION    7\n"
        "#define RPC_PROTO_MINOR_VERSION    1\n"
        "#define RPC_PROTO_PATCH_VERSION    0\n"
    )
    return ggml.GgmlInstall(tmp_path, tmp_path, tmp_path, "0.9.7", "test", ("cpu", "rpc"), "abc", ())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def endpoint_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def answer(listener: socket.socket, reply: bytes) -> None:
    """Answer one greeting with ``reply`` in the background."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 + 8 + 24, socket.MSG_WAITALL)
            connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()


def greeting(major: int, minor: int) -> bytes:
    return struct.pack("<QBBBx", 28, major, minor, 0) + bytes(24)


def test_server_of_the_same_protocol(headers_only: ggml.GgmlInstall, listener: socket.socket) -> None:
    answer(listener, greeting(7, 0))
    rpc.check_endpoint(headers_only, endpoint_of(listener))


@pytest.mark.parametrize("version", [(6, 0), (7, 2)])
def test_server_of_another_protocol(
    headers_only: ggml.GgmlInstall, listener: socket.socket, version: tuple[int, int]
) -> None:
    answer(listener, greeting(*version))
    found = f"{version[0]}.{version[1]}.0"
    with pytest.raises(
        BackendError, match=rf"expected protocol 7\.1\.0 as of ggml 0\.9\.7, found {found}; use"
    ):
        rpc.check_endpoint(headers_only, endpoint_of(listener))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers, but not as a ggml RPC server"),
        (b"", "closed the connection: not a ggml RPC server"),
    ],
)
def test_something_else_listens(
    headers_only: ggml.GgmlInstall, listener: socket.socket, reply: bytes, expected: str
) -> None:
    answer(listener, reply)
    with pytest.raises(BackendError, match=expected):
        rpc.check_endpoint(headers_only, endpoint_of(listener))


def test_busy_server(headers_only: ggml.GgmlInstall, listener: socket.socket) -> None:
    with pytest.raises(
        BackendError, match=r"did not answer within 0\.2 s \(it serves one client at a time\)"
    ):
        rpc.check_endpoint(headers_only, endpoint_of(listener), timeout=0.2)


def test_nobody_listens(headers_only: ggml.GgmlInstall, listener: socket.socket) -> None:
    endpoint = endpoint_of(listener)
    listener.close()
    with pytest.raises(BackendError, match=f"RPC server {endpoint}: connection refused"):
        rpc.check_endpoint(headers_only, endpoint)


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", ":50052", "host:x", "host:0", "host:65536", "host:²"]
)
def test_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(BackendError, match="expected HOST:PORT with a port of 1 to 65535"):
        rpc.parse_endpoint(endpoint)


def test_library_that_cannot_be_loaded(headers_only: ggml.GgmlInstall) -> None:
    (headers_only.lib_dir / "libggml.so").write_text("not a library")
    with pytest.raises(BackendError, match=f"cannot use the ggml library in {headers_only.lib_dir}: "):
        ggml.devices(headers_only)


@pytest.mark.cpu
def test_devices_of_this_machine(install: ggml.GgmlInstall) -> None:
    found = ggml.devices(install)
    cpu = next(device for device in found if device.type == "CPU")
    assert cpu.name == cpu.backend == "CPU"
    assert 0 < cpu.memory_free <= cpu.memory_total
    assert len({device.name for device in found}) == len(found)


@pytest.mark.cpu
@pytest.mark.rpc
def test_devices_of_a_server(install: ggml.GgmlInstall) -> None:
    if "rpc" not in install.backends:
        pytest.skip("this ggml was built without RPC")
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = endpoint_of(free)
    library = next(path for path in install.libraries if path.stem == "libggml")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(library), endpoint],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_for(install, endpoint)
        local = ggml.devices(install)
        found = ggml.devices(install, rpc=[endpoint])
        assert found[:-1] == local
        assert (found[-1].backend, found[-1].description) == ("RPC", endpoint)
        assert found[-1].memory_total == local[-1].memory_total
        assert ggml.devices(install) == local, "asking a server does not register it"
    finally:
        server.terminate()
        server.wait()
    with pytest.raises(BackendError, match="connection refused"):
        ggml.devices(install, rpc=[endpoint])


def _wait_for(install: ggml.GgmlInstall, endpoint: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            return rpc.check_endpoint(install, endpoint)
        except BackendError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
