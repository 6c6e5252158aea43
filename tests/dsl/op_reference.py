"""What every op means, element by element, from the comments of ggml.h: independent of the NumPy meanings.

A reference gets its operands as :class:`Grid` (called with ggml's four indices) and the attributes, and returns the
function that gives the result's element at four indices. Plain loops and Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .helpers import Array

Element = Callable[[int, int, int, int], float]


class Grid:
    """An array by ggml's indices; ``ne`` has four dims. ``grid[k]`` is element k in memory order."""

    def __init__(self, array: Array) -> None:
        self.array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        self.ne = self.array.shape[::-1]

    def __call__(self, i0: int, i1: int = 0, i2: int = 0, i3: int = 0) -> float:
        return self.array[i3, i2, i1, i0].item()

    def __getitem__(self, k: int) -> float:
        return self.array.reshape(-1)[k].item()

    def row(self, i1: int, i2: int, i3: int) -> list[float]:
        return [self(i, i1, i2, i3) for i in range(self.ne[0])]

    def tiled(self, *index: int) -> float:
        """Out of range: around again."""
        i0, i1, i2, i3 = (i % n for i, n in zip(index, self.ne, strict=True))
        return self(i0, i1, i2, i3)


# -- one element -----------------------------------------------------------------------------------
def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_erf(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def _gelu_quick(x: float) -> float:
    return x * _sigmoid(1.702 * x)


def _silu(x: float) -> float:
    return x * _sigmoid(x)


def _relu(x: float) -> float:
    return max(x, 0.0)


_UNARY: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "neg": lambda x: -x,
    "sgn": lambda x: (x > 0) - (x < 0),
    "step": lambda x: float(x > 0),
    "relu": _relu,
    "sqr": lambda x: x**2,
    "sqrt": lambda x: x**0.5,
    "exp": math.exp,
    "expm1": lambda x: math.exp(x) - 1,
    "log": math.log,
    "softplus": lambda x: max(x, 0.0) + math.log(1 + math.exp(-abs(x))),
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
    "ceil": math.ceil,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_erf": _gelu_erf,
    "gelu_quick": _gelu_quick,
}

_BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}

_GATES = {
    "reglu": _relu, "geglu": _gelu, "geglu_erf": _gelu_erf, "geglu_quick": _gelu_quick, "swiglu": _silu,
}


def _unary(f: Callable[[float], float]) -> Callable[..., Element]:
    return lambda a: lambda *i: f(a(*i))


def _binary(f: Callable[[float, float], float]) -> Callable[..., Element]:
    return lambda a, b: lambda *i: f(a(*i), b.tiled(*i))


def _gate_split(f: Callable[[float], float]) -> Callable[..., Element]:
    return lambda a, b: lambda *i: f(a(*i)) * b(*i)


def _gate_halves(f: Callable[[float], float]) -> Callable[..., Element]:
    def reference(a: Grid, swapped: bool) -> Element:
        n = a.ne[0] // 2
        gate, up = (n, 0) if swapped else (0, n)
        return lambda i0, *i: f(a(i0 + gate, *i)) * a(i0 + up, *i)

    return reference


def _limit(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


def _swiglu_oai(a: Grid, b: Grid, alpha: float, limit: float) -> Element:
    def at(*i: int) -> float:
        x, y = min(a(*i), limit), _limit(b(*i), -limit, limit)
        return x / (1 + math.exp(-alpha * x)) * (y + 1)

    return at


# -- rows ------------------------------------------------------------------------------------------
def _rms_norm(a: Grid, eps: float) -> Element:
    def at(i0: int, *i: int) -> float:
        row = a.row(*i)
        return row[i0] / math.sqrt(sum(x * x for x in row) / len(row) + eps)

    return at


def _norm(a: Grid, eps: float) -> Element:
    def at(i0: int, *i: int) -> float:
        row = a.row(*i)
        mean = sum(row) / len(row)
        return (row[i0] - mean) / math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + eps)

    return at


def _l2_norm(a: Grid, eps: float) -> Element:
    return lambda i0, *i: a(i0, *i) / max(math.sqrt(sum(x * x for x in a.row(*i))), eps)


def _soft_max_ext(a: Grid, mask: Grid | None, sinks: Grid | None, scale: float, max_bias: float) -> Element:
    def at(i0: int, i1: int, i2: int, i3: int) -> float:
        row = [x * scale for x in a.row(i1, i2, i3)]
        if mask is not None:
            row = [x + _slope(i2, a.ne[2], max_bias) * mask.tiled(k, i1, i2, i3) for k, x in enumerate(row)]
        total = sum(math.exp(x) for x in row) + (0 if sinks is None else math.exp(sinks[i2]))
        return math.exp(row[i0]) / total

    return at


