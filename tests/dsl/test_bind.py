"""Fitting a file: what is missing, of a wrong type or shape is said in one line each; choices become guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftsmith.canonical import CanonicalValue
from draftsmith.dsl.bind import Options, bind, examine, hadamard_size
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import DraftsmithError, GraphError, MetadataError, ShapeError, WeightError
from draftsmith.dsl.expr import Choice, Scope
from draftsmith.dsl.guards import Guard
from draftsmith.model import trace_all

from ..codegen.loops import Tiny, tiny_model, trace_one
from ..graphs.variants import BY_TITLE
from ..models import FakeFile, FakeTensor

Change = Callable[[FakeFile], None]
P = "{arch}"


def problems(change: Change, title: str = "dflash.mixed") -> list[tuple[type[DraftsmithError], str]]:
    variant = BY_TITLE[title]
    file = variant.file(small=True)
    change(file)
    return [(p.kind, p.text) for p in examine(variant.cls, file)[1]]


def key(name: str, kind: str, value: Any) -> Change:
    return lambda file: file.metadata.__setitem__(name, CanonicalValue(kind, value))


def without_key(name: str) -> Change:
    return lambda file: file.metadata.pop(name)  # type: ignore[return-value]


def tensor(name: str, *ne: int, dtype: GGMLType = GGMLType.f32) -> Change:
    return lambda file: file.tensors.__setitem__(name, FakeTensor(name, ne, dtype))


def without_tensor(name: str) -> Change:
    return lambda file: file.tensors.pop(name)  # type: ignore[return-value]


A = "dflash"
CASES: list[tuple[Change, type[DraftsmithError], str]] = [
    (
        without_key(f"{A}.embedding_length"),
        MetadataError,
        "missing metadata key dflash.embedding_length (an integer is required) [dsl/decoder.py:",
    ),
    (
        key(f"{A}.embedding_length", "str", "big"),
        MetadataError,
        "metadata key dflash.embedding_length: expected an integer, found str",
    ),
    (
        key(f"{A}.embedding_length", "u32", 0),
        MetadataError,
        "metadata key dflash.embedding_length = 0 must be positive",
    ),
    (key(f"{A}.block_count", "u32", 5000), MetadataError, "metadata key dflash.block_count = 5000, but the file has"),
    (key(f"{A}.block_count", "u64", 2**63), MetadataError, "is beyond 64 signed bits"),
    (key(f"{A}.rope.freq_base", "f64", 1e300), MetadataError, "is not a finite 32-bit number"),
    (key(f"{A}.rope.freq_base", "f32", float("nan")), MetadataError, "is not a finite 32-bit number"),
    (key(f"{A}.hidden_activation", "str", "tanh"), MetadataError, "must be one of silu, gelu, gelu_pytorch_tanh"),
    (
        key(f"{A}.target_layers", "arr[i32]", []),
        MetadataError,
        "metadata key dflash.target_layers = [] must not be empty [graphs/dflash.py:",
    ),
    (key(f"{A}.target_layers", "arr[f32]", [1.0]), MetadataError, "expected an array of integers, found arr[f32]"),
    (key(f"{A}.attention.causal", "u32", 1), MetadataError, "expected a boolean, found u32"),
    (
        without_key(f"{A}.attention.sliding_window_pattern"),
        MetadataError,
        "missing metadata key dflash.attention.sliding_window_pattern",
    ),
    (
        key(f"{A}.attention.sliding_window_pattern", "arr[bool]", [True]),
        MetadataError,
        "expected 4 values, one a layer, found 1",
    ),
    (
        key(f"{A}.attention.sliding_window_pattern", "bool", True),
        MetadataError,
        "one value a layer, found a single bool",
    ),
    (
        key(f"{A}.attention.sliding_window_pattern", "arr[f32]", [1.0] * 4),
        MetadataError,
        "expected an array of bool, found arr[f32]",
    ),
    (
        without_tensor("blk.2.ffn_up.weight"),
        WeightError,
        "missing tensor blk.2.ffn_up.weight [n_embd, n_ff] = [192, 128] [graphs/dflash.py:",
    ),
    (
        tensor("blk.0.attn_norm.weight", 7),
        WeightError,
        "tensor blk.0.attn_norm.weight: expected shape [n_embd] = [192], found [7] [graphs/dflash.py:",
    ),
    (
        tensor("blk.0.attn_q.weight", 128, 192),
        WeightError,
        "expected shape [n_embd, n_embd_head_k*n_head] = [192, 128], found [128, 192]",
    ),
    (tensor("blk.0.attn_norm.weight", 192, dtype=GGMLType.f16), WeightError, "expected element type f32, found f16"),
    (
        tensor("blk.1.attn_q.weight", 192, 128, dtype=GGMLType.i32),
        WeightError,
        "expected element type a floating-point or quantised type, found i32",
    ),
    (tensor("blk.0.attn_q.scale", 2), WeightError, "tensor blk.0.attn_q.scale: expected f32[1], found f32[2]"),
    (tensor("blk.0.mystery.weight", 4), WeightError, "unknown tensor blk.0.mystery.weight: dflash has no use for it"),
    (tensor("blk.0.attn_conv_base", 192, 2, 2), WeightError, "unknown tensor blk.0.attn_conv_base"),
]


@pytest.mark.parametrize(("change", "kind", "says"), CASES, ids=[s[:60] for _, _, s in CASES])
def test_one_line_for_what_does_not_fit(change: Change, kind: type[DraftsmithError], says: str) -> None:
    found = problems(change)
    assert found and found[0][0] is kind
    assert says in found[0][1] and "\n" not in found[0][1]


def test_a_good_file_has_no_problems() -> None:
    for title in BY_TITLE:
        assert problems(lambda file: None, title) == []


def test_trailing_ones_of_a_shape_do_not_matter() -> None:
    assert problems(tensor("blk.0.attn_norm.weight", 192, 1, 1)) == []
    assert problems(tensor("blk.0.attn_q.scale", 1)) == []
    assert problems(tensor("blk.0.attn_q.input_scale", 1)) == []


def test_all_problems_are_listed_and_the_first_is_raised() -> None:
    variant = BY_TITLE["dflash.mixed"]
    file = variant.file(small=True)
    for name in ("blk.0.ffn_up.weight", "blk.3.ffn_up.weight", "fc.weight"):
        del file.tensors[name]
    assert [p.text.split()[2] for p in examine(variant.cls, file)[1]] == [
        "fc.weight",
        "blk.0.ffn_up.weight",
        "blk.3.ffn_up.weight",
    ]
    with pytest.raises(WeightError, match=r"<dflash>: missing tensor fc.weight .*\(and 2 more: `draftsmith inspect`\)"):
        bind(variant.cls, file)


def test_conditional_tensors_are_required_where_the_condition_holds() -> None:
    found = problems(without_tensor("blk.1.ffn_conv_base"), "dflash.conv")
    assert [text.split(" [")[0] for _, text in found] == ["missing tensor blk.1.ffn_conv_base"]


def test_complaints_of_the_architecture_itself() -> None:
    found = problems(key(f"{A}.attention.value_length", "u32", 32), "dflash.separate_v")
    assert found == []
    file = BY_TITLE["dflash.d2t"].file(small=True)
    del file.tensors["output.weight"]
    texts = [p.text for p in examine(BY_TITLE["dflash.d2t"].cls, file)[1]]
    assert any("needs the drafter's own output.weight" in t for t in texts)


def test_defaults_build_on_other_keys() -> None:
    def shrink(file: FakeFile) -> None:
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            del file.metadata[f"qwen3.{name}"]
        file.metadata["qwen3.attention.head_count"] = CanonicalValue("u32", 6)
        for il in range(4):
            for part, rows in (("q", 192), ("k", 64), ("v", 64)):
                file.tensors[f"blk.{il}.attn_{part}.weight"] = FakeTensor("t", (192, rows), GGMLType.f32)
                if part != "v":
                    file.tensors[f"blk.{il}.attn_{part}_norm.weight"] = FakeTensor("t", (32,), GGMLType.f32)
            file.tensors[f"blk.{il}.attn_output.weight"] = FakeTensor("t", (192, 192), GGMLType.f32)

    variant = BY_TITLE["qwen3"]
    file = variant.file(small=True)
    shrink(file)
    model = bind(variant.cls, file)
    assert [model.hparam(n) for n in ("n_embd_head_k", "n_embd_head_v", "n_rot", "n_head_kv")] == [32, 32, 32, 2]


def test_an_unread_weight_is_an_error() -> None:
    good = tiny_model(3, with_v=(0, 2))
    trace_all(good)  # every tensor of Tiny is read by some loop
    from draftsmith.dsl.bind import check_readers

    one, _ = trace_one(Tiny.carried.__draftsmith_graph__.function, 3)  # type: ignore[attr-defined]
    with pytest.raises(WeightError, match=r"<tiny>: tensor blk.0.v is never read by a graph of tiny"):
        check_readers(one)


def test_guards_say_what_was_chosen() -> None:
    _, graphs = trace_one(Tiny.model_wide_choice.__draftsmith_graph__.function, 3)  # type: ignore[attr-defined]
    assert [str(g) for g in graphs["run"].guards] == ["not hp.fancy"]
    _, graphs = trace_one(Tiny.model_wide_choice.__draftsmith_graph__.function, 3, fancy=True)  # type: ignore[attr-defined]
    assert [str(g) for g in graphs["run"].guards] == ["hp.fancy"]
    assert str(Guard(Choice(Scope.HPARAM, "act"), False)) == "not hp.act"


def test_equal_numbers_with_different_names_become_a_guard() -> None:
    from draftsmith.dsl import Value, ops

    from ..codegen.loops import hp, x_feed

    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        return {"out": ops.reshape(x, hp.n_vocab, x.ne[1])}

    _, graphs = trace_one(run, 2, vocab_size=16)
    assert [str(g) for g in graphs["run"].guards] == ["n_embd == n_vocab"]
    with pytest.raises(ShapeError) as raised:
        trace_one(run, 2, vocab_size=17)
    message = str(raised.value)
    assert message.startswith("[reshape] element counts differ")
    for part in (
        "n_embd*n_tokens",
        "n_vocab*n_tokens",
        "x f32[n_embd, n_tokens] = [16, 8]",
        "dsl/test_bind.py:",
        "ops.reshape(x, hp.n_vocab, x.ne[1])",
        "^^^",
    ):
        assert part in message, part


def test_a_shape_error_shows_both_operands_and_the_line() -> None:
    from draftsmith.dsl import Value, ops

    from ..codegen.loops import x_feed

    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for layer in self.layers:
            y = ops.mul_mat(ops.slice_(x, 0, 0, 5), x)
            x = ops.mul(y, layer.w)
        return {"out": x}

    with pytest.raises(ShapeError) as raised:
        trace_one(run, 2)
    first, place, line, marks = str(raised.value).splitlines()[:4]
    assert first.startswith("[mul_mat] ") and first.count("f32[") == 2
    assert "[5, n_tokens]" in first and "[n_embd, n_tokens]" in first and "= [5, 8] x [16, 8]" in first
    assert place.strip().startswith("dsl/test_bind.py:")
    assert line.strip() == "y = ops.mul_mat(ops.slice_(x, 0, 0, 5), x)"
    assert line[marks.index("^") : marks.rindex("^") + 1] == "ops.mul_mat(ops.slice_(x, 0, 0, 5), x)"


def test_a_value_has_no_truth() -> None:
    from draftsmith.dsl import Value, ops

    from ..codegen.loops import x_feed

    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        return {"out": x if x else ops.neg(x)}

    with pytest.raises(GraphError, match="has no truth value while tracing; ask `is None`"):
        trace_one(run, 2)


@pytest.mark.parametrize(("head", "n"), [(64, 64), (128, 128), (192, 64), (256, 256), (384, 128), (512, 512)])
def test_size_of_the_rotation(head: int, n: int) -> None:
    assert hadamard_size(head) == n


def test_rotation_needs_a_quantised_type_and_fitting_heads() -> None:
    variant = BY_TITLE["qwen3.rotated_cache"]
    q8 = Options(type_k=GGMLType.q8_0, type_v=GGMLType.q8_0)
    spec = variant.cls.layer.kv  # type: ignore[attr-defined]
    assert variant.bind(True, q8).cache_rotation(spec) == (True, True)
    assert variant.bind(True, replace(q8, type_v=GGMLType.f16)).cache_rotation(spec) == (True, False)
    assert variant.bind(True, replace(q8, rotate=False)).cache_rotation(spec) == (False, False)
    assert BY_TITLE["qwen3"].bind(True, q8).cache_rotation(spec) == (False, False), "heads of 32"
