"""Which element types ggml's kernels take (ggml 0.25.3, type traits of the CPU backend)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..dtypes import GGMLType
from ..ir import Value
from ..op import Op

BF16: Final = GGMLType.bf16
FLOATS: Final = (GGMLType.f32, GGMLType.f16, BF16)

READABLE: Final = frozenset(GGMLType) - {
    GGMLType.i8, GGMLType.i16, GGMLType.i32, GGMLType.i64, GGMLType.f64, GGMLType.q8_1, GGMLType.q8_K,
}
"""Types with a dot product and a conversion to f32: weights of matrices, embedding tables, keys and values."""

WRITABLE: Final = READABLE - {
    GGMLType.iq1_s, GGMLType.iq1_m, GGMLType.iq2_xxs, GGMLType.iq2_xs, GGMLType.iq2_s, GGMLType.iq3_xxs,
    GGMLType.iq3_s,
}
"""Types to which ggml converts f32 rows while a graph runs."""


def need_type(op: Op, value: Value, allowed: Collection[GGMLType], use: str, *others: Value, hint: str = "") -> None:
    """Fail with "f64 cannot be ..." unless the element type is allowed."""
    if value.dtype not in allowed:
        op.fail(f"{value.dtype.name} {use}", value, *others, hint=hint)
