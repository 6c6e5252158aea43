"""NVFP4 to floats in NumPy.

Follows ``block_nvfp4`` (``ggml-common.h``) and ``dequantize_row_nvfp4`` (``ggml-quants.c``) of ggml
0.25.3: a block of 64 elements is 4 scales followed by 32 bytes of 4-bit codes. Each scale (an
unsigned E4M3) serves 16 elements; in each of those groups of 8 bytes the low nibbles are the first
8 elements and the high nibbles the last 8.

The per-tensor scale of NVFP4 is not part of the blocks: a GGUF keeps it in a tensor of its own
(``*.scale``) which the graph applies.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_SCALES: Final = 4
_CODE_BYTES: Final = 32


def _code_values() -> NDArray[np.float32]:
    """The 16 values of E2M1, doubled so that they are integers (ggml halves the scale instead)."""
    magnitudes = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.float32)
    return np.concatenate([magnitudes, np.float32(0) - magnitudes])


def _scale_values() -> NDArray[np.float32]:
    """Half the value of each of the 256 scale bytes (``ggml_ue4m3_to_fp32``).

    The sign bit is not looked at; 0x7F, E4M3's NaN, counts as zero, but 0xFF does not.
    """
    byte = np.arange(256)
    exponent = (byte >> 3) & 0xF
    mantissa = (byte & 0x7).astype(np.float32)
    subnormal = np.ldexp(mantissa, -9)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, subnormal, normal) * np.float32(0.5)
    value[0x7F] = 0
    return value.astype(np.float32)


_CODES: Final = _code_values()
_HALF_SCALES: Final = _scale_values()


def dequantize_nvfp4(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the elements of ``blocks``, a uint8 array whose last axis holds whole 36-byte blocks.

    The last axis of the result counts elements: 64 for each block.
    """
    *lead, n_bytes = blocks.shape
    grid = blocks.reshape(*lead, n_bytes // (_SCALES + _CODE_BYTES), _SCALES + _CODE_BYTES)
    scales = _HALF_SCALES[grid[..., :_SCALES]]
    codes = grid[..., _SCALES:].reshape(*grid.shape[:-1], _SCALES, _CODE_BYTES // _SCALES)
    elements = np.concatenate([_CODES[codes & 0xF], _CODES[codes >> 4]], axis=-1)
    elements *= scales[..., np.newaxis]
    return elements.reshape(*lead, grid.shape[-2] * _SCALES * 16)
