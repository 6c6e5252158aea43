"""Every mistake ends in one clear line and exit code 2, and none of these needs ggml to be built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import draftsmith.ggml
from draftsmith.cli import options
from draftsmith.context import KV_TYPES
from draftsmith.gguf_file import GGUFFile
from draftsmith.session import default_pair
from tests.cli_support import error_of
from tests.gguf_rewrite import rewrite

TARGET, DRAFT = default_pair()
KNOWN_TYPES = ", ".join(map(repr, options.KV_TYPES))


@pytest.fixture(autouse=True)
def no_ggml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that would build ggml."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("ggml was asked for")

    monkeypatch.setattr(draftsmith.ggml, "ensure", refuse)
    monkeypatch.setattr("draftsmith.codegen.runtime_lib._loaded", None)


def generate(*args: str) -> str:
    return error_of("generate", "-p", "x", *args)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("-n", "0"), "invalid value for '-n' / '--n-predict': 0 is not in the range x>=1"),
        (("-n", "x"), "invalid value for '-n' / '--n-predict': 'x' is not a valid integer range"),
        (("-c", "-5"), "invalid value for '-c' / '--ctx' / '--ctx-size': -5 is not in the range x>=0"),
        (("--threads", "-1"), "invalid value for '-t' / '--threads': -1 is not in the range x>=0"),
        (("--n-max", "-1"), "invalid value for '--n-max' / '--draft-max': -1 is not in the range x>=0"),
        (("-ub", "0"), "invalid value for '-ub' / '--batch' / '--ubatch-size': 0 is not in the range x>=1"),
        (("--p-min", "1.5"), "invalid value for '--p-min' / '--draft-p-min': 1.5 is not a number from 0 to 1"),
        (("--p-min", "nan"), "invalid value for '--p-min' / '--draft-p-min': nan is not a number from 0 to 1"),
        (("--ctk", "q9_9"), "invalid value for '--ctk' / '-ctk': 'q9_9' is not one of " + KNOWN_TYPES),
        (("--kv-type", "q8_0", "--ctv", "f16"), "--kv-type sets both cache types; give it, or --ctk and --ctv"),
        (("--draft", "x.gguf", "--no-draft"), "--draft and --no-draft exclude one another"),
        (("--no-draft", "--n-max", "4"), "--n-max is for a drafter, but --no-draft is given"),
        (("-m", "x.gguf", "--p-min", "0.5"), "--p-min is for a drafter, but no --draft is given"),
        (("--n-max", "2", "--n-min", "3"), "--n-min 3 is more than --n-max 2"),
        (("--device", "none,CPU"), "--device none means the CPU alone; it cannot be combined with other devices"),
        (("--device", "none", "--rpc", "a:1"), "--device none and --rpc exclude one another"),
        (("--device", "CPU,"), "--device: an empty name (draftsmith devices lists those there are)"),
        (("-f", "prompt.txt"), "--prompt and --file exclude one another"),
        (("--quiet", "--stats"), "--stats and --quiet exclude one another"),
        (("--stop", ""), "--stop: the text is empty"),
        (("-m", "none.gguf"), "none.gguf: no such file"),
        (("--draft", "none.gguf"), "none.gguf: no such file"),
        (("-m", "/"), "/: is a directory, expected a GGUF file"),
        (("--arch", "none.py"), "none.py: no such architecture file"),
        (("-m", str(DRAFT)), None),
    ],
)  # fmt: skip
def test_options(args: tuple[str, ...], text: str | None) -> None:
    found = generate(*args)
    assert text is None or found == text


def test_the_cache_types_are_those_of_the_engine() -> None:
    assert tuple(t.name for t in KV_TYPES) == options.KV_TYPES


def test_prompts(tmp_path: Path) -> None:
    assert error_of("generate") == "no prompt: give --prompt TEXT or --file FILE (- is standard input)"
    assert error_of("generate", "-p", "") == "the prompt is empty: there is no token to continue"
    path = tmp_path / "prompt.txt"
    assert error_of("generate", "-f", str(path)) == f"{path}: no such file"
    assert error_of("generate", "-f", str(tmp_path)) == f"{tmp_path}: is a directory, expected a text file"
    path.write_bytes(b"")
    assert error_of("generate", "-f", str(path)) == f"{path}: the prompt is empty: there is no token to continue"
    path.write_bytes(b"abc\xff\xfe")
    assert error_of("generate", "-f", str(path)) == f"{path}: the prompt is not valid UTF-8 (byte 0xFF at offset 3)"
    assert error_of("generate", "-f", "-", input=b"\xc3(") == (
        "standard input: the prompt is not valid UTF-8 (byte 0xC3 at offset 0)"
    )
    assert error_of("generate", "-f", "a\0b").startswith("a\0b: cannot read the prompt: ")


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        assert error_of("generate", "-f", str(path)) == f"{path}: cannot read the prompt: permission denied"
        assert error_of("generate", "-p", "x", "-m", str(path)) == f"{path}: no permission to read the file"
    else:
        pytest.skip("this user reads everything")


def test_files_that_are_no_sound_gguf(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    whole = TARGET.read_bytes()
    for data, text in (
        (b"", "the file is empty"),
        (b"GGML" + whole[4:], "is not a GGUF file: it starts with b'GGML'"),
        (whole[:100], "claims 69 tensors, more than the 100 bytes of the file can hold"),
        (whole[:3000], "bytes left can hold"),
        (whole[:5_000_000], "but the file has 5000000"),
    ):
        path.write_bytes(data)
        for command in (("generate", "-p", "x", "-m"), ("inspect",), ("emit",)):
            found = error_of(*command, str(path))
            assert found.startswith(f"{path}: ") and text in found


@pytest.mark.parametrize(
    ("keys", "tensors", "text"),
    [
        ({"general.architecture": ("str", "mamba")}, {}, "unknown architecture 'mamba'; known: "),
        ({"general.architecture": None}, {}, "missing metadata key general.architecture (a string is required)"),
        ({"qwen3.block_count": None}, {},
         "missing metadata key qwen3.block_count (an integer is required) [dsl/decoder.py:"),
        ({"qwen3.embedding_length": ("str", "x")}, {},
         "metadata key qwen3.embedding_length: expected an integer, found str [dsl/decoder.py:"),
        ({"qwen3.block_count": ("u32", 2**32 - 1)}, {},
         "metadata key qwen3.block_count = 4294967295, but the file has 69 tensors"),
        ({"qwen3.context_length": ("u64", 2**64 - 1)}, {},
         "metadata key qwen3.context_length = 18446744073709551615 is beyond 64 signed bits"),
        ({"qwen3.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, {},
         "metadata key qwen3.attention.layer_norm_rms_epsilon = nan is not a finite 32-bit number"),
        ({}, {"blk.0.attn_q.weight": np.zeros((192, 192), np.float16)},
         "tensor blk.0.attn_q.weight: expected shape [n_embd, n_embd_head_k*n_head] = [192, 256], found [192, 192] "
         "[graphs/qwen3.py:"),
        ({}, {"blk.0.attn_norm.weight": np.zeros(192, np.float16)},
         "tensor blk.0.attn_norm.weight: expected element type f32, found f16"),
        ({}, {"blk.5.ffn_up.weight": None},
         "missing tensor blk.5.ffn_up.weight [n_embd, n_ff] = [192, 512] [graphs/qwen3.py:"),
        ({}, {"mystery": np.zeros(4, np.float32)}, "unknown tensor mystery: qwen3 has no use for it"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit(tmp_path: Path, keys: dict, tensors: dict, text: str) -> None:
    path = rewrite(TARGET, tmp_path / "bad.gguf", keys, tensors)
    for command in (("generate", "-p", "x", "--no-draft", "-m"), ("emit",)):
        found = error_of(*command, str(path))
        assert found.startswith(f"{path}: ") and text in found


def test_drafter_alone_or_as_target() -> None:
    alone = error_of("generate", "-p", "x", "-m", str(DRAFT))
    assert alone == f"{DRAFT}: dflash is a drafter; give it a target (--model TARGET --draft FILE)"
    alone = error_of("generate", "-p", "x", "--draft", str(TARGET))
    assert alone == f"{TARGET}: qwen3 is not a drafter (it declares no contract)"


def test_drafters_that_do_not_fit_their_target(tmp_path: Path) -> None:
    def fault(key: str, value: tuple[str, object] | None) -> str:
        path = rewrite(DRAFT, tmp_path / "d", {key: value})
        text = error_of("generate", "-p", "x", "--draft", str(path))
        return text.removesuffix(" (draft d, target tiny-qwen3-f16.gguf)")

    assert "missing metadata key tokenizer.ggml.mask_token_id" in fault("tokenizer.ggml.mask_token_id", None)
    assert fault("tokenizer.ggml.mask_token_id", ("u32", 99999)) == (
        "the mask token 99999 is outside the vocabulary of 2048"
    )
    assert fault("dflash.target_layers", ("arr[i32]", [1, 3, 9])) == (
        "the drafter taps the input of target layer 9, the target has layers 0..5 (and 6 for its last output)"
    )
    assert fault("dflash.block_size", ("u32", 1)) == "a block of 1 leaves no row to draft with"
    assert fault("tokenizer.ggml.tokens", ("arr[str]", [f"t{i}" for i in range(2000)])) == (
        "vocabulary differs: the drafter's is 2000, the target's 2048"
    )


def test_drafter_of_another_hidden_size(tmp_path: Path) -> None:
    half = {192: 96, 3 * 192: 3 * 96}
    tensors = {}
    for name, info in GGUFFile.open(DRAFT).tensors.items():
        array = info.dequantize()
        tensors[name] = array[tuple(slice(half.get(n, n)) for n in array.shape)].copy()
    path = rewrite(DRAFT, tmp_path / "half.gguf", {"dflash.embedding_length": ("u32", 96)}, tensors)
    assert error_of("generate", "-p", "x", "--draft", str(path)) == (
        "hidden size differs: the drafter's is 96, the target's 192 (draft half.gguf, target tiny-qwen3-f16.gguf)"
    )
