"""LiLiCorr: DFlash whose candidates are scored together by a small correlator.

Every slot proposes its C best tokens; a few layers of attention over all slots and candidates, conditioned on the
last committed position, give each a vector on either side, and the score of two neighbours is their product.
Paragraphs LC of the specification of the family.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from draftsmith.dsl import (
    Feed,
    GGMLType,
    Layer,
    LayerView,
    Value,
    arch,
    block,
    exact,
    f32,
    feeds,
    graph,
    layer_group,
    matrix,
    maximum,
    n_tokens,
    nn,
    ops,
    sample_lattice,
    sqrt,
    tensor,
    u32,
    walk_lattice,
)
from draftsmith.dsl.bind import BoundModel

from . import dflash


class hp(dflash.hp):
    block_size = u32("{arch}.block_size")
    n_hidden = u32("lilicorr.hidden_size")
    n_candidates = u32("lilicorr.candidate_topk")
    n_selector = u32("{arch}.selector_top_k", 0, check=lambda k: "belongs to DFlash2, this is LiLiCorr" if k else None)
    n_corr_head = u32("lilicorr.num_heads")
    n_corr_layer = u32("lilicorr.num_layers")
    n_factor = u32("lilicorr.factor_dim")
    n_corr_ff = u32("lilicorr.mlp_hidden_size")
    f_vector_eps = f32("lilicorr.vector_eps", check=lambda e: None if e > 0 else "must be positive")
    f_corr_scale = f32("lilicorr.logit_scale", check=lambda s: None if s > 0 else "must be positive")


n_slots = hp.block_size - 1
n_items = n_slots * hp.n_candidates
n_seqs = exact(n_tokens, hp.block_size)
"""The head takes full blocks only, so the rows of a batch are whole blocks."""

F_LAYER_NORM_EPS = 1e-5
"""Of the feature norm; the model's own eps serves every other (LC-14)."""


CONTEXT: Any = Feed("context", GGMLType.f32, (hp.n_embd, n_seqs))


class CorrelatorLayer(Layer):
    attn_norm = tensor("blk.{il}.attn_norm.weight", hp.n_hidden)
    attn_in = matrix("lilicorr.layers.{i}.attn.in_proj.weight", hp.n_hidden, 3 * hp.n_hidden, scaled=False)
    attn_in_bias = tensor("lilicorr.layers.{i}.attn.in_proj.bias", 3 * hp.n_hidden)
    attn_output = matrix("blk.{il}.attn_output.weight", hp.n_hidden, hp.n_hidden)
    attn_output_bias = tensor("blk.{il}.attn_output.bias", hp.n_hidden)
    ffn_norm = tensor("blk.{il}.ffn_norm.weight", hp.n_hidden)
    ffn_up = matrix("blk.{il}.ffn_up.weight", hp.n_hidden, hp.n_corr_ff)
    ffn_up_bias = tensor("blk.{il}.ffn_up.bias", hp.n_corr_ff)
    ffn_down = matrix("blk.{il}.ffn_down.weight", hp.n_corr_ff, hp.n_hidden)
    ffn_down_bias = tensor("blk.{il}.ffn_down.bias", hp.n_hidden)


class FeatureLayer(Layer):
    norm = tensor("blk.{il}.ffn_norm.weight", 5)
    norm_bias = tensor("blk.{il}.ffn_norm.bias", 5)
    up = matrix("blk.{il}.ffn_up.weight", 5, hp.n_hidden, scaled=False)
    up_bias = tensor("blk.{il}.ffn_up.bias", hp.n_hidden)
    down = matrix("blk.{il}.ffn_down.weight", hp.n_hidden, hp.n_hidden, scaled=False)
    down_bias = tensor("blk.{il}.ffn_down.bias", hp.n_hidden)


def narrower(hp: Any) -> Any:
    return hp.n_hidden != hp.n_embd


