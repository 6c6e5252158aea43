"""Expressions over named dims: value, text, equality, simplification."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from draftsmith.dsl import guards
from draftsmith.dsl.binding import bound
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.expr import (
    Atom,
    Const,
    Scope,
    Sym,
    const,
    exact,
    log,
    maximum,
    minimum,
    product,
    same,
    sqrt,
    substitute,
    to_text,
    without_common_factors,
)

VALUES = {"a": 24, "b": 6, "c": 5, "n": 3}
a, b, c, n = (Atom(Scope.HPARAM, name) for name in VALUES)
f = Atom(Scope.HPARAM, "f", True)
BINDING = {**{("hp", k): v for k, v in VALUES.items()}, ("hp", "f"): 2.5}


@contextmanager
def recorded() -> Iterator[list[Any]]:
    log_: list[Any] = []
    with bound(BINDING), guards.recording(log_):
        yield log_


TEXTS = [
    (a + b, "a + b", 30),
    (a - b - c, "a - b - c", 13),
    (a - (b - c), "a - (b - c)", 23),
    (a - (b + c), "a - (b + c)", 13),
    ((a + b) * c, "(a + b)*c", 150),
    (a + b * c, "a + b*c", 54),
    (a * b * c, "a*b*c", 720),
    (a // b // n, "a//b//n", 1),
    (a // (b // n), "a//(b//n)", 12),
    (a * b // c, "a*b//c", 28),
    (a // c * c, "a//c*c", 20),
    (c * (a // c), "c*(a//c)", 20),
    (c * (a % c), "c*(a%c)", 20),
    (a // (c * n), "a//(c*n)", 1),
    (a % c * 2, "a%c*2", 8),
    (a % (c * 2), "a%(c*2)", 4),
    (-a, "0 - a", -24),
    (2 * a, "2*a", 48),
    (7 - a, "7 - a", -17),
    (50 // a, "50//a", 2),
    (exact(a, b), "a//b", 4),
    (exact(a, b * 2) * c, "a//(b*2)*c", 10),
    (minimum(a + 1, b * c), "min(a + 1, b*c)", 25),
    (maximum(a, b) - 1, "max(a, b) - 1", 23),
]


@pytest.mark.parametrize(("x", "text", "value"), TEXTS, ids=[t for _, t, _ in TEXTS])
def test_text_and_value(x: Sym, text: str, value: int) -> None:
    assert str(x) == to_text(x) == text
    with bound(BINDING):
        assert x.value == value == int(x)
        assert not x.is_float


def random_expression(rng: random.Random, depth: int) -> Sym:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([a, b, c, n, const(rng.randint(1, 9))])
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    kind = rng.choice(["+", "-", "*", "//", "%", "min", "max"])
    if kind in ("//", "%"):
        right = rng.choice([a, b, c, n]) + rng.randint(0, 3) if rng.random() < 0.5 else rng.choice([a, b, c, n])
        return left // right if kind == "//" else left % right
    if kind in ("min", "max"):
        return (minimum if kind == "min" else maximum)(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[kind]


@pytest.mark.parametrize("seed", range(200))
def test_text_means_what_the_expression_means(seed: int) -> None:
    """Python itself reads the text; simplification changes no value."""
    rng = random.Random(seed)
    x = random_expression(rng, 4)
    for _ in range(3):
        values = {name: rng.randint(1, 40) for name in VALUES}
        with bound({("hp", k): v for k, v in values.items()}):
            assert x.value == eval(to_text(x), {"min": min, "max": max}, values)
            assert all(atom.value == values[atom.name] for atom in x.atoms())
    assert {atom.name for atom in x.atoms()} == {
        name for name in VALUES if name in to_text(x).replace("min", "").replace("max", "")
    }


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (a + 0, "a"),
        (0 + a, "a"),
        (a - 0, "a"),
        (a * 1, "a"),
        (1 * a, "a"),
        (a // 1, "a"),
        (a * b // b, "a"),
        (b * a // b, "a"),
        (a // a, "1"),
        (exact(a, b) * b, "a"),
        (b * exact(a, b), "a"),
        (exact(a * b, b), "a"),
        (const(2) + 3, "5"),
        (const(7) // 2, "3"),
        (minimum(const(2), const(3)), "2"),
    ],
)
def test_simplification(x: Sym, text: str) -> None:
    assert str(x) == text


def test_what_must_not_be_simplified() -> None:
    """Floor division is no division: (a//b)*b and a differ unless b divides a."""
    assert str(a // b * b) == "a//b*b"
    with bound({**BINDING, ("hp", "a"): 25}):
        assert (a // b * b).value == 24
        assert not same(a // b * b, a)
        assert same(exact(a, b) * b, a)


def test_same_is_algebra_and_asks_nothing() -> None:
    with recorded() as log_:
        assert same(a * (b + c), c * a + b * a)
        assert same((a + b) * (a - b), a * a - b * b)
        assert same(exact(a, b) * c * b, c * a)
        assert not same(a * b, a + b)
        assert not same(a, 24), "equal by chance in this model"
        assert same(a, Atom(Scope.HPARAM, "a"))
        assert not same(a, Atom(Scope.DIM, "a", fixed=24)), "another quantity of that name"
    assert log_ == []


def test_equality_is_a_question_that_is_recorded() -> None:
    with recorded() as log_:
        assert a == 24
        assert not (a == b)  # noqa: SIM201 (== is what is asked)
        assert a != b
        assert a > b and a >= 24 and b < a and b <= 6
        assert a
    assert [(str(g.question), g.answer) for g in log_] == [
        ("a == 24", True),
        ("a == b", False),
        ("a != b", True),
        ("a > b", True),
        ("a >= 24", True),
        ("b < a", True),
        ("b <= 6", True),
        ("a != 0", True),
    ]
    assert [str(g) for g in log_][:3] == ["a == 24", "a != b", "a != b"]


def test_questions_about_numbers_are_not_recorded() -> None:
    with recorded() as log_:
        assert const(3) == 3 and const(2) < 3
    assert log_ == []


def test_atoms_are_listed_without_asking() -> None:
    """Two objects for one name are one atom; finding that out records no question."""
    with recorded() as log_:
        twice = Atom(Scope.HPARAM, "a") * Atom(Scope.HPARAM, "a") + Atom(Scope.HPARAM, "b")
        assert [x.name for x in twice.atoms()] == ["a", "b"]
        assert [x.name for x in (twice == a).atoms()] == ["a", "b", "a"]
    assert log_ == []


def test_common_factors() -> None:
    left, right = without_common_factors(a * b * n, n * c * b)
    assert (str(left), str(right)) == ("a", "c")
    left, right = without_common_factors(exact(a, b) * c, c * n)
    assert (str(left), str(right)) == ("a", "n*b")
    left, right = without_common_factors(a * b, b * a)
    assert (str(left), str(right)) == ("1", "1")
    left, right = without_common_factors(a * a, a)
    assert (str(left), str(right)) == ("a", "1")


def test_product() -> None:
    assert str(product([])) == "1" and str(product([a, b, 2])) == "a*b*2"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (a * b + n, "7*b + n"),
        (exact(a, b) * n, "7//b*n"),
        (minimum(a, b), "min(7, b)"),
        (maximum(b, a), "max(b, 7)"),
        (b, "b"),
        (a, "7"),
        (a % b - a, "7%b - 7"),
    ],
)
def test_substitution(x: Sym, text: str) -> None:
    assert str(substitute(x, {a.fingerprint: const(7)})) == text


def test_substitution_simplifies() -> None:
    assert str(substitute(a * b // c, {a.fingerprint: c})) == "b"
    assert str(substitute(sqrt(a), {a.fingerprint: const(16)})) == "4.0"


def test_floats() -> None:
    with bound(BINDING):
        x = 1.0 / sqrt(a * b)
        assert x.is_float and math.isclose(float(x), 1 / 12)
        assert str(x) == "1.0/sqrt(a*b)"
        assert math.isclose(float(log(a) * f), math.log(24) * 2.5)
        assert (a / b).is_float and (a + f).is_float and not (a + b).is_float
        with pytest.raises(TypeError, match="not an integer"):
            range(x)  # type: ignore[arg-type]
        assert list(range(n)) == [0, 1, 2]


def test_no_value_without_a_model() -> None:
    with pytest.raises(GraphError, match=r"hp\.a has no value here: no model is being traced"):
        int(a)
    with bound({}), pytest.raises(GraphError, match=r"hp\.a has no value in this graph"):
        int(a)
    with bound({("hp", "a"): 1, ("hp", "b"): 0}), pytest.raises(GraphError, match="division by zero"):
        int(a // b)


@pytest.mark.parametrize("other", ["x", None, True, [1]])
def test_only_numbers_and_expressions_mix(other: Any) -> None:
    with pytest.raises(GraphError, match="expected a number or a dim expression"):
        a + other


def test_fingerprints_do_not_depend_on_the_process() -> None:
    """Snapshots and equal bodies rest on them."""
    assert Atom(Scope.HPARAM, "n_embd").fingerprint == 883789512305900781
    assert Const(3).fingerprint == 3
