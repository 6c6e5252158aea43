"""``draftsmith generate --rpc`` with a loop-back server."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli_support import spawn
from tests.test_runtime_rpc import server

__all__ = ["server"]

pytestmark = [pytest.mark.cpu, pytest.mark.rpc]

COMMAND = ("generate", "-p", "class Parser:", "-n", "12", "-c", "128", "-t", "1", "--json")


def generated(*args: str) -> dict:
    """The JSON of a run in a process of its own: a server has one client at a time."""
    process = spawn(*COMMAND, *args)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: dict = json.loads(out)
    return found


def test_generate_on_an_rpc_server(server: str) -> None:
    here = generated()
    assert _when_ready(server)["tokens"] == here["tokens"]
    assert generated("--rpc", server, "--device", "RPC0")["tokens"] == here["tokens"]
    process = spawn(*COMMAND[:-1], "--rpc", server, "--quiet")
    assert process.communicate(timeout=300)[1] == ""
    process = spawn("-v", *COMMAND[:-1], "--rpc", server)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "RPC0[" in err.partition("target runs on")[2]


def _when_ready(server: str) -> dict:
    for _ in range(100):
        process = spawn(*COMMAND, "--rpc", server)
        out, err = process.communicate(timeout=300)
        if process.returncode == 0:
            found: dict = json.loads(out)
            return found
        assert process.returncode == 2 and "Traceback" not in err
        time.sleep(0.2)
    raise AssertionError(err)
