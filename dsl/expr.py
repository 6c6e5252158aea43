"""Named dims and hyperparameters as expressions.

A shape in Draftsmith is a tuple of expressions over named quantities, not of numbers: the name reaches
error messages, the printed IR and the C++ (``hp.n_embd_head*hp.n_head``). Each expression also has a value
while a graph is traced, so ordinary Python may compute with it.

Asking a *question* of an expression in Python (``if hp.n_swa > 0:``) is a choice that the generated source
then depends on. Such choices are recorded as guards (:mod:`dsl.guards`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from . import guards
from .binding import current_value
from .errors import GraphError

Number = int | float
SymLike: TypeAlias = "Sym | int | float"

# Symbolic equality is decided by evaluating at one fixed pseudo-random point modulo a large prime: equal
# polynomials agree there, different ones practically never do.
_PRIME = (1 << 61) - 1


class Scope(Enum):
    """Where a named quantity comes from; decides how it is written in C++."""

    HPARAM = "hp"  # a hyperparameter of the model
    LAYER = "layer"  # a per-layer hyperparameter
    DIM = "dim"  # a run-time dim: parameter of the generated build function
    LOOP = "loop"  # the counter of a loop
    PARAM = "param"  # a dim of a block's parameter
    OPTION = "opt"  # a setting of the context: flash attention, cache types


def _mix(*parts: object) -> int:
    """A stable 61-bit number from strings and numbers (``hash`` of str is salted per process)."""
    h = 1469598103934665603
    for byte in "\x1f".join(map(repr, parts)).encode():
        h = ((h ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return (h ^ (h >> 31)) % _PRIME


class Sym:
    """An expression over named quantities. Immutable.

    ``==``, ``<`` … give a :class:`Cond`, whose truth value is recorded as a guard; use :func:`same` to ask
    whether two expressions are equal without recording anything.
    """

    __slots__ = ("args", "fingerprint", "is_float", "op")

    def __init__(self, op: str, args: tuple[Any, ...], is_float: bool, fingerprint: int) -> None:
        self.op = op
        self.args = args
        self.is_float = is_float
        self.fingerprint = fingerprint

    # -- value and text -------------------------------------------------------------------------
    @property
    def value(self) -> Number:
        """The number this stands for in the binding that is active (a model being traced)."""
        raise NotImplementedError

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        if self.is_float:
            raise TypeError(f"{self} is not an integer")
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return to_text(self)

    def __hash__(self) -> int:
        return self.fingerprint

    # -- arithmetic -------------------------------------------------------------------------------
    def __add__(self, other: SymLike) -> Sym:
        return _binary("+", self, other)

    def __radd__(self, other: SymLike) -> Sym:
        return _binary("+", other, self)

    def __sub__(self, other: SymLike) -> Sym:
        return _binary("-", self, other)

    def __rsub__(self, other: SymLike) -> Sym:
        return _binary("-", other, self)

    def __mul__(self, other: SymLike) -> Sym:
        return _binary("*", self, other)

    def __rmul__(self, other: SymLike) -> Sym:
        return _binary("*", other, self)

    def __floordiv__(self, other: SymLike) -> Sym:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: SymLike) -> Sym:
        return _binary("//", other, self)

    def __mod__(self, other: SymLike) -> Sym:
        return _binary("%", self, other)

    def __truediv__(self, other: SymLike) -> Sym:
        return _binary("/", self, other)

    def __rtruediv__(self, other: SymLike) -> Sym:
        return _binary("/", other, self)

    def __neg__(self) -> Sym:
        return _binary("-", 0, self)

    # -- questions --------------------------------------------------------------------------------
    def __eq__(self, other: object) -> Any:
        return Cond("==", self, _lift(other)) if _is_symlike(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return Cond("!=", self, _lift(other)) if _is_symlike(other) else NotImplemented

    def __lt__(self, other: SymLike) -> Cond:
        return Cond("<", self, _lift(other))

    def __le__(self, other: SymLike) -> Cond:
        return Cond("<=", self, _lift(other))

    def __gt__(self, other: SymLike) -> Cond:
        return Cond(">", self, _lift(other))

    def __ge__(self, other: SymLike) -> Cond:
        return Cond(">=", self, _lift(other))

    def __bool__(self) -> bool:
        return bool(Cond("!=", self, const(0)))

    def atoms(self) -> list[Atom]:
        """The named quantities in this expression, each once. No set: ``==`` of expressions asks a question."""
        found: dict[int, Atom] = {}
        for arg in self.args:
            if isinstance(arg, Sym):
                for atom in arg.atoms():
                    found.setdefault(atom.fingerprint, atom)
        return list(found.values())


class Const(Sym):
    """A literal number."""

    __slots__ = ()

    def __init__(self, value: Number) -> None:
        is_float = isinstance(value, float)
        point = value % _PRIME if not is_float else _mix("float", float(value))
        super().__init__("const", (value,), is_float, int(point))

    @property
    def value(self) -> Number:
        number: Number = self.args[0]
        return number


class Atom(Sym):
    """A named quantity. ``fixed`` carries the value of a layer's or loop's own quantity.

    ``local``: the name that a block gives this dim, so that one block serves callers with different ones (the cells
    of the full and of the sliding cache). ``cpp``: how a parameter's dim is written.
    """

    __slots__ = ("cpp", "fixed", "local", "name", "scope")

    def __init__(
        self,
        scope: Scope,
        name: str,
        is_float: bool = False,
        fixed: Number | None = None,
        local: str | None = None,
        cpp: str | None = None,
    ) -> None:
        super().__init__("atom", (), is_float, _mix("atom", scope.value, name))
        self.scope = scope
        self.name = name
        self.fixed = fixed
        self.local = local
        self.cpp = cpp

    @property
    def value(self) -> Number:
        return self.fixed if self.fixed is not None else current_value(self.scope.value, self.name)

    def atoms(self) -> list[Atom]:
        return [self]


class Compound(Sym):
    """An operation on expressions."""

    __slots__ = ()

    @property
    def value(self) -> Number:
        return _EVAL[self.op](*(a.value for a in self.args))


def _floordiv(a: Number, b: Number) -> Number:
    if b == 0:
        raise GraphError("division by zero in a dim expression")
    return a // b


_EVAL: dict[str, Callable[..., Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _floordiv,
    "exact": _floordiv,
    "%": lambda a, b: a % b,
    "/": lambda a, b: a / b,
    "sqrt": lambda a: math.sqrt(a),
    "log": lambda a: math.log(a),
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
}


def const(value: Number) -> Const:
    return Const(value)


def _is_symlike(x: object) -> bool:
    return isinstance(x, (Sym, int, float))


def _lift(x: Any) -> Sym:
    if isinstance(x, Sym):
        return x
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise GraphError(f"expected a number or a dim expression, found {type(x).__name__} {x!r}")
    return Const(x)


def lift(x: SymLike) -> Sym:
    """A number or expression as an expression."""
    return _lift(x)


def _binary(op: str, left: SymLike, right: SymLike) -> Sym:
    a, b = _lift(left), _lift(right)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(_EVAL[op](a.args[0], b.args[0]))
    is_float = op == "/" or a.is_float or b.is_float
    # identities keep printed shapes short
    if op == "+" and isinstance(b, Const) and b.args[0] == 0:
        return a
    if op == "+" and isinstance(a, Const) and a.args[0] == 0:
        return b
    if op == "-" and isinstance(b, Const) and b.args[0] == 0:
        return a
    if op in ("*", "//") and isinstance(b, Const) and b.args[0] == 1:
        return a
    if op == "*" and isinstance(a, Const) and a.args[0] == 1:
        return b
    if op == "*":
        for quotient_, divisor in ((a, b), (b, a)):  # exact(x, y)*y is x
            if isinstance(quotient_, Compound) and quotient_.op == "exact":
                over, under = quotient_.args
                if under.fingerprint == divisor.fingerprint:
                    return over  # type: ignore[no-any-return]
    if op == "//" and (quotient := _cancel(a, b)) is not None:
        return quotient
    fa, fb = a.fingerprint, b.fingerprint
    if not is_float and op in ("+", "-", "*"):
        point = {"+": fa + fb, "-": fa - fb, "*": fa * fb}[op] % _PRIME
    else:
        point = _mix(op, fa, fb)
    return Compound(op, (a, b), is_float, point)


def _cancel(a: Sym, b: Sym) -> Sym | None:
    """``(x*b) // b`` is ``x``: reshapes give this form all the time."""
    if a.fingerprint == b.fingerprint and not a.is_float:
        return Const(1)
    if isinstance(a, Compound) and a.op == "*":
        x, y = a.args
        if y.fingerprint == b.fingerprint:
            return x  # type: ignore[no-any-return]
        if x.fingerprint == b.fingerprint:
            return y  # type: ignore[no-any-return]
    return None


