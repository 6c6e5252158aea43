"""Write a target and a drafter with random weights and the shapes of real ones, for timing.

    python benchmarks/make_models.py OUT_DIR [--type q8_0|q4_0|f16] [--variant dflash|dspark|dflash2]

``target.gguf`` has the shape of Qwen3-0.6B (with a head of its own), ``draft.gguf`` (``draft-dspark.gguf``,
``draft-dflash2.gguf``) that of a drafter of five layers for it; both have 151,936 tokens. Speed and memory are
those of real models; text and acceptance are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_FF, N_VOCAB = 1024, 3072, 151936
N_HEAD, N_HEAD_KV, HEAD = 16, 8, 128
N_LAYER, N_LAYER_DRAFT = 28, 5
N_CTX = 4096
TAPS = (1, 7, 13, 19, 25)
BLOCK = 16
MASK = 2
MARKOV_RANK = 256
CONV_KERNEL, CONV_GROUP = 4, 64
SELECTOR_RANK, SELECTOR_TOP_K = 128, 8
VARIANTS = ("dflash", "dspark", "dflash2")

TYPES = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


class Writer:
    """One GGUF: the keys of a dense decoder, then its tensors."""

    def __init__(self, path: Path, arch: str, n_layer: int, kind: str, seed: int) -> None:
        self._type, file_type = TYPES[kind]
        self._rng = np.random.default_rng(seed)
        self._n_layer = n_layer
        w = self.gguf = gguf.GGUFWriter(path, arch)
        w.add_context_length(N_CTX)
        w.add_embedding_length(N_EMBD)
        w.add_block_count(n_layer)
        w.add_feed_forward_length(N_FF)
        w.add_head_count(N_HEAD)
        w.add_head_count_kv(N_HEAD_KV)
        w.add_key_length(HEAD)
        w.add_value_length(HEAD)
        w.add_rope_freq_base(1e6)
        w.add_layer_norm_rms_eps(1e-6)
        w.add_file_type(file_type)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("qwen2")
        w.add_token_list([f"<{i}>".encode() for i in range(N_VOCAB)])
        w.add_token_types([1] * N_VOCAB)
        w.add_token_merges(["< 1"])
        w.add_bos_token_id(0)
        w.add_eos_token_id(1)
        w.add_pad_token_id(0)

    def norm(self, name: str, width: int) -> None:
        self.gguf.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    def matrix(self, name: str, n_out: int, n_in: int) -> None:
        values = self._rng.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(0.02)
        self.gguf.add_tensor(f"{name}.weight", gguf.quants.quantize(values, self._type), raw_dtype=self._type)

    def floats(self, name: str, *shape: int) -> None:
        """A small tensor that is never quantised; ``name`` is complete, the last axis runs fastest."""
        self.gguf.add_tensor(name, self._rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02))

    def layers(self) -> None:
        q, kv = N_HEAD * HEAD, N_HEAD_KV * HEAD
        for il in range(self._n_layer):
            b = f"blk.{il}"
            for name in ("attn_norm", "ffn_norm"):
                self.norm(f"{b}.{name}", N_EMBD)
            for name in ("attn_q_norm", "attn_k_norm"):
                self.norm(f"{b}.{name}", HEAD)
            for name, n_out, n_in in (
                ("attn_q", q, N_EMBD), ("attn_k", kv, N_EMBD), ("attn_v", kv, N_EMBD),
                ("attn_output", N_EMBD, q),
                ("ffn_gate", N_FF, N_EMBD), ("ffn_up", N_FF, N_EMBD), ("ffn_down", N_EMBD, N_FF),
            ):  # fmt: skip
                self.matrix(f"{b}.{name}", n_out, n_in)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def write_target(path: Path, kind: str) -> None:
    w = Writer(path, "qwen3", N_LAYER, kind, seed=0)
    w.matrix("token_embd", N_VOCAB, N_EMBD)
    w.norm("output_norm", N_EMBD)
    w.matrix("output", N_VOCAB, N_EMBD)
    w.layers()
    w.close()


def write_draft(path: Path, kind: str, variant: str = "dflash") -> None:
    w = Writer(path, "dflash", N_LAYER_DRAFT, kind, seed=1)
    w.gguf.add_uint32("dflash.block_size", BLOCK)
    w.gguf.add_array("dflash.target_layers", list(TAPS))
    w.gguf.add_mask_token_id(MASK)
    w.matrix("fc", N_EMBD, N_EMBD * len(TAPS))
    w.norm("enc.output_norm", N_EMBD)
    w.norm("output_norm", N_EMBD)
    w.layers()
    if variant == "dspark":
        _markov_head(w)
    if variant == "dflash2":
        _convolutions(w)
        _selector(w)
    w.close()


def _markov_head(w: Writer) -> None:
    w.gguf.add_bool("dflash.sample_from_anchor", True)
    w.gguf.add_bool("dflash.has_confidence_head", True)
    w.matrix("markov_w1", N_VOCAB, MARKOV_RANK)
    w.matrix("markov_w2", N_VOCAB, MARKOV_RANK)
    w.matrix("conf_proj", 1, N_EMBD + MARKOV_RANK)


def _convolutions(w: Writer) -> None:
    w.gguf.add_uint32("dflash.conv_kernel_size", CONV_KERNEL)
    w.gguf.add_uint32("dflash.conv_group_size", CONV_GROUP)
    for il in range(N_LAYER_DRAFT):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            # read by nobody: llama.cpp bounds its graph by the number of tensors, and aborts without these
            w.floats(f"blk.{il}.{name}.input_scale", 1)
        for part in ("attn", "ffn"):
            w.floats(f"blk.{il}.{part}_conv_base", 2, CONV_KERNEL, N_EMBD)
            w.matrix(f"blk.{il}.{part}_conv_proj", 2 * CONV_KERNEL * N_EMBD // CONV_GROUP, N_EMBD)


def _selector(w: Writer) -> None:
    w.gguf.add_uint32("dflash.selector_rank", SELECTOR_RANK)
    w.gguf.add_uint32("dflash.selector_top_k", SELECTOR_TOP_K)
    w.matrix("selector_predecessor", N_VOCAB, SELECTOR_RANK)
    w.matrix("selector_successor", N_VOCAB, SELECTOR_RANK)
    w.matrix("selector_hidden", SELECTOR_RANK, N_EMBD)


def write_pair(folder: Path, kind: str, variant: str = "dflash") -> tuple[Path, Path]:
    """Write both unless they are there; each appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "" if variant == "dflash" else f"-{variant}"
    target, draft = folder / "target.gguf", folder / f"draft{suffix}.gguf"
    _write(target, lambda path: write_target(path, kind))
    _write(draft, lambda path: write_draft(path, kind, variant))
    return target, draft


def _write(path: Path, write: Callable[[Path], None]) -> None:
    if not path.exists():
        fresh = path.with_suffix(".tmp")
        write(fresh)
        fresh.rename(path)


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="type of the matrices (default: q8_0)")
    parser.add_argument("--variant", choices=VARIANTS, default="dflash", help="kind of drafter (default: dflash)")
    given = parser.parse_args(args)
    for path in write_pair(given.folder, given.type, given.variant):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
