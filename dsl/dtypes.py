"""The element types of ggml: ids, names and block sizes.

The table holds facts of ggml 0.25.3 (``enum ggml_type`` in ``ggml.h``, ``type_traits`` in
``ggml.c``). Ids are what a GGUF file stores; names are what ``ggml_type_name`` prints.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import DTypeLike


class GGMLType(Enum):
    """A ggml element type.

    Members bear ggml's own names, mixed case included (``GGMLType.q4_K``), so that ``.name`` is the
    name in ggml's messages. ``GGMLType.from_id(12)`` looks up an id, ``GGMLType["q4_K"]`` a name.

    ``block_size`` counts elements, ``block_bytes`` the bytes that store them; elements are stored in
    whole blocks along dimension 0.
    """

    f32 = (0, 1, 4)
    f16 = (1, 1, 2)
    q4_0 = (2, 32, 18)
    q4_1 = (3, 32, 20)
    q5_0 = (6, 32, 22)
    q5_1 = (7, 32, 24)
    q8_0 = (8, 32, 34)
    # 36 and not gguf-py's 40: since 2024 both block scalars are f16 (block_q8_1 in ggml-common.h).
    q8_1 = (9, 32, 36)
    q2_K = (10, 256, 84)
    q3_K = (11, 256, 110)
    q4_K = (12, 256, 144)
    q5_K = (13, 256, 176)
    q6_K = (14, 256, 210)
    q8_K = (15, 256, 292)
    iq2_xxs = (16, 256, 66)
    iq2_xs = (17, 256, 74)
    iq3_xxs = (18, 256, 98)
    iq1_s = (19, 256, 50)
    iq4_nl = (20, 32, 18)
    iq3_s = (21, 256, 110)
    iq2_s = (22, 256, 82)
    iq4_xs = (23, 256, 136)
    i8 = (24, 1, 1)
    i16 = (25, 1, 2)
    i32 = (26, 1, 4)
    i64 = (27, 1, 8)
    f64 = (28, 1, 8)
    iq1_m = (29, 256, 56)
    bf16 = (30, 1, 2)
    tq1_0 = (34, 256, 54)
    tq2_0 = (35, 256, 66)
    mxfp4 = (39, 32, 17)
    nvfp4 = (40, 64, 36)
    q1_0 = (41, 128, 18)
    q2_0 = (42, 64, 18)

    def __init__(self, id: int, block_size: int, block_bytes: int) -> None:
        self.id = id
        self.block_size = block_size
        self.block_bytes = block_bytes

    @classmethod
    def from_id(cls, id: int) -> GGMLType:
        """The type that a GGUF file writes as ``id``; ValueError where ggml has none."""
        try:
            return _BY_ID[id]
        except KeyError:
            raise ValueError(f"{id} is not the id of a ggml type") from None

    def __str__(self) -> str:
        return self.name

    @property
    def c_name(self) -> str:
        """The C enumerator, e.g. ``GGML_TYPE_Q4_K``."""
        return f"GGML_TYPE_{self.name.upper()}"

    @property
    def is_quantized(self) -> bool:
        """Whether several elements share a block (``ggml_is_quantized``)."""
        return self.block_size > 1

    @property
    def numpy_dtype(self) -> np.dtype[np.generic] | None:
        """The equal little-endian NumPy type; None where NumPy has none (bf16, quantised types)."""
        code = _NUMPY_CODES.get(self.name)
        return None if code is None else np.dtype(code)

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of ``n`` elements (``ggml_row_size``); ``n`` must fill whole blocks."""
        if n % self.block_size:
            raise ValueError(
                f"a row of {n} elements does not fill whole {self.name} blocks of {self.block_size}"
            )
        return n // self.block_size * self.block_bytes


_NUMPY_CODES: Final[dict[str, DTypeLike]] = {
    "f32": "<f4",
    "f16": "<f2",
    "f64": "<f8",
    "i8": "<i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
}

_BY_ID: Final = {type.id: type for type in GGMLType}

REMOVED_TYPES: Final[dict[int, str]] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}
"""Ids that ggml once stored in files and no longer reads, with their names of that time."""
