"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..expr import SymLike, same
from ..ir import Value
from ..op import F16, F32, I32, Result, op
from .arrays import to_rank
from .cost import PerElement
from .layout import need_packed

NORMAL, NEOX, MROPE, IMROPE = 0, 2, 8, 40
"""ggml's rope modes: pairs (2i, 2i+1); pairs (i, i + n_dims/2); the latter with one position per section of the pairs;
the same with sections interleaved."""
_MODE_NAMES = {
    NORMAL: "GGML_ROPE_TYPE_NORMAL", NEOX: "GGML_ROPE_TYPE_NEOX", MROPE: "GGML_ROPE_TYPE_MROPE",
    IMROPE: "GGML_ROPE_TYPE_IMROPE",
}
_SECTIONS = ("n_time", "n_height", "n_width", "n_extra")
_SCALING = {
    "n_ctx_orig": 0, "freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0, "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def yarn_ramp(low: float, high: float, n: int) -> Any:
    """1 where a pair is extrapolated (fast), 0 where interpolated; linear between."""
    pair = np.arange(n)
    return 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)


def angles(
    positions: Any, n_dims: int, base: float, scale: float, ext: float, attn: float, fast: float, slow: float,
    n_ctx_orig: int, factors: Any,
) -> tuple[Any, Any]:
    """cos and sin, [n_tokens, n_dims/2], with YaRN (arXiv:2309.00071) when ``ext`` is not 0; float64.

    ``positions`` [n_tokens, 1], or [n_tokens, n_dims/2] where pairs have positions of their own.
    """
    half = n_dims // 2
    theta = np.asarray(positions, dtype=np.float64) * base ** (-2.0 * np.arange(half) / n_dims)
    if factors is not None:
        theta = theta / np.asarray(factors, dtype=np.float64).reshape(-1)[:half]
    angle, magnitude = theta * scale, attn
    if ext != 0:
        def dim_of(rotations: float) -> float:
            with np.errstate(divide="ignore"):
                return float(n_dims * np.log(np.float64(n_ctx_orig) / (rotations * 2 * np.pi)) / (2 * np.log(base)))

        low, high = max(0.0, np.floor(dim_of(fast))), min(n_dims - 1.0, np.ceil(dim_of(slow)))
        mix = yarn_ramp(low, high, half) * ext
        angle = theta * scale * (1 - mix) + theta * mix
        magnitude *= 1 + 0.1 * np.log(1 / scale)
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


def section_of_pairs(sections: Sequence[int], half: int, interleaved: bool) -> Any:
    """Which of the four positions each pair turns by, [half]."""
    t, h, w, e = sections
    sector = np.arange(half) % (t + h + w + e)
    if not interleaved:
        return np.searchsorted(np.cumsum([t, h, w]), sector, side="right")
    third = sector % 3
    limit = np.array([3 * t, 3 * h, 3 * w])[third]
    return np.where(sector < limit, third, 3)


