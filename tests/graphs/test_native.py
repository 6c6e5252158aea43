"""The compiled graphs against NumPy, value by value: the embedded pair, a file of every variant with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from draftsmith.check import Checker, Comparison, check_model, default_tolerance
from draftsmith.codegen.native import Backends
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import BackendError
from draftsmith.gguf_file import GGUFFile
from draftsmith.model import Model
from draftsmith.session import default_pair

from ..gguf_rewrite import rewrite
from .variants import BY_TITLE, Variant, source

pytestmark = pytest.mark.cpu

F32, F16, Q8_0 = GGMLType.f32, GGMLType.f16, GGMLType.q8_0
SETTINGS = {
    "f32": ContextOptions(n_ctx=256, flash_attn=False, type_k=F32, type_v=F32),
    "f16 flash": ContextOptions(n_ctx=256),
    "q8_0": ContextOptions(n_ctx=256, flash_attn=False, type_k=Q8_0, type_v=Q8_0),
    "q8_0 flash": ContextOptions(n_ctx=256, type_k=Q8_0, type_v=Q8_0),
}


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    with Backends(n_threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def pair(backends: Backends) -> tuple[Model, Model]:
    target, draft = default_pair()
    first = Model.load(target, backends)
    return first, Model.load(draft, backends, first)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All libraries, on as many cores as there are; a second run finds them in the cache."""
    texts = {source(title, True).text: source(title, True).name for title in BY_TITLE}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda item: build_architecture(item[1], {f"{item[1]}.cpp": item[0]}), texts.items()))


def assert_all_equal(compared: list[Comparison], at_least: int) -> None:
    assert len(compared) >= at_least
    wrong = [c for c in compared if not c.ok]
    assert not wrong, f"{len(wrong)} of {len(compared)} differ, the first: {wrong[0]}"


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("which", [0, 1], ids=["target", "drafter"])
def test_embedded_pair(pair: tuple[Model, Model], which: int, settings: str) -> None:
    context = Context(pair[which], SETTINGS[settings])
    compared = list(check_model(context))
    assert_all_equal(compared, 40)
    assert {c.graph for c in compared} == set(context.graphs)
    context.close()


def load(variant: Variant, folder: Path, backends: Backends) -> tuple[Model, ContextOptions]:
    """The variant's small file, with a target that lends it what it lacks."""
    target = None
    if variant.cls.contract is not None:
        target = Model.load(BY_TITLE["qwen3"].file(small=True).write(folder / "target.gguf"), backends)
    model = Model.load(variant.file(small=True).write(folder / "model.gguf"), backends, target)
    if not variant.options.flash_attn and not variant.options.type_k.is_quantized:
        return model, ContextOptions(
            n_ctx=128, flash_attn=False, type_k=F32, type_v=F32
        )  # the same source, and no rounding
    return model, ContextOptions(n_ctx=128, **vars(variant.options))


@pytest.mark.parametrize("title", BY_TITLE)
def test_variant(title: str, tmp_path: Path, backends: Backends) -> None:
    variant = BY_TITLE[title]
    model, options = load(variant, tmp_path, backends)
    context = Context(model, options)
    assert context.source.text == source(title, True).text, "the file on disk leads to the source of the snapshot"
    n_tokens = 2 * int(context.bound.hparam("block_size")) if title == "lilicorr" else 9
    # fused attention rounds to f16 in every layer, and random weights carry that on; gelu is a table of f16
    rounding = (
        1e-3
        if options.flash_attn
        else 1e-5
        if context.bound.values.get(("hp", "hidden_activation"), "silu") != "silu"
        else 0.0
    )
    tolerance = max(default_tolerance(model, context), rounding)
    assert_all_equal(list(check_model(context, n_tokens, tolerance=tolerance)), 25)
    context.close()


