"""DeepSeek-V4.1: four residual streams, shared compressed keys, sparse selection, n-gram tables. A sketch.

Every layer keeps a window of 128 keys. Four layers (the KV sources) also compress the text into rows that all
layers behind them read; eight (the index sources) choose which 512 of these rows a token sees, and the layers
between reuse their choice. Some words used here are not in the language yet: they stand in the marked block.
Paragraph numbers (HP, HC, BLK, ROPE, ATT, CMP, IDX, V41, MOE, ENG) and letters are the specification's.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from draftsmith.dsl import (
    Architecture,
    DecoderHparams,
    Feed,
    GGMLType,
    Layer,
    LayerKey,
    Value,
    arch,
    block,
    boolean,
    counted,
    f32,
    feeds,
    graph,
    int_list,
    kv_cache,
    log,
    matrix,
    minimum,
    n_tokens,
    nn,
    ops,
    option,
    sqrt,
    tap,
    tap_last,
    tensor,
    text,
    u32,
)

# isort: split
# --- Not in the language yet --------------------------------------------------------------------------------
from draftsmith.dsl import (
    free,  # free(name): a dim that the file decides, bound from the tensor it stands in; per layer in a Layer
    layers_with,  # layers_with(tensor): default of an int_list: the layers whose tensor is in the file
    ring,  # ring(width, every=key): f32 rows of a sequence's last tokens, by position; the runtime adds room
    #        for what it may roll back. View: rows [width, n_slots] before the batch; members i32
    #        [every*n_groups]: the rows (ring, then batch) of each group that the batch completes; take i32,
    #        cells i64 [n_keep]: which rows to keep, and where. None where `every` is 1
    row_stream,  # row_stream(width, every=key, unit=n): one row for `every` tokens, never dropped, type of K.
    #        View: rows [width, n_cells]; cells i64 [n_groups], pos i32 [n_groups]: where completed groups go,
    #        position of their first token; mask 0/-inf [unit*n_units, n_tokens]: complete groups, own text
)

# Arguments: layers=list (required there, refused elsewhere); paged=True (mapped, never copied to a device nor
# read ahead: a table for get_rows); any_rank=True (same dim 0, as many elements); kv_cache without v (values
# are the keys); window without sliding (all layers); LayerKey longer=True (surplus entries dropped) and
# default=another LayerKey; Feed in a Layer (one tensor a layer, `compute` gets batch, model, il).
# Questions: `layer.il in hp.list`, `layer.il > hp.key`: answered per layer, an `if` in the generated loop.
# Batch: recent_tokens(n): i64 [n_tokens, n], newest first, -1 where the sequence has none or has an image;
# newest(state, il): i64 [n_tokens], the row of that stream that each token sees last, 0 where it sees none.
# --- End ----------------------------------------------------------------------------------------------------


class hp(DecoderHparams):
    n_ff = yarn_ext_factor = yarn_attn_factor = yarn_beta_fast = yarn_beta_slow = None  # HP-1: not read
    rope_scaling_type = text("{arch}.rope.scaling.type", "none", allowed=("none", "yarn"))
    compress_rope_freq_base = f32("{arch}.attention.compress_rope_freq_base")
    n_lora_q = u32("{arch}.attention.q_lora_rank")
    n_swa = u32("{arch}.attention.sliding_window")
    n_out_group = u32("{arch}.attention.output_group_count")
    n_lora_o = u32("{arch}.attention.output_lora_rank")

    compress_ratios = int_list("{arch}.attention.compress_ratios")
    kv_sources = int_list(
        "{arch}.attention.kv_source_layer_ids", layers_with("blk.{il}.attn_compressor_kv.weight"),
        aliases=("{arch}.kv_source_layer_ids", "{arch}.attention.kv_source_layers"),
    )
    index_sources = int_list(
        "{arch}.attention.index_source_layer_ids", layers_with("blk.{il}.indexer.attn_q_b.weight"),
        aliases=("{arch}.index_source_layer_ids", "{arch}.attention.index_source_layers"),
    )
    n_index_head = u32("{arch}.attention.indexer.head_count")
    n_index_dim = u32("{arch}.attention.indexer.key_length")
    index_top_k = u32("{arch}.attention.indexer.top_k")
    candidate_source = u32(
        "{arch}.attention.candidate_source_layer_id",
        lambda hp: hp.kv_sources.value[-1] if 1 in hp.compress_ratios.value else hp.n_layer,
        aliases=("{arch}.attention.candidate_source_layer",),
    )
    n_candidate = u32(
        "{arch}.attention.candidate_topk_blocks", 2048, aliases=("{arch}.attention.candidate_top_blocks",)
    )
    candidate_block = u32("{arch}.attention.candidate_block_size", 8)

    n_stream = u32("{arch}.hyper_connection.count", allowed=(4,))
    n_sinkhorn = u32("{arch}.hyper_connection.sinkhorn_iterations")
    hc_eps = f32("{arch}.hyper_connection.epsilon")

    n_expert = u32("{arch}.expert_count")
    n_ff_exp = u32("{arch}.expert_feed_forward_length")
    n_expert_shared = u32("{arch}.expert_shared_count")
    expert_weights_norm = boolean("{arch}.expert_weights_norm")
    expert_weights_scale = f32("{arch}.expert_weights_scale")
    expert_gating_func = u32("{arch}.expert_gating_func", allowed=(4,))  # sqrt(softplus)

    engram_layers = int_list("{arch}.engram.layer_ids", aliases=("{arch}.engram.layers",))
    engram_ngram = u32("{arch}.engram.max_ngram_size", aliases=("{arch}.engram.ngram_size",))
    n_engram_head = u32("{arch}.engram.head_count")
    n_engram = u32("{arch}.engram.key_length", aliases=("{arch}.engram.head_dim",))
    engram_multipliers = int_list("{arch}.engram.multipliers", aliases=("{arch}.engram.hash_multipliers",))
    engram_primes = int_list("{arch}.engram.primes", aliases=("{arch}.engram.head_bucket_sizes",))
    engram_offsets = int_list("{arch}.engram.offsets", aliases=("{arch}.engram.head_offsets",))
    engram_token_map = int_list("{arch}.engram.token_map")
    engram_pad_token = u32("{arch}.engram.pad_token_id", 0)  # raw; the next one is compressed already
    engram_pad = u32("{arch}.engram.pad_id", lambda hp: hp.engram_token_map.value[int(hp.engram_pad_token)])


N, H, D, T = hp.n_embd, hp.n_head, hp.n_embd_head_k, n_tokens
QL, G, OL, W = hp.n_lora_q, hp.n_out_group, hp.n_lora_o, hp.n_swa
IH, ID = hp.n_index_head, hp.n_index_dim
E, F, S = hp.n_expert, hp.n_ff_exp, hp.n_expert_shared
C, M = hp.n_stream, (2 + hp.n_stream) * hp.n_stream
columns = (hp.engram_ngram - 1) * hp.n_engram_head
eps = hp.f_norm_rms_eps


def engram_rows(batch, model, il):
    """ENG-1, ENG-2: rows of the table for each token's 2-, 3- and 4-gram, one a head. On the host."""
    def of_module(name):
        modules = model.hparam("engram_layers")
        return np.asarray(model.hparam(name), np.uint64).reshape(len(modules), -1)[modules.index(il)]

    recent = batch.recent_tokens(model.hparam("engram_ngram"))
    blocked = np.logical_or.accumulate(recent < 0, axis=1)  # what is older than a gap, too
    ids = np.where(blocked, model.hparam("engram_pad"), np.asarray(model.hparam("engram_token_map"))[recent])
    hashes = np.bitwise_xor.accumulate(ids.astype(np.uint64) * of_module("engram_multipliers"), axis=1)[:, 1:]
    per_head = np.repeat(hashes, model.hparam("n_engram_head"), axis=1)
    return (per_head % of_module("engram_primes") + of_module("engram_offsets")).astype(np.int32)


