"""What all decoders of the llama.cpp lineage declare alike: metadata keys and the rope arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import ops
from .arch import Hparams
from .expr import Sym, SymLike
from .ir import Value
from .ops.rope import NEOX
from .specs import f32, length_of, text, u32

if TYPE_CHECKING:
    from .bind import BoundModel


class DecoderHparams(Hparams):
    """Keys of a dense decoder, named as in llama.cpp. Defaults as llama.cpp's."""

    n_layer = u32("{arch}.block_count")
    n_ctx_train = u32("{arch}.context_length")
    n_embd = u32("{arch}.embedding_length")
    n_ff = u32("{arch}.feed_forward_length")
    n_head = u32("{arch}.attention.head_count")
    n_head_kv = u32("{arch}.attention.head_count_kv", lambda hp: hp.n_head)
    n_embd_head_k = u32("{arch}.attention.key_length", lambda hp: hp.n_embd // hp.n_head)
    n_embd_head_v = u32("{arch}.attention.value_length", lambda hp: hp.n_embd // hp.n_head)
    n_rot = u32(
        "{arch}.rope.dimension_count",
        lambda hp: hp.n_embd_head_k,
        check=lambda n: None if n > 0 and n % 2 == 0 else "must be positive and even",
    )
    n_vocab = length_of("tokenizer.ggml.tokens", "{arch}.vocab_size")
    f_norm_rms_eps = f32(
        "{arch}.attention.layer_norm_rms_epsilon", check=lambda eps: None if eps >= 0 else "must not be negative"
    )
    rope_freq_base = f32("{arch}.rope.freq_base", 10000.0)
    rope_scaling_type = text("{arch}.rope.scaling.type", "none", allowed=("none", "linear", "yarn", "longrope"))
    rope_scaling_factor = f32("{arch}.rope.scaling.factor", 0.0, aliases=("{arch}.rope.scale_linear",))
    n_ctx_orig_yarn = u32("{arch}.rope.scaling.original_context_length", lambda hp: hp.n_ctx_train)
    yarn_ext_factor = f32("{arch}.rope.scaling.yarn_ext_factor", -1.0)
    yarn_attn_factor = f32("{arch}.rope.scaling.yarn_attn_factor", 1.0, aliases=("{arch}.rope.scaling.attn_factor",))
    yarn_beta_fast = f32("{arch}.rope.scaling.yarn_beta_fast", 32.0)
    yarn_beta_slow = f32("{arch}.rope.scaling.yarn_beta_slow", 1.0)


def rope(
    x: Value,
    pos: Value,
    hp: type[DecoderHparams],
    mode: int = NEOX,
    factors: Value | None = None,
    sections: Sequence[SymLike] | None = None,
) -> Value:
    """Rotate [head, n_head, n_tokens] by positions with the model's base and scaling (llama.cpp's defaults: YaRN's
    extrapolation mix is 1 for type yarn, else 0; the frequency scale is 1/factor). ``sections``: M-RoPE with four
    positions a row."""
    scaling: Any = hp.rope_scaling_type
    factor: Any = hp.rope_scaling_factor
    plain = scaling == "none" or factor == 0
    freq_scale: Sym | float = 1.0 if plain else 1.0 / factor
    yarn: Any = 0.0
    if not plain and scaling == "yarn":
        ext: Any = hp.yarn_ext_factor
        yarn = 1.0 if ext < 0 else ext
    common: dict[str, Any] = {
        "n_dims": hp.n_rot,
        "n_ctx_orig": hp.n_ctx_orig_yarn,
        "freq_base": hp.rope_freq_base,
        "freq_scale": freq_scale,
        "ext_factor": yarn,
        "attn_factor": hp.yarn_attn_factor,
        "beta_fast": hp.yarn_beta_fast,
        "beta_slow": hp.yarn_beta_slow,
    }
    if sections is not None:
        return ops.rope_multi(x, pos, factors, sections=sections, **common)
    return ops.rope_ext(x, pos, factors, mode=mode, **common)


def decoder_complaints(model: BoundModel) -> Iterator[str]:
    """What no single key of a decoder can say: heads that do not divide, a rotation wider than the head."""
    head, n_rot = model.hparam("n_embd_head_k"), model.hparam("n_rot")
    if n_rot > head:
        yield f"{model.cls.gguf_arch}.rope.dimension_count = {n_rot} exceeds the head size {head}"
    n_head, n_head_kv = model.hparam("n_head"), model.hparam("n_head_kv")
    if n_head_kv < 1 or n_head % n_head_kv:
        yield f"{n_head} query heads are not a multiple of {n_head_kv} key heads"
