"""Running the command line in a test, in this process or in one of its own."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from click.testing import CliRunner, Result

from draftsmith.cli import cli


def run(*args: str, input: str | bytes | None = None) -> Result:
    """In this process; exceptions that are faults of Draftsmith fail the test."""
    # click before 8.2 mixes the streams unless told not to
    separate = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**separate).invoke(cli, args, input=input, prog_name="draftsmith")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def error_of(*args: str, input: str | bytes | None = None) -> str:
    """The one line with which a command fails: exit code 2, nothing on standard output, no traceback."""
    result = run(*args, input=input)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    first, *more = result.stderr.splitlines()
    assert first.startswith("draftsmith: error: ")
    assert all(line.startswith(("try: draftsmith", "  ")) for line in more), result.stderr
    return first.removeprefix("draftsmith: error: ")


def spawn(*args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``python -m draftsmith`` in a process of its own, which an interrupt reaches: what a shell starts in the
    background ignores SIGINT, and so would its children."""
    return subprocess.Popen(
        [sys.executable, "-m", "draftsmith", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
