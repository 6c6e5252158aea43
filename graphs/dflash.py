"""DFlash v1 (arXiv:2602.06036): a block-diffusion drafter. llama.cpp's ``dflash`` without further heads.

The committed text reaches the drafter only as fused hidden states of the target, injected as keys and values. One pass then
fills a block: the last committed token (anchor) followed by masks, each mask predicting the token at its own position.
Paragraph numbers (OV, FW, EM, LM) are those of the specification of the family.
"""

from draftsmith.dsl import (
    Architecture,
    Contract,
    DecoderHparams,
    Layer,
    LayerView,
    LayerKey,
    Value,
    arch,
    argmax_rows,
    block,
    f32,
    feeds,
    graph,
    int_list,
    kv_cache,
    matrix,
    nn,
    ops,
    rope,
    sqrt,
    tensor,
    u32,
)


class hp(DecoderHparams):
    target_layers = int_list("{arch}.target_layers", check=lambda ids: None if ids else "must not be empty")
    block_size = u32("{arch}.block_size", 16)
    mask_token = u32("tokenizer.ggml.mask_token_id", check=None)
    n_swa = u32("{arch}.attention.sliding_window", 0)
    f_embedding_scale = f32("{arch}.embedding_scale", 0.0)


class DFlashLayer(Layer):
    is_swa = LayerKey(
        "{arch}.attention.sliding_window_pattern", bool, default=False, array_only=True,
        required_if=lambda hp: hp.n_swa > 0,
    )

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
        hp.n_embd_head_k * hp.n_head_kv, hp.n_embd_head_v * hp.n_head_kv, head_k=hp.n_embd_head_k, head_v=hp.n_embd_head_v,
        window=hp.n_swa, sliding="is_swa",
    )


@arch("dflash")
class DFlash(Architecture):
    """Fuses target features into keys and values, fills a block of masks in one pass."""

    hparams = hp
    layer = DFlashLayer
    contract = Contract(
        features="target_layers", width="n_embd", vocab="n_vocab", block_size="block_size", mask_token="mask_token",
        first_row=lambda hp: 1, propose=argmax_rows, outputs=lambda p_min: ("argmax", "top_logits") if p_min > 0 else ("argmax",),
    )

    token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab, optional=True, shared="token_embd")
    output = matrix("output.weight", hp.n_embd, hp.n_vocab, optional=True, shared="output")
    output_norm = tensor("output_norm.weight", hp.n_embd)
    fc = matrix("fc.weight", hp.target_layers.length * hp.n_embd, hp.n_embd)
    enc_output_norm = tensor("enc.output_norm.weight", hp.n_embd)

    @block
    def project_kv(self, layer: LayerView, x: Value, pos: Value) -> tuple[Value, Value]:
        """Keys (normed, rotated) and values of rows; the same for injected features and for the block (FW-2, FW-3, FW-7)."""
        k = nn.heads(nn.linear(layer.attn_k, x), hp.n_embd_head_k, hp.n_head_kv)
        v = nn.heads(nn.linear(layer.attn_v, x), hp.n_embd_head_v, hp.n_head_kv)
        k = rope(nn.rms_norm(k, layer.attn_k_norm, hp.f_norm_rms_eps), pos, hp)
        return k, v

    @block
    def self_attention(self, layer: LayerView, x: Value, pos: Value, kv: feeds.KVView) -> Value:
        """The block's rows over everything in the cache, themselves included (FW-6 to FW-8)."""
        cur = nn.rms_norm(x, layer.attn_norm, hp.f_norm_rms_eps)
        q = nn.heads(nn.linear(layer.attn_q, cur), hp.n_embd_head_k, hp.n_head)
        q = rope(nn.rms_norm(q, layer.attn_q_norm, hp.f_norm_rms_eps), pos, hp)
        k, v = self.project_kv(layer, cur, pos)
        k_cache, v_cache = nn.write_kv(layer, k, v, kv)
        out = nn.attention(layer, q, k_cache, v_cache, kv, 1.0 / sqrt(hp.n_embd_head_k), hp.n_head_kv)
        return nn.linear(layer.attn_output, out)

    @block
    def feed_forward(self, layer: LayerView, x: Value) -> Value:
        """Normed stream -> SwiGLU (FW-13, FW-14)."""
        cur = nn.rms_norm(x, layer.ffn_norm, hp.f_norm_rms_eps)
        gate = nn.linear(layer.ffn_gate, cur)
        up = nn.linear(layer.ffn_up, cur)
        return nn.linear(layer.ffn_down, nn.swiglu(gate, up))

    @graph
    def inject(self, features: Value = feeds.features(hp.target_layers.length * hp.n_embd), pos: Value = feeds.positions) -> dict[str, Value]:
        """Fuse target features and write every layer's keys and values; no attention, nothing drafted (OV-5, FW-1 to FW-4)."""
        fused = nn.rms_norm(nn.linear(self.fc, features), self.enc_output_norm, hp.f_norm_rms_eps)
        for layer in self.layers:
            k, v = self.project_kv(layer, fused, pos)
            nn.write_kv(layer, k, v, layer.kv)
        return {"fused": fused}

    @graph
    def draft(self, tokens: Value = feeds.tokens, pos: Value = feeds.positions) -> dict[str, Value]:
        """The noise block through all layers and the head; every row (OV-7, FW-17)."""
        x = nn.embed(self.token_embd, tokens)
        if hp.f_embedding_scale != 0:
            x = ops.scale(x, hp.f_embedding_scale)
        for layer in self.layers:
            x = x + self.self_attention(layer, x, pos, layer.kv)
            x = x + self.feed_forward(layer, x)
        hidden = nn.rms_norm(x, self.output_norm, hp.f_norm_rms_eps)
        logits = nn.linear(self.output, hidden)
        top = ops.top_k(logits, 10)
        rows = ops.reshape(logits, 1, logits.ne[0], logits.ne[1])
        top_logits = ops.reshape(ops.get_rows(rows, top), 10, logits.ne[1])
        return {"logits": logits, "argmax": ops.argmax(logits), "top_logits": top_logits}
