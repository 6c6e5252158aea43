"""Dim expressions and attributes as C++."""

from __future__ import annotations

from typing import Any

from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.expr import PRESENT, Atom, Choice, Cond, Const, Flag, Matches, Scope, Sym, binds_right

_LEVEL = {"+": 1, "-": 1, "*": 2, "//": 2, "exact": 2, "/": 2, "%": 2}
_FUNCTION = {"sqrt": "sqrtf", "log": "logf", "min": "std::min", "max": "std::max"}

PREFIX = {Scope.HPARAM: "hp.", Scope.LAYER: "layer.", Scope.DIM: "b.", Scope.LOOP: "", Scope.OPTION: "hp."}
"""How a quantity is reached inside a generated function."""


class Names:
    """The quantities that printed expressions use: what the structs of the file must hold."""

    def __init__(self) -> None:
        self.hparams: dict[str, bool] = {}  # name -> is float
        self.layer_values: dict[str, str] = {}  # name -> C++ type
        self.dims: set[str] = set()

    def use(self, atom: Atom) -> str:
        if atom.scope is Scope.HPARAM:
            self.hparams[atom.name] = atom.is_float
        elif atom.scope is Scope.DIM:
            self.dims.add(atom.name)
        elif atom.scope is Scope.LAYER and atom.name != "il":
            self.layer_values[atom.name] = "float" if atom.is_float else "int64_t"
        return atom.cpp or PREFIX[atom.scope] + atom.name


def integer(x: Sym, names: Names, level: int = 0) -> str:
    """An integer expression."""
    if isinstance(x, Const):
        return str(x.args[0])
    if isinstance(x, Atom):
        return names.use(x)
    if x.op in ("min", "max"):
        a, b = (integer(v, names) for v in x.args)
        return f"{_FUNCTION[x.op]}<int64_t>({a}, {b})"
    if x.op not in _LEVEL or x.op == "/":
        raise GraphError(f"`{x}` is not an integer expression")
    mine = _LEVEL[x.op]
    a = integer(x.args[0], names, mine)
    b = integer(x.args[1], names, mine + binds_right(x))
    op = {"//": "/", "exact": "/"}.get(x.op, x.op)
    text = f"{a} {op} {b}" if mine == 1 else f"{a}{op}{b}"
    return f"({text})" if mine < level else text


def real(x: Sym, names: Names, level: int = 0) -> str:
    """An expression of type float."""
    if isinstance(x, Const):
        return float_literal(float(x.args[0]))
    if not x.is_float:
        return f"float({integer(x, names)})"
    if isinstance(x, Atom):
        return names.use(x)
    if x.op in _FUNCTION:
        return f"{_FUNCTION[x.op]}({', '.join(real(v, names) for v in x.args)})"
    mine = _LEVEL[x.op]
    a, b = real(x.args[0], names, mine), real(x.args[1], names, mine + binds_right(x))
    text = f"{a} {x.op} {b}" if mine == 1 else f"{a}{x.op}{b}"
    return f"({text})" if mine < level else text


def float_literal(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "-INFINITY" if value < 0 else "INFINITY"
    text = repr(value)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def attribute(value: Any, names: Names) -> str:
    """An op's attribute as an argument."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sym):
        return real(value, names) if value.is_float else integer(value, names)
    if isinstance(value, float):
        return float_literal(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, GGMLType):
        return value.c_name
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return ", ".join(attribute(v, names) for v in value)
    if value is None:
        return "nullptr"
    raise GraphError(f"an attribute of type {type(value).__name__} cannot be written in C++")


def condition(question: Any, names: Names) -> str:
    """A recorded question as a C++ condition inside a loop over layers or a guard."""
    if isinstance(question, Cond):
        floating = question.left.is_float or question.right.is_float
        show = real if floating else integer
        return f"{show(question.left, names)} {question.op} {show(question.right, names)}"
    if isinstance(question, Flag):
        return _flag(question, names)
    assert isinstance(question, Matches)
    choice: Choice = question.choice
    return f'params.is("{choice.name}", "{question.text}")'


def _flag(flag: Flag, names: Names) -> str:
    if flag.scope is Scope.LAYER:
        if flag.name == "is_last":
            names.hparams["n_layer"] = False
            return "layer.il == hp.n_layer - 1"
        if flag.name == "is_first":
            return "layer.il == 0"
        if flag.name.startswith(PRESENT):
            return f"layer.{flag.name.removeprefix(PRESENT)} != nullptr"
        names.layer_values[flag.name] = "bool"
        return f"layer.{flag.name}"
    return f"{PREFIX[flag.scope]}{flag.name}"


def negate(text: str) -> str:
    """The opposite of a condition made here."""
    for op, other in ((" == ", " != "), (" != ", " == ")):
        if text.count(op) == 1 and " && " not in text:
            return text.replace(op, other)
    for op, other in ((" >= ", " < "), (" <= ", " > "), (" < ", " >= "), (" > ", " <= ")):
        if text.count(op) == 1:
            return text.replace(op, other)
    return f"!{text}"
