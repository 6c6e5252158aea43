"""The native runtime on a second device: a loop-back RPC server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith.codegen.native import Backends, NativeContext, NativeModel, Weights, add_rpc_server
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.dsl.errors import BackendError
from draftsmith.ggml import ensure

from .test_runtime import PARAMS, STATE, TOKENS, close, reference, run, write_model

pytestmark = [pytest.mark.cpu, pytest.mark.rpc]

SERVER = """
import ctypes, sys
libs = {n: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for n, path in (a.split("=", 1) for a in sys.argv[2:])}
device = libs["libggml"].ggml_backend_dev_by_name
device.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(device(b"CPU"))
libs["libggml-rpc"].ggml_backend_rpc_start_server(
    sys.argv[1].encode(), None, ctypes.c_size_t(1), ctypes.c_size_t(1), devices)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    install = ensure()
    if "rpc" not in install.backends:
        pytest.skip("this ggml has no RPC backend")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    libraries = [f"{path.name.partition('.')[0]}={path}" for path in install.libraries]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, endpoint, *libraries],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield endpoint
        process.kill()


def wait_and_add(endpoint: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            return add_rpc_server(endpoint)
        except BackendError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_model_on_an_rpc_server(server: str, tmp_path: Path) -> None:
    wait_and_add(server)
    add_rpc_server(server)  # a second time does nothing
    tiny = write_model(tmp_path / "tiny.gguf")
    library = build_architecture("tiny", [Path(__file__).parent / "test_runtime_arch.cpp"])
    with Backends(["RPC0"], n_threads=1) as backends:
        weights = Weights.load(backends, tiny.path, tiny.descs)
        report = weights.report()
        # the table whose rows are looked up stays here
        assert report.pop("CPU_Mapped") == tiny.desc("token_embd.weight").nbytes
        assert (
            sum(report.values()) == sum(d.nbytes for d in tiny.descs) - tiny.desc("token_embd.weight").nbytes
        )
        assert all("RPC" in name for name in report)

        with NativeContext(backends, NativeModel(library, PARAMS, weights), STATE) as ctx:
            for _ in range(2):
                run(ctx, ("logits", "transposed", "norm_out", "k_out"), taps=[("layer_input", 1)], trace=True)
                want = reference(tiny.w, TOKENS)
                close(ctx.result("logits"), want["logits"])
                close(ctx.result("transposed"), want["hidden"].T)
                close(ctx.result("norm_out"), tiny.w["blk.0.norm.weight"])
                close(ctx.result("layer_input", 1), want["layer_input"][1])
                close(ctx.state_get("kv.k", 1)[[1, 0, 5]], want["k"][1])
                nodes = {n.name: n for n in ctx.nodes()}
                close(nodes["ffn-1"].data, want["k"][1])
                assert (nodes["embd"].backend, nodes["ffn-1"].backend[:3]) == ("CPU", "RPC")
            assert ctx.stats().n_splits > 1
            assert ctx.stats().n_builds == 1

        # weights over there cannot be used without the device
        with (
            Backends(n_threads=1) as alone,
            NativeContext(alone, NativeModel(library, PARAMS, weights), STATE) as ctx,
            pytest.raises(BackendError, match="memory, which no device of this context can use"),
        ):
            run(ctx)

    with pytest.raises(BackendError, match="'RPC0' is listed twice"):
        Backends(["RPC0", "RPC0"])


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x1c" + bytes(7) + b"\x01" + bytes(27)]
)
def test_servers_of_another_kind(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        expected = (
            "speaks protocol 1.0.0, this build of ggml"
            if answer.startswith(b"\x1c")
            else "no ggml RPC server"
        )
        with pytest.raises(BackendError, match=expected):
            add_rpc_server(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
