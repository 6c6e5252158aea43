"""How an op is declared: once, with everything that anyone wants to know about it.

A subclass of :class:`Op` states the operands, the rule for the result's shape and dtype, the meaning in
NumPy, the ggml call and the cost. Shape checking, the interpreter, emission and the views read only that.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from . import trace
from .dtypes import GGMLType
from .errors import ShapeError
from .expr import Sym, lift, same, without_common_factors
from .ir import CONTIGUOUS, Layout, Value, describe_numbers, describe_type

F32, F16, I32, I64 = GGMLType.f32, GGMLType.f16, GGMLType.i32, GGMLType.i64


OpType = TypeVar("OpType", bound="Op")


@dataclass(frozen=True)
class Result:
    """What an op gives: shape in ggml order, element type, memory layout."""

    shape: Sequence[Sym | int]
    dtype: GGMLType = F32
    layout: Layout = CONTIGUOUS


@dataclass(frozen=True)
class Cost:
    """Work of one evaluation: floating-point operations, bytes read and written."""

    flops: float
    bytes: float


class OpMeta(type):
    """Calling a declared op adds it to the graph being traced: ``mul_mat(w, x)`` is a tensor, not an ``Op``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Value:
        declared = TABLE.get(getattr(cls, "name", ""))
        if declared is None or type(declared).__qualname__ != cls.__qualname__:
            raise RuntimeError(f"{cls.__name__} is not an entry of the op table (decorate it with @op)")
        return _call(declared, args, kwargs)


@cache
def signature(declared: Op) -> inspect.Signature:
    """Operands, then attributes; an attribute behind an optional operand is given by name."""
    parameters = [
        inspect.Parameter(
            n.rstrip("?"),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None if n.endswith("?") else inspect.Parameter.empty,
        )
        for n in declared.operands
    ]
    by_name = any(p.default is None for p in parameters)
    parameters += [
        inspect.Parameter(
            n,
            inspect.Parameter.KEYWORD_ONLY if by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if d is ... else d,
        )
        for n, d in declared.attrs.items()
    ]
    return inspect.Signature(sorted(parameters, key=lambda p: (p.kind, p.default is not inspect.Parameter.empty)))


