"""Drafters that run but draft badly: each reported cause as a test, numbered as in the list of reports.

The text never tells, because the target verifies it, so logits are compared, with a NumPy computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftsmith.batch import Batch
from draftsmith.context import KV_TYPES, ContextOptions
from draftsmith.dsl.bind import Options, bind
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import ContractError, MetadataError, RequestError, WeightError
from draftsmith.model import Model, trace_all, weight_usage
from draftsmith.pairing import pair
from draftsmith.registry import for_file
from draftsmith.session import Session
from draftsmith.speculative import Speculator

from ..models import FakeFile
from . import reference
from .drive import Bench, Loop, block_of, close, draft, inject, lattice, relative
from .models import (
    BLOCK,
    F32,
    HEADS_OF_64,
    MASK,
    TAPPED,
    VARIANTS,
    VOCAB,
    E,
    Kit,
    array_of,
    draft_file,
    target_file,
    tokens_of,
    with_arrays,
    with_keys,
)

pytestmark = pytest.mark.cpu

Array = NDArray[Any]


def loaded(kit: Kit, file: FakeFile, target: Model | None = None) -> Model:
    return kit.load(file, target or kit.target()[1])


# -- which hidden states, in which order -------------------------------------------------------------------------


def test_a01_tap_is_the_stream_before_the_layer(kit: Kit) -> None:
    """And so the output of the layer before it: with every block adding a constant of its own, each tap says which
    block it follows.
    """
    file = kit.target()[0]
    arrays: dict[str, Array | None] = {}
    for il in range(4):
        arrays[f"blk.{il}.attn_output.weight"] = np.zeros_like(array_of(file, f"blk.{il}.attn_output.weight"))
        arrays[f"blk.{il}.ffn_down.weight"] = np.zeros_like(array_of(file, f"blk.{il}.ffn_down.weight"))
    arrays["blk.2.ffn_down.weight"] = array_of(file, "blk.2.ffn_down.weight")
    quiet = with_arrays(file, arrays)
    context = kit.context(kit.load(quiet), F32)
    text = tokens_of(5)
    found = context.run("decode", Batch.of_tokens(text), (), taps=[("layer_input", il) for il in range(4)])
    embedded = array_of(file, "token_embd.weight")[text]
    for il in (0, 1, 2):  # only block 2 changes the stream
        close(found[f"layer_input.{il}"], embedded)
    assert relative(found["layer_input.3"], embedded) > 1e-3
    close(found["layer_input.3"], reference.forward(quiet, text)[1][3])


@pytest.mark.parametrize("layers", [[1, 3, 2], [3, 2, 1], [0, 2, 0], [2]], ids=str)
def test_a02_features_are_joined_in_the_order_listed(kit: Kit, layers: list[int]) -> None:
    """Ids are those of GGUF files: inputs of layers. A layer may be listed twice."""
    target_made, target = kit.target()
    file = draft_file(keys={"{arch}.target_layers": layers})
    run = Loop(kit, (target_made, file), (target, loaded(kit, file)))
    text = tokens_of(8, 1)
    s = run.begin(text)
    close(run.outputs(s)["logits"], run.replayed(text, s).logits)


def test_a03_id_of_the_number_of_layers_is_the_last_output(kit: Kit) -> None:
    """Raw, before the output norm; with a Qwen3 target, whose last layer otherwise crops its rows."""
    target_made, target = kit.target()
    file = draft_file(keys={"{arch}.target_layers": [4, 1]})
    options = ContextOptions(**{**vars(F32), "tap_last": True})
    run = Loop(kit, (target_made, file), (target, loaded(kit, file)), options)
    text = tokens_of(8, 1)
    s = run.begin(text)
    assert s.last == int(reference.forward(target_made, text)[0][-1].argmax())
    close(run.outputs(s)["logits"], run.replayed(text, s).logits)
    session = Session(target, run.draft.model, options=F32, n_ctx=64)
    assert list(session.generate_tokens(text, 12)) == reference.greedy(target_made, text, 12)
    session.close()


# -- every weight, and the right one ---------------------------------------------------------------------------------

OPTIONS: dict[str, Callable[[], FakeFile]] = {
    "gemma": lambda: draft_file(
        keys={
            "{arch}.hidden_activation": "gelu_pytorch_tanh",
            "{arch}.embedding_scale": 3.0,
            "{arch}.attention.scale": 0.3,
            "{arch}.rope.dimension_count": 16,
        },
        optional=("post_attention_norm", "post_ffw_norm", "layer_output_scale", "token_embd", "output"),
        split_v=False,
    ),
    "sinks, window, value scale": lambda: draft_file(
        keys={
            "{arch}.sliding_window": 0,
            "{arch}.attention.sliding_window": 8,
            "{arch}.attention.sliding_window_pattern": [True, False],
            "{arch}.attention.value_scale": 0.6,
        },
        optional=("attn_sinks", "rope_freqs"),
    ),
    "causal, m-rope": lambda: draft_file(
        keys={"{arch}.attention.causal": True, "{arch}.rope.dimension_sections": [16, 0, 0, 0]}
    ),
    "convolution alone": lambda: draft_file(keys={"{arch}.conv_kernel_size": 3, "{arch}.conv_group_size": 8}),
    "dspark, bonus anchor, reduced vocabulary": lambda: draft_file(
        "dspark", {"{arch}.sample_from_anchor": False}, ("d2t", "output", "conf_bias"), sizes={"n_vocab_draft": 40}
    ),
    "dflash2, scaled and capped": lambda: draft_file(
        "dflash2", {"{arch}.logit_scale": 0.5, "{arch}.final_logit_softcapping": 4.0}
    ),
    "lilicorr, own table, reduced vocabulary": lambda: draft_file(
        "lilicorr", {"lilicorr.hidden_size": E}, ("d2t", "output", "token_embd"), sizes={"n_vocab_draft": 40}
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a05_every_weight_is_applied(kit: Kit, name: str) -> None:
    """The reference reads each tensor of the file once where the specification has it, and agrees."""
    file = OPTIONS[name]()
    model = loaded(kit, file)
    read = weight_usage(model.traced(Options()).graphs).keys()
    assert {name for name in read if not name.startswith("target:")} == file.tensors.keys()
    bench = Bench(kit, file, model)
    # gelu is a table of f16 in the runtime
    bench.check(tolerance=2e-3 if name == "gemma" else 2e-4, n=14)
    assert file.tensors.keys() == bench.reference.f.read


@pytest.mark.parametrize("variant", VARIANTS)
def test_a06_missing_weights_are_named(variant: str) -> None:
    """One weight at a time; without the one that announces the variant, the others betray it."""
    file = draft_file(variant)
    optional = {"conf_proj.weight", *(f"blk.{il}.attn_v.weight" for il in range(2))}
    for name in file.tensors:
        if name in optional:
            continue
        without = with_arrays(file, {name: None})
        cls = for_file(without)
        with pytest.raises((WeightError, MetadataError)) as caught:
            bind(cls, without)
        text = str(caught.value)
        assert "\n" not in text
        assert (
            (f"missing tensor {name} [" in text)
            or name in cls.requires
            or name in ("markov_w1.weight", "selector_hidden.weight")
        )


def test_a06_head_that_is_announced_but_absent(kit: Kit) -> None:
    """A reduced vocabulary without a head of its own would leave the head random."""
    file = with_arrays(draft_file(optional=("d2t", "output"), sizes={"n_vocab_draft": 40}), {"output.weight": None})
    with pytest.raises(MetadataError, match=r"needs the drafter's own output\.weight"):
        loaded(kit, file)


@pytest.mark.parametrize("own", [("token_embd",), ("output",), ("token_embd", "output")], ids="-".join)
def test_a07_own_embeddings_and_head_are_kept(kit: Kit, own: tuple[str, ...]) -> None:
    """What the drafter stores it uses, what it lacks it borrows; neither replaces the other (its own table is no
    head).
    """
    file = draft_file(optional=own)
    model = loaded(kit, file)
    lent = {"token_embd": "target:token_embd", "output": "target:output"}
    assert model.bound().borrowed().keys() == {role for name, role in lent.items() if name not in own}
    bench = Bench(kit, file, model)
    bench.check()
    without_target = {*own} == lent.keys()
    assert model.bound().needs_target != without_target
    if without_target:
        alone = Model.load(kit.write(file), kit.backends)
        Bench(kit, file, alone).check()


def test_a08_tied_target_lends_its_table_as_head(kit: Kit) -> None:
    made = target_file(tied=True)
    target = kit.load(made)
    file = draft_file()
    model = loaded(kit, file, target)
    assert model.bound().borrowed() == {"target:token_embd": "token_embd.weight", "target:output": "token_embd.weight"}
    Bench(kit, file, model, target=made).check()


def test_a20_sharing_follows_the_file_not_the_values(kit: Kit) -> None:
    """An own head with the target's values stays an own head."""
    made = kit.target()[0]
    file = draft_file(optional=("output",))
    same = with_arrays(file, {"output.weight": array_of(made, "output.weight")})
    model = loaded(kit, same)
    assert "target:output" not in model.bound().borrowed()
    own = Bench(kit, same, model).check()
    shared = Bench(kit, draft_file()).check()
    np.testing.assert_array_equal(own["logits"], shared["logits"])


