"""Files and requests that cannot work: one clear line each, never an abort. The numbers are those of dflash-
family.md 2.12.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.bind import bind
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import ContractError, DraftsmithError, MetadataError, RequestError, WeightError
from draftsmith.graphs.qwen3 import Qwen3
from draftsmith.model import Model
from draftsmith.pairing import pair
from draftsmith.registry import for_file
from draftsmith.speculative import Sequence_, Speculator

from ..models import FakeFile
from .drive import Loop, block_of, draft, inject
from .models import BLOCK, F32, VOCAB, Kit, draft_file, target_file, with_arrays, with_keys

pytestmark = pytest.mark.cpu

K, D = "dflash.", "dflash"
SWA = "dflash.attention.sliding_window"


def error_of(kit: Kit, file: FakeFile, target: Model | None = None) -> DraftsmithError:
    """What loading a file says, pairing included: the file's name first, and one line."""
    lender = target or kit.target()[1]
    with pytest.raises(DraftsmithError) as caught:
        pair(lender, kit.load(file, lender))
    text = str(caught.value)
    assert "\n" not in text
    if not isinstance(caught.value, ContractError):
        assert text.startswith(str(kit.folder))
    return caught.value


METADATA: list[tuple[str, str, dict[str, Any], str]] = [
    ("er01 absent", D, {K + "target_layers": None}, "missing metadata key dflash.target_layers (an array of integers"),
    (
        "er01 scalar",
        D,
        {K + "target_layers": ("u32", 2)},
        "metadata key dflash.target_layers: expected an array of integers, found u32",
    ),
    (
        "er02",
        D,
        {K + "attention.layer_norm_rms_epsilon": None},
        "missing metadata key dflash.attention.layer_norm_rms_epsilon (a number is required)",
    ),
    (
        "er03",
        D,
        {K + "hidden_activation": ("str", "relu")},
        "metadata key dflash.hidden_activation = 'relu' must be one of silu, gelu, gelu_pytorch_tanh",
    ),
    ("er04", D, {SWA: ("u32", 8)}, "missing metadata key dflash.attention.sliding_window_pattern"),
    (
        "er05",
        D,
        {SWA: ("u32", 8), SWA + "_pattern": ("u32", 2)},
        "metadata key dflash.attention.sliding_window_pattern: expected an array of bool, one value a layer, found",
    ),
    (
        "er05 length",
        D,
        {SWA: ("u32", 8), SWA + "_pattern": ("arr[bool]", [True])},
        "metadata key dflash.attention.sliding_window_pattern: expected 2 values, one a layer, found 1",
    ),
    *(
        (
            f"er06 {key} {'absent' if value is None else 0}",
            "dflash2",
            {K + key: value},
            f"missing metadata key dflash.{key}"
            if value is None
            else f"metadata key dflash.{key} = 0 must be positive",
        )
        for key in ("selector_rank", "block_size", "selector_top_k", "conv_kernel_size", "conv_group_size")
        for value in (None, ("u32", 0))
    ),
    ("er19", D, {"tokenizer.ggml.mask_token_id": None}, "missing metadata key tokenizer.ggml.mask_token_id"),
    ("er21 no top-k", "lilicorr", {"lilicorr.candidate_topk": None}, "missing metadata key lilicorr.candidate_topk"),
    (
        "er21 zero",
        "lilicorr",
        {"lilicorr.hidden_size": ("u32", 0)},
        "metadata key lilicorr.hidden_size = 0 must be positive",
    ),
    ("er22", "dspark", {K + "block_size": None}, "missing metadata key dflash.block_size"),
    (
        "a boolean stored as a number",
        D,
        {K + "attention.causal": ("u32", 1)},
        "metadata key dflash.attention.causal: expected a boolean, found u32",
    ),
    (
        "three sections",
        D,
        {K + "rope.dimension_sections": ("arr[i32]", [8, 8, 0])},
        "dflash.rope.dimension_sections must have 4 entries, found 3",
    ),
]