def _call(declared: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    shape = signature(declared)
    try:
        given = shape.bind(*args, **kwargs)
    except TypeError as e:
        declared.fail(f"{e}; the op is {declared.name}{shape}")
    given.apply_defaults()
    operands = [given.arguments[n.rstrip("?")] for n in declared.operands]
    for n, operand in zip(declared.operands, operands, strict=True):
        if operand is None and not n.endswith("?"):
            declared.fail(f"operand {n} is None: an optional weight that this file does not have?")
        if operand is not None and not isinstance(operand, Value):
            declared.fail(f"operand {n} must be a tensor, found {type(operand).__name__}")
    return trace.apply(declared, operands, {n: given.arguments[n] for n in declared.attrs})


class Op(metaclass=OpMeta):
    """One ggml op. Subclasses are declarations.

    ``operands``: names, a trailing ``?`` marks an optional one. ``attrs``: names with defaults
    (``...`` for required). ``ggml``: the C function. ``dtypes``: allowed element types by operand.
    """

    name: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ()
    attrs: ClassVar[Mapping[str, Any]] = {}
    ggml: ClassVar[str] = ""
    n_tensors: ClassVar[int] = 1
    writes_state: ClassVar[bool] = False  # the result is state after a write: never dead
    is_view: ClassVar[bool] = False  # shares memory with its first operand
    has_result: ClassVar[bool] = True
    in_place: ClassVar[bool] = False  # overwrites its first operand, which nothing may read any more
    chooses: ClassVar[bool] = False  # the result holds indices into dimension 0 of the operand, chosen by its values
    extra_ggml: ClassVar[tuple[str, ...]] = ()  # further C functions that `cpp` or `cpp_after` use

    def infer(self, *operands: Any, **attrs: Any) -> Result:
        """Shape, dtype and layout of the result; raises through :meth:`fail`."""
        raise NotImplementedError

    def numpy(self, *operands: Any, **attrs: Any) -> Any:
        """The meaning, on arrays whose axes are in NumPy's order (ggml's dims reversed)."""
        raise NotImplementedError

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        """The call. ``args`` are C++ expressions of the operands ("nullptr" for absent ones)."""
        return f"{self.ggml}(ctx, {', '.join([*args, *attrs.values()])})"

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        """Statements behind the call, e.g. a precision request."""
        return []

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        """Default: one operation an element, every operand read once."""
        n = count(result)
        moved = sum(nbytes(v) for v in operands if v is not None) + nbytes(result)
        return Cost(0.0 if self.is_view else n, 0.0 if self.is_view else moved)

    @classmethod
    def of(cls, *args: Any, **kwargs: Any) -> Value:
        """What calling the class does, for functions that give an op another signature."""
        return _call(TABLE[cls.name], args, kwargs)

    # -- for declarations ---------------------------------------------------------------------------
    def fail(self, message: str, *operands: Value | None, hint: str = "") -> NoReturn:
        """Raise ShapeError: op, what is wrong, both operands with names and shapes, the author's line."""
        named = [v for v in operands if v is not None]
        shown = " x ".join(f"{v.label} {describe_type(v)}" for v in named)
        numbers = " x ".join(describe_numbers(v) for v in named)
        text = f"[{self.name}] {message}" + (f": {shown} = {numbers}" if named else "")
        place = trace.here()
        if place is not None:
            text += f"\n{place.excerpt()}"
        if hint:
            text += f"\n  hint: {hint}"
        raise ShapeError(text)

    def need_same(self, a: Sym, b: Sym, message: str, *operands: Value | None, hint: str = "") -> None:
        """Two dims must be equal. Equal numbers with different names become a guard of the generated file."""
        if same(a, b):
            return
        left, right = without_common_factors(a, b)
        if a.value != b.value or not bool(left == right):
            self.fail(f"{message} ({a} = {a.value}, {b} = {b.value})", *operands, hint=hint)

    def need_dtype(self, value: Value, *allowed: GGMLType) -> None:
        if value.dtype not in allowed:
            names = ", ".join(t.name for t in allowed)
            self.fail(f"expected element type {names}, found {value.dtype.name}", value)

    def need_rows(self, value: Value) -> None:
        if not value.layout.rows:
            self.fail("operand is transposed in memory", value, hint="wrap it in cont()")

    def need_contiguous(self, value: Value) -> None:
        if not value.layout.contiguous:
            self.fail("operand is not contiguous in memory", value, hint="wrap it in cont()")

    def need_repeats(self, small: Value, big: Value) -> None:
        """``small`` must tile ``big`` (ggml_can_repeat), dimension by dimension."""
        for axis, (s, b) in enumerate(zip(small.ne, big.ne, strict=True)):
            if same(s, b) or same(s, lift(1)):
                continue
            if int(b) % int(s):
                self.fail(f"dim {axis} of the second operand does not tile the first ({s} and {b})", big, small)


def count(value: Value) -> int:
    """Elements of a value, in numbers."""
    total = 1
    for dim in value.shape:
        total *= int(dim)
    return total


def nbytes(value: Value) -> float:
    return count(value) / value.dtype.block_size * value.dtype.block_bytes


TABLE: dict[str, Op] = {}


def op(cls: type[OpType]) -> type[OpType]:
    """Class decorator: enter a declaration into the table. Authors then call the class: ``mul_mat(w, x)``."""
    cls.name = vars(cls).get("name") or cls.__name__.rstrip("_")
    if cls.name in TABLE:
        raise RuntimeError(f"op {cls.name} is declared twice")
    TABLE[cls.name] = object.__new__(cls)
    return cls


def tile(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Repeat an array to a shape, axis by axis (ggml's broadcasting; NumPy's only repeats length 1)."""
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if padded.shape == shape:
        return padded
    return np.tile(padded, tuple(b // s for s, b in zip(padded.shape, shape, strict=True)))