# -- caches
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flash", [False, True], ids=["plain", "flash"])
def test_a09_every_cache_type_is_near_f32(kit: Kit, flash: bool) -> None:
    """Injected and drafted rows must be stored in the same (rotated) space: otherwise logits are unrelated, not
    merely rounded.
    """
    file = kit.keep("heads of 64", lambda: draft_file(keys=HEADS_OF_64))
    model = kit.keep("heads of 64, loaded", lambda: loaded(kit, file))
    assert model.bound().cls.layer is not None
    exact = Bench(kit, file, model).check(n=40)["logits"]
    errors = {}
    for kind in KV_TYPES:
        options = ContextOptions(n_ctx=256, flash_attn=flash, type_k=kind, type_v=kind)
        bench = Bench(kit, file, model, options)
        assert bool(bench.context.caches["kv"].constants) == kind.is_quantized
        errors[kind.name] = relative(bench.both(n=40)[0]["logits"], exact)
    limits = {
        "f32": 3e-3 if flash else 1e-6,
        "f16": 3e-3,
        "bf16": 2e-2,
        "q8_0": 2e-2,
        "q5_1": 0.1,
        "q5_0": 0.12,
        "q4_1": 0.2,
        "q4_0": 0.25,
    }
    assert {k: e for k, e in errors.items() if e > limits[k]} == {}


