"""Dim expressions as C++: the compiler's results are those of Python."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

import pytest

from draftsmith.codegen.cpp_expr import Names, attribute, condition, float_literal, integer, negate, real
from draftsmith.codegen.ninja_build import build_library
from draftsmith.dsl.binding import bound
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.expr import (
    PRESENT,
    Atom,
    Choice,
    Flag,
    Matches,
    Scope,
    Sym,
    const,
    exact,
    log,
    maximum,
    minimum,
    sqrt,
)

from ..dsl.test_expr import TEXTS, random_expression

VALUES = {"a": 24, "b": 6, "c": 5, "n": 3}
BINDING = {**{("hp", k): v for k, v in VALUES.items()}, ("hp", "f"): 2.5, ("hp", "g"): 0.125}
a, b, c, n = (Atom(Scope.HPARAM, name) for name in VALUES)
f, g = Atom(Scope.HPARAM, "f", True), Atom(Scope.HPARAM, "g", True)

INTEGERS: list[Sym] = [x for x, _, _ in TEXTS]
INTEGERS += [
    x for seed in range(60) if (x := random_expression(random.Random(seed), 3)) is not None and "%" not in str(x)
]
REALS: list[Sym] = [
    1.0 / sqrt(a),
    f * g - (f - g),
    f / (g * 2.0),
    f / g / 2.0,
    (f + g) * a,
    a * f,
    sqrt(a * b) / f,
    log(f + 1.0) * -1.0,
    minimum(f, g),
    maximum(f, g * 100.0),
    f - (g + 1.0),
    1.0 / (f / g),
    const(0.1) * f,
    f * 1e-6,
    f * 1e10,
    a / b,
    (a + b) / c - f,
]


def compiled(lines: Sequence[str], kind: str) -> list[float]:
    fields = "".join(f"    int64_t {k} = {v};\n" for k, v in VALUES.items()) + "    float f = 2.5f, g = 0.125f;\n"
    body = "".join(f"    out[{i}] = {line};\n" for i, line in enumerate(lines))
    text = (
        "#include <algorithm>\n#include <cmath>\n#include <cstdint>\n"
        f"struct hparams {{\n{fields}}};\n"
        f'extern "C" __attribute__((visibility("default"))) void run({kind} * out) {{\n    const hparams hp;\n{body}}}\n'  # noqa: E501
    )
    library = ctypes.CDLL(str(build_library(f"expr_{kind}", {"expr.cpp": text})))
    out = ((ctypes.c_int64 if kind == "int64_t" else ctypes.c_float) * len(lines))()
    library.run(out)
    return list(out)


@pytest.mark.cpu
def test_integers_in_cpp() -> None:
    """C++ truncates where Python floors: dims are never negative, so expressions with a negative dividend are left out."""  # noqa: E501
    with bound(BINDING):
        usable = [x for x in INTEGERS if _no_negative_dividend(x)]
        assert len(usable) > 50
        got = compiled([integer(x, Names()) for x in usable], "int64_t")
        assert got == [x.value for x in usable]


def _no_negative_dividend(x: Sym) -> bool:
    args = [arg for arg in x.args if isinstance(arg, Sym)]
    return all(map(_no_negative_dividend, args)) and not (
        x.op in ("//", "%") and (args[0].value < 0 or args[1].value < 0)
    )


@pytest.mark.cpu
def test_reals_in_cpp() -> None:
    with bound(BINDING):
        got = compiled([real(x, Names()) for x in REALS], "float")
        assert got == pytest.approx([float(x) for x in REALS], rel=1e-6)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (a - (b - c), "hp.a - (hp.b - hp.c)"),
        (a // (b // n), "hp.a/(hp.b/hp.n)"),
        ((a + b) * c, "(hp.a + hp.b)*hp.c"),
        (exact(a, b) + 1, "hp.a/hp.b + 1"),
        (minimum(a, b * 2), "std::min<int64_t>(hp.a, hp.b*2)"),
        (Atom(Scope.DIM, "n_tokens") * 4, "b.n_tokens*4"),
        (Atom(Scope.LAYER, "n_ff", fixed=8) - 1, "layer.n_ff - 1"),
        (Atom(Scope.LOOP, "i", fixed=8) + 1, "i + 1"),
        (Atom(Scope.PARAM, "n_kv", fixed=8, cpp="mask->ne[0]") * 2, "mask->ne[0]*2"),
    ],
)
def test_integer_text(x: Sym, text: str) -> None:
    assert integer(x, Names()) == text


def test_a_real_is_no_integer() -> None:
    with pytest.raises(GraphError, match="is not an integer expression"):
        integer(a / b, Names())


def test_names_are_noted() -> None:
    names = Names()
    real(f * a + Atom(Scope.LAYER, "theta", True, 1.0) * Atom(Scope.DIM, "n_tokens"), names)
    assert names.hparams == {"f": True, "a": False}
    assert names.layer_values == {"theta": "float"} and names.dims == {"n_tokens"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0f"),
        (0.1, "0.1f"),
        (1e-6, "1e-06f"),
        (1e20, "1e+20f"),
        (-2.5, "-2.5f"),
        (float("inf"), "INFINITY"),
        (float("-inf"), "-INFINITY"),
    ],
)
def test_float_literals(value: float, text: str) -> None:
    assert float_literal(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (0.5, "0.5f"),
        (GGMLType.q4_K, "GGML_TYPE_Q4_K"),
        ("x", '"x"'),
        ((1, a), "1, hp.a"),
        (None, "nullptr"),
        (a * 2, "hp.a*2"),
        (f, "hp.f"),
    ],
)
def test_attributes(value: object, text: str) -> None:
    assert attribute(value, Names()) == text


def test_an_attribute_without_a_form_is_refused() -> None:
    with pytest.raises(GraphError, match="an attribute of type dict"):
        attribute({}, Names())


@pytest.mark.parametrize(
    ("question", "text", "opposite"),
    [
        (a == b, "hp.a == hp.b", "hp.a != hp.b"),
        (a != 0, "hp.a != 0", "hp.a == 0"),
        (a < b, "hp.a < hp.b", "hp.a >= hp.b"),
        (a >= 2, "hp.a >= 2", "hp.a < 2"),
        (f > 0, "hp.f > 0.0f", "hp.f <= 0.0f"),
        (Flag(Scope.HPARAM, "causal"), "hp.causal", "!hp.causal"),
        (Flag(Scope.LAYER, "is_swa"), "layer.is_swa", "!layer.is_swa"),
        (Flag(Scope.LAYER, "is_last"), "layer.il == hp.n_layer - 1", "layer.il != hp.n_layer - 1"),
        (Flag(Scope.LAYER, "is_first"), "layer.il == 0", "layer.il != 0"),
        (Flag(Scope.LAYER, f"{PRESENT}attn_v"), "layer.attn_v != nullptr", "layer.attn_v == nullptr"),
        (Matches(Choice(Scope.HPARAM, "act"), "silu"), 'params.is("act", "silu")', '!params.is("act", "silu")'),
    ],
)
def test_conditions(question: object, text: str, opposite: str) -> None:
    assert condition(question, Names()) == text
    assert negate(text) == opposite