class Rope(PerElement):
    """Rotation of ``n_dims`` of dimension 0 from ``offset`` on; the other entries are copied."""

    operands = ("a", "pos", "factors?")
    work = 3.0
    sign = 1.0
    n_positions = 1
    modes: tuple[int, ...] = (NORMAL, NEOX)

    def check(self, a: Value, pos: Value, factors: Value | None, n_dims: SymLike, mode: int, offset: SymLike) -> Result:
        self.need_dtype(a, F32, F16)
        self.need_dtype(pos, I32)
        if mode not in self.modes:
            known = ", ".join(f"{m} ({_MODE_NAMES[m][len('GGML_ROPE_TYPE_') :]})" for m in self.modes)
            self.fail(f"mode {mode} is none of {known}", a, pos)
        if not all(same(n, 1) for n in pos.ne[1:]):
            self.fail("positions must be a vector", a, pos)
        if self.n_positions == 1:
            self.need_same(a.ne[2], pos.ne[0], "one position for each of dim 2 is needed", a, pos)
        else:
            self.need_same(a.ne[2] * 4, pos.ne[0], "four positions for each of dim 2 are needed", a, pos)
        n, start, width = int(n_dims), int(offset), int(a.ne[0])
        if n % 2 or start % 2 or width % 2:
            self.fail(f"n_dims = {n}, offset = {start} and dim 0 = {width} must be even", a, pos)
        if n < 2 or start < 0 or start + n > width:
            self.fail(f"entries {start}..{start + n} lie outside dim 0 = {width}", a, pos)
        if factors is not None:
            self.need_dtype(factors, F32)
            if int(factors.ne[0]) < n // 2:
                self.fail(f"factors must have at least n_dims/2 = {n // 2} entries", a, factors)
            need_packed(self, factors)
        self.need_rows(a)
        need_packed(self, pos)
        return Result(a.shape, a.dtype)

    def rotate(self, a: Any, positions: Any, factors: Any, n_dims: Any, mode: int, offset: Any, scaling: Any) -> Any:
        n, start = int(n_dims), int(offset)
        cos, sin = angles(
            positions, n, float(scaling["freq_base"]), float(scaling["freq_scale"]), float(scaling["ext_factor"]),
            float(scaling["attn_factor"]), float(scaling["beta_fast"]), float(scaling["beta_slow"]),
            int(scaling["n_ctx_orig"]), factors,
        )
        cos, sin = cos[:, None, :], sin[:, None, :] * self.sign
        full = to_rank(a, max(3, a.ndim))
        out = np.array(full)
        if mode == NORMAL:
            first, second = slice(start, start + n, 2), slice(start + 1, start + n, 2)
        else:
            first, second = slice(start, start + n // 2), slice(start + n // 2, start + n)
        x, y = full[..., first], full[..., second]
        out[..., first] = x * cos - y * sin
        out[..., second] = x * sin + y * cos
        return out.reshape(a.shape)

    def cpp_after(self, var: str, args: Sequence[str], attrs: Mapping[str, str]) -> list[str]:
        return [] if attrs["offset"] == "0" else [f"ggml_rope_set_offset({var}, {attrs['offset']});"]


class Plain(Rope):
    """One position a token."""

    attrs = {"n_dims": ..., "mode": ..., **_SCALING, "offset": 0}
    extra_ggml = ("ggml_rope_set_offset",)

    def infer(
        self, a: Value, pos: Value, factors: Value | None, n_dims: SymLike, mode: int, offset: SymLike, **_: Any
    ) -> Result:
        return self.check(a, pos, factors, n_dims, mode, offset)

    def numpy(self, a: Any, pos: Any, factors: Any, n_dims: Any, mode: int, offset: Any, **scaling: Any) -> Any:
        return self.rotate(a, pos.reshape(-1, 1), factors, n_dims, mode, offset, scaling)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        scaling = [attrs[name] for name in _SCALING]
        mode = _MODE_NAMES[node.attrs["mode"]]
        return f"{self.ggml}(ctx, {', '.join([*args, attrs['n_dims'], mode, *scaling])})"


@op
class rope_ext(Plain):
    """Rotate ``n_dims`` of dimension 0 of ``a`` [head, n_head, n_tokens] by positions ``pos`` i32 [n_tokens].

    The rotated entries begin at ``offset``. ``factors`` f32 [n_dims/2] divide the angles. ``mode`` as ggml: 0 pairs
    neighbours, 2 (NeoX) pairs halves.
    """

    ggml = "ggml_rope_ext"


@op
class rope_ext_back(Plain):
    """Rotation by the negative angle: the inverse of :class:`rope_ext`, up to YaRN's magnitude."""

    ggml = "ggml_rope_ext_back"
    sign = -1.0


@op
class _rope_multi(Rope):
    """Rotate by four positions a token (M-RoPE): ``pos`` i32 [4*n_tokens], all of one kind after the other.

    The first ``n_time`` pairs turn by the first position, the next ``n_height`` by the second, and so on; ``mode`` 8
    (MROPE) keeps sections together, 40 (IMROPE) interleaves the first three. Pairs are halves, as NeoX.
    """

    name = "rope_multi"
    attrs = {"n_dims": ..., **dict.fromkeys(_SECTIONS, ...), "mode": MROPE, **_SCALING, "offset": 0}
    ggml = "ggml_rope_multi"
    extra_ggml = ("ggml_rope_set_offset",)
    n_positions = 4
    modes = (MROPE, IMROPE)

    def infer(
        self, a: Value, pos: Value, factors: Value | None, n_dims: SymLike, mode: int, offset: SymLike, **attrs: Any
    ) -> Result:
        sections = [int(attrs[name]) for name in _SECTIONS]
        if min(sections) < 0 or not any(sections[:3]) or sum(sections) > int(a.ne[0]):
            self.fail(f"sections {sections} must hold at least one and at most {int(a.ne[0])} pairs", a, pos)
        return self.check(a, pos, factors, n_dims, mode, offset)

    def numpy(self, a: Any, pos: Any, factors: Any, n_dims: Any, mode: int, offset: Any, **attrs: Any) -> Any:
        kinds = pos.reshape(4, -1)
        chosen = section_of_pairs([int(attrs[name]) for name in _SECTIONS], int(n_dims) // 2, mode == IMROPE)
        return self.rotate(a, kinds[chosen].T, factors, n_dims, mode, offset, attrs)

    def cpp(self, args: Sequence[str], attrs: Mapping[str, str], node: Any) -> str:
        texts = [attrs[name] for name in _SECTIONS]
        sections = ", ".join(t if t.isdigit() else f"int({t})" for t in texts)
        array = f"std::array<int, 4>{{{sections}}}.data()"
        scaling = [attrs[name] for name in _SCALING]
        mode = _MODE_NAMES[node.attrs["mode"]]
        return f"ggml_rope_multi(ctx, {', '.join([*args, attrs['n_dims'], array, mode, *scaling])})"


def rope_multi(
    a: Value, pos: Value, factors: Value | None = None, *, n_dims: SymLike, sections: Sequence[SymLike], **attrs: Any
) -> Value:
    """M-RoPE: ``sections`` are the pairs that turn by each of the four positions (time, height, width, extra)."""
    given = [*sections, 0, 0, 0, 0][:4]
    return _rope_multi.of(a, pos, factors, n_dims=n_dims, **dict(zip(_SECTIONS, given, strict=True)), **attrs)