def test_a09_types_of_keys_and_values_may_differ(kit: Kit) -> None:
    file = kit.keep("heads of 64", lambda: draft_file(keys=HEADS_OF_64))
    model = kit.keep("heads of 64, loaded", lambda: loaded(kit, file))
    exact = Bench(kit, file, model).check(n=20)["logits"]
    for k, v in ((GGMLType.q8_0, GGMLType.f16), (GGMLType.f16, GGMLType.q8_0)):
        bench = Bench(kit, file, model, ContextOptions(n_ctx=256, type_k=k, type_v=v))
        assert len(bench.context.caches["kv"].constants) == 1
        assert relative(bench.both(n=20)[0]["logits"], exact) < 2e-2


def test_a09_cache_type_that_does_not_divide_the_heads(kit: Kit) -> None:
    """Heads of 16 and blocks of 32: a row of two heads would pass, but not the views of each head."""
    keys = {"{arch}.attention.key_length": 16, "{arch}.attention.value_length": 16, "{arch}.rope.dimension_count": 16}
    model = loaded(kit, draft_file(keys=keys))
    with pytest.raises(
        RequestError,
        match="cache type q8_0 stores blocks of 32 elements, which do not divide this model's head size 16",
    ):
        kit.context(model, ContextOptions(n_ctx=64, type_k=GGMLType.q8_0, type_v=GGMLType.q8_0))


