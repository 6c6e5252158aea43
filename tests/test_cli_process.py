"""What only a process of its own shows: signals, closed pipes, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import spawn


def test_module_and_exit_codes(tmp_path: Path) -> None:
    process = spawn("inspect", str(tmp_path / "none.gguf"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == f"draftsmith: error: {tmp_path / 'none.gguf'}: no such file\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = spawn("emit", "qwen3")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) in (0, 1)
    assert err == ""


@pytest.mark.cpu
def test_interrupt_ends_with_130_and_no_traceback() -> None:
    process = spawn("generate", "-p", "def main", "-n", "1900", "--ignore-eos", "-t", "1")
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_output_that_the_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "Ω.gguf"
    path.write_bytes(b"")
    process = spawn("inspect", str(path), env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("draftsmith: error: ") and err.endswith(".gguf: the file is empty\n")


def test_installed_script_is_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "draftsmith"
    if not script.exists():
        pytest.skip("not installed as a script")
    done = subprocess.run([script, "inspect", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is a directory" in done.stderr
