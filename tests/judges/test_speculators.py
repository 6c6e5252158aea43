"""An independent judge: the `speculators` library, which defines and trains DFlash, DFlash2 and DSpark.

A drafter of the library with random weights is saved, written as a GGUF, and run here; the library's own forward on the
same features, anchors and masks has to give the same numbers. Needs ``pip install -e '.[judges]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftsmith.batch import Batch
from draftsmith.codegen.native import Backends
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.model import Model
from draftsmith.pairing import pair

from .checkpoint_gguf import write_draft, write_target

torch: Any = pytest.importorskip("torch")
pytest.importorskip("speculators")

from safetensors.numpy import load_file  # noqa: E402
from speculators.config import SpeculatorsConfig, VerifierConfig  # noqa: E402
from speculators.models import dflash, dflash2, dspark  # noqa: E402
from speculators.models.dflash import attention as dflash_attention  # noqa: E402
from speculators.models.dflash import core as dflash_core  # noqa: E402
from speculators.models.dflash2 import core as dflash2_core  # noqa: E402
from speculators.models.dflash2.model_definitions import GroupedDynamicCausalConv  # noqa: E402
from speculators.models.dspark import core as dspark_core  # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig  # noqa: E402
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

pytestmark = [pytest.mark.judge, pytest.mark.cpu]

Array = NDArray[Any]

TOLERANCE = 1e-4
N_VOCAB, N_DRAFT_VOCAB = 160, 72
BLOCK = 6
MASK = 159
ANCHORS = (3, 21, 40)
N_TOKENS = 64
LAYER_IDS = [3, 0, 4, 1]
"""Hidden states of the target, not in order; the first (0) and the last (4: behind the last layer) among them."""

LAYERS: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "rms_norm_eps": 3e-6,
    "attention_bias": False, "tie_word_embeddings": False, "attn_implementation": "eager",
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "dflash": (dflash.DFlashDraftModel, dflash.DFlashSpeculatorConfig, dflash_core),
    "dspark": (dspark.DSparkDraftModel, dspark.DSparkSpeculatorConfig, dspark_core),
    "dflash2": (dflash2.DFlash2DraftModel, dflash2.DFlash2SpeculatorConfig, dflash2_core),
}
DSPARK = {"markov_rank": 20}
DFLASH2 = {"conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 12, "selector_top_k": 5}


@dataclass(frozen=True)
class Setup:
    """A drafter: its kind in the library, settings beyond those that all share, settings of its layers."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)
    reduced: bool = False
    block: int = BLOCK
    seed: int = 0


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50000.0, "factor": 4.0, **more}}


def sliding(window: int, *kinds: str) -> dict[str, Any]:
    return {
        "use_sliding_window": True, "sliding_window": window, "layer_types": [f"{kind}_attention" for kind in kinds],
        "num_hidden_layers": len(kinds),
    }  # fmt: skip


# -- the library's side --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """A target and a drafter of the library with random weights, and the same two loaded here."""

    setup: Setup
    verifier: Any
    drafter: Any
    target: Model
    draft: Model

    @property
    def d2t(self) -> Array:
        """Target ids of the drafter's tokens."""
        offsets = self.drafter.d2t
        return np.arange(N_VOCAB) if offsets is None else offsets.numpy() + np.arange(N_DRAFT_VOCAB)

    def scattered(self, logits: Array) -> Array:
        """Logits over the target's vocabulary."""
        out = np.full((*logits.shape[:-1], N_VOCAB), -np.inf, np.float32)
        out[..., self.d2t] = logits
        return out


