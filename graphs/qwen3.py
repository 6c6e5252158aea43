"""Qwen3, dense (arXiv:2505.09388): the target that the DFlash family drafts for. llama.cpp's ``qwen3``."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from draftsmith.dsl import (
    Architecture,
    DecoderHparams,
    Layer,
    LayerView,
    Value,
    arch,
    block,
    decoder_complaints,
    feeds,
    graph,
    kv_cache,
    matrix,
    nn,
    ops,
    option,
    rope,
    sqrt,
    tap,
    tap_last,
    tensor,
)
from draftsmith.dsl.bind import BoundModel


class hp(DecoderHparams):
    """All keys are those of any dense decoder."""


class Qwen3Layer(Layer):
    attn_norm = tensor("blk.{il}.attn_norm.weight", hp.n_embd)
    attn_q = matrix("blk.{il}.attn_q.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head)
    attn_k = matrix("blk.{il}.attn_k.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head_kv)
    attn_v = matrix("blk.{il}.attn_v.weight", hp.n_embd, hp.n_embd_head_v * hp.n_head_kv)
    attn_output = matrix("blk.{il}.attn_output.weight", hp.n_embd_head_v * hp.n_head, hp.n_embd)
    attn_q_norm = tensor("blk.{il}.attn_q_norm.weight", hp.n_embd_head_k)
    attn_k_norm = tensor("blk.{il}.attn_k_norm.weight", hp.n_embd_head_k)

    ffn_norm = tensor("blk.{il}.ffn_norm.weight", hp.n_embd)
    ffn_gate = matrix("blk.{il}.ffn_gate.weight", hp.n_embd, hp.n_ff)
    ffn_up = matrix("blk.{il}.ffn_up.weight", hp.n_embd, hp.n_ff)
    ffn_down = matrix("blk.{il}.ffn_down.weight", hp.n_ff, hp.n_embd)

    kv = kv_cache(
        hp.n_embd_head_k * hp.n_head_kv,
        hp.n_embd_head_v * hp.n_head_kv,
        head_k=hp.n_embd_head_k,
        head_v=hp.n_embd_head_v,
    )


@arch("qwen3")
class Qwen3(Architecture):
    """Pre-norm decoder with grouped-query attention, per-head Q/K norms and a SwiGLU feed-forward network."""

    hparams = hp
    layer = Qwen3Layer
    exports: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "token_embd": ("token_embd.weight",),
        "output": ("output.weight", "token_embd.weight"),
    }

    token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab)
    output_norm = tensor("output_norm.weight", hp.n_embd)
    output = matrix("output.weight", hp.n_embd, hp.n_vocab, optional=True)

    @block
    def self_attention(self, layer: LayerView, x: Value, pos: Value, kv: feeds.KVView) -> Value:
        """Normed stream -> attention over the cache -> output projection."""
        cur = nn.rms_norm(x, layer.attn_norm, hp.f_norm_rms_eps)
        q = nn.heads(nn.linear(layer.attn_q, cur), hp.n_embd_head_k, hp.n_head)
        k = nn.heads(nn.linear(layer.attn_k, cur), hp.n_embd_head_k, hp.n_head_kv)
        v = nn.heads(nn.linear(layer.attn_v, cur), hp.n_embd_head_v, hp.n_head_kv)
        q = rope(nn.rms_norm(q, layer.attn_q_norm, hp.f_norm_rms_eps), pos, hp)
        k = rope(nn.rms_norm(k, layer.attn_k_norm, hp.f_norm_rms_eps), pos, hp)
        k_cache, v_cache = nn.write_kv(layer, k, v, kv)
        out = nn.attention(layer, q, k_cache, v_cache, kv, 1.0 / sqrt(hp.n_embd_head_k), hp.n_head_kv)
        return nn.linear(layer.attn_output, out)

    @block
    def feed_forward(self, layer: LayerView, x: Value) -> Value:
        """Normed stream -> SwiGLU."""
        cur = nn.rms_norm(x, layer.ffn_norm, hp.f_norm_rms_eps)
        gate = nn.linear(layer.ffn_gate, cur)
        up = nn.linear(layer.ffn_up, cur)
        return nn.linear(layer.ffn_down, nn.swiglu(gate, up))

    @graph
    def decode(
        self, tokens: Value = feeds.tokens, pos: Value = feeds.positions, out_rows: Value = feeds.out_rows
    ) -> dict[str, Value]:
        """Prefill, decode and verify: the batch's rows through all layers; wanted rows into the head."""
        x = nn.embed(self.token_embd, tokens)
        for layer in self.layers:
            tap("layer_input", x, layer)
            attn = self.self_attention(layer, x, pos, layer.kv)
            if layer.is_last and not option("tap_last"):
                attn, x = ops.get_rows(attn, out_rows), ops.get_rows(x, out_rows)
            x = x + attn
            x = x + self.feed_forward(layer, x)
        if option("tap_last"):
            tap_last("layer_input", x, self)
            x = ops.get_rows(x, out_rows)

        hidden = nn.rms_norm(x, self.output_norm, hp.f_norm_rms_eps)
        head = self.token_embd if self.output is None else self.output
        logits = nn.linear(head, hidden)
        return {"logits": logits, "argmax": ops.argmax(logits)}

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        return decoder_complaints(model)
