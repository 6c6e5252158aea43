"""DFlash2: DFlash with a convolution around every sublayer and a selector over candidate tokens.

Each row proposes its K best tokens; the selector scores every pair of neighbouring candidates, and the host walks the
best path. Paragraphs CV2, SE and LM-3 of the specification of the family.
"""

from collections.abc import Iterator
from dataclasses import replace

from draftsmith.dsl import (
    Value,
    arch,
    f32,
    feeds,
    graph,
    matrix,
    n_block,
    n_blocks,
    n_tokens,
    nn,
    ops,
    sample_lattice,
    u32,
    walk_lattice,
)
from draftsmith.dsl.bind import BoundModel

from . import dflash


class hp(dflash.hp):
    block_size = u32("{arch}.block_size")
    n_conv_kernel = u32("{arch}.conv_kernel_size")
    n_conv_group = u32("{arch}.conv_group_size")
    n_rank = u32("{arch}.selector_rank")
    n_candidates = u32("{arch}.selector_top_k")
    f_logit_scale = f32("{arch}.logit_scale", 0.0)
    f_softcap = f32("{arch}.final_logit_softcapping", 0.0)


@arch("dflash", variant="dflash2")
class DFlash2(dflash.DFlash):
    """A block-diffusion drafter with local convolutions and a learned score for neighbouring candidates."""

    hparams = hp
    requires = ("selector_hidden.weight",)
    contract = replace(
        dflash.DFlash.contract,
        propose=walk_lattice,
        outputs=lambda p_min: ("candidates", "scores"),
        sample=sample_lattice,
        sample_outputs=lambda p_min: ("candidates", "scores"),
        selects_rows=False,
    )

    selector_predecessor = matrix("selector_predecessor.weight", hp.n_rank, hp.n_vocab, scaled=False)
    selector_successor = matrix("selector_successor.weight", hp.n_rank, hp.n_vocab, scaled=False)
    selector_hidden = matrix("selector_hidden.weight", hp.n_embd, hp.n_rank, scaled=False)

    def transform(self, logits: Value) -> Value:
        """The selector mixes logits with learned scores, so they are scaled and capped as trained (LM-3)."""
        if hp.f_logit_scale != 0:
            logits = ops.scale(logits, hp.f_logit_scale)
        if hp.f_softcap > 0:
            logits = ops.scale(ops.tanh(ops.scale(logits, 1.0 / hp.f_softcap)), hp.f_softcap)
        return logits

    def predecessors(self, tokens: Value, candidates: Value) -> Value:
        """For each row the candidates of the row before it; for rows 0 and 1 the anchor, K times (SE-3)."""
        anchor = ops.slice_(ops.reshape(tokens, 1, n_block, n_blocks), 1, 0, 1)
        anchors = ops.repeat_4d(anchor, hp.n_candidates, 1, n_blocks)
        rows = ops.reshape(candidates, hp.n_candidates, n_block, n_blocks)
        known = ops.concat(anchors, ops.slice_(rows, 1, 1, n_block - 1), axis=1)
        return ops.concat(anchors, ops.slice_(known, 1, 0, n_block - 1), axis=1)

    def lookup(self, table: Value, ids: Value) -> Value:
        """Rows of a codebook for K ids a row: [rank, K, n_tokens]."""
        rows = ops.get_rows(table, ops.reshape(ids, hp.n_candidates * n_tokens))
        return ops.reshape(rows, hp.n_rank, hp.n_candidates, n_tokens)

    @graph
    def draft(self, tokens: Value = feeds.tokens) -> dict[str, Value]:
        """The block through the backbone; per row K candidates and K*K scores, predecessor first (SE-1 to SE-4)."""
        hidden = self.backbone(tokens)
        logits = self.head(hidden)
        candidates = ops.top_k(logits, hp.n_candidates)
        table = ops.reshape(logits, 1, hp.n_vocab, n_tokens)
        unary = ops.reshape(ops.get_rows(table, candidates), hp.n_candidates, 1, n_tokens)

        gate = ops.reshape(nn.linear(self.selector_hidden, hidden), hp.n_rank, 1, n_tokens)
        before = self.lookup(self.selector_predecessor, self.predecessors(tokens, candidates))
        after = self.lookup(self.selector_successor, candidates)
        scores = ops.mul_mat(after, ops.mul(before, gate))
        scores = ops.add(scores, unary)
        return {"logits": logits, "candidates": candidates, "scores": scores}

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        yield from super().check(model)
        k, width = model.hparam("n_candidates"), model.hparam("n_embd")
        if width < k * (k + 1):
            yield f"the hidden size {width} cannot hold {k} candidates and their {k * k} scores (ER-8)"
        if k > model.hparam("n_vocab"):
            yield f"dflash.selector_top_k = {k} exceeds the vocabulary of {model.hparam('n_vocab')}"