def randomise(model: Any, seed: int) -> None:
    """Every parameter at random, at scales that keep activations near 1."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            if len(shape) == 1:
                values = rng.uniform(0.6, 1.4, shape) if "norm" in name else rng.normal(0, 0.3, shape)
            elif "markov_w1" in name:
                values = rng.normal(0, 2, shape)
            elif "embed_tokens" in name or "codebook" in name:
                values = rng.normal(0, 0.7, shape)
            elif "base_kernel" in name:
                values = rng.normal(0, 0.5, shape)
            else:
                values = rng.normal(0, 1 / np.sqrt(shape[-1]), shape)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def make_verifier() -> Any:
    model = Qwen3ForCausalLM(Qwen3Config(**LAYERS, num_hidden_layers=4))
    randomise(model, 1)
    return model.eval()


def make_drafter(setup: Setup, verifier: Any) -> Any:
    cls, config_cls, _ = MODELS[setup.kind]
    config = config_cls(
        transformer_layer_config=Qwen3Config(**{**LAYERS, "num_hidden_layers": 2, **setup.layers}),
        draft_vocab_size=N_DRAFT_VOCAB if setup.reduced else N_VOCAB,
        block_size=setup.block,
        aux_hidden_state_layer_ids=LAYER_IDS,
        mask_token_id=MASK,
        speculators_config=SpeculatorsConfig(
            algorithm=setup.kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=setup.block - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
        **setup.settings,
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = cls(config=config).eval()
    randomise(model, 2 + setup.seed)
    head = verifier.lm_head.weight.detach()
    if setup.reduced:
        frequencies = np.random.default_rng(3).permutation(N_VOCAB)
        d2t, t2d = build_vocab_mappings_from_distribution(dict(enumerate(frequencies.tolist())), N_DRAFT_VOCAB, N_VOCAB)
        model.load_vocab_mappings(t2d, d2t)
        head = head[t2d]
    with torch.no_grad():
        model.embed_tokens.weight.copy_(verifier.model.embed_tokens.weight)
        model.verifier_lm_head.weight.copy_(head)
        if not setup.reduced:  # else a head of its own
            model.lm_head.weight.copy_(head)
    return model


@contextmanager
def captured(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the library's forward hands to its loss: the logits of every block, and what further heads give."""
    found: dict[str, Any] = {}

    def keep(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        named = dict(zip(("logits", "targets", "confidence") if kind == "dspark" else ("logits",), args, strict=False))
        found.update({**named, **kwargs})
        return torch.zeros(()), {}

    with monkeypatch.context() as patch:
        patch.setattr(MODELS[kind][2], "compute_metrics", keep)
        yield found


def arguments(features: Array, tokens: Array, anchors: Sequence[int]) -> dict[str, Any]:
    """A sequence, of which the loss mask lets exactly the wanted anchors through."""
    allowed = np.zeros(len(tokens), np.int64)
    allowed[list(anchors)] = 1
    return {
        "hidden_states": torch.from_numpy(features)[None],
        "input_ids": torch.from_numpy(tokens.astype(np.int64))[None],
        "loss_mask": torch.from_numpy(allowed)[None],
        "verifier_last_hidden_states": torch.zeros(1, len(tokens), LAYERS["hidden_size"]),
        "document_ids": torch.zeros(1, len(tokens), dtype=torch.long),
        "max_anchors": len(anchors),
    }


def blocks(tensor: Any, n: int) -> Array:
    """[1, blocks * rows, ...] as [blocks, rows, ...]."""
    array: Array = tensor.detach().numpy()
    return array.reshape(n, -1, *array.shape[2:])


@pytest.fixture(autouse=True)
def without_compiler() -> Iterator[None]:
    """The library compiles its forward where there is a GPU; here it is read step by step."""
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        yield


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[Setup], Pair]]:
    """Makes pairs, by way of the files that the library saves."""
    verifier = make_verifier()
    backends = Backends(n_threads=1)
    loaded: list[Model] = []

    def make(setup: Setup) -> Pair:
        drafter = make_drafter(setup, verifier)
        drafter.save_pretrained(tmp_path / "draft")
        state = load_file(tmp_path / "draft" / "model.safetensors")
        config = drafter.config.to_dict()
        config["transformer_layer_config"] = drafter.config.transformer_layer_config.to_dict()
        own = {name: tensor.numpy() for name, tensor in verifier.state_dict().items()}
        target = Model.load(write_target(tmp_path / "target.gguf", verifier.config.to_dict(), own), backends)
        loaded.append(target)
        draft = Model.load(write_draft(tmp_path / "draft.gguf", config, state), backends, target)
        loaded.append(draft)
        return Pair(setup, verifier, drafter, target, draft)

    yield make
    for model in reversed(loaded):
        model.close()
    backends.close()


# -- our side ------------------------------------------------------------------------------------------------------
@contextmanager
def opened(model: Model, n_seq: int = 1) -> Iterator[Context]:
    f32 = GGMLType.f32
    options = ContextOptions(n_ctx=512, n_ubatch=64, n_seq_max=n_seq, flash_attn=False, type_k=f32, type_v=f32)
    context = Context(model, options)
    try:
        yield context
    finally:
        context.close()


