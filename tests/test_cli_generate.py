"""``draftsmith generate`` and ``demo`` on the embedded pair."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draftsmith.session import default_pair
from tests.cli_support import error_of, run

pytestmark = pytest.mark.cpu

SHORT = ("generate", "-n", "24", "-c", "256", "-t", "1")
PROMPT = "class Parser:\n    def __init__(self"


def generated(*args: str) -> str:
    result = run(*SHORT, "-p", PROMPT, *args)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_text_goes_to_stdout_and_statistics_to_stderr() -> None:
    result = run(*SHORT, "-p", PROMPT)
    assert result.exit_code == 0
    assert result.stdout.startswith(",") and result.stdout.endswith("\n")
    rows = dict(line.split(maxsplit=1) for line in result.stderr.splitlines() if line)
    assert rows["target"] == "tiny-qwen3-f16 (Tiny Qwen3)"
    assert rows["drafter"] == "tiny-qwen3-dflash-f16 (Tiny Qwen3 DFlash)"
    assert rows["prompt"] == "10 tokens, plain text, no chat template"
    assert rows["output"].startswith("24 tokens in ")
    assert rows["drafting"] == "temperature 0 (greedy), n_max 7, n_min 0, p_min 0"
    assert re.match(r"\d+: \d+ drafted, \d+ accepted; mean accepted length \d\.\d\d tokens", rows["rounds"])
    assert "by position" in rows["acceptance"]
    assert re.match(r"prefill .*, draft .*, verify .*, inject ", rows["time"])


def test_the_drafter_never_changes_the_text() -> None:
    text = generated()
    assert text == generated("--no-draft") == generated("--n-max", "2") == generated("--p-min", "0.5")
    assert text == generated("-m", str(default_pair()[0]), "-md", str(default_pair()[1]), "--no-mmap")


def test_other_caches_run() -> None:
    for options in (("--kv-type", "f32"), ("-ctk", "q8_0", "-ctv", "f16"), ("-fa", "off"), ("-ub", "8")):
        assert generated(*options)


def test_without_a_drafter_nothing_is_said_about_acceptance() -> None:
    result = run(*SHORT, "-p", PROMPT, "--no-draft")
    assert "accept" not in result.stderr and "rounds" not in result.stderr


def test_quiet_and_no_stats() -> None:
    assert run(*SHORT, "-p", PROMPT, "--quiet").stderr == ""
    assert run(*SHORT, "-p", PROMPT, "--no-stats").stderr == ""


def test_verbose_says_where_everything_lies() -> None:
    for args in (("-v", *SHORT), (*SHORT, "-v")):
        text = run(*args, "-p", PROMPT).stderr
        assert "target runs on   weights CPU" in text and "drafter runs on  weights CPU" in text
        assert "graphs built in" in text and "state " in text


def test_json_is_one_object() -> None:
    result = run(*SHORT, "-p", PROMPT, "--json")
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert found["text"] + "\n" == generated() and len(found["tokens"]) == 24 and found["stop"] == "length"
    stats = found["stats"]
    assert (
        stats["n_max"] == 7
        and stats["sampling"] == "temperature 0 (greedy)"
        and stats["target"].startswith("tiny-qwen3")
    )
    assert stats["speculation"]["mean_accepted_length"] >= 1
    assert sum(stats["time"].values()) == pytest.approx(stats["seconds"], rel=0.05)
    assert "stats" not in json.loads(run(*SHORT, "-p", PROMPT, "--json", "--no-stats").stdout)
    alone = json.loads(run(*SHORT, "-p", PROMPT, "--json", "--no-draft").stdout)
    assert alone["text"] == found["text"] and alone["stats"]["speculation"] is None


def test_prompt_from_file_and_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT + "\n")
    from_file = run(*SHORT, "-f", str(path))
    assert from_file.stdout == generated()
    assert f"plain text from {path}" in from_file.stderr
    assert run(*SHORT, "-f", "-", input=PROMPT).stdout == from_file.stdout


def test_stop_text() -> None:
    whole = generated()
    text = generated("--stop", "self")
    assert whole.startswith(text.removesuffix("\n")) and "self" not in text


def test_context_that_fills_up_is_said() -> None:
    result = run("generate", "-p", PROMPT, "-n", "500", "-c", "32", "-t", "1", "--ignore-eos")
    assert result.exit_code == 0
    assert "draftsmith: the context of 32 tokens is full (--ctx)" in result.stderr


def test_longer_drafts_than_the_block_are_said() -> None:
    result = run(*SHORT, "-p", PROMPT, "--n-max", "100")
    assert "--n-max 100: a block of this drafter gives 7, so that is used" in result.stderr
    assert "n_max 7" in result.stderr


def test_prompt_longer_than_the_context() -> None:
    text = error_of("generate", "-c", "8", "-t", "1", "-p", PROMPT)
    assert text == "the prompt has 10 tokens, the context 8 (raise --ctx or shorten the prompt)"


def test_block_larger_than_the_batch() -> None:
    text = error_of("generate", "-ub", "4", "-t", "1", "-p", PROMPT)
    assert text == "a draft of 7 tokens takes a block of 8 rows, more than n_ubatch = 4"


def test_devices_and_threads_that_do_not_exist() -> None:
    unknown = error_of("generate", "-p", "x", "--device", "CUDA99")
    assert unknown.startswith("no device 'CUDA99'; this build of ggml has: ")
    assert error_of("generate", "-p", "x", "--threads", "100000") == "100000 threads: ggml takes at most 512"
    assert "threads" in error_of("generate", "-p", "x", "--threads", "99999999999999")
    assert error_of("generate", "-p", "x", "--rpc", "nowhere").startswith("RPC ")
    assert error_of("generate", "-p", "x", "--rpc", "127.0.0.1:1").startswith("RPC server 127.0.0.1:1")


def test_demo_shows_both_runs_and_the_source() -> None:
    result = run("demo", "-n", "16", "-t", "1")
    assert result.exit_code == 0, result.stderr
    rows = dict(re.findall(r"^(same text|target's C\+\+|drafter's C\+\+) +(.*)$", result.stdout, re.M))
    assert rows["same text"] == "yes"
    for role, name in (("target", "qwen3"), ("drafter", "dflash")):
        source = Path(rows[f"{role}'s C++"])
        assert source.name == f"{name}.cpp" and "Generated by Draftsmith" in source.read_text()
