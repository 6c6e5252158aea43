"""Checkpoints of the DFlash family as GGUFs: names and keys of section 5 of the specification, for what the library
`speculators` saves. A checkpoint is its config.json (settings of the layers completed by their defaults) and its
tensors as NumPy arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.gguf_rewrite import _add

Array = NDArray[Any]
Keys = dict[str, tuple[str, Any]]

GLOBALS = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}
LAYERS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
DROPPED = {"t2d"}


def gguf_name(name: str) -> str:
    """The name of a tensor; KeyError where the format has none."""
    layer = re.fullmatch(r"(?:model\.)?layers\.(\d+)\.(.+)", name)
    if layer:
        return f"blk.{layer[1]}.{LAYERS[layer[2]]}"
    return GLOBALS[name.removeprefix("model.")]


def draft_tensors(state: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of a saved drafter. ``d2t`` holds offsets there, absolute ids in a GGUF."""
    tensors: dict[str, Array] = {
        gguf_name(name): _f32(array) for name, array in state.items() if name not in DROPPED | {"d2t"}
    }
    if "d2t" in state:
        tensors["d2t"] = state["d2t"].astype(np.int64) + np.arange(len(state["d2t"]), dtype=np.int64)
    return tensors


def draft_keys(config: Mapping[str, Any], names: Mapping[str, Any]) -> Keys:
    """Keys of a drafter; ``names``: its tensors. Both sides number target layers by hidden state (0: embeddings)."""
    layer = config["transformer_layer_config"]
    keys: Keys = {
        **decoder_keys("dflash", layer),
        "dflash.block_size": ("u32", config["block_size"]),
        "dflash.target_layers": ("arr[i32]", list(config["aux_hidden_state_layer_ids"])),
        "tokenizer.ggml.mask_token_id": ("u32", config["mask_token_id"]),
    }
    sliding = [kind == "sliding_attention" for kind in layer["layer_types"]]
    if any(sliding):
        keys["dflash.attention.sliding_window"] = ("u32", layer["sliding_window"])
        keys["dflash.attention.sliding_window_pattern"] = ("arr[bool]", sliding)
        # the library's switch acts on sliding layers only, a GGUF has one for all layers
        if not config["sliding_window_non_causal"]:
            if not all(sliding):
                raise ValueError("causal sliding layers beside bidirectional full ones: a GGUF has no key for that")
            keys["dflash.attention.causal"] = ("bool", True)
    if "markov_w1.weight" in names:
        if config["markov_head_type"] != "vanilla":
            raise ValueError(f"a Markov head of type {config['markov_head_type']!r}: a GGUF has no key for that")
        keys["dflash.sample_from_anchor"] = ("bool", config["sample_from_anchor"])
        keys["dflash.has_confidence_head"] = ("bool", "conf_proj.weight" in names)
    elif config["sample_from_anchor"]:
        raise ValueError("only drafters with a Markov head can sample from the anchor")
    for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if name in config:
            keys[f"dflash.{name}"] = ("u32", config[name])
    return keys


def decoder_keys(arch: str, config: Mapping[str, Any]) -> Keys:
    """Keys of any decoder with Qwen3's settings."""
    rope = config["rope_parameters"]
    keys: Keys = {
        "block_count": ("u32", config["num_hidden_layers"]),
        "context_length": ("u32", config["max_position_embeddings"]),
        "embedding_length": ("u32", config["hidden_size"]),
        "feed_forward_length": ("u32", config["intermediate_size"]),
        "attention.head_count": ("u32", config["num_attention_heads"]),
        "attention.head_count_kv": ("u32", config["num_key_value_heads"]),
        "attention.key_length": ("u32", config["head_dim"]),
        "attention.value_length": ("u32", config["head_dim"]),
        "attention.layer_norm_rms_epsilon": ("f32", config["rms_norm_eps"]),
        "rope.freq_base": ("f32", rope["rope_theta"]),
        "vocab_size": ("u32", config["vocab_size"]),
    }
    if rope["rope_type"] != "default":
        keys["rope.scaling.type"] = ("str", rope["rope_type"])
        keys["rope.scaling.factor"] = ("f32", rope["factor"])
        if "original_max_position_embeddings" in rope:
            keys["rope.scaling.original_context_length"] = ("u32", rope["original_max_position_embeddings"])
    return {f"{arch}.{name}": entry for name, entry in keys.items()}


def write_draft(path: Path, config: Mapping[str, Any], state: Mapping[str, Array]) -> Path:
    """A saved drafter as a GGUF."""
    tensors = draft_tensors(state)
    return write(path, "dflash", draft_keys(config, tensors), tensors)


def write_target(path: Path, config: Mapping[str, Any], state: Mapping[str, Array]) -> Path:
    """A Qwen3 target as a GGUF."""
    tensors = {gguf_name(name): _f32(array) for name, array in state.items()}
    return write(path, "qwen3", decoder_keys("qwen3", config), tensors)


def write(path: Path, arch: str, keys: Keys, tensors: Mapping[str, Array]) -> Path:
    writer = gguf.GGUFWriter(str(path), "", use_temp_file=False)
    writer.kv_data[0].clear()
    _add(writer, "general.architecture", "str", arch)
    for key, entry in keys.items():
        _add(writer, key, *entry)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _f32(array: Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, np.float32)