WINDOWED = {"{arch}.attention.sliding_window": 8, "{arch}.attention.sliding_window_pattern": [True, True]}


def test_a10_window_limits_what_a_block_sees(kit: Kit) -> None:
    """Row 3 of 32 lies outside the window of 8 and must have no effect; row 28 must."""
    bench = Bench(kit, draft_file(keys=WINDOWED))
    rows = bench.rows(32)
    before = bench.check(rows=rows)["logits"]
    for row, seen in ((3, False), (28, True)):
        other = rows.copy()
        other[row] += 1
        after = bench.check(rows=other)["logits"]
        assert (np.abs(after - before).max() > 1e-3) == seen
    # the window counts from each row of the block: row 24 is 8 before the anchor, row 25 is seen by the anchor alone
    for row, reach in ((24, 0), (25, 1), (26, 2)):
        other = rows.copy()
        other[row] += 1
        after = bench.both(rows=other)[0]["logits"]
        assert (np.abs(after - before).max() > 1e-4) == (reach > 0)


def test_a10_full_layers_see_everything(kit: Kit) -> None:
    bench = Bench(kit, draft_file(keys={**WINDOWED, "{arch}.attention.sliding_window_pattern": [True, False]}))
    rows = bench.rows(32)
    before = bench.check(rows=rows)["logits"]
    other = rows.copy()
    other[3] += 1
    assert np.abs(bench.check(rows=other)["logits"] - before).max() > 1e-3


def test_a11_positions_are_absolute_in_windowed_layers(kit: Kit) -> None:
    """Far behind the window, over cells that are used again; the sliding cache holds fewer cells than there are
    positions.
    """
    options = ContextOptions(**{**vars(F32), "n_ctx": 1024, "n_ubatch": 64})
    bench = Bench(kit, draft_file(keys=WINDOWED), options=options)
    assert bench.context.caches["kv_swa"].cells.size == 256
    rows = bench.rows(600)
    for start in range(0, 600, 50):
        fused = inject(bench.context, rows[start : start + 50], start)
    found = draft(bench.context, block_of(5, BLOCK), 600, carried=fused[-1])
    last = slice(560, 600)
    close(found["logits"], bench.reference.draft(rows[last], np.arange(560, 600), block_of(5, BLOCK), 600).logits)


