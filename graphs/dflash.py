"""DFlash v1 (arXiv:2602.06036): a block-diffusion drafter. llama.cpp's ``dflash`` without further heads.

The committed text reaches the drafter only as fused hidden states of the target, injected as keys and values. One
pass then fills a block: the last committed token (anchor) followed by masks, each mask predicting the token at its
own position. The backbone has the options of every family it was trained in (Qwen3, Gemma-4, Nemotron, MiMo); the
variants with further heads build on this class. Paragraph numbers (OV, FW, EM, LM, CV2, RP) are those of the
specification of the family.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from draftsmith.dsl import (
    Architecture,
    Contract,
    DecoderHparams,
    GGMLType,
    Layer,
    LayerKey,
    LayerView,
    Value,
    arch,
    argmax_rows,
    block,
    boolean,
    counted,
    decoder_complaints,
    derived,
    exact,
    f32,
    feeds,
    graph,
    int_list,
    kv_cache,
    matrix,
    minimum,
    n_block,
    n_blocks,
    nn,
    ops,
    rope,
    sample_rows,
    sqrt,
    tensor,
    tensor_dim,
    text,
    u32,
)
from draftsmith.dsl.bind import BoundModel


class hp(DecoderHparams):
    target_layers = int_list("{arch}.target_layers", check=lambda ids: None if ids else "must not be empty")
    block_size = u32("{arch}.block_size", 16)
    mask_token = u32("tokenizer.ggml.mask_token_id", check=None)
    causal = boolean("{arch}.attention.causal", False)
    n_swa = u32("{arch}.attention.sliding_window", 0)
    f_embedding_scale = f32("{arch}.embedding_scale", 0.0)
    f_attention_scale = f32("{arch}.attention.scale", 0.0)
    f_value_scale = f32("{arch}.attention.value_scale", 0.0)
    hidden_activation = text("{arch}.hidden_activation", "silu", allowed=("silu", "gelu", "gelu_pytorch_tanh"))
    n_hyper = u32(
        "{arch}.hyper_connection.count",
        0,
        check=lambda n: "asks for the DeepSeek-V4 backbone, which is not known" if n else None,
    )
    rope_sections = int_list("{arch}.rope.dimension_sections", lambda hp: [0, 0, 0, 0])
    n_conv_kernel = u32("{arch}.conv_kernel_size", 0)
    n_conv_group = u32("{arch}.conv_group_size", 0)
    n_vocab_draft = tensor_dim("d2t", 0, lambda hp: hp.n_vocab)
    has_mrope = derived(bool, lambda hp: any(hp.rope_sections.value))
    has_conv = derived(bool, lambda hp: hp.n_conv_kernel > 0 and hp.n_conv_group > 0)


n_conv_groups = exact(hp.n_embd, hp.n_conv_group)
"""Channels that share the values of one kernel form a group; how many groups there are."""


def has_conv(hp: Any) -> Any:
    return hp.has_conv


class DFlashLayer(Layer):
    is_swa = LayerKey(
        "{arch}.attention.sliding_window_pattern",
        bool,
        default=False,
        array_only=True,
        required_if=lambda hp: hp.n_swa > 0,
    )

    attn_norm = tensor("blk.{il}.attn_norm.weight", hp.n_embd)
    attn_q = matrix("blk.{il}.attn_q.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head)
    attn_k = matrix("blk.{il}.attn_k.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head_kv)
    attn_v = matrix("blk.{il}.attn_v.weight", hp.n_embd, hp.n_embd_head_v * hp.n_head_kv, optional=True)
    attn_output = matrix("blk.{il}.attn_output.weight", hp.n_embd_head_v * hp.n_head, hp.n_embd)
    attn_q_norm = tensor("blk.{il}.attn_q_norm.weight", hp.n_embd_head_k)
    attn_k_norm = tensor("blk.{il}.attn_k_norm.weight", hp.n_embd_head_k)
    attn_sinks = tensor("blk.{il}.attn_sinks.weight", hp.n_head, optional=True)
    post_attention_norm = tensor("blk.{il}.post_attention_norm.weight", hp.n_embd, optional=True)
    attn_conv_base = tensor("blk.{il}.attn_conv_base", hp.n_embd, hp.n_conv_kernel, 2, required_if=has_conv)
    attn_conv_proj = matrix(
        "blk.{il}.attn_conv_proj.weight",
        hp.n_embd,
        2 * hp.n_conv_kernel * n_conv_groups,
        scaled=False,
        required_if=has_conv,
    )

    ffn_norm = tensor("blk.{il}.ffn_norm.weight", hp.n_embd)
    ffn_gate = matrix("blk.{il}.ffn_gate.weight", hp.n_embd, hp.n_ff)
    ffn_up = matrix("blk.{il}.ffn_up.weight", hp.n_embd, hp.n_ff)
    ffn_down = matrix("blk.{il}.ffn_down.weight", hp.n_ff, hp.n_embd)
    post_ffw_norm = tensor("blk.{il}.post_ffw_norm.weight", hp.n_embd, optional=True)
    ffn_conv_base = tensor("blk.{il}.ffn_conv_base", hp.n_embd, hp.n_conv_kernel, 2, required_if=has_conv)
    ffn_conv_proj = matrix(
        "blk.{il}.ffn_conv_proj.weight",
        hp.n_embd,
        2 * hp.n_conv_kernel * n_conv_groups,
        scaled=False,
        required_if=has_conv,
    )
    layer_output_scale = tensor("blk.{il}.layer_output_scale.weight", 1, optional=True)

    kv = kv_cache(
        hp.n_embd_head_k * hp.n_head_kv,
        hp.n_embd_head_v * hp.n_head_kv,
        head_k=hp.n_embd_head_k,
        head_v=hp.n_embd_head_v,
        window=hp.n_swa,
        sliding="is_swa",
    )


@arch("dflash")
class DFlash(Architecture):
    """Fuses target features into keys and values, fills a block of masks in one pass."""

    hparams = hp
    layer = DFlashLayer
    canonical_tensors: ClassVar[tuple[str, ...]] = ("blk.{il}.attn_v.weight",)
    contract = Contract(
        features="target_layers",
        width="n_embd",
        vocab="n_vocab",
        block_size="block_size",
        mask_token="mask_token",
        first_row=lambda hp: 1,
        causal=lambda hp: bool(hp.causal),
        propose=argmax_rows,
        outputs=lambda p_min: ("argmax", "top_logits") if p_min > 0 else ("argmax",),
        sample=sample_rows,
        sample_outputs=lambda p_min: ("logits",),
        selects_rows=True,
    )

    token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab, optional=True, scaled=False, shared="token_embd")
    output = matrix("output.weight", hp.n_embd, hp.n_vocab_draft, optional=True, shared="output")
    output_norm = tensor("output_norm.weight", hp.n_embd)
    d2t = tensor("d2t", hp.n_vocab_draft, optional=True, types=(GGMLType.i64,))
    fc = matrix("fc.weight", hp.target_layers.length * hp.n_embd, hp.n_embd)
    enc_output_norm = tensor("enc.output_norm.weight", hp.n_embd)
    rope_freqs = tensor("rope_freqs.weight", hp.n_embd_head_k // 2, optional=True)

    # -- parts shared by inject and draft ---------------------------------------------------------------
    def norm(self, x: Value, weight: Value | None) -> Value:
        return nn.rms_norm(x, weight, hp.f_norm_rms_eps)

    def positions(self) -> Value:
        """One position a row, four with M-RoPE (OV-6)."""
        return feeds.mrope_positions() if hp.has_mrope else feeds.token_positions()

    def rotate(self, x: Value, pos: Value) -> Value:
        """RP-1, RP-2: M-RoPE drafts use no frequency factors."""
        if hp.has_mrope:
            return rope(x, pos, hp, sections=[hp.rope_sections[i] for i in range(4)])
        return rope(x, pos, hp, factors=self.rope_freqs)

    @block
    def project_kv(self, layer: LayerView, x: Value, pos: Value) -> tuple[Value, Value]:
        """Keys (normed, rotated) and values of rows; the same for injected features and for the block (FW-2, FW-3,
        FW-7)."""
        k = nn.heads(nn.linear(layer.attn_k, x), hp.n_embd_head_k, hp.n_head_kv)
        if layer.attn_v is None:  # shared projection: values are the keys' rows under a norm of their own (FW-5)
            v = ops.rms_norm(k, hp.f_norm_rms_eps)
        else:
            v = nn.heads(nn.linear(layer.attn_v, x), hp.n_embd_head_v, hp.n_head_kv)
        k = self.rotate(self.norm(k, layer.attn_k_norm), pos)
        return k, v

    # -- the block ------------------------------------------------------------------------------------------
    @block
    def convolve(self, x: Value, kernel: Value, base: Value) -> Value:
        """Causal convolution inside each block (CV2-2): row p is the sum over taps t of
        (base[t] + kernel[p, t]) * x[p - t]; a kernel value serves one group of channels."""
        reach = hp.n_conv_kernel - 1
        rows = ops.pad_ext(ops.reshape(x, hp.n_embd, n_block, n_blocks), lp1=reach)
        out: Value | None = None
        for t in counted(0, minimum(hp.n_conv_kernel, n_block), "t"):
            per_group = ops.cont(ops.select(kernel, 1, t), 1, n_conv_groups, x.ne[1])
            per_channel = ops.repeat_4d(per_group, hp.n_conv_group, n_conv_groups, x.ne[1])
            weight = ops.add(ops.reshape(per_channel, hp.n_embd, n_block, n_blocks), ops.select(base, 1, t))
            term = ops.mul(weight, ops.slice_(rows, 1, reach - t, n_block))
            out = term if t == 0 or out is None else out + term
        assert out is not None
        return ops.reshape(out, hp.n_embd, x.ne[1])

    def conv_side(self, x: Value, mix: Value, base: Value, side: int) -> Value:
        """Side 0 stands before a sublayer, side 1 behind it; both mix by the same projection (CV2-1, CV2-3)."""
        kernel = ops.reshape(mix, n_conv_groups, hp.n_conv_kernel, 2, mix.ne[1])
        return self.convolve(x, ops.select(kernel, 2, side), ops.select(base, 2, side))

    @block
    def self_attention(self, layer: LayerView, x: Value, pos: Value, kv: feeds.KVView) -> Value:
        """The block's rows over everything in the cache, themselves included (FW-6 to FW-11)."""
        cur = self.norm(x, layer.attn_norm)
        if hp.has_conv:
            mix = nn.linear(layer.attn_conv_proj, cur)
            cur = self.conv_side(cur, mix, layer.attn_conv_base, 0)

        q = nn.heads(nn.linear(layer.attn_q, cur), hp.n_embd_head_k, hp.n_head)
        q = self.rotate(self.norm(q, layer.attn_q_norm), pos)
        k, v = self.project_kv(layer, cur, pos)
        k_cache, v_cache = nn.write_kv(layer, k, v, kv)

        scale = 1.0 / sqrt(hp.n_embd_head_k) if hp.f_attention_scale == 0 else hp.f_attention_scale
        out = nn.attention(layer, q, k_cache, v_cache, kv, scale, hp.n_head_kv, layer.attn_sinks)
        out = nn.linear(layer.attn_output, out)
        if hp.f_value_scale != 0:
            out = ops.scale(out, hp.f_value_scale)
        if hp.has_conv:
            out = self.conv_side(out, mix, layer.attn_conv_base, 1)
        return out if layer.post_attention_norm is None else self.norm(out, layer.post_attention_norm)

    @block
    def feed_forward(self, layer: LayerView, x: Value) -> Value:
        """Normed stream -> gated network (FW-13 to FW-15)."""
        cur = self.norm(x, layer.ffn_norm)
        if hp.has_conv:
            mix = nn.linear(layer.ffn_conv_proj, cur)
            cur = self.conv_side(cur, mix, layer.ffn_conv_base, 0)

        gate = nn.linear(layer.ffn_gate, cur)
        up = nn.linear(layer.ffn_up, cur)
        gated = nn.swiglu(gate, up) if hp.hidden_activation == "silu" else nn.geglu(gate, up)
        out = nn.linear(layer.ffn_down, gated)
        if hp.has_conv:
            out = self.conv_side(out, mix, layer.ffn_conv_base, 1)
        return out if layer.post_ffw_norm is None else self.norm(out, layer.post_ffw_norm)

    def backbone(self, tokens: Value) -> Value:
        """The noise block through all layers: normed hidden rows (EM-2, EM-3, FW-6 to FW-17)."""
        pos = self.positions()
        x = nn.embed(self.token_embd, tokens)
        if hp.f_embedding_scale != 0:
            x = ops.scale(x, hp.f_embedding_scale)
        for layer in self.layers:
            x = x + self.self_attention(layer, x, pos, layer.kv)
            x = x + self.feed_forward(layer, x)
            if layer.layer_output_scale is not None:
                x = ops.mul(x, layer.layer_output_scale)
        return self.norm(x, self.output_norm)

    def transform(self, logits: Value) -> Value:
        """What a variant does to raw logits; nothing here (LM-3)."""
        return logits

    def head(self, hidden: Value) -> Value:
        """Logits over the target's vocabulary; tokens that a reduced vocabulary lacks get -inf (LM-1 to LM-4)."""
        logits = self.transform(nn.linear(self.output, hidden))
        if self.d2t is None:
            return logits
        return nn.scatter(logits, self.d2t, hp.n_vocab, float("-inf"))

    # -- entry points ------------------------------------------------------------------------------------------
    @graph
    def inject(self, features: Value = feeds.features(hp.target_layers.length * hp.n_embd)) -> dict[str, Value]:
        """Fuse target features and write every layer's keys and values; no attention, nothing drafted (OV-5, FW-1 to
        FW-4)."""
        pos = self.positions()
        fused = self.norm(nn.linear(self.fc, features), self.enc_output_norm)
        for layer in self.layers:
            k, v = self.project_kv(layer, fused, pos)
            nn.write_kv(layer, k, v, layer.kv)
        return {"fused": fused}

    @graph
    def draft(self, tokens: Value = feeds.tokens, out_rows: Value = feeds.out_rows) -> dict[str, Value]:
        """The noise block through all layers (OV-7, FW-17); the head sees the rows that are wanted."""
        logits = self.head(ops.get_rows(self.backbone(tokens), out_rows))
        top = ops.top_k(logits, minimum(10, hp.n_vocab))
        rows = ops.reshape(logits, 1, logits.ne[0], logits.ne[1])
        top_logits = ops.reshape(ops.get_rows(rows, top), *top.shape)
        return {"logits": logits, "argmax": ops.argmax(logits), "top_logits": top_logits}

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        """ER-7, ER-11, ER-23 and the like."""
        yield from decoder_complaints(model)
        head = model.hparam("n_embd_head_k")
        if head != model.hparam("n_embd_head_v"):
            yield f"key and value head sizes differ: {head} and {model.hparam('n_embd_head_v')}"
        sections = model.hparam("rope_sections")
        if len(sections) != 4:
            yield f"dflash.rope.dimension_sections must have 4 entries, found {len(sections)}"
        elif any(sections) and (min(sections) < 0 or not any(sections[:3]) or sum(sections) > head):
            yield f"dflash.rope.dimension_sections = {sections} must hold at least one and at most {head} pairs"
        group, width = model.hparam("n_conv_group"), model.hparam("n_embd")
        if model.hparam("has_conv") and width % group:
            yield f"the hidden size {width} is not divisible by dflash.conv_group_size = {group}"
        if "d2t" in model.file.tensors and "output.weight" not in model.file.tensors:
            yield "a reduced vocabulary (tensor d2t) needs the drafter's own output.weight, which the file lacks"
        if "d2t" in model.file.tensors and (complaint := bad_map(model)):
            yield complaint


def bad_map(model: BoundModel) -> str | None:
    """What is wrong with the ids of a reduced vocabulary (ER-11)."""
    ids, n_vocab = model.read_integers("d2t"), model.hparam("n_vocab")
    if len(ids) and (ids.min() < 0 or ids.max() >= n_vocab):
        return f"tensor d2t maps to ids {ids.min()}..{ids.max()}, outside the vocabulary of {n_vocab}"
    if len(set(ids.tolist())) != len(ids):
        return "tensor d2t maps two draft tokens to one target token"
    return None