@pytest.mark.parametrize(
    ("title", "tensor", "node"),
    [
        ("qwen3", "blk.1.ffn_up.weight", "feed_forward.up-1"),
        ("qwen3", "blk.2.attn_k_norm.weight", "self_attention.k.2-2"),
        ("dflash.separate_v", "blk.0.attn_v.weight", "project_kv.v-0"),
    ],
)
def test_a_fault_is_found_where_it_was_made(
    title: str, tensor: str, node: str, tmp_path: Path, backends: Backends
) -> None:
    """The native side runs a copy of the file in which one weight is a little off."""
    variant = BY_TITLE[title]
    model, options = load(variant, tmp_path, backends)
    info = model.file.tensors[tensor]
    spoilt = info.dequantize().copy()
    spoilt.reshape(-1)[spoilt.size // 2] += 0.25
    other = Model.load(rewrite(model.path, tmp_path / "spoilt.gguf", tensors={tensor: spoilt}), backends, model.target)
    context = Context(other, options)
    checker = Checker(context)
    checker.model = model  # NumPy reads the good file
    checked = [c for c in _run(checker) if not c.ok]
    assert checked and checked[0].name == node
    assert checked[0].where.startswith(f"graphs/{variant.arch}.py:")


def _run(checker: Checker) -> Iterator[Comparison]:
    """As check_model, with the checker given."""
    from draftsmith.batch import Batch

    rng = np.random.default_rng(3)
    for graph, traced in checker.context.graphs.items():
        if "features" in traced.feeds:
            with checker.context.bound.binding(checker.context.dims):
                width = int(traced.feeds["features"].shape[0])
            yield from checker.run(graph, Batch.of_features(rng.standard_normal((5, width)), 0), causal=False)
        else:
            yield from checker.run(graph, Batch.of_tokens(rng.integers(0, 159, 5), 5))


def test_a_library_refuses_a_file_of_another_variant(tmp_path: Path, backends: Backends) -> None:
    """The guards at the top of a generated file are checked when it is loaded."""
    from draftsmith.codegen.native import NativeModel
    from draftsmith.model import native_params

    def model_of(title: str, file: Model, **changed: int) -> None:
        text = source(title, True)
        library = build_architecture(text.name, {f"{text.name}.cpp": text.text})
        target = file.target.weights if file.target else None
        flags = {
            "opt.flash_attn": 1,
            "opt.tap_last": 0,
            "opt.k_f32": 0,
            "opt.v_f32": 0,
            "rope_scaling_type=none": 1,
            "has_mrope": 0,
        }
        flags |= {"has_conv": 0, "hidden_activation=silu": 1, "opt.rotate_k_kv": 0, "opt.rotate_v_kv": 0}
        params = {**native_params(file.bound()), **flags, **changed}
        NativeModel(library, params, file.weights, target, file.bound().borrowed()).close()

    model, _ = load(BY_TITLE["dflash.separate_v"], tmp_path, backends)
    model_of("dflash.separate_v", model)  # its own: accepted
    with pytest.raises(BackendError, match=r"every layer without blk.*attn_v"):
        model_of("dflash", model)
    off = {"opt.flash_attn": 0, "opt.v_quantized": 0}
    with pytest.raises(BackendError, match="f_value_scale != 0"):
        model_of("dflash.mimo", model, **off)
    with pytest.raises(BackendError, match=r"every layer has blk.*attn_sinks"):
        model_of("dflash.mimo", model, f_value_scale=2, **off)
    with pytest.raises(BackendError, match="flash_attn is true"):
        model_of("dflash.separate_v", model, **{"opt.flash_attn": 0})
    with pytest.raises(BackendError, match="f_embedding_scale"):
        model_of("dflash.separate_v", model, f_embedding_scale=2)


def test_file_written_is_the_file_in_memory(tmp_path: Path) -> None:
    made = BY_TITLE["dflash.d2t"].file(small=True)
    read = GGUFFile.open(made.write(tmp_path / "model.gguf"))
    assert {
        k: v.value if isinstance(v.value, (int, float, str)) else list(v.value) for k, v in read.metadata.items()
    } == {
        k: v.value if not isinstance(v.value, float) else float(np.float32(v.value)) for k, v in made.metadata.items()
    }
    assert {n: (t.ne, t.type) for n, t in read.tensors.items()} == {n: (t.ne, t.type) for n, t in made.tensors.items()}
    assert all(np.array_equal(read.tensors[n].data(), t.data()) for n, t in made.tensors.items())