@pytest.mark.parametrize(("variant", "keys", "text"), [c[1:] for c in METADATA], ids=[c[0] for c in METADATA])
def test_metadata(kit: Kit, variant: str, keys: dict[str, Any], text: str) -> None:
    found = error_of(kit, with_keys(draft_file(variant), keys))
    assert isinstance(found, MetadataError) and text in str(found)


def test_er01_empty_list() -> None:
    """In memory: the writer of test files refuses it."""
    file = with_keys(draft_file(), {K + "target_layers": ("arr[i32]", [])})
    with pytest.raises(MetadataError, match=r"metadata key dflash.target_layers = \[\] must not be empty"):
        bind(for_file(file), file)


@pytest.mark.parametrize("variant", ["dflash", "dflash2"])
def test_er07_convolution_groups(kit: Kit, variant: str) -> None:
    file = draft_file(variant, {"{arch}.conv_kernel_size": 2, "{arch}.conv_group_size": 24})
    found = error_of(kit, file)
    assert isinstance(found, MetadataError)
    assert "the hidden size 64 is not divisible by dflash.conv_group_size = 24" in str(found)


@pytest.mark.parametrize("variant", ["dflash2", "lilicorr"])
def test_er08_lattice_wider_than_the_rows(kit: Kit, variant: str) -> None:
    key = {"dflash2": "{arch}.selector_top_k", "lilicorr": "lilicorr.candidate_topk"}[variant]
    found = error_of(kit, draft_file(variant, {key: 8}))
    assert isinstance(found, MetadataError)
    assert "the hidden size 64 cannot hold 8 candidates and their 64 scores" in str(found)


def test_er09_tensors(kit: Kit) -> None:
    file = draft_file()
    for arrays, text in (
        ({"enc.output_norm.weight": None}, "missing tensor enc.output_norm.weight [n_embd] = [64]"),
        (
            {"fc.weight": np.zeros((64, 128), np.float32)},
            "tensor fc.weight: expected shape [n_target_layers*n_embd, n_embd] = [192, 64], found [128, 64]",
        ),
        (
            {"output_norm.weight": np.zeros(64, np.float16)},
            "tensor output_norm.weight: expected element type f32, found f16",
        ),
        (
            {"blk.0.attn_q.bias": np.zeros(128, np.float32)},
            "unknown tensor blk.0.attn_q.bias: dflash has no use for it",
        ),
        ({"blk.2.attn_q.weight": np.zeros((128, 64), np.float32)}, "unknown tensor blk.2.attn_q.weight"),
        ({"blk.0.attn_conv_base": np.zeros((2, 3, 64), np.float32)}, "unknown tensor blk.0.attn_conv_base"),
        ({"fc.scale": np.zeros(2, np.float32)}, "tensor fc.scale: expected f32[1], found f32[2]"),
    ):
        found = error_of(kit, with_arrays(file, arrays))
        assert isinstance(found, WeightError) and text in str(found)


def test_er10_er26_backbones_that_are_not_there(kit: Kit) -> None:
    """A DeepSeek-V4 backbone is announced by its hyper-connections; what is not known is not run as something else."""
    found = error_of(kit, with_keys(draft_file("dspark"), {"dflash.hyper_connection.count": ("u32", 4)}))
    assert (
        "metadata key dflash.hyper_connection.count = 4 asks for the DeepSeek-V4 backbone, which is not known"
        in str(found)
    )
    kit.load(with_keys(draft_file("dspark"), {"dflash.hyper_connection.count": ("u32", 0)}), kit.target()[1])


