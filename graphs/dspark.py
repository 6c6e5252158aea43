"""DSpark: DFlash with a Markov chain over the drafted tokens and a confidence head.

Each row's logits get a bias that depends on the token drafted before it, so the rows of a block are no longer
independent; the confidence head says how likely each draft is to be accepted. Paragraphs MK and OV-10 of the
specification of the family.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from draftsmith.dsl import (
    Value,
    arch,
    boolean,
    counted,
    feeds,
    graph,
    matrix,
    n_block,
    n_blocks,
    n_tokens,
    nn,
    ops,
    tensor,
    tensor_dim,
    u32,
)
from draftsmith.dsl.bind import BoundModel

from . import dflash


class hp(dflash.hp):
    block_size = u32("{arch}.block_size")
    sample_from_anchor = boolean("{arch}.sample_from_anchor", True)
    has_confidence_head = boolean("{arch}.has_confidence_head", True)
    n_markov = tensor_dim("markov_w1.weight", 0)


def confident_rows(outputs: Mapping[str, NDArray[Any]], first_row: int, n_max: int, p_min: float) -> list[int]:
    """Each row's token, up to the first whose confidence is below ``p_min`` (MK-8)."""
    drafted: list[int] = []
    for row in range(first_row, min(len(outputs["argmax"]), first_row + n_max)):
        if p_min > 0 and outputs["confidence"][row] < p_min:
            break
        drafted.append(int(outputs["argmax"][row]))
    return drafted


def no_confidence(model: BoundModel, p_min: float) -> str | None:
    """p_min prunes by confidence; without the head nothing could be drafted (ER-18)."""
    if p_min > 0 and ("conf_proj.weight" not in model.file.tensors or not model.hparam("has_confidence_head")):
        return f"p_min = {p_min} prunes by confidence, but this drafter has no confidence head (use p_min 0)"
    return None


@arch("dflash", variant="dspark")
class DSpark(dflash.DFlash):
    """A block-diffusion drafter whose rows are chained by a first-order Markov head."""

    hparams = hp
    requires = ("markov_w1.weight",)
    canonical_tensors = (*dflash.DFlash.canonical_tensors, "conf_proj.weight", "conf_proj.bias")
    contract = replace(
        dflash.DFlash.contract,
        first_row=lambda hp: 0 if hp.sample_from_anchor else 1,
        propose=confident_rows,
        outputs=lambda p_min: ("argmax", "confidence") if p_min > 0 else ("argmax",),
        refuse=no_confidence,
        sample_outputs=lambda p_min: ("logits", "confidence") if p_min > 0 else ("logits",),
        selects_rows=False,
    )

    markov_w1 = matrix("markov_w1.weight", hp.n_markov, hp.n_vocab, scaled=False)
    markov_w2 = matrix("markov_w2.weight", hp.n_markov, hp.n_vocab_draft)
    conf_proj = matrix("conf_proj.weight", hp.n_embd + hp.n_markov, 1, optional=True, scaled=False)
    conf_bias = tensor("conf_proj.bias", 1, optional=True)

    def biased(self, logits: Value, before: Value) -> Value:
        """Logits of one position of every block [n_vocab, n_blocks], given the token before it, embedded (MK-2)."""
        bias = nn.linear(self.markov_w2, before)
        if self.d2t is not None:
            bias = nn.scatter(bias, self.d2t, hp.n_vocab, 0.0)
        return ops.add(logits, bias)

    @graph
    def draft(self, tokens: Value = feeds.tokens) -> dict[str, Value]:
        """The block through the backbone, then position by position through the chain, all blocks at once (MK-1 to
        MK-5)."""
        hidden = self.backbone(tokens)
        base = self.head(hidden)
        rows = ops.reshape(base, hp.n_vocab, n_block, n_blocks)
        ids = ops.reshape(tokens, n_block, n_blocks)
        anchor = ops.cont(ops.slice_(ids, 0, 0, 1), n_blocks)

        # in the bonus-anchor layout row 0 predicts nothing: its logits stay raw, its token is the anchor itself
        before = ops.get_rows(self.markov_w1, anchor)
        all_before = ops.put(ops.full((hp.n_markov, n_block, n_blocks), 0.0), self.at(before), 1, 0)
        all_logits = ops.cont(rows)
        all_tokens = ops.cont(ids)
        token = anchor
        if hp.sample_from_anchor:
            logits = self.biased(ops.select(rows, 1, 0), before)
            token = ops.argmax(logits)
            all_logits = ops.put(all_logits, self.at(logits), 1, 0)
            all_tokens = ops.put(all_tokens, ops.reshape(token, 1, n_blocks), 0, 0)
        for i in counted(1, n_block):
            before = ops.get_rows(self.markov_w1, token)
            logits = self.biased(ops.select(rows, 1, i), before)
            token = ops.argmax(logits)
            all_before = ops.put(all_before, self.at(before), 1, i)
            all_logits = ops.put(all_logits, self.at(logits), 1, i)
            all_tokens = ops.put(all_tokens, ops.reshape(token, 1, n_blocks), 0, i)

        logits = ops.reshape(all_logits, hp.n_vocab, n_tokens)
        argmax = ops.reshape(all_tokens, n_tokens)
        outputs = {"logits": logits, "argmax": argmax, "base_logits": base}
        if self.conf_proj is not None:
            seen = ops.concat(hidden, ops.reshape(all_before, hp.n_markov, n_tokens), axis=0)
            confidence = nn.linear(self.conf_proj, seen)
            if self.conf_bias is not None:
                confidence = ops.add(confidence, self.conf_bias)
            outputs["confidence"] = ops.reshape(ops.sigmoid(confidence), n_tokens)
        return outputs

    @staticmethod
    def at(x: Value) -> Value:
        """Rows of one position of every block [width, n_blocks] as the slice [width, 1, n_blocks] of all positions."""
        return ops.reshape(x, x.ne[0], 1, n_blocks)

    @classmethod
    def check(cls, model: BoundModel) -> Iterator[str]:
        yield from super().check(model)
        if "conf_proj.bias" in model.file.tensors and "conf_proj.weight" not in model.file.tensors:
            yield "conf_proj.bias without conf_proj.weight"