def exact(a: SymLike, b: SymLike) -> Sym:
    """``a // b`` where ``b`` is known to divide ``a``: then ``exact(a, b) * b`` is ``a``, also symbolically."""
    x, y = _lift(a), _lift(b)
    if (quotient := _cancel(x, y)) is not None:
        return quotient
    point = x.fingerprint * pow(y.fingerprint, -1, _PRIME) % _PRIME
    return Compound("exact", (x, y), False, point)


def sqrt(x: SymLike) -> Sym:
    a = _lift(x)
    return (
        Const(math.sqrt(a.args[0]))
        if isinstance(a, Const)
        else Compound("sqrt", (a,), True, _mix("sqrt", a.fingerprint))
    )


def log(x: SymLike) -> Sym:
    """Natural logarithm."""
    a = _lift(x)
    return (
        Const(math.log(a.args[0])) if isinstance(a, Const) else Compound("log", (a,), True, _mix("log", a.fingerprint))
    )


def minimum(x: SymLike, y: SymLike) -> Sym:
    a, b = _lift(x), _lift(y)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(min(a.args[0], b.args[0]))
    return Compound("min", (a, b), a.is_float or b.is_float, _mix("min", a.fingerprint, b.fingerprint))


def maximum(x: SymLike, y: SymLike) -> Sym:
    a, b = _lift(x), _lift(y)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(max(a.args[0], b.args[0]))
    return Compound("max", (a, b), a.is_float or b.is_float, _mix("max", a.fingerprint, b.fingerprint))