@arch("dflash", variant="lilicorr")
class LiLiCorr(dflash.DFlash):
    """A block-diffusion drafter with a learned correlation between candidate tokens of neighbouring positions."""

    hparams = hp
    requires = ("lilicorr.hidden_size",)
    canonical: ClassVar[Mapping[str, Any]] = {
        "lilicorr.hidden_size": 64,
        "lilicorr.candidate_topk": 4,
        "lilicorr.num_heads": 2,
        "lilicorr.num_layers": 2,
        "lilicorr.factor_dim": 16,
        "lilicorr.mlp_hidden_size": 128,
        "lilicorr.vector_eps": 1e-3,
        "lilicorr.logit_scale": 8.0,
    }
    contract = replace(
        dflash.DFlash.contract,
        propose=walk_lattice,
        outputs=lambda p_min: ("candidates", "scores"),
        sample=sample_lattice,
        sample_outputs=lambda p_min: ("candidates", "scores"),
        selects_rows=False,
        full_blocks=True,
        carry=("fused", "context"),
    )

    correlator = layer_group(CorrelatorLayer, hp.n_corr_layer, first=hp.n_layer)
    feature_mlp = layer_group(FeatureLayer, 1, first=hp.n_layer + hp.n_corr_layer)

    token_proj = matrix("lilicorr.token_proj.weight", hp.n_embd, hp.n_hidden, required_if=narrower)
    token_proj_bias = tensor("lilicorr.token_proj.bias", hp.n_hidden, required_if=narrower)
    hidden_proj = matrix("lilicorr.pass_hidden_proj.weight", hp.n_embd, hp.n_hidden)
    hidden_proj_bias = tensor("lilicorr.pass_hidden_proj.bias", hp.n_hidden)
    slot_embedding = tensor("lilicorr.slot_embedding.weight", hp.n_hidden, n_slots)
    rank_embedding = tensor("lilicorr.rank_embedding.weight", hp.n_hidden, hp.n_candidates)
    attention_bias = tensor(
        "lilicorr.attention_bias.bias", n_items, n_items, hp.n_corr_head, types=(GGMLType.f32, GGMLType.f16)
    )
    context_proj = matrix("lilicorr.context_proj.weight", hp.n_embd, hp.n_hidden)
    context_proj_bias = tensor("lilicorr.context_proj.bias", hp.n_hidden)
    corr_output_norm = tensor("lilicorr.output_norm.weight", hp.n_hidden)
    anchor_norm = tensor("lilicorr.anchor_norm.weight", hp.n_hidden)
    factor_input = matrix("lilicorr.factor_input_proj.weight", 3 * hp.n_hidden, hp.n_hidden, scaled=False)
    factor_input_bias = tensor("lilicorr.factor_input_proj.bias", hp.n_hidden)
    out_head = matrix("lilicorr.out_head.weight", hp.n_hidden, hp.n_factor, scaled=False)
    out_head_bias = tensor("lilicorr.out_head.bias", hp.n_factor)
    in_head = matrix("lilicorr.in_head.weight", hp.n_hidden, hp.n_factor, scaled=False)
    in_head_bias = tensor("lilicorr.in_head.bias", hp.n_factor)
    anchor_head = matrix("lilicorr.anchor_out_head.weight", hp.n_hidden, hp.n_factor, scaled=False)
    anchor_head_bias = tensor("lilicorr.anchor_out_head.bias", hp.n_factor)

    # -- candidates --------------------------------------------------------------------------------------
    @block
    def best_candidates(self, logits: Value) -> tuple[Value, Value]:
        """The C best tokens of each row, best first, and the features of each: log-probability over the whole
        vocabulary, its exponential, its distance from the best, rank, whether best (LC-1). The log-softmax is a true
        one (LC-14)."""
        rows = logits.ne[1]
        top = ops.top_k(logits, hp.n_candidates)
        values = ops.reshape(ops.get_rows(ops.reshape(logits, 1, hp.n_vocab, rows), top), hp.n_candidates, rows)
        order = ops.argsort(values, order="desc")
        ids = ops.reshape(ops.get_rows(ops.reshape(top, 1, hp.n_candidates, rows), order), hp.n_candidates, rows)
        values = ops.reshape(ops.get_rows(ops.reshape(values, 1, hp.n_candidates, rows), order), hp.n_candidates, rows)

        best = ops.cont(ops.slice_(values, 0, 0, 1))
        below_best = ops.sub(values, best)
        log_total = ops.log(ops.sum_rows(ops.exp(ops.sub(logits, best))))
        log_p = ops.sub(below_best, log_total)
        rank = ops.repeat_4d(ops.reshape(ops.arange(0, hp.n_candidates, 1), hp.n_candidates, 1), hp.n_candidates, rows)
        is_best = ops.scale_bias(ops.step(rank), -1.0, 1.0)
        relative_rank = ops.scale(rank, 1.0 / maximum(hp.n_candidates - 1, 1))
        features = self.column(log_p)
        for column in (ops.exp(log_p), below_best, relative_rank, is_best):
            features = ops.concat(features, self.column(column), axis=0)
        features = ops.reshape(features, 5, hp.n_candidates * rows)
        return ids, features

    @staticmethod
    def column(x: Value) -> Value:
        return ops.reshape(x, 1, *x.shape)

    def items(self, logits: Value, hidden: Value) -> tuple[Value, Value]:
        """One vector for every candidate of every slot [n_hidden, C, n_slots, n_seqs], and the ids (LC-2, LC-3)."""
        ids, features = self.best_candidates(logits)
        tokens = ops.get_rows(self.token_embd, ops.reshape(ids, n_items * n_seqs))
        if hp.n_hidden != hp.n_embd:
            tokens = nn.affine(self.token_proj, tokens, self.token_proj_bias)
        mlp = self.feature_mlp.only
        normed = ops.add(ops.mul(ops.norm(features, F_LAYER_NORM_EPS), mlp.norm), mlp.norm_bias)
        known = nn.affine(mlp.down, ops.silu(nn.affine(mlp.up, normed, mlp.up_bias)), mlp.down_bias)
        slots = nn.affine(self.hidden_proj, hidden, self.hidden_proj_bias)

        x = ops.reshape(ops.add(tokens, known), hp.n_hidden, hp.n_candidates, n_slots, n_seqs)
        x = ops.add(x, ops.reshape(slots, hp.n_hidden, 1, n_slots, n_seqs))
        x = ops.add(x, ops.reshape(self.slot_embedding, hp.n_hidden, 1, n_slots))
        x = ops.add(x, self.rank_embedding)
        return ids, ops.reshape(x, hp.n_hidden, n_items * n_seqs)

    # -- correlator ------------------------------------------------------------------------------------------
    @block
    def correlate(self, layer: LayerView, x: Value, bias: Value) -> Value:
        """Attention over all slots and candidates of a block with a learned bias a pair, then a feed-forward network
        (LC-4)."""
        n_head_dim = exact(hp.n_hidden, hp.n_corr_head)
        normed = nn.rms_norm(x, layer.attn_norm, hp.f_norm_rms_eps)
        qkv = nn.affine(layer.attn_in, normed, layer.attn_in_bias)
        parts = ops.reshape(qkv, n_head_dim, hp.n_corr_head, 3, n_items * n_seqs)
        q = ops.permute(self.part(parts, 0), 0, 2, 1, 3)
        k = ops.permute(self.part(parts, 1), 0, 2, 1, 3)
        v = ops.cont(ops.permute(self.part(parts, 2), 1, 2, 0, 3))
        kq = ops.mul_mat(k, q)
        kq = ops.soft_max_ext(kq, bias, scale=1.0 / sqrt(n_head_dim))
        kqv = ops.mul_mat(v, kq)
        out = ops.cont(ops.permute(kqv, 0, 2, 1, 3), hp.n_hidden, n_items * n_seqs)
        x = x + nn.affine(layer.attn_output, out, layer.attn_output_bias)

        normed = nn.rms_norm(x, layer.ffn_norm, hp.f_norm_rms_eps)
        up = ops.silu(nn.affine(layer.ffn_up, normed, layer.ffn_up_bias))
        return x + nn.affine(layer.ffn_down, up, layer.ffn_down_bias)

    @staticmethod
    def part(parts: Value, index: int) -> Value:
        """Queries, keys or values of all heads: [head, n_head, n_items, n_seqs]."""
        return ops.cont(ops.select(parts, 2, index), parts.ne[0], parts.ne[1], n_items, n_seqs)

    def factors(self, x: Value, w: Value, b: Value) -> Value:
        """Vectors of at most unit length (LC-8)."""
        return ops.l2_norm(nn.affine(w, x, b), hp.f_vector_eps)

    @graph
    def draft(self, tokens: Value = feeds.tokens, context: Value = CONTEXT) -> dict[str, Value]:
        """Full blocks through the backbone; per row C candidates and C*C scores, predecessor by candidate (LC-9).
        ``context``: for each block the fused row of the last committed position (LC-12)."""
        hidden = self.backbone(tokens)
        logits = self.head(hidden)
        slot_hidden = ops.cont(ops.slice_(ops.reshape(hidden, hp.n_embd, hp.block_size, n_seqs), 1, 1, n_slots))
        slot_logits = ops.cont(ops.slice_(ops.reshape(logits, hp.n_vocab, hp.block_size, n_seqs), 1, 1, n_slots))
        ids, x = self.items(
            ops.reshape(slot_logits, hp.n_vocab, n_slots * n_seqs),
            ops.reshape(slot_hidden, hp.n_embd, n_slots * n_seqs),
        )
        for layer in self.correlator:
            x = self.correlate(layer, x, self.attention_bias)
        x = nn.rms_norm(x, self.corr_output_norm, hp.f_norm_rms_eps)
        anchor = nn.affine(self.context_proj, context, self.context_proj_bias)
        anchor = nn.rms_norm(anchor, self.anchor_norm, hp.f_norm_rms_eps)

        by_item = ops.reshape(x, hp.n_hidden, n_items, n_seqs)
        given = ops.repeat_4d(ops.reshape(anchor, hp.n_hidden, 1, n_seqs), hp.n_hidden, n_items, n_seqs)
        joined = ops.concat(ops.concat(by_item, given, axis=0), ops.mul(by_item, given), axis=0)
        joined = ops.reshape(joined, 3 * hp.n_hidden, n_items * n_seqs)
        y = ops.silu(nn.affine(self.factor_input, joined, self.factor_input_bias))
        before = ops.reshape(
            self.factors(y, self.out_head, self.out_head_bias), hp.n_factor, hp.n_candidates, n_slots, n_seqs
        )
        after = ops.reshape(
            self.factors(y, self.in_head, self.in_head_bias), hp.n_factor, hp.n_candidates, n_slots, n_seqs
        )
        start = ops.reshape(self.factors(anchor, self.anchor_head, self.anchor_head_bias), hp.n_factor, 1, 1, n_seqs)

        # row 0 predicts nothing; in row 1 every predecessor is the anchor
        first = ops.mul_mat(ops.slice_(after, 2, 0, 1), start)
        first = ops.repeat_4d(first, hp.n_candidates, hp.n_candidates, 1, n_seqs)
        scores = ops.concat(ops.full((hp.n_candidates, hp.n_candidates, 1, n_seqs), 0.0), first, axis=2)
        if hp.block_size > 2:
            pairs = ops.mul_mat(ops.slice_(after, 2, 1, n_slots - 1), ops.slice_(before, 2, 0, n_slots - 1))
            scores = ops.concat(scores, pairs, axis=2)
        scores = ops.scale(ops.reshape(scores, hp.n_candidates, hp.n_candidates, n_tokens), hp.f_corr_scale)
        by_slot = ops.reshape(ids, hp.n_candidates, n_slots, n_seqs)
        candidates = ops.concat(ops.slice_(by_slot, 1, 0, 1), by_slot, axis=1)
        return {"logits": logits, "candidates": ops.reshape(candidates, hp.n_candidates, n_tokens), "scores": scores}

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        """LC-11."""
        yield from super().check(model)
        c, width = model.hparam("n_candidates"), model.hparam("n_embd")
        if model.hparam("block_size") < 2:
            yield "dflash.block_size must be at least 2: the anchor and one slot"
        if model.hparam("n_hidden") % model.hparam("n_corr_head"):
            heads = model.hparam("n_corr_head")
            yield f"lilicorr.hidden_size = {model.hparam('n_hidden')} is not divisible by {heads} heads"
        if width < c * (c + 1):
            yield f"the hidden size {width} cannot hold {c} candidates and their {c * c} scores (ER-8)"
        if c > model.hparam("n_vocab"):
            yield f"lilicorr.candidate_topk = {c} exceeds the vocabulary of {model.hparam('n_vocab')}"
        if model.hparam("n_corr_layer") > model.n_layer:
            yield f"lilicorr.num_layers = {model.hparam('n_corr_layer')} exceeds the backbone's {model.n_layer} layers"