def newest_block(batch, model, il):
    """V41-6: the block in which the newest row lies that each token sees. On the host."""
    return (batch.newest("latent", il)[:, None] // model.hparam("candidate_block")).astype(np.int32)


class DeepSeekV41Layer(Layer):
    compress_ratio = LayerKey("{arch}.attention.compress_ratios", int, longer=True)
    n_expert_used = LayerKey("{arch}.expert_used_count", int)
    swiglu_clamp_exp = LayerKey("{arch}.swiglu_clamp_exp", float)
    swiglu_clamp_shexp = LayerKey("{arch}.swiglu_clamp_shexp", float, default=swiglu_clamp_exp)

    hc_attn_fn = tensor("blk.{il}.hc_attn_fn.weight", C * N, M)
    hc_attn_scale = tensor("blk.{il}.hc_attn_scale.weight", 3)
    hc_attn_base = tensor("blk.{il}.hc_attn_base.weight", M)
    hc_ffn_fn = tensor("blk.{il}.hc_ffn_fn.weight", C * N, M)
    hc_ffn_scale = tensor("blk.{il}.hc_ffn_scale.weight", 3)
    hc_ffn_base = tensor("blk.{il}.hc_ffn_base.weight", M)

    attn_norm = tensor("blk.{il}.attn_norm.weight", N)
    attn_q_a = matrix("blk.{il}.attn_q_a.weight", N, QL)
    attn_q_a_norm = tensor("blk.{il}.attn_q_a_norm.weight", QL)
    attn_q_b = matrix("blk.{il}.attn_q_b.weight", QL, H * D)
    attn_kv = matrix("blk.{il}.attn_kv.weight", N, D)
    attn_kv_a_norm = tensor("blk.{il}.attn_kv_a_norm.weight", D)
    attn_sinks = tensor("blk.{il}.attn_sinks.weight", H)
    attn_output_a = matrix("blk.{il}.attn_output_a.weight", H * D // G, OL, G, any_rank=True)  # T-2
    attn_output_b = matrix("blk.{il}.attn_output_b.weight", G * OL, N)
    kv = kv_cache(D, head_k=D, window=W)

    attn_compressor_kv = matrix("blk.{il}.attn_compressor_kv.weight", N, D, layers=hp.kv_sources)
    attn_compressor_gate = matrix("blk.{il}.attn_compressor_gate.weight", N, D, optional=True)
    attn_compressor_norm = tensor("blk.{il}.attn_compressor_norm.weight", D, layers=hp.kv_sources)
    indexer_attn_k = matrix("blk.{il}.indexer.attn_k.weight", D, ID, layers=hp.kv_sources)
    indexer_k_norm = tensor("blk.{il}.indexer.k_norm.weight", ID, layers=hp.kv_sources)
    latents = row_stream(D, every="compress_ratio", layers=hp.kv_sources, unit=hp.candidate_block)
    index_keys = row_stream(ID, every="compress_ratio", layers=hp.kv_sources, unit=hp.candidate_block)
    unfinished = ring(2 * D, every="compress_ratio", layers=hp.kv_sources)

    indexer_attn_q_b = matrix("blk.{il}.indexer.attn_q_b.weight", QL, IH * ID, layers=hp.index_sources)
    indexer_proj = matrix("blk.{il}.indexer.proj.weight", N, IH, layers=hp.index_sources)
    newest_block = Feed("newest_block", GGMLType.i32, (1, T), newest_block)

    ffn_norm = tensor("blk.{il}.ffn_norm.weight", N)
    ffn_gate_inp = matrix("blk.{il}.ffn_gate_inp.weight", N, E)
    exp_probs_b = tensor("blk.{il}.exp_probs_b.bias", E)
    exp_probs_b_vl = tensor("blk.{il}.exp_probs_b_vl.bias", E, optional=True)
    ffn_gate_exps = matrix("blk.{il}.ffn_gate_exps.weight", N, F, E)
    ffn_up_exps = matrix("blk.{il}.ffn_up_exps.weight", N, F, E)
    ffn_down_exps = matrix("blk.{il}.ffn_down_exps.weight", F, N, E)
    ffn_gate_shexp = matrix("blk.{il}.ffn_gate_shexp.weight", N, F * S)
    ffn_up_shexp = matrix("blk.{il}.ffn_up_shexp.weight", N, F * S)
    ffn_down_shexp = matrix("blk.{il}.ffn_down_shexp.weight", F * S, N)

    engram_embd = matrix(
        "blk.{il}.engram_embd.weight", hp.n_engram, free("n_engram_rows"), layers=hp.engram_layers, paged=True
    )
    engram_wkv = matrix(
        "blk.{il}.engram_wkv.weight", columns * hp.n_engram, (C + 1) * N, layers=hp.engram_layers
    )
    engram_q = tensor("blk.{il}.engram_q.weight", N, C, layers=hp.engram_layers)
    engram_k = tensor("blk.{il}.engram_k.weight", N, C, layers=hp.engram_layers)
    engram_rows = Feed("engram_rows", GGMLType.i32, (columns, T), engram_rows)


class Mix(NamedTuple):
    """How a sublayer writes the streams; ``pre`` is how the sublayer behind it reads them."""

    pre: Value
    post: Value
    comb: Value


class Query(NamedTuple):
    """Heads, rotated; the low-rank query they came from, which also feeds the indexer."""

    heads: Value
    low: Value


class Shared(NamedTuple):
    """What a KV source gives the layers behind it: rows, their index keys, which of them a token may see."""

    rows: Value
    keys: Value
    mask: Value


def rotate(x: Value, pos: Value, layer, rope=ops.rope_ext) -> Value:
    """Turn the trailing dims of [head, n_head, n]: plain, or YaRN where a layer compresses (ROPE-1, 2)."""
    how = {"n_dims": hp.n_rot, "mode": ops.rope.NORMAL, "offset": x.ne[0] - hp.n_rot}
    if layer.compress_ratio == 0:
        return rope(x, pos, freq_base=hp.rope_freq_base, **how)
    if hp.rope_scaling_type == "yarn":
        factor = hp.rope_scaling_factor
        how |= {"n_ctx_orig": hp.n_ctx_orig_yarn, "freq_scale": 1.0 / factor, "ext_factor": 1.0}
        how |= {"attn_factor": 1.0 / (1.0 + 0.1 * log(factor))}  # cancels ggml's
    return rope(x, pos, freq_base=hp.compress_rope_freq_base, **how)


def keep(state: Value, cells: Value, k: Value, kv: feeds.KVView) -> Value:
    """Store keys [head, 1, n] as the window cache stores them, rotated (Hadamard) if it is."""
    return ops.store(state, nn.flat(nn.rotate_k(k, kv)), cells)


def pool(rows: Value, ratio) -> Value:
    """Groups of ``ratio`` rows [value; score] into one: per channel, values by softmax of scores (CMP-3)."""
    def by_group(start) -> Value:
        part = ops.cont(ops.slice_(rows, 0, start, D), D, ratio, rows.ne[1] // ratio)
        return ops.cont(ops.permute(part, 1, 0, 2, 3))

    return ops.reshape(ops.sum_rows(by_group(0) * ops.soft_max(by_group(D))), D, rows.ne[1] // ratio)


def open_at(mask: Value, ids: Value) -> Value:
    """A mask like ``mask`` [n, n_tokens], shut everywhere but at ``ids`` [k, n_tokens]."""
    shut = ops.reshape(ops.fill(mask, -inf), 1, *mask.shape)
    return ops.reshape(ops.set_rows(shut, ops.full((1, *ids.shape), 0.0), ids), *mask.shape)


def swiglu(gate: Value, up: Value, limit) -> Value:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) (MOE-4)."""
    return ops.swiglu_clamp(gate, up, limit=limit) if limit > 1e-6 else ops.swiglu_split(gate, up)


@arch("deepseek41")
class DeepSeekV41(Architecture):
    """Lagged hyper-connections around sparse attention over shared compressed keys, and routed experts."""

    hparams = hp
    layer = DeepSeekV41Layer
    exports = {"token_embd": ("token_embd.weight",), "output": ("output.weight",)}  # noqa: RUF012

    token_embd = matrix("token_embd.weight", N, hp.n_vocab)
    output_norm = tensor("output_norm.weight", N)
    output = matrix("output.weight", N, hp.n_vocab)

    @classmethod
    def check(cls, model):
        """V41-2: who reads rows or reuses a choice finds one of its own ratio."""
        ratios = [layer["compress_ratio"] for layer in model.layer_values]
        for kind in ("kv_sources", "index_sources"):
            for il, ratio in enumerate(ratios):
                source = max((s for s in model.hparam(kind) if s <= il), default=None)
                if ratio and (source is None or ratios[source] != ratio):
                    yield f"layer {il} has ratio {ratio}: {kind} before it have none or another"

    @block
    def engram(self, layer, streams: Value, rows: Value) -> Value:
        """What the n-gram tables say, let into each stream as far as it agrees (ENG-3 to ENG-6)."""
        found = ops.get_rows(layer.engram_embd, ops.reshape(rows, columns * T))
        kv = nn.linear(layer.engram_wkv, ops.reshape(found, columns * hp.n_engram, T))
        keys = ops.cont(ops.slice_(kv, 0, 0, C * N), N, C, T)
        value = ops.cont(ops.slice_(kv, 0, C * N, N), N, 1, T)
        k = nn.rms_norm(keys, layer.engram_k, eps)
        q = nn.rms_norm(streams, layer.engram_q, eps)
        d = ops.sum_rows(k * q) * (1.0 / sqrt(N))
        gate = ops.sigmoid(ops.sgn(d) * ops.sqrt(ops.clamp(ops.abs_(d), 1e-6, inf)))
        return streams + ops.repeat(value, streams) * gate

    @block
    def mix(self, streams: Value, fn: Value, scale: Value, base: Value) -> Mix:
        """Predicted from all streams of a token together (HC-1 to HC-3)."""
        mixes = ops.mul_mat(fn, ops.rms_norm(ops.reshape(streams, C * N, T), eps))

        def part(i: int) -> Value:
            scaled = ops.mul(ops.slice_(mixes, 0, i * C, C), ops.slice_(scale, 0, i, 1))
            return ops.sigmoid(scaled + ops.slice_(base, 0, i * C, C))

        comb = ops.dsv4_hc_comb(mixes, scale, base, eps=hp.hc_eps, n_iter=hp.n_sinkhorn)
        return Mix(pre=ops.scale_bias(part(0), 1.0, hp.hc_eps), post=part(1) * 2.0, comb=comb)

    def collapse(self, streams: Value, pre: Value, norm: Value) -> Value:
        """The streams as one, normed (HC-4)."""
        return nn.rms_norm(ops.dsv4_hc_pre(streams, pre), norm, eps)

    @block
    def query(self, layer, x: Value, pos: Value) -> Query:
        """ATT-1 to ATT-3; unlike V4, heads are not normed."""
        low = nn.rms_norm(nn.linear(layer.attn_q_a, x), layer.attn_q_a_norm, eps)
        return Query(rotate(nn.heads(nn.linear(layer.attn_q_b, low), D, H), pos, layer), low)

    @block
    def compress(self, layer, x: Value, latents, index_keys, unfinished, kv: feeds.KVView) -> Shared:
        """Each group of tokens that the batch completes becomes a row and an index key (CMP-1 to 4)."""
        u = nn.linear(layer.attn_compressor_kv, x)
        if layer.compress_ratio != 1:
            scored = ops.concat(u, nn.linear(layer.attn_compressor_gate, x), axis=0)
            known = ops.concat(unfinished.rows, scored, axis=1)
            u = pool(ops.get_rows(known, unfinished.members), layer.compress_ratio)
            ops.store(unfinished.rows, ops.get_rows(scored, unfinished.take), unfinished.cells)
        z = nn.rms_norm(u, layer.attn_compressor_norm, eps)  # index keys come from the row before rotation
        key = nn.rms_norm(nn.linear(layer.indexer_attn_k, z), layer.indexer_k_norm, eps)
        key = rotate(nn.heads(key, ID, 1), index_keys.pos, layer)
        keys = ops.store(index_keys.rows, nn.flat(key), index_keys.cells)
        rows = keep(latents.rows, latents.cells, rotate(nn.heads(z, D, 1), latents.pos, layer), kv)
        return Shared(rows, keys, latents.mask)

    @block
    def score(self, layer, x: Value, low: Value, pos: Value, shared: Shared) -> Value:
        """The lightning indexer: how much each token wants each row (IDX-1, IDX-3, IDX-4)."""
        q = rotate(nn.heads(nn.linear(layer.indexer_attn_q_b, low), ID, IH), pos, layer)
        w = nn.linear(layer.indexer_proj, x) * (1.0 / sqrt(ID * IH))
        n = shared.mask.ne[0]
        k = ops.reshape(ops.first_rows(shared.keys, n), ID, 1, n)
        return ops.lightning_indexer(q, k, w, shared.mask)

    @block
    def candidates(self, scores: Value, newest: Value) -> Value:
        """The best blocks of rows, the newest among them, as a mask for later index sources (V41-6)."""
        B, n = hp.candidate_block, scores.ne[0] // hp.candidate_block
        blocks = ops.reshape(scores, B, n * T)
        where = ops.reshape(ops.argmax(blocks), 1, n * T)
        best = ops.reshape(ops.get_rows(ops.reshape(blocks, 1, B, n * T), where), 1, n, T)
        best = ops.reshape(ops.set_rows(best, ops.full((1, 1, T), inf), newest), n, T)
        mask = open_at(best, ops.top_k(best, minimum(hp.n_candidate, n)))
        return ops.reshape(ops.repeat_4d(ops.reshape(mask, 1, n, T), B, n, T), B * n, T)

    @block
    def select(self, scores: Value, mask: Value) -> Value:
        """The rows that a token wants most, as a mask (IDX-5, V41-7)."""
        return open_at(mask, ops.top_k(scores, minimum(hp.index_top_k, scores.ne[0]))) + mask

    @block
    def self_attention(self, layer, x: Value, q: Value, pos: Value, kv: feeds.KVView, rows, chosen) -> Value:
        """One softmax over window, chosen rows and sink (ATT-3 to ATT-9), grouped output (ATT-7)."""
        k = nn.rms_norm(nn.linear(layer.attn_kv, x), layer.attn_kv_a_norm, eps)
        k = rotate(nn.heads(k, D, 1), pos, layer)
        keys = ops.first_rows(keep(kv.k, kv.cells, k, kv), kv.mask.ne[0])
        if layer.compress_ratio != 0:
            keys = ops.concat(keys, ops.first_rows(rows, chosen.ne[0]), axis=1)
            kv = kv._replace(mask=ops.concat(kv.mask, chosen, axis=0))
        out = nn.attention(layer, q, keys, keys, kv, 1.0 / sqrt(D), 1, layer.attn_sinks)
        out = rotate(nn.heads(out, D, H), pos, layer, ops.rope_ext_back)
        groups = ops.permute(ops.reshape(out, H * D // G, G, T), 0, 2, 1, 3)
        low = ops.permute(nn.linear(layer.attn_output_a, groups), 0, 2, 1, 3)
        return nn.linear(layer.attn_output_b, ops.cont(low, G * OL, T))

    @block
    def experts(self, layer, x: Value, bias: Value) -> Value:
        """The chosen experts, weighted, and the shared one (MOE-1 to MOE-6)."""
        used = layer.n_expert_used
        p = ops.sqrt(ops.softplus(ops.mul_mat(layer.ffn_gate_inp, x, prec_f32=True)))
        ids = ops.argsort_top_k(p + bias, used)  # the bias chooses, it does not weigh
        w = ops.reshape(ops.get_rows(ops.reshape(p, 1, E, T), ids), used, T)
        if hp.expert_weights_norm:
            w = ops.div(w, ops.clamp(ops.sum_rows(w), 6.103515625e-5, inf))
        if hp.expert_weights_scale != 0:
            w = w * hp.expert_weights_scale

        row = ops.reshape(x, N, 1, T)
        gate, up = ops.mul_mat_id(layer.ffn_gate_exps, row, ids), ops.mul_mat_id(layer.ffn_up_exps, row, ids)
        y = ops.mul_mat_id(layer.ffn_down_exps, swiglu(gate, up, layer.swiglu_clamp_exp), ids)
        y = y * ops.reshape(w, 1, used, T)
        routed = ops.cont(ops.slice_(y, 1, 0, 1))
        for i in counted(1, used):
            routed = routed + ops.slice_(y, 1, i, 1)

        gate, up = nn.linear(layer.ffn_gate_shexp, x), nn.linear(layer.ffn_up_shexp, x)
        shared = nn.linear(layer.ffn_down_shexp, swiglu(gate, up, layer.swiglu_clamp_shexp))
        return ops.reshape(routed, N, T) + shared

    def trunk(self, x: Value, pos: Value, out_rows: Value, image: bool) -> dict[str, Value]:
        """All layers and the head. Each sublayer reads with the mix of the one before it (BLK-3)."""
        streams = ops.repeat_4d(ops.reshape(x, N, 1, T), N, C, T)
        pre = ops.concat(ops.full((1, T), 1.0), ops.full((C - 1, T), 0.0))
        mean = ops.full((C, T), 1.0 / C)
        shared = chosen = allowed = None
        for layer in self.layers:
            if not image and layer.il in hp.engram_layers:
                streams = self.engram(layer, streams, layer.engram_rows)
            tap("layer_input", ops.dsv4_hc_pre(streams, mean), layer)

            mix = self.mix(streams, layer.hc_attn_fn, layer.hc_attn_scale, layer.hc_attn_base)
            x = self.collapse(streams, pre, layer.attn_norm)
            q = self.query(layer, x, pos)
            if layer.il in hp.kv_sources:
                shared = self.compress(layer, x, layer.latents, layer.index_keys, layer.unfinished, layer.kv)
            if layer.il in hp.index_sources:
                scores = self.score(layer, x, q.low, pos, shared)
                if layer.il == hp.candidate_source:
                    allowed = self.candidates(scores, layer.newest_block)
                elif layer.il > hp.candidate_source:
                    scores = scores + allowed
                chosen = self.select(scores, shared.mask)
            rows = shared.rows if layer.compress_ratio != 0 else None
            y = self.self_attention(layer, x, q.heads, pos, layer.kv, rows, chosen)
            streams, pre = ops.dsv4_hc_post(y, streams, mix.post, mix.comb), mix.pre

            mix = self.mix(streams, layer.hc_ffn_fn, layer.hc_ffn_scale, layer.hc_ffn_base)
            x = self.collapse(streams, pre, layer.ffn_norm)
            bias = layer.exp_probs_b_vl if image else None
            y = self.experts(layer, x, layer.exp_probs_b if bias is None else bias)
            streams, pre = ops.dsv4_hc_post(y, streams, mix.post, mix.comb), mix.pre
        if option("tap_last"):
            tap_last("layer_input", ops.dsv4_hc_pre(streams, mean), self)

        wanted = ops.get_rows(ops.reshape(streams, C * N, T), out_rows)
        streams, pre = ops.reshape(wanted, N, C, wanted.ne[1]), ops.get_rows(pre, out_rows)
        logits = nn.linear(self.output, self.collapse(streams, pre, self.output_norm))
        return {"logits": logits, "argmax": ops.argmax(logits)}

    @graph
    def decode(self, tokens=feeds.tokens, pos=feeds.positions, out_rows=feeds.out_rows):
        """Prefill, decode and verify."""
        return self.trunk(nn.embed(self.token_embd, tokens), pos, out_rows, image=False)

    @graph
    def decode_image(self, rows=feeds.features(N), pos=feeds.positions, out_rows=feeds.out_rows):
        """Rows of an image instead of tokens: no n-grams, biases of their own (ENG-7, MOE-2)."""
        return self.trunk(rows, pos, out_rows, image=True)
