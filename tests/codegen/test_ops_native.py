"""Every op as ggml computes it, through generated source, against its NumPy meaning.

All examples of the table are graphs of one architecture made up here, so they are compiled as one library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gguf
import numpy as np
import pytest

from draftsmith.codegen.emit import emit
from draftsmith.codegen.native import Backends, NativeContext, NativeModel, StateDesc
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.dsl import Architecture, Feed, Layer, arch, feeds, graph, u32
from draftsmith.dsl.arch import Hparams
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.ir import Graph, Kind, Ref, Value
from draftsmith.dsl.op import TABLE
from draftsmith.dsl.ops import cast
from draftsmith.dsl.trace import apply
from draftsmith.model import native_params, trace_all

from ..dsl.helpers import Array, Example, Operand, all_attrs, evaluate
from ..dsl.op_examples import EXAMPLES
from ..models import make_file

pytestmark = pytest.mark.cpu

CASES = {f"{name}_{i}": (name, example) for name, some in EXAMPLES.items() for i, example in enumerate(some)}


class hp(Hparams):
    n_layer = u32("{arch}.block_count")


def feed(case: str, number: int, operand: Operand) -> Feed:
    return Feed(f"{case}_x{number}", operand.dtype, operand.shape)


def state_name(case: str, number: int) -> str:
    return f"{case}_s{number}"


def readable(out: Value) -> Value:
    """Quantised rows as numbers: NumPy has no such type."""
    return cast(out, GGMLType.f32) if out.dtype.is_quantized else out


def method(case: str, name: str, example: Example) -> Callable[..., Any]:
    """A graph of one op."""
    given = [*example.operands, *[None] * (len(TABLE[name].operands) - len(example.operands))]

    def operand(number: int, il: Any) -> Value | None:
        wanted = given[number]
        if wanted is None:
            return None
        if wanted.kind is Kind.STATE:
            return Value(
                wanted.shape, wanted.dtype, Kind.STATE, name=f"s{number}", ref=Ref(state_name(case, number), int(il))
            )
        value = feeds.use(feed(case, number, wanted))
        return value if wanted.via is None else wanted.via(value)

    def straight(self: Any) -> dict[str, Value]:
        out = apply(TABLE[name], [operand(n, None) for n in range(len(given))], all_attrs(name, example.attrs))
        return {} if name == "tap" else {"out": readable(out)}

    def of_a_layer(self: Any) -> dict[str, Value]:
        for layer in self.layers:
            out = apply(TABLE[name], [operand(n, layer.il) for n in range(len(given))], all_attrs(name, example.attrs))
        return {"out": readable(out)}

    function = of_a_layer if any(o is not None and o.kind is Kind.STATE for o in given) else straight
    function.__name__ = case
    return graph(function)


@arch("all_ops")
class AllOps(Architecture):
    """One graph for every example of the op table."""

    hparams, layer = hp, Layer
    canonical: ClassVar = {"{arch}.block_count": 1}


for _case, (_name, _example) in CASES.items():
    setattr(AllOps, _case, method(_case, _name, _example))


@dataclass
class Compiled:
    context: NativeContext
    graphs: dict[str, Graph]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compiled]:
    from draftsmith.dsl.bind import bind

    model = bind(AllOps, make_file(AllOps))
    graphs = trace_all(model, {"n_tokens": 1, "n_outputs": 1, "n_blocks": 1})
    source = emit(model, graphs)
    library = build_architecture(source.name, {f"{source.name}.cpp": source.text})
    states = [
        StateDesc(state_name(case, n), o.dtype, o.shape, 0)
        for case, (_, example) in CASES.items()
        for n, o in enumerate(example.operands)
        if o is not None and o.kind is Kind.STATE
    ]
    with (
        Backends(n_threads=1) as backends,
        NativeModel(library, native_params(model), None) as native,
        NativeContext(backends, native, states) as context,
    ):
        yield Compiled(context, graphs)


def packed(array: Array, dtype: GGMLType) -> Array:
    """An array as ggml stores it."""
    if dtype.numpy_dtype is not None:
        return np.ascontiguousarray(array, dtype.numpy_dtype)
    kind = gguf.GGMLQuantizationType(dtype.id)
    return gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind)


def run(compiled: Compiled, case: str, example: Example, value: Value, seed: int) -> Array:
    """The native result in NumPy order."""
    rng = np.random.default_rng(seed)  # draws as helpers.evaluate does
    inputs, state = {}, None
    for n, operand in enumerate(example.operands):
        if operand is None:
            continue
        stored = packed(operand.array(rng, np.float32), operand.dtype)
        if operand.kind is Kind.STATE:
            state = state_name(case, n)
            raw = stored if operand.dtype.numpy_dtype is not None else stored.view(np.uint8)
            compiled.context.state_set(state, 0, raw)
        elif f"{case}_x{n}" in compiled.graphs[case].feeds:
            inputs[f"{case}_x{n}"] = stored
    shape = tuple(int(d) for d in reversed(value.shape))
    if case.startswith("tap"):
        compiled.context.run(case, {}, inputs, (), [("layer_input", 3)], max_nodes=64)
        return compiled.context.result("layer_input", 3, ndim=len(shape))
    # a traced run keeps what a view looks like; the last node called "out" is the op's
    compiled.context.run(case, {}, inputs, ("out",), (), True, max_nodes=64)
    if state is not None and not value.dtype.is_quantized:
        return compiled.context.state_get(state, 0)
    node = [n for n in compiled.context.nodes() if n.name == "out"][-1]
    assert node.data is not None
    return node.data.reshape(shape)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_native_result(case: str, seed: int, compiled: Compiled) -> None:
    name, example = CASES[case]
    _, wanted, value = evaluate(name, example, np.float32, seed)
    got = run(compiled, case, example, value, seed)
    assert got.shape == wanted.shape
    if name == "top_k":  # the order is open
        got, wanted = np.sort(got, axis=-1), np.sort(wanted, axis=-1)
    if wanted.dtype.kind == "i":
        np.testing.assert_array_equal(got, wanted)
        return
    finite = np.abs(wanted[np.isfinite(wanted)])
    close = max(example.close, 1e-3 if value.dtype is GGMLType.f16 else 0.0)
    np.testing.assert_allclose(got, wanted, rtol=close, atol=close * float(finite.max(initial=1e-30)))


def test_a_wrong_meaning_would_be_seen(compiled: Compiled) -> None:
    """The comparison can fail: the result of one seed does not pass for that of another."""
    seen = 0
    for case, (name, example) in CASES.items():
        if not example.operands or name == "tap":
            continue
        _, other, value = evaluate(name, example, np.float32, 1)
        if value.dtype is GGMLType.f32 and name not in (
            "sgn",
            "step",
            "fill",
            "set_rows",
            "store",
            "put",
            "diag_mask_inf",
            "tri",
        ):
            got = run(compiled, case, example, value, 0)
            seen += not np.allclose(got, other, rtol=example.close, atol=example.close)
    assert seen > 100
