"""Asking a ggml RPC server whether it can be used, before ggml does and aborts if it cannot."""

from __future__ import annotations

import re
import socket
import struct

from draftsmith.dsl.errors import BackendError

from .install import GgmlInstall

_HELLO = 14  # the command's number, which ggml promises never to change
_CAPABILITIES = 24  # bytes of transport capabilities in request and reply, since protocol 7


def check_endpoint(install: GgmlInstall, endpoint: str, timeout: float = 5.0) -> None:
    """Raise a ``BackendError`` unless ``endpoint`` is a live server of the protocol of ``install``."""
    host, port = parse_endpoint(endpoint)
    try:
        with socket.create_connection((host, port), timeout) as connection:
            wanted = protocol_version(install)
            if wanted is not None and wanted[0] == 7:
                found = _greet(connection, endpoint)
                if found[0] != wanted[0] or found[1] > wanted[1]:
                    raise BackendError(
                        f"RPC server {endpoint}: expected protocol {_dots(wanted)} as of ggml "
                        f"{install.version}, found {_dots(found)}; use the same ggml at both ends"
                    )
    except TimeoutError as error:
        raise BackendError(
            f"RPC server {endpoint} did not answer within {timeout:g} s (it serves one client at a time)"
        ) from error
    except OSError as error:
        raise BackendError(f"RPC server {endpoint}: {(error.strerror or str(error)).lower()}") from error


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split ``host:port``."""
    host, colon, port = endpoint.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BackendError(f"RPC server {endpoint!r}: expected HOST:PORT with a port of 1 to 65535")
    return host, int(port)


def protocol_version(install: GgmlInstall) -> tuple[int, int, int] | None:
    """Return the RPC protocol version in the headers of ``install``, None if they state none."""
    try:
        text = (install.include_dir / "ggml-rpc.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    numbers = dict(re.findall(r"#define\s+RPC_PROTO_(MAJOR|MINOR|PATCH)_VERSION\s+(\d+)", text))
    if len(numbers) != 3:
        return None
    return int(numbers["MAJOR"]), int(numbers["MINOR"]), int(numbers["PATCH"])


def _greet(connection: socket.socket, endpoint: str) -> tuple[int, int, int]:
    """Send ggml's greeting without any capabilities and return the server's protocol version."""
    connection.sendall(struct.pack("<BQ", _HELLO, _CAPABILITIES) + bytes(_CAPABILITIES))
    (size,) = struct.unpack("<Q", _receive(connection, 8, endpoint))
    if size != 4 + _CAPABILITIES:
        raise BackendError(f"{endpoint} answers, but not as a ggml RPC server of protocol 7 does")
    major, minor, patch = struct.unpack_from("BBB", _receive(connection, size, endpoint))
    return major, minor, patch


def _receive(connection: socket.socket, size: int, endpoint: str) -> bytes:
    data = b""
    while len(data) < size:
        block = connection.recv(size - len(data))
        if not block:
            raise BackendError(f"{endpoint} closed the connection: not a ggml RPC server of protocol 7")
        data += block
    return data


def _dots(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
