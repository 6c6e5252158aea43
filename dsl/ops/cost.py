"""Costs that are a number of operations an element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..ir import Value
from ..op import Cost, Op, count, nbytes


class PerElement(Op):
    """``work`` floating-point operations for each element of the first operand; every operand is read once."""

    work: ClassVar[float] = 1.0

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        given = [v for v in operands if v is not None]
        n = count(given[0]) if given else count(result)
        return Cost(self.work * n, sum(nbytes(v) for v in given) + nbytes(result))


class Moving(Op):
    """Copies: no arithmetic, every operand read once and the result written."""

    def cost(self, result: Value, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> Cost:
        return Cost(0.0, sum(nbytes(v) for v in operands if v is not None) + nbytes(result))
