"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike
from ..ir import Value
from ..op import F16, F32, I32, Op, Result, op

NORMAL, NEOX, MROPE = 0, 2, 8
"""ggml's rope modes: pairs (2i, 2i+1); pairs (i, i + n_dims/2); the latter with one position per section."""
_MODE_NAMES = {NORMAL: "GGML_ROPE_TYPE_NORMAL", NEOX: "GGML_ROPE_TYPE_NEOX", MROPE: "GGML_ROPE_TYPE_MROPE"}


def yarn_ramp(low: float, high: float, n: int) -> Any:
    """1 where a pair is extrapolated (fast), 0 where interpolated; linear between."""
    pair = np.arange(n)
    return 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)


def angles(
    positions: Any, n_dims: int, base: float, scale: float, ext: float, attn: float, fast: float, slow: float,
    n_ctx_orig: int, factors: Any,
) -> tuple[Any, Any]:
    """cos and sin, [n_tokens, n_dims/2], with YaRN (arXiv:2309.00071) when ``ext`` is not 0; float64."""
    half = n_dims // 2
    theta = np.asarray(positions, dtype=np.float64)[:, None] * base ** (-2.0 * np.arange(half) / n_dims)
    if factors is not None:
        theta = theta / np.asarray(factors, dtype=np.float64)[:half]
    angle, magnitude = theta * scale, attn
    if ext != 0:
        def dim_of(rotations: float) -> float:
            return n_dims * math.log(n_ctx_orig / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(0, math.floor(dim_of(fast))), min(n_dims - 1, math.ceil(dim_of(slow)))
        mix = yarn_ramp(low, high, half) * ext
        angle = theta * scale * (1 - mix) + theta * mix
        magnitude *= 1 + 0.1 * math.log(1 / scale)
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


@op
class rope_ext(Op):
    """Rotate the first ``n_dims`` of dimension 0 of ``a`` [head, n_head, n_tokens] by positions ``pos`` i32 [n_tokens].

    ``factors`` f32 [n_dims/2] divide the angles. ``mode`` as ggml: 0 pairs neighbours, 2 (NeoX) pairs halves.
    """

    operands = ("a", "pos", "factors?")
    attrs = {
        "n_dims": ..., "mode": ..., "n_ctx_orig": 0, "freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0,
        "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
    }
    ggml = "ggml_rope_ext"

    def infer(self, a: Value, pos: Value, factors: Value | None, n_dims: SymLike, mode: int, **_: Any) -> Result:
        self.need_dtype(a, F32, F16)
        self.need_dtype(pos, I32)
        self.need_same(a.ne[2], pos.ne[0], "one position for each of dim 2 is needed", a, pos)
        if int(n_dims) % 2 or int(n_dims) > int(a.ne[0]):
            self.fail(f"n_dims = {int(n_dims)} must be even and at most dim 0", a)
        if factors is not None:
            self.need_dtype(factors, F32)
            if int(factors.ne[0]) < int(n_dims) // 2:
                self.fail(f"factors must have at least n_dims/2 = {int(n_dims) // 2} entries", factors)
        self.need_rows(a)
        return Result(a.shape, a.dtype)

    def numpy(
        self, a: Any, pos: Any, factors: Any, n_dims: Any, mode: int, n_ctx_orig: Any, freq_base: Any, freq_scale: Any,
        ext_factor: Any, attn_factor: Any, beta_fast: Any, beta_slow: Any,
    ) -> Any:
        n = int(n_dims)
        cos, sin = angles(
            pos, n, float(freq_base), float(freq_scale), float(ext_factor), float(attn_factor), float(beta_fast),
            float(beta_slow), int(n_ctx_orig), factors,
        )
        cos, sin = cos[:, None, :], sin[:, None, :]
        out = np.array(a)
        first, second = (slice(0, n, 2), slice(1, n, 2)) if mode == NORMAL else (slice(0, n // 2), slice(n // 2, n))
        x, y = a[..., first], a[..., second]
        out[..., first] = x * cos - y * sin
        out[..., second] = x * sin + y * cos
        return out

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        mode = _MODE_NAMES[node.attrs["mode"]]
        shown = [mode if name == "mode" else value for name, value in attrs.items()]
        return f"ggml_rope_ext(ctx, {', '.join([*args, *shown])})"