def same(a: SymLike, b: SymLike) -> bool:
    """Whether two expressions are equal for every binding; records nothing."""
    x, y = _lift(a), _lift(b)
    return x.fingerprint == y.fingerprint and x.value == y.value


def without_common_factors(a: SymLike, b: SymLike) -> tuple[Sym, Sym]:
    """Both sides divided by the factors they share, so that an equation of element counts is one of the model's own
    sizes."""
    left, below_left = _factors(_lift(a))
    right, below_right = _factors(_lift(b))
    left.extend(below_right)
    right.extend(below_left)
    for factor in list(left):
        twin = next((f for f in right if f.fingerprint == factor.fingerprint), None)
        if twin is not None:
            left.remove(factor)
            right.remove(twin)
    return product(left), product(right)


class _Factors(list[Sym]):
    """A list that removes by identity: ``==`` of expressions asks a question."""

    def remove(self, item: Sym) -> None:
        del self[next(i for i, each in enumerate(self) if each is item)]


def _factors(x: Sym) -> tuple[_Factors, _Factors]:
    """What is multiplied, and what an exact division divides by."""
    if isinstance(x, Compound) and x.op in ("*", "exact"):
        over, under = _factors(x.args[0])
        other_over, other_under = _factors(x.args[1])
        if x.op == "exact":
            other_over, other_under = other_under, other_over
        return _Factors([*over, *other_over]), _Factors([*under, *other_under])
    return _Factors([x]), _Factors()


def product(items: Any) -> Sym:
    """The product of expressions; 1 for none."""
    total: Sym = Const(1)
    for item in items:
        total = total * item
    return total