def test_a12_rope_pairs_are_the_drafters_own(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves are paired (NeoX). A checkpoint that pairs neighbours has the rows of its heads reordered when it is
    converted.
    """
    file = draft_file()
    bench = Bench(kit, file)
    plain = bench.check()["logits"]
    order = np.concatenate([np.arange(0, 32, 2), np.arange(1, 32, 2)])
    arrays: dict[str, Array | None] = {}
    for il in range(2):
        for part, heads in (("q", 4), ("k", 2)):
            weight = array_of(file, f"blk.{il}.attn_{part}.weight").reshape(heads, 32, E)
            arrays[f"blk.{il}.attn_{part}.weight"] = weight[:, order].reshape(-1, E)
            arrays[f"blk.{il}.attn_{part}_norm.weight"] = array_of(file, f"blk.{il}.attn_{part}_norm.weight")[order]
    converted = Bench(kit, with_arrays(file, arrays)).both()[0]["logits"]

    def neighbours(x: Array, pos: Array, n_rot: int, base: float, factors: Array | None = None) -> Array:
        theta = pos[:, None] * base ** (-2.0 * np.arange(n_rot // 2) / n_rot)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * theta)[:, None]
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    monkeypatch.setattr(reference, "rope", neighbours)
    close(converted, bench.both()[1].logits)
    assert relative(converted, plain) > 1e-2


# -- block layout
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["dflash", "dspark"])
def test_a14_positions_are_not_token_counts(kit: Kit, variant: str) -> None:
    """Behind an image positions run 7 ahead of the number of rows."""
    file, model = kit.draft(variant)
    bench = Bench(kit, file, model)
    gap = [*range(5), *range(12, 16)]
    ahead = bench.check(n=9, pos=gap)["logits"]
    assert relative(ahead, bench.check(n=9)["logits"]) > 1e-3
    bench.check(n=9, pos=gap, pos0=23)


@pytest.mark.parametrize(
    ("key", "first_row", "longest"), [(None, 0, BLOCK), (True, 0, BLOCK), (False, 1, BLOCK - 1)], ids=str
)
def test_a15_both_layouts_of_the_anchor(kit: Kit, key: bool | None, first_row: int, longest: int) -> None:
    made, target = kit.target()
    file = draft_file("dspark", {} if key is None else {"{arch}.sample_from_anchor": key})
    run = Loop(kit, (made, file), (target, loaded(kit, file)))
    assert (run.pairing.first_row, run.pairing.max_draft, run.loop.n_max) == (first_row, longest, longest)
    assert run.pairing.block_tokens(3) == 3 + first_row
    text = tokens_of(7, 3)
    s = run.begin(text)
    (drafts,) = run.loop.propose([s])
    expected = run.replayed(text, s)
    assert [d.token for d in drafts] == expected.chain
    assert len(drafts) == longest


@pytest.mark.parametrize("variant", VARIANTS)
def test_a16_shorter_blocks(kit: Kit, variant: str) -> None:
    """Blocks of 1 to the trained length are whole computations of their own; a correlator has a shape for full
    blocks only.
    """
    file, model = kit.draft(variant)
    bench = Bench(kit, file, model)
    for length in range(1, BLOCK + 1):
        if variant == "lilicorr" and length != BLOCK:
            with pytest.raises(
                RequestError, match=f"lilicorr drafts full blocks of {BLOCK} rows, found one of {length}"
            ):
                draft(bench.context, block_of(5, length), 0, carried=np.zeros(E))
        elif variant != "dflash2" or length > 1:
            bench.check(length=length)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a16_no_draft_is_longer_than_the_trained_block(kit: Kit, variant: str) -> None:
    run = Loop.of(kit, variant, n_max=BLOCK + 5)
    longest = BLOCK if variant == "dspark" else BLOCK - 1
    assert run.loop.n_max == run.pairing.max_draft == longest
    s = run.begin(tokens_of(5))
    assert len(run.loop.propose([s])[0]) == longest
    with pytest.raises(RequestError, match="n_max must not be negative, found -1"):
        Speculator(run.target, run.draft, run.pairing, n_max=-1)


def test_a17_mask_token_is_required_data(kit: Kit) -> None:
    """It is the drafter's own, whatever the target says."""
    made, target = kit.target()
    file = draft_file()
    with pytest.raises(MetadataError, match=r"missing metadata key tokenizer\.ggml\.mask_token_id"):
        loaded(kit, with_keys(file, {"tokenizer.ggml.mask_token_id": None}))
    outside = loaded(kit, with_keys(file, {"tokenizer.ggml.mask_token_id": ("u32", VOCAB)}))
    with pytest.raises(ContractError, match=f"the mask token {VOCAB} is outside the vocabulary of {VOCAB}"):
        pair(target, outside)
    donor = kit.load(with_keys(made, {"tokenizer.ggml.mask_token_id": ("u32", 7)}))
    assert pair(donor, loaded(kit, file, donor)).mask_token == MASK


@pytest.mark.parametrize("variant", VARIANTS)
def test_a19_reduced_vocabulary(kit: Kit, variant: str) -> None:
    """The head's last row goes to the last id; what is not in the map can never be drafted, and a bias lands on
    the mapped id.
    """
    file = draft_file(variant, {}, ("d2t", "output"), sizes={"n_vocab_draft": 40})
    ids = [*np.sort(np.random.default_rng(3).permutation(VOCAB - 1)[:39]).tolist(), VOCAB - 1]
    head = array_of(file, "output.weight").copy()
    head[-1] *= 5
    file = with_arrays(file, {"d2t": np.array(ids, np.int64), "output.weight": head})
    out = Bench(kit, file).check()
    outside = np.setdiff1d(np.arange(VOCAB), ids)
    logits = out["logits"]
    assert np.isneginf(logits[:, outside]).all() and np.isfinite(logits[:, ids]).all()
    assert VOCAB - 1 in logits.argmax(-1) or VOCAB - 1 in logits.argmin(-1) or variant == "dspark"
    if "candidates" in out:
        assert set(out["candidates"][1:].astype(int).ravel()) <= set(ids)
        assert np.isfinite(out["scores"][1:]).all()


def test_a26_defaults_and_reports(kit: Kit) -> None:
    """Nothing is pruned unless asked for, and acceptance is reported with its conditions, by position."""
    target, model = kit.target()[1], kit.draft("dflash")[1]
    session = Session(target, model, options=F32, n_ctx=64)
    list(session.generate_tokens(tokens_of(6), 10))
    c, s = session.report.conditions, session.report.statistics
    assert (c.n_max, c.n_min, c.p_min) == (BLOCK - 1, 0, 0.0)
    assert len(s.tried) == len(s.kept) == BLOCK - 1 and s.tried[0] == s.rounds
    assert sum(s.kept) == s.accepted and s.drafted == s.rounds * (BLOCK - 1)
    session.close()


# -- heads
# ------------------------------------------------------------------------------------------------------------------


def test_a29_markov_with_and_without_confidence(kit: Kit) -> None:
    """Four combinations; p_min never falls back to something else."""
    made, target = kit.target()
    plain = draft_file()
    assert for_file(plain).variant == "dflash"
    both = draft_file("dspark")
    assert Loop.of(kit, "dspark", p_min=0.5).loop.p_min == 0.5
    markov = draft_file("dspark", optional=("no_confidence",))
    model = loaded(kit, markov)
    Bench(kit, markov, model).check()
    for file in (markov, with_keys(both, {"dflash.has_confidence_head": ("bool", False)})):
        with pytest.raises(
            RequestError, match=r"p_min = 0\.3 prunes by confidence, but this drafter has no confidence head"
        ):
            Loop(kit, (made, file), (target, loaded(kit, file)), p_min=0.3)
    confidence = with_arrays(plain, {"conf_proj.weight": np.zeros((1, E + 16), np.float32)})
    with pytest.raises(WeightError, match=r"unknown tensor conf_proj\.weight: dflash has no use for it"):
        loaded(kit, confidence)


@pytest.mark.parametrize("key", ["lilicorr.vector_eps", "lilicorr.logit_scale"])
def test_a30_scalars_of_the_correlator(kit: Kit, key: str) -> None:
    """They change no shape, so only values tell: required, and followed."""
    file, model = kit.draft("lilicorr")
    with pytest.raises(MetadataError, match=f"missing metadata key {key}"):
        loaded(kit, with_keys(file, {key: None}))
    for bad in (0.0, -1.0):
        with pytest.raises(MetadataError, match=f"metadata key {key} = {bad} must be positive"):
            loaded(kit, with_keys(file, {key: ("f32", bad)}))
    before = lattice(Bench(kit, file, model).check())
    # an eps beyond every norm acts as a divisor
    other = with_keys(file, {key: ("f32", 50.0 if key.endswith("eps") else 2.5)})
    after = lattice(Bench(kit, other).check())
    assert all(abs(after[1][k] - before[1][k]) > 1e-3 for k in before[1])


def test_every_graph_traces_for_every_option() -> None:
    for make in OPTIONS.values():
        file = make()
        assert {"inject", "draft"} <= trace_all(bind(for_file(file), file)).keys()
    assert TAPPED == [1, 3, 2]