def drafted(
    given: Pair, features: Array, tokens: Array, anchors: Sequence[int], outputs: Sequence[str]
) -> dict[str, Array]:
    """One sequence for each anchor: what lies before it injected (nothing at anchor 0), then all blocks in one run."""
    agreed = pair(given.target, given.draft)
    assert agreed.layers == tuple(LAYER_IDS)
    assert (agreed.block_size, agreed.mask_token) == (given.setup.block, MASK)
    assert agreed.first_row == (0 if given.drafter.config.sample_from_anchor else 1)
    with opened(given.draft, len(anchors)) as context:
        for seq, anchor in enumerate(anchors):
            if anchor:
                context.run("inject", Batch.of_features(features[:anchor], 0, seq), causal=False)
        block = [np.r_[tokens[a], np.full(given.drafter.block_size - 1, MASK)] for a in anchors]
        batch = Batch.join([Batch.of_tokens(b, a, seq) for seq, (a, b) in enumerate(zip(anchors, block, strict=True))])
        found = context.run_blocks("draft", batch, outputs, causal=agreed.causal)
    return {name: array.reshape(len(anchors), -1, *array.shape[1:]) for name, array in found.items()}


def assert_close(what: str, ours: Array, theirs: Array, record: Callable[[str, object], None]) -> None:
    """Within the tolerance; -inf, ids that cannot be drafted, at the same places."""
    assert ours.shape == theirs.shape
    where = np.isfinite(theirs)
    np.testing.assert_array_equal(np.isfinite(ours), where, err_msg=what)
    worst = float(np.abs(ours[where] - theirs[where]).max())
    record(what, worst)
    print(f"{what}: {worst:.2e} of {np.abs(theirs[where]).max():.3g}")
    assert worst <= TOLERANCE, f"{what}: {worst} apart"


@pytest.fixture
def inputs() -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    features = rng.normal(0, 1.5, (N_TOKENS, len(LAYER_IDS) * LAYERS["hidden_size"])).astype(np.float32)
    return features, rng.integers(0, N_VOCAB - 1, N_TOKENS)


Made = Callable[[Setup], Pair]
Inputs = tuple[Array, Array]
Record = Callable[[str, object], None]

BACKBONES = {
    "plain": Setup("dflash"),
    "reduced vocabulary": Setup("dflash", reduced=True, seed=1),
    "linear rope": Setup("dflash", layers=rope("linear"), seed=2),
    "yarn": Setup("dflash", layers=rope("yarn", original_max_position_embeddings=32), seed=3),
    "one head of keys, three layers": Setup(
        "dflash", layers={"num_key_value_heads": 1, "num_hidden_layers": 3}, seed=4
    ),
    "sliding, all in the window": Setup(
        "dflash", {"sliding_window_non_causal": True}, sliding(64, "sliding", "full", "sliding"), seed=5
    ),
    "blocks of 16": Setup("dflash", block=16, seed=11),
    "causal": Setup("dflash", layers=sliding(64, "sliding", "sliding"), seed=6),
    "dflash2": Setup("dflash2", DFLASH2, seed=7),
    "dflash2, full kernel": Setup("dflash2", {**DFLASH2, "conv_kernel_size": BLOCK, "conv_group_size": 64}, seed=8),
    "dflash2, blocks of 16": Setup("dflash2", DFLASH2, block=16, seed=10),
    "dflash2, sliding": Setup("dflash2", DFLASH2, sliding(64, "full", "sliding"), seed=9),
}


def chain(first: bool, confidence: bool = True, **more: Any) -> Setup:
    return Setup("dspark", {**DSPARK, "sample_from_anchor": first, "enable_confidence_head": confidence}, **more)


CHAINS = {
    "anchor first": chain(True, seed=20),
    "anchor first, no confidence": chain(True, False, seed=21),
    "anchor first, reduced": chain(True, reduced=True, seed=22),
    "anchor first, reduced, no confidence": chain(True, False, reduced=True, seed=23),
    "anchor first, blocks of 16": chain(True, block=16, seed=24),
    "bonus anchor": chain(False, seed=25),
    "bonus anchor, no confidence": chain(False, False, seed=26),
    "bonus anchor, reduced": chain(False, reduced=True, seed=27),
    "bonus anchor, reduced, no confidence": chain(False, False, reduced=True, seed=28),
    "bonus anchor, blocks of 16": chain(False, block=16, seed=29),
}
PLAIN = {"dflash": Setup("dflash"), "dspark": chain(True), "dflash2": Setup("dflash2", DFLASH2)}


