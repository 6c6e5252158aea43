"""Loops of Python stay loops in C++: the text, what it computes, and what cannot be rolled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftsmith.codegen.emit import emit, guard_params
from draftsmith.codegen.native import Backends, NativeContext, NativeModel, StateDesc, WeightDesc, Weights
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.dsl import LayerView, Value, block, counted, n_tokens, ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.interp import Interpreter
from draftsmith.dsl.verify import verify
from draftsmith.gguf_file import GGUFFile
from draftsmith.model import native_params, sample_dims, trace_all
from draftsmith.show import render

from .loops import LOOPS, hp, tiny_model, trace_one, x_feed

FEWEST = {"tree_of_choices": 4}  # layers until every way has been taken


def text_of(function: Callable[..., Any], n_layer: int, **keys: Any) -> str:
    return emit(*trace_one(function, n_layer, **keys)).text


def loop_of(text: str) -> str:
    """The body of the first loop of a build function, without what labels and places say."""
    build = text[text.index("void build_") :]
    lines = [re.sub(r" +//.*", "", line) for line in build[build.index("    for (") :].splitlines()]
    end = next(i for i, line in enumerate(lines) if line == "    }")
    return "\n".join(line for line in lines[1:end] if "g.cb(" not in line)


@pytest.mark.parametrize("name", LOOPS)
def test_text_does_not_depend_on_the_number_of_iterations(name: str) -> None:
    few = FEWEST.get(name, 2)
    assert text_of(LOOPS[name], few) == text_of(LOOPS[name], 5) == text_of(LOOPS[name], 8)
    assert render(*trace_one(LOOPS[name], few)) == render(*trace_one(LOOPS[name], 5))


@pytest.mark.parametrize(
    "name", ["carried", "defined_inside", "number_of_a_layer", "two_loops", "two_results", "read_before_write"]
)
def test_one_iteration_gives_the_same_text(name: str) -> None:
    assert text_of(LOOPS[name], 1) == text_of(LOOPS[name], 5)


def test_one_tap_gives_the_same_loop() -> None:
    """One iteration never asked the other way: the text is for that count only, and says so."""
    text = text_of(LOOPS["first_of_the_count"], 2, n_taps=1)
    assert text.count("ggml_add(") == 0
    assert "if (t != 0) {\n            throw std::runtime_error(" in text
    assert text_of(LOOPS["first_of_the_count"], 2, n_taps=2) == text_of(LOOPS["first_of_the_count"], 2, n_taps=4)


def test_a_loop_is_written_once() -> None:
    text = text_of(LOOPS["carried"], 6)
    assert text.count("ggml_mul(") == 1
    assert loop_of(text).strip() == "x_2 = ggml_mul(ctx, x_2, layer.w);"
    assert "ggml_tensor * x_2 = x;" in text and 'g.output("out", x_2);' in text


def test_a_special_last_layer_is_an_if() -> None:
    body = loop_of(text_of(LOOPS["last_is_special"], 4))
    assert body.count("ggml_mul(") == body.count("ggml_add(") == body.count("ggml_scale(") == 1
    assert "if (layer.il == hp.n_layer - 1) {" in body and "else" not in body


def test_kinds_are_the_arms_of_an_if() -> None:
    body = loop_of(text_of(LOOPS["two_kinds"], 4))
    assert re.search(r"if \(layer.sliding\) \{\n.*ggml_add.*\n +\} else \{\n.*ggml_sqr.*\n.*ggml_mul", body)


def test_what_kinds_share_stands_once() -> None:
    body = loop_of(text_of(LOOPS["tree_of_choices"], 6))
    assert body.count("layer.w") == 1 and body.count("layer.v)") == 1
    assert re.search(
        r"if \(layer\.v != nullptr\) \{.*if \(layer\.sliding\) \{.*\} else .*layer\.gain > 2", body, re.DOTALL
    )


def test_answers_that_all_layers_give_become_guards() -> None:
    text = text_of(LOOPS["tree_of_choices"], 4, with_v=(0, 1, 2, 3), sliding=[True] * 4)
    head = text.partition("#include")[0]
    assert "every layer: layer.sliding" in head and "has blk.*.v" in head
    assert "if (" not in loop_of(text)


def test_a_choice_on_the_whole_model_is_no_branch_of_the_loop() -> None:
    text = text_of(LOOPS["model_wide_choice"], 4)
    assert "if (" not in loop_of(text) and "ggml_mul" not in loop_of(text)
    assert "fancy is false" in text.partition("#include")[0]


def test_a_bound_may_be_known_at_run_time_only() -> None:
    text = text_of(LOOPS["counted_rows"], 2)
    assert "for (int64_t i = 1; i < b.n_tokens; ++i) {" in text


def test_old_state_is_read_before_it_is_overwritten() -> None:
    """A write goes into the graph when it is built; readers of what was there must be in it already."""
    body = loop_of(text_of(LOOPS["read_before_write"], 3)).splitlines()
    at = {
        what: next(i for i, line in enumerate(body) if what in line)
        for what in ("old = ", "forward_expand(", "g.write(")
    }
    assert at["old = "] < at["forward_expand("] < at["g.write("]
    assert "old" in body[at["forward_expand("]]


def test_a_block_is_one_function_whatever_calls_it() -> None:
    text = text_of(LOOPS["inner_blocks"], 6)
    assert len(re.findall(r"^ggml_tensor \* inner_block\(", text, re.MULTILINE)) == 1
    assert re.findall(r"^ggml_tensor \* (outer_block\w*)\(", text, re.MULTILINE) == ["outer_block", "outer_block_2"]
    assert text.index("inner_block(") < text.index("outer_block(")
    assert "struct halves_result {" in text_of(LOOPS["two_results"], 2)


@pytest.mark.parametrize("name", LOOPS)
def test_traced_graphs_are_legal(name: str) -> None:
    model, graphs = trace_one(LOOPS[name], 4)
    with model.binding(sample_dims(model)):
        for traced in graphs.values():
            verify(traced)


# -- what they compute ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    with Backends(n_threads=1) as made:
        yield made


@pytest.mark.cpu
@pytest.mark.parametrize("n_layer", [3, 7])
def test_native_loops(n_layer: int, backends: Backends, tmp_path: Any) -> None:
    """One library, compiled from the text for six layers, runs files of other depths and batches of other sizes."""
    six = tiny_model(6)
    text = emit(six, trace_all(six)).text
    library = build_architecture("tiny", {"tiny.cpp": text})
    model = tiny_model(n_layer)
    file = GGUFFile.open(model.file.write(tmp_path / "tiny.gguf"))  # type: ignore[attr-defined]
    descs = [WeightDesc(n, t.type, t.ne, t.offset, t.nbytes) for n, t in file.tensors.items()]
    rng = np.random.default_rng(n_layer)
    n_cells, n = 12, 5
    dims = {"n_tokens": n, "n_outputs": n, "n_blocks": 1, "n_kv": n_cells, "n_cells_kv": n_cells}
    graphs = trace_all(model, dims)
    state = [StateDesc("kv.k", GGMLType.f16, (16, n_cells), il) for il in range(n_layer)]
    with Weights.load(backends, file.path, descs) as weights:
        params = {**native_params(model), **guard_params(graphs.values())}
        with NativeModel(library, params, weights) as native, NativeContext(backends, native, state) as context:
            assert set(native.graphs) == set(LOOPS)
            reader = Interpreter(model, lambda ref: file.tensors[str(ref.tensor)].dequantize())
            for name, traced in graphs.items():
                given = {
                    "x": rng.uniform(-1, 1, (n, 16)).astype(np.float32),
                    "kv_cells": np.array([3, 1, 4, 0, 9]),
                    "rows": np.array([4, 3, 0, 9, 2], np.int32),
                }
                feeds = {k: given[k] for k in traced.feeds}
                for _ in range(2):  # the second run reads what the first wrote
                    wanted = reader.run(traced, dims, feeds)
                    context.run(name, dims, feeds, tuple(traced.outputs), max_nodes=1000)
                    for output, value in traced.outputs.items():
                        got = context.result(output, ndim=len(value.shape))
                        np.testing.assert_allclose(
                            got, wanted[output], rtol=2e-3, atol=1e-5, err_msg=f"{name}.{output}"
                        )


# -- what cannot be rolled -----------------------------------------------------------------------------------
def fails(function: Callable[..., Any], match: str, n_layer: int = 4) -> str:
    with pytest.raises(GraphError, match=match) as raised:
        emit(*trace_one(function, n_layer))
    return str(raised.value)


def test_a_value_used_behind_the_loop_needs_a_name() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        kept = SimpleNamespace()
        for layer in self.layers:
            x = ops.mul(x, layer.w)
            kept.y = ops.sqr(x)
        return {"out": x + kept.y}

    fails(run, "used behind the loop but no local variable holds it")


def test_a_value_of_the_iteration_before_needs_a_name() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        kept = SimpleNamespace(y=x)
        for layer in self.layers:
            x = ops.mul(x, layer.w) + kept.y
            kept.y = ops.sqr(x)
        return {"out": x}

    fails(run, "changes from one iteration to the next but is in no local variable")


def test_kinds_need_a_recorded_choice() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for layer in self.layers:
            x = ops.mul(x, layer.w) if int(layer.il) % 2 else ops.add(x, layer.w)
        return {"out": x}

    fails(run, "differ, but no choice that the author's code made tells them apart")


def test_none_at_first_is_no_recorded_choice() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        total = None
        for layer in self.layers:
            y = ops.mul(x, layer.w)
            total = y if total is None else total + y
        return {"out": total}

    fails(run, "no choice that the author's code made tells them apart")


def test_no_branch_on_a_run_time_dim() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        if n_tokens > 4:
            x = ops.sqr(x)
        return {"out": x}

    message = fails(run, "branch on the run-time dim in `n_tokens > 4`")
    assert "test_roll.py" in message and "if n_tokens > 4:" in message and "^" in message


def test_no_question_about_a_layer_outside_its_loop() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for layer in self.layers:
            x = ops.mul(x, layer.w)
        return {"out": ops.sqr(x) if layer.sliding else x}

    message = fails(run, "`layer.sliding` asks about a layer outside a loop")
    assert "if layer.sliding" in message


def test_a_block_sees_only_what_it_is_given() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        y = ops.sqr(x)

        @block
        def peeks(x: Value) -> Value:
            return x + y

        return {"out": peeks(x)}

    message = fails(run, "made outside the block: pass it as an argument")
    assert "return x + y" in message and "^" in message


def test_a_block_takes_one_layer() -> None:
    @block
    def both(a: LayerView, b: LayerView, x: Value) -> Value:
        return ops.mul(ops.mul(x, a.w), b.w)

    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for layer in self.layers:
            x = both(layer, layer, x)
        return {"out": x}

    assert "both(layer, layer, x)" in fails(run, "block both takes one layer, found 2")


def test_endless_counting_is_refused() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for _ in counted(0, 100 * hp.n_embd * hp.n_embd):
            x = ops.sqr(x)
        return {"out": x}

    fails(run, "a loop of 25600 iterations cannot be traced")


def test_an_unknown_member_of_a_layer_names_those_there_are() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Value]:
        for layer in self.layers:
            x = ops.mul(x, layer.weight)
        return {"out": x}

    message = fails(run, "declares no 'weight'; it has w, v, sliding, gain, kv")
    assert "layer.weight" in message


def test_a_graph_without_result_or_write_is_refused() -> None:
    def run(self: Any, x: Value = x_feed) -> None:
        ops.sqr(x)

    fails(run, "has no output and writes no state")


def test_an_output_must_be_a_tensor() -> None:
    def run(self: Any, x: Value = x_feed) -> dict[str, Any]:
        return {"out": 3}

    fails(run, "output 'out' is int, expected a tensor")