def test_er11_reduced_vocabulary(kit: Kit) -> None:
    file = draft_file(optional=("d2t", "output"), sizes={"n_vocab_draft": 40})
    ids = np.arange(40)
    for map_, kind, text in (
        (ids.astype(np.int32), WeightError, "tensor d2t: expected element type i64, found i32"),
        (
            ids[:39],
            WeightError,
            "tensor output.weight: expected shape [n_embd, n_vocab_draft] = [64, 39], found [64, 40]",
        ),
        (ids + VOCAB - 39, MetadataError, f"tensor d2t maps to ids 25..64, outside the vocabulary of {VOCAB}"),
        (ids - 1, MetadataError, f"tensor d2t maps to ids -1..38, outside the vocabulary of {VOCAB}"),
        (ids // 2, MetadataError, "tensor d2t maps two draft tokens to one target token"),
    ):
        found = error_of(kit, with_arrays(file, {"d2t": map_}))
        assert isinstance(found, kind) and text in str(found)


def test_er12_no_target(kit: Kit) -> None:
    with pytest.raises(WeightError, match="has no embeddings or head of its own and needs a target"):
        Model.load(kit.write(draft_file()), kit.backends)


def test_er13_target_that_lends_nothing(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen3, "exports", {"token_embd": ("token_embd.weight",)})
    target = kit.load(target_file())
    with pytest.raises(
        WeightError, match=r"the drafter needs the target's output, which qwen3 does not have \(looked for nothing\)"
    ) as e:
        kit.load(draft_file(), target)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("layer", [5, -1])
def test_er14_layers_that_the_target_has_not(kit: Kit, layer: int) -> None:
    file = draft_file(keys={"{arch}.target_layers": [1, layer, 2]})
    found = error_of(kit, file)
    assert isinstance(found, ContractError)
    assert (
        f"the drafter taps the input of target layer {layer}, the target has layers 0..3 (and 4 for its last output)"
        in str(found)
    )


def test_er15_hidden_sizes(kit: Kit) -> None:
    """Also when the drafter brings its own table and head."""
    keys = {"{arch}.embedding_length": 96}
    found = error_of(kit, draft_file(keys=keys, optional=("token_embd", "output")))
    assert isinstance(found, ContractError) and "hidden size differs: the drafter's is 96, the target's 64" in str(
        found
    )
    assert "64" in str(error_of(kit, draft_file(keys=keys)))


@pytest.mark.parametrize("variant", ["dspark", "dflash2"])
def test_er16_unequal_blocks_in_one_run(kit: Kit, variant: str) -> None:
    """Each in a run of its own is right (test_blocks.py)."""
    model = kit.draft(variant)[1]
    context = kit.context(model, ContextOptions(**{**vars(F32), "n_seq_max": 4}))
    blocks = [Batch.of_tokens(block_of(3, n), 0, seq) for seq, n in enumerate((4, 6))]
    with pytest.raises(RequestError, match=f"{variant} takes blocks of one length in a run, found lengths 4, 6"):
        context.run("draft", Batch.join(blocks), ("logits",), causal=False)
    apart = [Batch.of_tokens(block_of(3, 3), at, 0) for at in (0, 10)]
    with pytest.raises(RequestError, match="takes one block a sequence in a run"):
        context.run("draft", Batch.join(apart), ("logits",), causal=False)
    assert context.last(0) == context.last(1) == -1


def test_er17_er21_full_blocks_with_their_context(kit: Kit) -> None:
    context = kit.context(kit.draft("lilicorr")[1], F32)
    for length in (BLOCK - 1, BLOCK + 1):
        with pytest.raises(RequestError, match=f"lilicorr drafts full blocks of {BLOCK} rows, found one of {length}"):
            draft(context, block_of(3, length), 0, carried=np.zeros(64))
    batch = Batch.of_tokens(block_of(3, BLOCK))
    with pytest.raises(RequestError, match="lilicorr needs a row 'context' for each block"):
        context.run("draft", batch, ("scores",), causal=False)
    for shape in ((2, 64), (64,), (1, 63)):
        batch.block_rows["context"] = np.zeros(shape, np.float32)
        with pytest.raises(DraftsmithError, match="context") as caught:
            context.run("draft", batch, ("scores",), causal=False)
        assert "\n" not in str(caught.value)
    assert context.last(0) == -1


def test_er18_pruning_without_confidence(kit: Kit) -> None:
    made, target = kit.target()
    file = draft_file("dspark", optional=("no_confidence",))
    with pytest.raises(
        RequestError,
        match=r"p_min = 0\.5 prunes by confidence, but this drafter has no confidence head \(use p_min 0\)",
    ):
        Loop(kit, (made, file), (target, kit.load(file, target)), p_min=0.5)


def test_er20_mixed_batches(kit: Kit) -> None:
    context = kit.context(kit.draft("dflash")[1], F32)
    rows = np.zeros((2, 192), np.float32)
    with pytest.raises(RequestError, match="a batch cannot mix token ids and feature rows"):
        Batch.join([Batch.of_tokens([1]), Batch.of_features(rows, 1)])
    pos = np.arange(2, dtype=np.int32)
    with pytest.raises(RequestError, match="a batch holds token ids or feature rows, found both or neither"):
        Batch(pos, pos * 0, tokens=pos, features=rows)
    with pytest.raises(RequestError, match="this graph takes features, the batch holds token ids"):
        context.run("inject", Batch.of_tokens([1, 2]))
    with pytest.raises(RequestError, match="this graph takes tokens, the batch holds feature rows"):
        context.run("draft", Batch.of_features(rows), ("argmax",), causal=False)
    with pytest.raises(RequestError, match="feature rows of width 192 are expected, found 64"):
        inject(context, rows[:, :64])
    assert context.last(0) == -1


LILICORR: list[tuple[dict[str, Any], str]] = [
    ({"dflash.block_size": ("u32", 1)}, "dflash.block_size must be at least 2"),
    ({"lilicorr.num_heads": ("u32", 3)}, "lilicorr.hidden_size = 32 is not divisible by 3 heads"),
    (
        {"dflash.selector_top_k": ("u32", 3)},
        "metadata key dflash.selector_top_k = 3 belongs to DFlash2, this is LiLiCorr",
    ),
]


@pytest.mark.parametrize(("keys", "text"), LILICORR, ids=str)
def test_er21_head_dimensions(kit: Kit, keys: dict[str, Any], text: str) -> None:
    found = error_of(kit, with_keys(draft_file("lilicorr"), keys))
    assert isinstance(found, MetadataError | WeightError)
    assert text in str(found) or next(iter(keys)) == "dflash.block_size" or next(iter(keys)) == "lilicorr.num_heads"


def test_er21_layers_and_other_heads(kit: Kit) -> None:
    found = error_of(kit, draft_file("lilicorr", {"lilicorr.num_layers": 3}))
    assert "lilicorr.num_layers = 3 exceeds the backbone's 2 layers" in str(found)
    for tensor, shape in (("markov_w1.weight", (VOCAB, 16)), ("selector_hidden.weight", (8, 64))):
        found = error_of(kit, with_arrays(draft_file("lilicorr"), {tensor: np.zeros(shape, np.float32)}))
        assert tensor.split(".")[0] in str(found) or "missing" in str(found)


def test_er23_key_and_value_heads(kit: Kit) -> None:
    found = error_of(kit, draft_file(keys={"{arch}.attention.value_length": 16}))
    assert isinstance(found, MetadataError) and "key and value head sizes differ: 32 and 16" in str(found)


@pytest.mark.parametrize("suffix", ["scale", "input_scale"])
def test_er24_scale_of_a_head_that_is_not_there(kit: Kit, suffix: str) -> None:
    name = f"output.{suffix}"
    found = error_of(kit, with_arrays(draft_file(), {name: np.ones(1, np.float32)}))
    assert isinstance(found, WeightError) and name in str(found)


def test_er25_vocabularies(kit: Kit) -> None:
    keys = {"{arch}.vocab_size": 80, "tokenizer.ggml.mask_token_id": 79}
    found = error_of(kit, draft_file(keys=keys, optional=("token_embd", "output")))
    assert isinstance(found, ContractError) and "vocabulary differs: the drafter's is 80, the target's 64" in str(found)
    assert "64" in str(error_of(kit, draft_file(keys=keys)))


NASTY: list[dict[str, Any]] = [
    {"dflash.attention.head_count_kv": ("u32", 3)},
    {"dflash.attention.head_count": ("u32", 0)},
    {"dflash.attention.key_length": ("u32", 0)},
    {"dflash.rope.dimension_count": ("u32", 34)},
    {"dflash.rope.dimension_count": ("u32", 15)},
    {"dflash.rope.dimension_count": ("u32", 0)},
    {"dflash.rope.freq_base": ("f32", 0.0)},
    {"dflash.attention.layer_norm_rms_epsilon": ("f32", -1.0)},
    {"dflash.attention.scale": ("f32", float("nan"))},
    {"dflash.embedding_scale": ("str", "8")},
    {"dflash.block_count": ("u32", 0)},
    {"dflash.block_count": ("u32", 3)},
    {"dflash.block_size": ("u32", 0)},
    {"dflash.block_size": ("u32", 2**31)},
    {"dflash.embedding_length": ("u32", 2**31)},
    {"dflash.target_layers": ("arr[i32]", [2**31 - 1, -(2**31), 0])},
    {"dflash.target_layers": ("arr[f32]", [1.0, 2.0, 3.0])},
    {"dflash.target_layers": ("arr[i32]", [1, 2])},
    {"dflash.conv_kernel_size": ("u32", 3), "dflash.conv_group_size": ("u32", 0)},
    {"dflash.conv_kernel_size": ("u32", 3), "dflash.conv_group_size": ("u32", 8)},
    {
        "dflash.attention.sliding_window": ("u32", 2**31),
        "dflash.attention.sliding_window_pattern": ("arr[bool]", [True, True]),
    },
    {"dflash.rope.dimension_sections": ("arr[i32]", [64, 0, 0, 0])},
    {"dflash.rope.dimension_sections": ("arr[i32]", [-16, 0, 0, 0])},
    {"dflash.rope.dimension_sections": ("arr[i32]", [0, 0, 0, 4])},
    {"tokenizer.ggml.mask_token_id": ("u32", 2**32 - 1)},
    {"tokenizer.ggml.mask_token_id": ("i32", -1)},
    {"dflash.vocab_size": ("u32", 0)},
]


@pytest.mark.parametrize("keys", NASTY, ids=lambda k: ", ".join(f"{n.split('.', 1)[1]} {v[1]}" for n, v in k.items()))
def test_impossible_sizes_fail_or_work_but_never_abort(kit: Kit, keys: dict[str, Any]) -> None:
    """Through loading, pairing, a context, a prompt and a draft."""
    target = kit.target()[1]
    try:
        model = kit.load(with_keys(draft_file(), keys), target)
        pairing = pair(target, model)
        options = ContextOptions(n_ctx=64, flash_attn=False)
        with_context = Context(model, options)
        loop = Speculator(kit.context(target, options), with_context, pairing)
        first = loop.prefill([1, 2, 3])
        assert first is not None
        loop.step([Sequence_(0, 3, first)])
        with_context.close()
    except DraftsmithError as e:
        assert "\n" not in str(e), str(e)


def test_context_options(kit: Kit) -> None:
    model = kit.draft("dflash")[1]
    for options, text in (
        (ContextOptions(n_ubatch=0), "n_ubatch must be at least 1, found 0"),
        (ContextOptions(n_seq_max=0), "n_seq_max must be at least 1, found 0"),
        (ContextOptions(n_ctx=-1), "n_ctx must be at least 0, found -1"),
        (ContextOptions(type_k=GGMLType.q4_K), "a cache cannot be of type q4_K; known: f32, f16, bf16"),
    ):
        with pytest.raises(RequestError) as caught:
            Context(model, options)
        assert text in str(caught.value)
    context = kit.context(model, F32)
    with pytest.raises(RequestError, match="sequence id 1 is not below n_seq_max = 1"):
        inject(context, np.zeros((1, 192)), 0, 1)
    with pytest.raises(RequestError, match=f"token id {VOCAB} is outside the vocabulary of {VOCAB}"):
        draft(context, [VOCAB], 0)
    with pytest.raises(RequestError, match="dflash has no graph 'decode'; it has inject, draft"):
        context.run("decode", Batch.of_tokens([1]))