def substitute(x: Sym, mapping: dict[int, Sym]) -> Sym:
    """``x`` with atoms replaced, by fingerprint."""
    if x.fingerprint in mapping:
        return mapping[x.fingerprint]
    if not isinstance(x, Compound) or not any(a.fingerprint in mapping for a in x.atoms()):
        return x
    args = [substitute(a, mapping) for a in x.args]
    if x.op == "exact":
        return exact(*args)
    if x.op in ("min", "max"):
        return (minimum if x.op == "min" else maximum)(*args)
    if x.op in ("sqrt", "log"):
        return (sqrt if x.op == "sqrt" else log)(*args)
    return _binary(x.op, *args)


@dataclass(frozen=True, eq=False)
class Cond:
    """A question about expressions. Its truth value, once asked for, becomes a guard."""

    op: str
    left: Sym
    right: Sym

    @property
    def value(self) -> bool:
        a, b = self.left.value, self.right.value
        return {
            "==": a == b,
            "!=": a != b,
            "<": a < b,
            "<=": a <= b,
            ">": a > b,
            ">=": a >= b,
        }[self.op]

    def __bool__(self) -> bool:
        answer = self.value
        if not (isinstance(self.left, Const) and isinstance(self.right, Const)):
            guards.record(self, answer)
        return answer

    def __str__(self) -> str:
        return f"{to_text(self.left)} {self.op} {to_text(self.right)}"

    def atoms(self) -> list[Atom]:
        return [*self.left.atoms(), *self.right.atoms()]


PRESENT = "tensor:"
"""Prefix of the flags that say whether the file has an optional tensor."""


class Flag:
    """A yes/no quantity of the model or of one layer (a bool key, the presence of an optional tensor).

    ``bool(flag)`` records a guard. ``~flag`` is not offered: ask ``if not flag``.
    """

    __slots__ = ("fixed", "name", "scope")

    def __init__(self, scope: Scope, name: str, fixed: bool | None = None) -> None:
        self.scope = scope
        self.name = name
        self.fixed = fixed

    @property
    def value(self) -> bool:
        return bool(self.fixed if self.fixed is not None else current_value(self.scope.value, self.name))

    def __bool__(self) -> bool:
        answer = self.value
        guards.record(self, answer)
        return answer

    def __str__(self) -> str:
        return f"{self.scope.value}.{self.name}"


class Choice:
    """A text quantity (``hidden_activation``). Comparing it records a guard."""

    __slots__ = ("name", "scope")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.name = name

    @property
    def value(self) -> str:
        return str(current_value(self.scope.value, self.name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        answer = self.value == other
        guards.record(Matches(self, other), answer)
        return answer

    def __str__(self) -> str:
        return f"{self.scope.value}.{self.name}"


@dataclass(frozen=True)
class Matches:
    """The question whether a :class:`Choice` has one value."""

    choice: Choice
    text: str

    def __str__(self) -> str:
        return f'{self.choice} == "{self.text}"'


# -- text -----------------------------------------------------------------------------------------
_LEVEL = {"+": 1, "-": 1, "*": 2, "//": 2, "exact": 2, "/": 2, "%": 2}


def to_text(x: Sym) -> str:
    """As the author would write it: ``n_embd_head*n_head``."""
    return _text(x, 0)


def binds_right(x: Sym) -> bool:
    """Whether the right operand needs brackets at its own level: behind - and /, and a quotient behind *, where
    integers round."""
    first = x.args[1]
    while x.op == "*" and first.op == "*":  # a*(b%c*d) begins with a quotient too
        first = first.args[0]
    return x.op not in "+*" or (x.op == "*" and first.op in ("//", "exact", "%", "/"))


def _text(x: Sym, level: int) -> str:
    if isinstance(x, Const):
        return repr(x.args[0])
    if isinstance(x, Atom):
        return x.name
    if x.op in _LEVEL:
        mine = _LEVEL[x.op]
        left, right = _text(x.args[0], mine), _text(x.args[1], mine + binds_right(x))
        op = "//" if x.op == "exact" else x.op
        sep = f" {op} " if mine == 1 else op
        body = f"{left}{sep}{right}"
        return f"({body})" if mine < level else body
    return f"{x.op}({', '.join(_text(a, 0) for a in x.args)})"
