"""Growing tensors by zeros, and shifting them in a circle."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expr import SymLike, lift, same
from ..ir import Value
from ..op import F32, Result, op
from .arrays import to_rank
from .cost import Moving

_LEFT = ("lp0", "lp1", "lp2", "lp3")
_RIGHT = ("rp0", "rp1", "rp2", "rp3")


class Padding(Moving):
    """f32; zeros before and behind each dim."""

    operands = ("a",)

    def grow(self, a: Value, left: list[SymLike], right: list[SymLike]) -> Result:
        self.need_dtype(a, F32)
        if any(int(p) < 0 for p in [*left, *right]):
            self.fail(f"paddings {[int(p) for p in [*left, *right]]} must not be negative", a)
        new = [n + lift(lp) + lift(rp) for n, lp, rp in zip(a.ne, left, right, strict=True)]
        return Result(new[: self.rank(len(a.shape), left, right)])

    def rank(self, before: int, left: list[Any], right: list[Any]) -> int:
        used = [i + 1 for i in range(4) if not (same(left[i], 0) and same(right[i], 0))]
        return max([before, *used])

    def zeros(self, a: Any, left: list[Any], right: list[Any]) -> Any:
        rank = self.rank(a.ndim, left, right)
        widths = [(int(lp), int(rp)) for lp, rp in zip(left, right, strict=True)][:rank]
        return np.pad(to_rank(a, rank), widths[::-1])


@op
class pad(Padding):
    """``p0`` ... ``p3`` zeros behind the entries of each dim."""

    attrs = {"p0": 0, "p1": 0, "p2": 0, "p3": 0}
    ggml = "ggml_pad"

    def infer(self, a: Value, **attrs: Any) -> Result:
        return self.grow(a, [0] * 4, list(attrs.values()))

    def numpy(self, a: Any, **attrs: Any) -> Any:
        return self.zeros(a, [0] * 4, list(attrs.values()))


@op
class pad_ext(Padding):
    """``lp0`` zeros before and ``rp0`` behind the entries of dim 0, and so on for each dim."""

    attrs = {name: 0 for pair in zip(_LEFT, _RIGHT, strict=True) for name in pair}
    ggml = "ggml_pad_ext"

    def infer(self, a: Value, **attrs: Any) -> Result:
        return self.grow(a, [attrs[n] for n in _LEFT], [attrs[n] for n in _RIGHT])

    def numpy(self, a: Any, **attrs: Any) -> Any:
        return self.zeros(a, [attrs[n] for n in _LEFT], [attrs[n] for n in _RIGHT])


@op
class roll(Moving):
    """Shift each dim by ``s0`` ... ``s3`` entries; what leaves at the end comes back at the beginning. f32."""

    operands = ("a",)
    attrs = {"s0": 0, "s1": 0, "s2": 0, "s3": 0}
    ggml = "ggml_roll"

    def infer(self, a: Value, **attrs: Any) -> Result:
        self.need_dtype(a, F32)
        self.need_rows(a)
        for axis, (shift, n) in enumerate(zip(attrs.values(), a.ne, strict=True)):
            if abs(int(shift)) >= int(n):
                self.fail(f"dim {axis} = {n} cannot be shifted by {int(shift)}", a)
        return Result(a.shape)

    def numpy(self, a: Any, **attrs: Any) -> Any:
        shifts = [int(s) for s in attrs.values()][: a.ndim]
        return np.roll(a, shifts[::-1], axis=tuple(range(a.ndim)))