def _slope(head: int, n_head: int, max_bias: float) -> float:
    if max_bias <= 0:
        return 1.0
    power = 2 ** math.floor(math.log2(n_head))
    if head < power:
        return float(2 ** (-max_bias * (head + 1) / power))
    return float(2 ** (-max_bias / 2 * (2 * (head - power) + 1) / power))


# -- matrices --------------------------------------------------------------------------------------
def _mul_mat(a: Grid, b: Grid, **_: Any) -> Element:
    r2, r3 = b.ne[2] // a.ne[2], b.ne[3] // a.ne[3]
    return lambda i0, i1, i2, i3: sum(a(k, i0, i2 // r2, i3 // r3) * b(k, i1, i2, i3) for k in range(a.ne[0]))


def _out_prod(a: Grid, b: Grid) -> Element:
    r2, r3 = b.ne[2] // a.ne[2], b.ne[3] // a.ne[3]
    return lambda i0, i1, i2, i3: sum(a(i0, k, i2 // r2, i3 // r3) * b(i1, k, i2, i3) for k in range(a.ne[1]))


def _mul_mat_id(experts: Grid, b: Grid, ids: Grid, **_: Any) -> Element:
    return lambda i0, e, token, _: sum(
        experts(k, i0, int(ids(e, token))) * b(k, e % b.ne[1], token) for k in range(b.ne[0])
    )


def _flash_attn_ext(
    q: Grid, k: Grid, v: Grid, mask: Grid | None, sinks: Grid | None, scale: float, max_bias: float,
    logit_softcap: float, n_kv_max: int,
) -> Element:
    group = q.ne[2] // k.ne[2]

    def at(i0: int, head: int, token: int, i3: int) -> float:
        weights = []
        for cell in range(k.ne[1]):
            s = scale * sum(q(d, token, head, i3) * k(d, cell, head // group, i3) for d in range(q.ne[0]))
            if logit_softcap:
                s = logit_softcap * math.tanh(s / logit_softcap)
            if mask is not None:
                s += _slope(head, q.ne[2], max_bias) * mask.tiled(cell, token, head, i3)
            weights.append(math.exp(s))
        total = sum(weights) + (0 if sinks is None else math.exp(sinks[head]))
        return sum(w * v(i0, c, head // group, i3) for c, w in enumerate(weights)) / total if total else 0.0

    return at


def _lightning_indexer(q: Grid, k: Grid, weights: Grid, mask: Grid) -> Element:
    def at(cell: int, token: int, _: int, stream: int) -> float:
        score = 0.0
        for head in range(q.ne[1]):
            dot = sum(q(d, head, token, stream) * k(d, 0, cell, stream) for d in range(q.ne[0]))
            score += max(dot, 0.0) * weights(head, token, 0, stream)
        return score + mask.tiled(cell, token, 0, stream)

    return at


# -- rope ------------------------------------------------------------------------------------------
def _rotated(
    a: Grid, offset: int, n_dims: int, neighbours: bool, sign: float, turn: Callable[[int, int], tuple[float, float]]
) -> Element:
    """Rotate pairs; ``turn(pair, token)`` gives cos and sin."""

    def at(i0: int, i1: int, i2: int, i3: int) -> float:
        j = i0 - offset
        if not 0 <= j < n_dims:
            return a(i0, i1, i2, i3)
        pair, second = (j // 2, j % 2 == 1) if neighbours else (j % (n_dims // 2), j >= n_dims // 2)
        first, apart = (2 * pair, 1) if neighbours else (pair, n_dims // 2)
        x, y = a(offset + first, i1, i2, i3), a(offset + first + apart, i1, i2, i3)
        cos, sin = turn(pair, i2)
        sin *= sign
        return x * sin + y * cos if second else x * cos - y * sin

    return at


def _turn(
    position: float, pair: int, n_dims: int, factors: Grid | None, n_ctx_orig: int, freq_base: float,
    freq_scale: float, ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
) -> tuple[float, float]:
    theta = position * freq_base ** (-2 * pair / n_dims) / (1 if factors is None else factors[pair])
    angle = freq_scale * theta
    if ext_factor:
        low, high = (
            n_dims * math.log(n_ctx_orig / (beta * 2 * math.pi)) / (2 * math.log(freq_base))
            for beta in (beta_fast, beta_slow)
        )
        low, high = max(0, math.floor(low)), min(n_dims - 1, math.ceil(high))
        ramp = (1 - _limit((pair - low) / max(0.001, high - low), 0, 1)) * ext_factor
        angle = freq_scale * theta * (1 - ramp) + theta * ramp
        attn_factor *= 1 + 0.1 * math.log(1 / freq_scale)
    return math.cos(angle) * attn_factor, math.sin(angle) * attn_factor


def _rope(sign: float) -> Callable[..., Element]:
    def reference(
        a: Grid, pos: Grid, factors: Grid | None, n_dims: int, mode: int, offset: int, **scaling: Any
    ) -> Element:
        return _rotated(
            a, offset, n_dims, mode == 0, sign,
            lambda pair, token: _turn(pos[token], pair, n_dims, factors, **scaling),
        )

    return reference


def _rope_multi(
    a: Grid, pos: Grid, factors: Grid | None, n_dims: int, n_time: int, n_height: int, n_width: int, n_extra: int,
    mode: int, offset: int, **scaling: Any,
) -> Element:
    n = [n_time, n_height, n_width, n_extra]

    def kind(pair: int) -> int:
        sector = pair % sum(n)
        if mode == 40:  # interleaved
            return sector % 3 if sector < 3 * n[sector % 3] else 3
        return next(k for k in range(4) if sector < sum(n[: k + 1]))

    return _rotated(
        a, offset, n_dims, False, 1,
        lambda pair, token: _turn(pos[kind(pair) * a.ne[2] + token], pair, n_dims, factors, **scaling),
    )


# -- hyper-connections -----------------------------------------------------------------------------
def _hc_comb(mixes: Grid, scale: Grid, base: Grid, eps: float, n_iter: int) -> Element:
    hc = range(4)

    def matrix(token: int) -> dict[tuple[int, int], float]:
        c = {(d, s): mixes(8 + d + 4 * s, token) * scale[2] + base[8 + d + 4 * s] for d in hc for s in hc}
        e = {key: math.exp(value) for key, value in c.items()}
        c = {(d, s): e[d, s] / sum(e[x, s] for x in hc) + eps for d in hc for s in hc}
        for i in range(n_iter):
            if i > 0:
                c = {(d, s): c[d, s] / (sum(c[x, s] for x in hc) + eps) for d in hc for s in hc}
            c = {(d, s): c[d, s] / (sum(c[d, x] for x in hc) + eps) for d in hc for s in hc}
        return c

    return lambda d, s, token, _: matrix(token)[d, s]


def _hc_pre(x: Grid, weights: Grid) -> Element:
    return lambda i0, token, *_: sum(x(i0, h, token) * weights(h, token) for h in range(x.ne[1]))


def _hc_pre_gated(x: Grid, gate: Grid, scale: float) -> Element:
    return lambda i0, token, *_: scale * sum(
        x(i0, h, token) * _sigmoid(gate(i0, h, token)) for h in range(x.ne[1])
    )


def _hc_post(x: Grid, residual: Grid, post: Grid, comb: Grid | None) -> Element:
    def at(i0: int, dst: int, token: int, _: int) -> float:
        kept = residual(i0, dst, token) if comb is None else sum(
            residual(i0, src, token) * comb(dst, src, token) for src in range(residual.ne[1])
        )
        return x(i0, token) * post(dst, token) + kept

    return at


# -- rows by index ---------------------------------------------------------------------------------
def _get_rows(a: Grid, ids: Grid) -> Element:
    return lambda i0, i1, i2, i3: a(i0, int(ids(i1, i2, i3)), i2, i3)


def _set_rows(a: Grid, b: Grid, ids: Grid) -> Element:
    def at(i0: int, i1: int, i2: int, i3: int) -> float:
        for k in range(b.ne[1]):
            if ids.tiled(k, i2, i3, 0) == i1:
                return b(i0, k, i2, i3)
        return a(i0, i1, i2, i3)

    return at


def _put(a: Grid, b: Grid, axis: int, start: int) -> Element:
    def at(*i: int) -> float:
        k = i[axis] - start
        return b(*(k if d == axis else x for d, x in enumerate(i))) if 0 <= k < b.ne[axis] else a(*i)

    return at


def _argmax(a: Grid) -> Element:
    def at(i0: int, *_: int) -> float:
        row = a.row(i0, 0, 0)
        return max(k for k, x in enumerate(row) if x == max(row))

    return at


def _sorted(a: Grid, descending: bool) -> Element:
    def at(i0: int, *i: int) -> float:
        row = a.row(*i)
        return sorted(range(len(row)), key=row.__getitem__, reverse=descending)[i0]

    return at


# -- views and copies ------------------------------------------------------------------------------
def _same_memory(a: Grid, dims: Sequence[int] | None) -> Element:
    ne = [*(a.ne if dims is None else dims), 1, 1, 1][:4]
    return lambda i0, i1, i2, i3: a[i0 + ne[0] * (i1 + ne[1] * (i2 + ne[2] * i3))]


def _permute(a: Grid, axes: Sequence[int]) -> Element:
    return lambda *i: a(*(i[axes[k]] for k in range(4)))


def _slice(a: Grid, axis: int, start: int, length: int) -> Element:
    return lambda *i: a(*(x + start * (k == axis) for k, x in enumerate(i)))


def _select(a: Grid, axis: int, index: int) -> Element:
    return lambda *i: a(*[*i[:axis], index, *i[axis:3]])


def _concat(a: Grid, b: Grid, axis: int) -> Element:
    n = a.ne[axis]
    return lambda *i: a(*i) if i[axis] < n else b(*(x - n * (k == axis) for k, x in enumerate(i)))


def _padded(a: Grid, left: Sequence[int]) -> Element:
    def at(*i: int) -> float:
        inside = [x - p for x, p in zip(i, left, strict=True)]
        return a(*inside) if all(0 <= x < n for x, n in zip(inside, a.ne, strict=True)) else 0.0

    return at


def _cast(a: Grid, dtype: Any) -> Element:
    if dtype.name == "i32":
        return lambda *i: math.trunc(a(*i))
    return lambda *i: a(*i)  # up to rounding


def _tri(a: Grid, kind: str) -> Element:
    keep: dict[str, Callable[[int, int], bool]] = {
        "lower": lambda column, row: column < row, "lower_diag": lambda column, row: column <= row,
        "upper": lambda column, row: column > row, "upper_diag": lambda column, row: column >= row,
    }
    return lambda i0, i1, *i: a(i0, i1, *i) if keep[kind](i0, i1) else 0.0


REFERENCE: dict[str, Callable[..., Element]] = {
    **{name: _unary(f) for name, f in _UNARY.items()},
    **{name: _binary(f) for name, f in _BINARY.items()},
    **{f"{name}_split": _gate_split(f) for name, f in _GATES.items()},
    **{name: _gate_halves(f) for name, f in _GATES.items()},
    "swiglu_oai": _swiglu_oai,
    "swiglu_clamp": lambda a, b, limit: lambda *i: _silu(min(a(*i), limit)) * _limit(b(*i), -limit, limit),
    "scale": lambda a, s: lambda *i: a(*i) * s,
    "scale_bias": lambda a, s, b: lambda *i: a(*i) * s + b,
    "clamp": lambda a, low, high: lambda *i: _limit(a(*i), low, high),
    "rms_norm": _rms_norm,
    "norm": _norm,
    "l2_norm": _l2_norm,
    "sum_rows": lambda a: lambda _, *i: sum(a.row(*i)),
    "mean": lambda a: lambda _, *i: sum(a.row(*i)) / a.ne[0],
    "cumsum": lambda a: lambda i0, *i: sum(a.row(*i)[: i0 + 1]),
    "soft_max": lambda a: _soft_max_ext(a, None, None, 1.0, 0.0),
    "soft_max_ext": _soft_max_ext,
    "mul_mat": _mul_mat,
    "out_prod": _out_prod,
    "mul_mat_id": _mul_mat_id,
    "add_id": lambda a, b, ids: lambda i0, i1, i2, i3: a(i0, i1, i2, i3) + b(i0, int(ids(i1, i2))),
    "flash_attn_ext": _flash_attn_ext,
    "lightning_indexer": _lightning_indexer,
    "rope_ext": _rope(1),
    "rope_ext_back": _rope(-1),
    "rope_multi": _rope_multi,
    "dsv4_hc_comb": _hc_comb,
    "dsv4_hc_pre": _hc_pre,
    "dsv4_hc_pre_gated": _hc_pre_gated,
    "dsv4_hc_post": _hc_post,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "put": _put,
    "store": _set_rows,
    "tap": lambda a, name, il: a,
    "argmax": _argmax,
    "top_k": lambda a, k: _sorted(a, True),
    "argsort": lambda a, order: _sorted(a, order == "desc"),
    "argsort_top_k": lambda a, k: _sorted(a, True),
    "reshape": _same_memory,
    "cont": _same_memory,
    "permute": _permute,
    "transpose": lambda a: lambda i0, i1, i2, i3: a(i1, i0, i2, i3),
    "slice": _slice,
    "select": _select,
    "concat": _concat,
    "repeat": lambda a, like: a.tiled,
    "repeat_4d": lambda a, dims: a.tiled,
    "cast": _cast,
    "fill": lambda a, c: lambda *i: c,
    "full": lambda dims, value, dtype: lambda *i: value,
    "arange": lambda start, stop, step: lambda i0, *_: start + i0 * step,
    "diag_mask_inf": lambda a, n_past: lambda i0, i1, *i: a(i0, i1, *i) if i0 <= i1 + n_past else -math.inf,
    "tri": _tri,
    "pad": lambda a, p0, p1, p2, p3: _padded(a, (0, 0, 0, 0)),
    "pad_ext": lambda a, **p: _padded(a, [p[f"lp{k}"] for k in range(4)]),
    "roll": lambda a, s0, s1, s2, s3: lambda i0, i1, i2, i3: a.tiled(i0 - s0, i1 - s1, i2 - s2, i3 - s3),
}
