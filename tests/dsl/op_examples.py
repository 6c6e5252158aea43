"""A legal example, or several, of every op of the table. Shapes are in ggml's order.

Used by the null tests (shape, type, NumPy meaning) and by the comparison of NumPy with ggml.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.ir import Kind, Value

from .helpers import Array, Example, Operand, Recipe

F16, I32, I64, Q8_0 = GGMLType.f16, GGMLType.i32, GGMLType.i64, GGMLType.q8_0
SLOPPY = 2e-3  # kernels that look up an f16 table, or that round to f16 on the way


# -- data ------------------------------------------------------------------------------------------
def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.1, 3.0, shape)


def wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Both tails of the activations."""
    return rng.uniform(-30.0, 30.0, shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """No two entries of a row are equal: the order of sorting is then determined."""
    rows = np.tile(np.arange(shape[-1]) * 0.25 - 1, (*shape[:-1], 1))
    return rng.permuted(rows, axis=-1)


def below(n: int) -> Recipe:
    """Integers from 0 to n - 1, with repetition."""
    return lambda rng, shape: rng.integers(0, n, shape)


def choice(n: int) -> Recipe:
    """Integers from 0 to n - 1, without repetition in a row."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        everything = np.tile(np.arange(n), (*shape[:-1], 1))
        return rng.permuted(everything, axis=-1)[..., : shape[-1]]

    return draw


def mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0 or -inf, at least one 0 in each row."""
    hidden = rng.random(shape) < 0.4
    hidden[..., 0] = False
    return np.where(hidden, -np.inf, 0.0)


def closed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """As :func:`mask`, but the first row sees nothing."""
    out = mask(rng, shape)
    out[..., 0, :] = -np.inf
    return out


def hadamard(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """The orthonormal Hadamard matrix in natural order."""
    out = np.ones((1, 1))
    while out.shape[0] < shape[0]:
        out = np.block([[out, out], [out, -out]])
    return np.asarray(out / np.sqrt(shape[0]))


# -- views -----------------------------------------------------------------------------------------
def turned(x: Value) -> Value:
    """Dims 0 and 1 swapped in memory."""
    return ops.transpose(x)


def heads_last(x: Value) -> Value:
    """[head, n_head, n] as [head, n, n_head]."""
    return ops.permute(x, 0, 2, 1, 3)


def left_half(x: Value) -> Value:
    return ops.slice_(x, 0, 0, x.ne[0] // 2)


def right_half(x: Value) -> Value:
    return ops.slice_(x, 0, x.ne[0] // 2, x.ne[0] // 2)


def copied(x: Value) -> Value:
    return ops.cont(x)


def t(*shape: int, **more: Any) -> Operand:
    return Operand(shape, **more)


def unary(close: float = 1e-5, data: Recipe | None = None) -> list[Example]:
    first = t(7, 3) if data is None else t(7, 3, data=data)
    return [Example((first,), close=close), Example((t(4, 3, 2, data=data or wide, via=heads_last),), close=close)]


def split(close: float = 1e-5, **attrs: Any) -> list[Example]:
    return [
        Example((t(6, 3), t(6, 3)), attrs, close),
        Example((t(12, 3, 2, via=left_half), t(12, 3, 2, via=right_half)), attrs, close),
    ]


def halves(close: float = 1e-5) -> list[Example]:
    return [Example((t(8, 3),), {}, close), Example((t(8, 2, 3),), {"swapped": True}, close)]


BINARY = [
    Example((t(6, 4), t(6, 4))),
    Example((t(6, 4, 2), t(6, data=positive))),
    Example((t(6, 4, 2, 3), t(3, 2, 1, 3, data=positive))),
    Example((t(6, 4), t(1, data=positive))),
    Example((t(6, 4), t(4, 6, data=positive, via=turned))),
    Example((t(6, 3, 4, via=heads_last), t(6, 4, 3, data=positive))),
]
NORM = [Example((t(16, 3),), {"eps": 1e-5}), Example((t(8, 3, 2, via=heads_last),), {"eps": 1e-6})]
ROWS = [Example((t(7, 3),)), Example((t(6, 3, 2, 2),)), Example((t(4, 3, 2, via=heads_last),))]
ROPE_EXAMPLES = [
    Example((t(8, 3, 5), t(5, dtype=I32, data=below(100))), {"n_dims": 8, "mode": ops.rope.NORMAL}),
    Example((t(8, 3, 5), t(5, dtype=I32, data=below(100)), t(2, data=positive)), {"n_dims": 4, "mode": ops.rope.NEOX}),
    Example(
        (t(12, 3, 5), t(5, dtype=I32, data=below(100))),
        {"n_dims": 4, "mode": ops.rope.NORMAL, "offset": 6, "freq_base": 160000.0},
    ),
    Example((t(12, 3, 5), t(5, dtype=I32, data=below(100))), {"n_dims": 4, "mode": ops.rope.NEOX, "offset": 8}),
    Example(
        (t(16, 2, 5), t(5, dtype=I32, data=below(2000)), None),
        {
            "n_dims": 16, "mode": ops.rope.NORMAL, "n_ctx_orig": 64, "freq_scale": 0.25, "ext_factor": 1.0,
            "attn_factor": 0.9,
        },
        1e-3,
    ),
    Example((t(16, 3, 5, via=left_half), t(5, dtype=I32, data=below(100))), {"n_dims": 8, "mode": ops.rope.NEOX}),
]
ATTENTION = (t(8, 5, 4), t(8, 7, 2, dtype=F16), t(6, 7, 2, dtype=F16))

EXAMPLES: dict[str, list[Example]] = {
    # arithmetic
    "add": [*BINARY, Example((t(6, 4, dtype=F16), t(6, 4, dtype=F16)), close=SLOPPY)],
    "sub": [*BINARY],
    "mul": [*BINARY, Example((t(6, 4, dtype=F16), t(6)), close=SLOPPY)],
    "div": [*BINARY[1:]],
    "scale": [Example((t(6, 4),), {"s": 0.37})],
    "scale_bias": [Example((t(6, 4, 2),), {"s": -0.5, "b": 0.25})],
    "clamp": [
        Example((t(6, 4),), {"low": -0.5, "high": 0.75}),
        Example((t(12, 4, 2, via=left_half),), {"low": 6.1e-5, "high": float("inf")}),
    ],
    # functions of one element
    **{name: unary() for name in ("abs", "neg", "sgn", "step", "relu", "sqr", "floor", "ceil", "tanh", "sin", "cos")},
    **{name: unary(data=positive) for name in ("sqrt", "log")},
    "exp": [Example((t(7, 3),))],
    "expm1": [Example((t(7, 3),))],
    **{name: unary() for name in ("softplus", "sigmoid", "silu", "gelu_erf")},
    **{name: unary(SLOPPY) for name in ("gelu", "gelu_quick")},
    # gated units
    **{name: split() for name in ("reglu_split", "swiglu_split", "geglu_erf_split")},
    **{name: split(SLOPPY) for name in ("geglu_split", "geglu_quick_split")},
    "swiglu_oai": split(alpha=1.702, limit=0.8),
    "swiglu_clamp": split(limit=0.7),
    **{name: halves() for name in ("reglu", "swiglu", "geglu_erf")},
    **{name: halves(SLOPPY) for name in ("geglu", "geglu_quick")},
    # rows
    "rms_norm": NORM,
    "norm": NORM,
    "l2_norm": [*NORM, Example((t(8, 3),), {"eps": 100.0})],
    "sum_rows": ROWS,
    "mean": ROWS,
    "cumsum": ROWS,
    "soft_max": [Example((t(7, 3),)), Example((t(7, 3, 2, 2),))],
    "soft_max_ext": [
        Example((t(7, 3, 4),), {"scale": 0.3}),
        Example((t(7, 3, 4), t(7, 3, data=mask)), {"scale": 0.3}),
        Example((t(7, 3, 4), t(7, 5, dtype=F16, data=mask), t(4)), {"scale": 0.3}),
        Example((t(7, 3, 6, 2), t(7, 3, 2, 2, data=mask), t(6)), {"scale": 0.3, "max_bias": 8.0}),
        Example((t(7, 3, 4), None, t(4)), {}),
    ],
    # matrices
    "mul_mat": [
        Example((t(8, 5), t(8, 3))),
        Example((t(8, 5, 2), t(8, 3, 6)), {"prec_f32": True}),
        Example((t(8, 5, 2), t(8, 4, 3, via=heads_last)), {"src_f32": True}),
        Example((t(8, 5, dtype=F16), t(8, 3)), close=SLOPPY),
        Example((t(8, 5, dtype=F16), t(8, 3, dtype=F16)), close=SLOPPY),
        Example((t(32, 5, dtype=Q8_0), t(32, 3)), close=6e-2),
        Example((t(16, 5, via=left_half), t(16, 3, via=right_half))),
        Example((t(16, 16, data=hadamard), t(16, 3, 2)), {"hadamard": True}),
    ],
    "out_prod": [Example((t(5, 4), t(3, 4))), Example((t(5, 4, 2), t(3, 4, 6)))],
    "mul_mat_id": [
        Example((t(8, 5, 6), t(8, 1, 3), t(2, 3, dtype=I32, data=choice(6)))),
        Example((t(8, 5, 6), t(8, 4, 3), t(4, 3, dtype=I32, data=choice(6))), {"prec_f32": True}),
        Example((t(8, 5, 6), t(8, 2, 3), t(4, 3, dtype=I32, data=choice(6))), {"src_f32": True}),
    ],
    "add_id": [Example((t(5, 2, 3), t(5, 6), t(2, 3, dtype=I32, data=below(6))))],
    # attention
    "flash_attn_ext": [
        Example((*ATTENTION, t(7, 5, dtype=F16, data=mask)), {"scale": 0.35}, SLOPPY),
        Example((*ATTENTION, t(7, 5, dtype=F16, data=closed)), {"scale": 0.35}, SLOPPY),
        Example((*ATTENTION, t(7, 5, dtype=F16, data=closed), t(4)), {"scale": 0.35, "logit_softcap": 2.0}, SLOPPY),
        Example((*ATTENTION, None, t(4)), {"scale": 0.35}, SLOPPY),
        Example((*ATTENTION, t(7, 5, 2, dtype=F16, data=mask)), {"max_bias": 8.0, "n_kv_max": 7}, SLOPPY),
        Example(
            (t(8, 5, 4, 2), t(8, 7, 2, 2), t(6, 7, 2, 2), t(7, 5, 1, 2, dtype=F16, data=mask)), {"scale": 0.35}, SLOPPY
        ),
        Example(
            (t(8, 4, 5, via=heads_last), t(8, 2, 7, dtype=F16, via=heads_last), t(6, 2, 7, dtype=F16, via=heads_last)),
            {"scale": 0.35}, SLOPPY,
        ),
    ],
    "lightning_indexer": [
        Example((t(8, 4, 3), t(8, 1, 6), t(4, 3), t(6, 3, dtype=F16, data=mask))),
        Example((t(8, 4, 3, 2), t(8, 1, 6, 2, dtype=F16), t(4, 3, 1, 2), t(6, 3, dtype=F16, data=mask)), close=SLOPPY),
    ],
    "rope_ext": ROPE_EXAMPLES,
    "rope_ext_back": ROPE_EXAMPLES,
    "rope_multi": [
        Example(
            (t(16, 2, 3), t(12, dtype=I32, data=below(50))),
            {"n_dims": 16, "n_time": 2, "n_height": 3, "n_width": 3, "n_extra": 0},
        ),
        Example(
            (t(20, 2, 3), t(12, dtype=I32, data=below(50)), t(8, data=positive)),
            {"n_dims": 16, "n_time": 4, "n_height": 2, "n_width": 1, "n_extra": 1, "offset": 2},
        ),
        Example(
            (t(16, 2, 3), t(12, dtype=I32, data=below(50))),
            {"n_dims": 16, "n_time": 4, "n_height": 2, "n_width": 2, "n_extra": 0, "mode": ops.rope.IMROPE},
        ),
    ],
    # hyper-connections
    "dsv4_hc_comb": [
        Example((t(24, 5), t(3), t(24)), {"eps": 1e-6, "n_iter": 1}),
        Example((t(24, 5), t(3), t(24)), {"eps": 1e-6, "n_iter": 4}),
    ],
    "dsv4_hc_pre": [Example((t(6, 4, 5), t(4, 5)))],
    "dsv4_hc_pre_gated": [Example((t(6, 4, 5), t(6, 4, 5)), {"scale": 0.25})],
    "dsv4_hc_post": [
        Example((t(6, 5), t(6, 4, 5), t(4, 5), t(4, 4, 5))),
        Example((t(6, 5), t(6, 3, 5), t(3, 5), None)),
    ],
    # lookup and stores
    "get_rows": [
        Example((t(6, 9), t(4, dtype=I32, data=below(9)))),
        Example((t(6, 9, dtype=F16), t(4, dtype=I32, data=below(9)))),
        Example((t(32, 9, dtype=Q8_0), t(4, dtype=I32, data=below(9)))),
        Example((t(3, 9, dtype=I32, data=below(50)), t(4, dtype=I32, data=below(9)))),
        Example((t(1, 9, 5), t(4, 5, dtype=I32, data=below(9)))),
        Example((t(6, 9, 3, 2), t(4, 3, 2, dtype=I32, data=below(9)))),
    ],
    "set_rows": [
        Example((t(6, 9, via=copied), t(6, 4), t(4, dtype=I64, data=choice(9)))),
        Example((t(6, 9, dtype=F16, via=copied), t(6, 4), t(4, dtype=I64, data=choice(9)))),
        Example((t(6, 9, dtype=F16, via=copied), t(6, 4, dtype=F16), t(4, dtype=I32, data=choice(9)))),
        Example((t(1, 9, 5, via=copied), t(1, 4, 5), t(4, dtype=I64, data=choice(9)))),
        Example((t(1, 9, 5, via=copied), t(1, 4, 5), t(4, 5, dtype=I32, data=choice(9)))),
        Example((t(3, 9, 4, 6, via=copied), t(3, 4, 4, 6), t(4, 2, 3, dtype=I64, data=choice(9)))),
    ],
    "put": [
        Example((t(6, 9, via=copied), t(6, 2)), {"axis": 1, "start": 3}),
        Example((t(6, 4, 3, via=copied), t(2, 4, 3)), {"axis": 0, "start": 1}),
        Example(
            (t(6, 4, 3, dtype=I32, data=below(50), via=copied), t(6, 4, dtype=I32, data=below(50))),
            {"axis": 2, "start": 2},
        ),
        Example((t(6, 4, 3, via=copied), t(6, 3, 2, via=heads_last)), {"axis": 1, "start": 0}),
    ],
    "store": [
        Example((t(6, 9, kind=Kind.STATE), t(6, 4), t(4, dtype=I64, data=choice(9)))),
        Example((t(6, 9, dtype=F16, kind=Kind.STATE), t(6, 4), t(4, dtype=I64, data=choice(9)))),
        Example((t(32, 9, dtype=Q8_0, kind=Kind.STATE), t(32, 4), t(4, dtype=I64, data=choice(9)))),
    ],
    "tap": [Example((t(6, 4),), {"name": "layer_input", "il": 3})],
    # choosing
    "argmax": [Example((t(9, 4),)), Example((t(9, 4, data=below(3)),))],
    "top_k": [Example((t(9, 4, data=distinct),), {"k": 3}), Example((t(9, 2, 3, data=distinct),), {"k": 9})],
    "argsort": [Example((t(9, 4, data=distinct),), {}), Example((t(9, 2, 3, data=distinct),), {"order": "desc"})],
    "argsort_top_k": [Example((t(9, 4, 2, data=distinct),), {"k": 3})],
    # views
    "reshape": [Example((t(6, 4),), {"dims": (3, 2, 4)}), Example((t(6, 4, 2),), {"dims": (48,)})],
    "permute": [
        Example((t(2, 3, 4),), {"axes": (0, 2, 1, 3)}), Example((t(2, 3, 4, 5),), {"axes": (1, 2, 0, 3)}),
        Example((t(2, 3),), {"axes": (0, 2, 1, 3)}),
    ],
    "transpose": [Example((t(3, 4),)), Example((t(3, 4, 2),)), Example((t(3),))],
    "slice": [
        Example((t(6, 4),), {"axis": 0, "start": 2, "length": 3}),
        Example((t(6, 4, 2),), {"axis": 1, "start": 1, "length": 2}),
        Example((t(6, 4, 5, via=heads_last),), {"axis": 2, "start": 1, "length": 2}),
        Example((t(6,),), {"axis": 0, "start": 2, "length": 3}),
    ],
    "select": [
        Example((t(6, 4, 3),), {"axis": 1, "index": 2}),
        Example((t(6, 4),), {"axis": 1, "index": 0}),
        Example((t(6, 4, 3, 2),), {"axis": 3, "index": 1}),
    ],
    # copies
    "cont": [
        Example((t(3, 4, via=turned),), {}), Example((t(2, 3, 4, via=heads_last),), {"dims": (8, 3)}),
        Example((t(32, 4, dtype=Q8_0),), {"dims": (64, 2)}), Example((t(32, 3, 4, dtype=Q8_0, via=heads_last),), {}),
    ],
    "concat": [
        Example((t(6, 4), t(2, 4)), {"axis": 0}),
        Example((t(6, 4, 3), t(6, 4, 2)), {"axis": 2}),
        Example((t(6, 4), t(6, 4)), {"axis": 2}),
        Example((t(6, 4, dtype=F16), t(6, 2, dtype=F16)), {"axis": 1}),
        Example((t(32, 4, dtype=Q8_0), t(32, 2, dtype=Q8_0)), {"axis": 1}),
        Example((t(4, 6, via=turned), t(6, 2)), {"axis": 1}),
    ],
    "repeat": [
        Example((t(3, 1, 2), t(6, 4, 2))),
        Example((t(3, dtype=I32, data=below(9)), t(3, 4, dtype=I32, data=below(9)))),
    ],
    "repeat_4d": [Example((t(3, 1, 2),), {"dims": (3, 4, 2)}), Example((t(3, 2),), {"dims": (6, 2, 3, 2)})],
    "cast": [
        Example((t(6, 4),), {"dtype": F16}), Example((t(6, 4, dtype=F16),), {"dtype": GGMLType.f32}),
        Example((t(6, 4, data=wide),), {"dtype": I32}),
        Example((t(6, 4, dtype=I32, data=below(99)),), {"dtype": GGMLType.f32}),
        Example((t(64, 3),), {"dtype": Q8_0}), Example((t(64, 3, dtype=Q8_0),), {"dtype": GGMLType.f32}),
        Example((t(3, 4, via=turned),), {"dtype": F16}),
    ],
    # from nothing
    "fill": [Example((t(6, 4),), {"c": -1.5}), Example((t(6, 4, dtype=F16),), {"c": float("-inf")})],
    "full": [Example((), {"dims": (3, 4), "value": 0.1}), Example((), {"dims": (5,), "value": 0.1, "dtype": F16})],
    "arange": [
        Example((), {"start": 0, "stop": 7}), Example((), {"start": 2, "stop": 11, "step": 4}),
        Example((), {"start": 0.5, "stop": 2.0, "step": 0.25}),
    ],
    # matrices' triangles, padding
    "diag_mask_inf": [Example((t(6, 4),), {"n_past": 1}), Example((t(6, 4, 2),), {})],
    "tri": [Example((t(4, 4, 2),), {"kind": kind}) for kind in ("lower", "lower_diag", "upper", "upper_diag")],
    "pad": [Example((t(6, 4),), {"p0": 2, "p1": 1}), Example((t(4, 6, via=turned),), {"p2": 1})],
    "pad_ext": [Example((t(6, 4, 2),), {"lp0": 1, "rp1": 2, "lp2": 3}), Example((t(6, 4),), {"lp1": 3})],
    "roll": [Example((t(6, 4),), {"s0": 2, "s1": -1}), Example((t(3, 4, 2, via=heads_last),), {"s2": 3})],
}