# -- the comparisons -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("anchors", [ANCHORS, (0, 20)], ids=["three blocks", "nothing committed"])
@pytest.mark.parametrize("setup", BACKBONES.values(), ids=BACKBONES.keys())
def test_logits(
    setup: Setup,
    anchors: tuple[int, ...],
    made: Made,
    inputs: Inputs,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
) -> None:
    """Every row of every block, the anchor's too."""
    given = made(setup)
    with captured(setup.kind, monkeypatch) as found:
        given.drafter(**arguments(*inputs, anchors))
    theirs = given.scattered(blocks(found.get("logits", found.get("unary_logits")), len(anchors)))
    ours = drafted(given, *inputs, anchors, ("logits",))["logits"]
    assert_close("logits", ours, theirs, record_property)


@pytest.mark.parametrize("setup", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize("n_rows", [3, 4])
def test_shorter_blocks(setup: Setup, n_rows: int, made: Made, inputs: Inputs, record_property: Record) -> None:
    """Fewer rows than trained (the library takes no fewer than the kernel has taps)."""
    given = made(setup)
    given.drafter.block_size = n_rows
    for module in given.drafter.modules():
        if isinstance(module, GroupedDynamicCausalConv):
            module.block_size = n_rows
    theirs = blocks(given.drafter._backbone_forward(**arguments(*inputs, ANCHORS))[1], len(ANCHORS))
    output = "base_logits" if setup.kind == "dspark" else "logits"
    assert_close(output, drafted(given, *inputs, ANCHORS, (output,))[output], theirs, record_property)


@pytest.mark.parametrize("setup", CHAINS.values(), ids=CHAINS.keys())
def test_markov_chain(
    setup: Setup, made: Made, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    """The library is given the previous tokens; given those that it drafts itself, row by row, it follows the chain."""
    given = made(setup)
    first_row = 0 if setup.settings["sample_from_anchor"] else 1
    features, tokens = inputs[0], inputs[1].copy()
    taken = np.zeros((len(ANCHORS), setup.block), np.int64)
    with captured("dspark", monkeypatch) as found:
        for row in range(first_row, setup.block):
            given.drafter(**arguments(features, tokens, ANCHORS))
            taken[:, row] = given.d2t[blocks(found["logits"], len(ANCHORS))[:, row].argmax(axis=-1)]
            tokens[np.array(ANCHORS) + row + 1 - first_row] = taken[:, row]
        given.drafter(**arguments(features, tokens, ANCHORS))
    unchained = given.d2t[
        blocks(given.drafter._backbone_forward(**arguments(*inputs, ANCHORS))[1], len(ANCHORS)).argmax(axis=-1)
    ]
    assert (taken != unchained)[:, first_row:].mean() > 0.3, "the chain has to matter"

    has_confidence = bool(setup.settings["enable_confidence_head"])
    outputs = ("logits", "argmax", *(("confidence",) if has_confidence else ()))
    ours = drafted(given, *inputs, ANCHORS, outputs)
    np.testing.assert_array_equal(ours["argmax"][:, first_row:], taken[:, first_row:])
    theirs = given.scattered(blocks(found["logits"], len(ANCHORS)))
    assert_close("logits", ours["logits"][:, first_row:], theirs[:, first_row:], record_property)
    assert (found["confidence"] is not None) == has_confidence
    assert ("confidence" in ours) == has_confidence
    if has_confidence:
        confidence = blocks(torch.sigmoid(found["confidence"]), len(ANCHORS))
        assert confidence.std() > 0.05
        assert_close("confidence", ours["confidence"][:, first_row:], confidence[:, first_row:], record_property)


@pytest.mark.parametrize("setup", CHAINS.values(), ids=CHAINS.keys())
def test_logits_before_the_markov_head(setup: Setup, made: Made, inputs: Inputs, record_property: Record) -> None:
    given = made(setup)
    theirs = given.scattered(blocks(given.drafter._backbone_forward(**arguments(*inputs, ANCHORS))[1], len(ANCHORS)))
    ours = drafted(given, *inputs, ANCHORS, ("base_logits", "logits"))
    assert_close("base logits", ours["base_logits"], theirs, record_property)
    if not setup.settings[
        "sample_from_anchor"
    ]:  # the library biases the anchor's row too, but takes it out of the loss
        assert_close("logits of row 0", ours["logits"][:, 0], theirs[:, 0], record_property)


@pytest.mark.parametrize("title", [title for title, setup in BACKBONES.items() if setup.kind == "dflash2"])
def test_candidates(title: str, made: Made, inputs: Inputs, record_property: Record) -> None:
    """Every predecessor's scores from the library's selector, and the path of best scores through them."""
    given = made(BACKBONES[title])
    hidden, logits, *_ = given.drafter._backbone_forward(**arguments(*inputs, ANCHORS))
    n, k, block = len(ANCHORS), DFLASH2["selector_top_k"], given.setup.block
    hidden, logits = hidden.view(n, block, -1), logits.view(n, block, -1)
    ours = drafted(given, *inputs, ANCHORS, ("candidates", "scores"))
    candidates = torch.from_numpy(ours["candidates"].astype(np.int64))
    select = given.drafter.candidate_selector.select

    anchors = torch.from_numpy(inputs[1][list(ANCHORS)]).view(n, 1, 1).expand(n, 1, k)
    before = torch.cat([anchors, candidates[:, 1:-1]], dim=1)
    scores = []
    for j in range(k):
        ids, score = select(logits[:, 1:], hidden[:, 1:], before[..., j])
        order, ours_order = ids.argsort(dim=-1), candidates[:, 1:].argsort(dim=-1)
        np.testing.assert_array_equal(ids.gather(-1, order), candidates[:, 1:].gather(-1, ours_order))
        scores.append(torch.zeros_like(score).scatter(-1, ours_order, score.gather(-1, order)))
    theirs = torch.stack(scores, dim=2).numpy()
    assert_close("scores", ours["scores"][:, 1:], theirs, record_property)

    contract = given.draft.cls.contract
    assert contract is not None
    for b, anchor in enumerate(ANCHORS):
        walk = [int(inputs[1][anchor])]
        for row in range(1, block):
            ids, score = select(logits[b, row], hidden[b, row], torch.tensor(walk[-1]))
            walk.append(int(ids[score.argmax()]))
        assert contract.propose({name: array[b] for name, array in ours.items()}, 1, block - 1, 0.0) == walk[1:]


def test_selector_in_the_forward(
    made: Made, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    """The same through the library's whole forward, which takes predecessors from the text: the walk, written there."""
    given = made(BACKBONES["dflash2"])
    ours = drafted(given, *inputs, ANCHORS, ("candidates", "scores"))
    contract = given.draft.cls.contract
    assert contract is not None
    tokens = inputs[1].copy()
    for b, anchor in enumerate(ANCHORS):
        rows = {name: array[b] for name, array in ours.items()}
        tokens[anchor + 1 : anchor + BLOCK] = contract.propose(rows, 1, BLOCK - 1, 0.0)
    with captured("dflash2", monkeypatch) as found:
        given.drafter(**arguments(inputs[0], tokens, ANCHORS))
    ids = blocks(found["training_candidate_ids"], len(ANCHORS))
    theirs = blocks(found["candidate_logits"], len(ANCHORS))
    found_ours, found_theirs = [], []
    for b, anchor in enumerate(ANCHORS):
        at = 0
        for row in range(1, BLOCK):
            mine = ours["candidates"][b, row].tolist()
            for token, score in zip(ids[b, row].tolist(), theirs[b, row], strict=True):
                if token in mine:  # the library puts the target's choice in place of the last candidate
                    found_ours.append(ours["scores"][b, row, at, mine.index(token)])
                    found_theirs.append(score)
            at = mine.index(tokens[anchor + row])
    assert len(found_ours) >= len(ANCHORS) * (BLOCK - 1) * (DFLASH2["selector_top_k"] - 1)
    assert_close("scores", np.array(found_ours), np.array(found_theirs), record_property)


@pytest.mark.parametrize("setup", PLAIN.values(), ids=PLAIN.keys())
def test_target_layers(setup: Setup, made: Made, monkeypatch: pytest.MonkeyPatch, record_property: Record) -> None:
    """Text through both targets, their hidden states through both drafters: layers are numbered as in the library."""
    given = made(setup)
    tokens = np.random.default_rng(11).integers(0, N_VOCAB - 1, N_TOKENS)
    last: list[Any] = []
    hook = given.verifier.model.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))
    states = given.verifier(torch.from_numpy(tokens)[None], output_hidden_states=True).hidden_states
    hook.remove()
    states = [*states[:-1], last[0]]  # the last one without the final norm, as the library has it (verifier_norm)
    theirs = torch.cat([states[k] for k in LAYER_IDS], dim=-1)[0].numpy()

    taps = pair(given.target, given.draft).taps
    f32 = GGMLType.f32
    context = Context(given.target, ContextOptions(n_ctx=256, flash_attn=False, type_k=f32, type_v=f32, tap_last=True))
    found = context.run("decode", Batch.of_tokens(tokens), taps=taps)
    context.close()
    ours = np.concatenate([found[f"{name}.{k}"] for name, k in taps], axis=1)
    assert_close("features", ours, theirs, record_property)

    with captured(setup.kind, monkeypatch) as loss:
        given.drafter(**arguments(theirs, tokens, ANCHORS))
    first = blocks(loss.get("logits", loss.get("unary_logits")), len(ANCHORS))[:, :2]
    logits = drafted(given, ours, tokens, ANCHORS, ("logits",))["logits"][:, :2]
    if setup.kind == "dspark":  # the text is not what the chain would draft: only the first row knows its predecessor
        first, logits = first[:, :1], logits[:, :1]
    assert_close("logits", logits, first, record_property)


# -- where library and llama.cpp differ ------------------------------------------------------------------------------
def window_mask(window: int, anchors: Sequence[int]) -> tuple[Any, Any]:
    """The library's mask of sliding layers, and llama.cpp's: [query, key] over the text and all blocks."""
    q_len = len(anchors) * BLOCK
    q, kv = torch.arange(q_len)[:, None], torch.arange(N_TOKENS + q_len)[None, :]
    library, *_ = dflash_attention.create_anchor_block_mask_mod(
        document_ids=torch.zeros(N_TOKENS, dtype=torch.long), total_seq_len=N_TOKENS,
        anchor_positions=torch.tensor(anchors), block_size=BLOCK, sliding_window=window, sliding_window_non_causal=True,
    )  # fmt: skip
    anchor = torch.tensor(anchors).repeat_interleave(BLOCK)[:, None]
    pos = anchor + q % BLOCK
    text = (kv < N_TOKENS) & (kv < anchor) & (pos - kv < window)
    own = (kv >= N_TOKENS) & ((kv - N_TOKENS) // BLOCK == q // BLOCK)
    own &= pos - (anchor + (kv - N_TOKENS) % BLOCK) < window
    none = torch.zeros((), dtype=torch.long)
    return library(none, none, q, kv), text | own


def test_the_librarys_window_is_the_anchors() -> None:
    """All rows of a block see ``window`` positions before the anchor; in llama.cpp each its own ``window - 1``."""
    window, anchors = 8, ANCHORS
    library, llama = window_mask(window, anchors)
    for b, anchor in enumerate(anchors):
        for row in range(BLOCK):
            seen, kept = (
                set(torch.nonzero(m[b * BLOCK + row, :N_TOKENS]).flatten().tolist()) for m in (library, llama)
            )
            assert seen == set(range(max(0, anchor - window), anchor))
            assert kept == set(range(max(0, anchor + row - window + 1), anchor))
    assert bool((library[:, N_TOKENS:] == llama[:, N_TOKENS:]).all())


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("window", [8, 9, 16])
def test_logits_with_llama_cpps_window(
    kind: str, window: int, made: Made, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    """The library's layers under llama.cpp's mask, in windows that the text does not fit in."""
    layers = sliding(window, "sliding", "full", "sliding")
    given = made(
        Setup(kind, {"sliding_window_non_causal": True, **(DFLASH2 if kind == "dflash2" else {})}, layers, seed=30)
    )
    original = dflash_core.create_anchor_block_mask_mod

    def mask_mod(**kwargs: Any) -> tuple[Any, int, int]:
        mod, q_len, kv_len = original(**kwargs)
        if kwargs["sliding_window"] is None:
            return mod, q_len, kv_len
        table = window_mask(window, ANCHORS)[1]
        return lambda b, h, q, kv: table[q, kv], q_len, kv_len

    monkeypatch.setattr(dflash_core, "create_anchor_block_mask_mod", mask_mod)
    with captured(kind, monkeypatch) as found:
        given.drafter(**arguments(*inputs, ANCHORS))
    theirs = blocks(found.get("logits", found.get("unary_logits")), len(ANCHORS))
    assert_close("logits", drafted(given, *inputs, ANCHORS, ("logits",))["logits"], theirs, record_property)
