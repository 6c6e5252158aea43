"""``draftsmith inspect`` and ``list``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftsmith import registry
from draftsmith.session import default_pair
from tests.cli_support import run
from tests.gguf_rewrite import rewrite

TARGET, DRAFT = default_pair()


@pytest.mark.parametrize(("path", "name"), [(TARGET, "qwen3"), (DRAFT, "dflash")])
def test_sound_files(path: Path, name: str) -> None:
    result = run("inspect", str(path))
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout.endswith(f"\nno problems: read as {name}\n")
    assert "arr[str]  [!, \", #, $, %, &, ... 2048 in all]" in result.stdout
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "blk.0.ffn_up.weight f16 [192, 512] 196,608" in lines
    for candidate in registry.builtin():
        assert any(line.startswith(f"{candidate} fits" if candidate == name else f"{candidate} no") for line in lines)


def test_every_problem_is_listed(tmp_path: Path) -> None:
    path = rewrite(
        TARGET,
        tmp_path / "bad.gguf",
        tensors={
            "blk.0.attn_q.weight": None,
            "blk.1.attn_q.weight": np.zeros((192, 192), np.float16),
            "blk.2.attn_norm.weight": np.zeros(192, np.float16),
            "mystery": np.zeros(4, np.float32),
        },
    )
    result = run("inspect", str(path))
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    problems = result.stdout.partition("problems (4)\n")[2].splitlines()
    assert {p.split(" [")[0].split(":")[0] for p in problems} == {
        "missing tensor blk.0.attn_q.weight",
        "tensor blk.1.attn_q.weight",
        "tensor blk.2.attn_norm.weight",
        "unknown tensor mystery",
    }
    path = rewrite(
        TARGET, path, {"qwen3.block_count": None, "qwen3.embedding_length": ("str", "x"), "qwen3.rope.freq_base": None}
    )
    found = json.loads(run("inspect", "--json", str(path)).stdout)
    assert len(found["problems"]) == 2 and found["architecture"] == "qwen3"


def test_unknown_architecture_and_broken_tokenizer(tmp_path: Path) -> None:
    path = rewrite(TARGET, tmp_path / "a.gguf", {"general.architecture": ("str", "mamba")})
    result = run("inspect", str(path))
    assert result.exit_code == 2
    assert "blk.0.attn_q.weight" in result.stdout and "general.architecture is 'mamba', not 'qwen3'" in result.stdout
    assert "unknown architecture 'mamba'" in result.stdout
    path = rewrite(TARGET, tmp_path / "b.gguf", {"tokenizer.ggml.model": ("str", "klingon")})
    result = run("inspect", str(path))
    assert result.exit_code == 2 and "tokenizer 'klingon' is not supported yet" in result.stdout


def test_odd_values_are_shown(tmp_path: Path) -> None:
    odd = {"x.text": ("str", "a\nb\x1b[31m"), "x.nan": ("f32", float("nan")), "x.bools": ("arr[bool]", [True, False])}
    path = rewrite(TARGET, tmp_path / "odd.gguf", odd)
    text = run("inspect", str(path)).stdout
    assert "a\\nb\\x1b[31m" in text and "[True, False]" in text and "\x1b" not in text
    found = json.loads(run("inspect", "--json", str(path)).stdout)["metadata"]
    assert found["x.nan"] == {"type": "f32", "value": "nan"}
    assert found["x.bools"] == {"type": "arr[bool]", "length": 2, "value": [True, False]}
    assert found["tokenizer.ggml.tokens"]["length"] == 2048 and len(found["tokenizer.ggml.tokens"]["value"]) == 6


def test_json_of_a_sound_file() -> None:
    found = json.loads(run("inspect", str(TARGET), "--json").stdout)
    assert found["version"] == 3 and found["architecture"] == "qwen3" and found["problems"] == []
    assert found["metadata"]["qwen3.block_count"] == {"type": "u32", "value": 6}
    tensor = next(t for t in found["tensors"] if t["name"] == "blk.0.ffn_up.weight")
    assert (tensor["type"], tensor["shape"], tensor["bytes"]) == ("f16", [192, 512], 196608)


def test_list_names_every_architecture() -> None:
    lines = [" ".join(line.split()) for line in run("list").stdout.splitlines()]
    assert "qwen3 qwen3 target decode nothing else graphs/qwen3.py" in lines
    drafter = "dflash dflash drafter inject, draft a target, which may lend token_embd and output graphs/dflash.py"
    assert drafter in lines
    assert len(lines) == 1 + len(registry.architectures())


def test_list_as_json() -> None:
    found = {f["name"]: f for f in json.loads(run("list", "--json").stdout)}
    assert found["qwen3"]["kind"] == "target" and found["qwen3"]["target"] is None
    assert "qwen3.block_count" in found["qwen3"]["required_keys"]
    assert found["qwen3"]["lends"]["output"] == ["output.weight", "token_embd.weight"]
    drafter = found["dflash"]
    assert drafter["target"]["borrows"] == ["token_embd", "output"] and drafter["graphs"] == ["inject", "draft"]
    assert "dflash.target_layers" in drafter["required_keys"]
    assert "fc.weight" in drafter["required_tensors"] and "output.weight" in drafter["optional_tensors"]
