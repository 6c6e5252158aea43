"""Illegal calls of every op: each would end in a failed assertion of ggml, an abort, or wrong numbers.

``says`` is part of the message; ``shows`` are the operands whose types and shapes it must name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftsmith.dsl import ops
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.ir import Kind, Value

from .helpers import Operand
from .op_examples import copied, heads_last, left_half, t, turned

F16, F32, I32, I64, Q8_0 = GGMLType.f16, GGMLType.f32, GGMLType.i32, GGMLType.i64, GGMLType.q8_0


@dataclass(frozen=True)
class Fault:
    says: str
    operands: tuple[Operand | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shows: tuple[int, ...] = (0,)


def both(says: str, a: Operand, b: Operand, **attrs: Any) -> Fault:
    """A disagreement of two operands: both are named."""
    return Fault(says, (a, b), attrs, (0, 1))


def one(says: str, a: Operand, **attrs: Any) -> Fault:
    return Fault(says, (a,), attrs)


def swapped_unit(x: Value) -> Value:
    """[n, 1, m] as [n, m]: contiguous for reshape, but ggml_scale refuses the stride of the dim of length 1."""
    return ops.permute(x, 0, 2, 1, 3)


INTS = t(4, 3, dtype=I32)
BINARY = [
    both("does not tile", t(6, 4), t(4)),
    both("does not tile", t(6, 4), t(6, 4, 2)),
    both("element type", t(6, 4), t(6, 4, dtype=F16)),
    Fault("found i32", (INTS, INTS)),
    Fault("transposed", (t(4, 6, via=turned), t(6, 4))),
]
UNARY = [Fault("found i32", (INTS,)), one("transposed", t(4, 6, via=turned))]
SPLIT = [
    both("dim 0 differs", t(6, 4), t(5, 4)),
    both("dim 1 differs", t(6, 1), t(6, 4)),
    both("element types differ", t(6, 4), t(6, 4, dtype=F16)),
    Fault("found i32", (INTS, INTS)),
    Fault("one distance", (t(6, 4, 3, via=heads_last), t(6, 3, 4))),
    Fault("one distance", (t(6, 4), t(4, 6, via=turned)), shows=(1,)),
]
HALVES = [one("no two halves", t(7, 3)), one("one distance", t(6, 4, 3, via=heads_last)), Fault("found i32", (INTS,))]
ROWS = [Fault("found f16", (t(6, 4, dtype=F16),)), one("transposed", t(4, 6, via=turned))]
NORM = [
    Fault("found f16", (t(6, 4, dtype=F16),), {"eps": 1e-6}), one("transposed", t(4, 6, via=turned), eps=1e-6),
    one("negative", t(6, 4), eps=-1.0),
]
POS = t(5, dtype=I32)
ROPE = [
    both("one position", t(8, 3, 5), t(4, dtype=I32), n_dims=8, mode=0),
    both("must be a vector", t(8, 3, 5), t(5, 2, dtype=I32), n_dims=8, mode=0),
    Fault("found i64", (t(8, 3, 5), t(5, dtype=I64)), {"n_dims": 8, "mode": 0}, (1,)),
    Fault("found bf16", (t(8, 3, 5, dtype=GGMLType.bf16), POS), {"n_dims": 8, "mode": 0}),
    both("must be even", t(8, 3, 5), POS, n_dims=3, mode=0),
    both("must be even", t(8, 3, 5), POS, n_dims=4, mode=0, offset=1),
    both("must be even", t(9, 3, 5), POS, n_dims=4, mode=0),
    both("outside dim 0", t(8, 3, 5), POS, n_dims=10, mode=0),
    both("outside dim 0", t(8, 3, 5), POS, n_dims=6, mode=0, offset=4),
    both("mode 8 is none", t(8, 3, 5), POS, n_dims=8, mode=8),
    both("mode 1 is none", t(8, 3, 5), POS, n_dims=8, mode=1),
    Fault("factors must have", (t(8, 3, 5), POS, t(3)), {"n_dims": 8, "mode": 0}, (0, 2)),
    Fault("found f16", (t(8, 3, 5), POS, t(4, dtype=F16)), {"n_dims": 8, "mode": 0}, (2,)),
    Fault("transposed", (t(3, 8, 5, via=turned), POS), {"n_dims": 8, "mode": 0}),
]
SECTIONS = {"n_dims": 8, "n_time": 2, "n_height": 1, "n_width": 1, "n_extra": 0}
SORTED = [Fault("found f16", (t(9, 4, dtype=F16),)), one("one distance", t(9, 4, 3, via=heads_last))]
Q, K, V = t(8, 5, 4), t(8, 7, 2, dtype=F16), t(6, 7, 2, dtype=F16)
MASK = t(7, 5, dtype=F16)
STATE = t(6, 9, kind=Kind.STATE)


def writes(a: Operand, deep: Operand) -> list[Fault]:
    """The rules of set_rows, for a target [6, 9] and one [6, 9, 4]."""
    return [
        Fault("row widths differ", (a, t(5, 4), t(4, dtype=I64)), shows=(0, 1)),
        Fault("as many ids", (a, t(6, 4), t(3, dtype=I64)), shows=(1, 2)),
        Fault("dim 2 differs", (a, t(6, 4, 2), t(4, dtype=I64)), shows=(0, 1)),
        Fault("does not tile", (deep, t(6, 4, 4), t(4, 3, dtype=I64)), shows=(1, 2)),
        Fault("found f32", (a, t(6, 4), t(4)), shows=(2,)),
        Fault("found i32", (a, t(6, 4, dtype=I32), t(4, dtype=I64)), shows=(1,)),
        Fault("transposed", (a, t(4, 6, via=turned), t(4, dtype=I64)), shows=(1,)),
        Fault("f16 rows cannot be written", (a, t(6, 4, dtype=F16), t(4, dtype=I64)), shows=(0, 1)),
    ]


FAULTS: dict[str, list[Fault]] = {
    # arithmetic
    **dict.fromkeys(("add", "sub", "mul", "div"), BINARY),
    "scale": [
        Fault("found f16", (t(6, 4, dtype=F16),), {"s": 1.0}),
        one("not contiguous", t(12, 4, via=left_half), s=1.0),
        one("not contiguous", t(6, 1, 4, via=swapped_unit), s=1.0),
    ],
    "scale_bias": [
        Fault("found f16", (t(6, 4, dtype=F16),), {"s": 1.0, "b": 0.0}),
        one("not contiguous", t(6, 4, 3, via=heads_last), s=1.0, b=0.0),
    ],
    "clamp": [
        Fault("found i32", (INTS,), {"low": 0.0, "high": 1.0}),
        one("lower limit", t(6, 4), low=2.0, high=1.0),
        one("one distance", t(6, 4, 3, via=heads_last), low=0.0, high=1.0),
    ],
    **dict.fromkeys(
        (
            "abs", "neg", "sgn", "step", "relu", "sqr", "sqrt", "exp", "expm1", "log", "softplus", "sin", "cos",
            "floor", "ceil", "tanh", "sigmoid", "silu", "gelu", "gelu_erf", "gelu_quick",
        ),
        UNARY,
    ),
    # gated units
    **dict.fromkeys(("reglu_split", "geglu_split", "geglu_erf_split", "geglu_quick_split", "swiglu_split"), SPLIT),
    **dict.fromkeys(("reglu", "geglu", "geglu_erf", "geglu_quick", "swiglu"), HALVES),
    "swiglu_oai": [
        both("dim 0 differs", t(6, 4), t(5, 4), alpha=1.0, limit=7.0),
        Fault("found f16", (t(6, 4, dtype=F16), t(6, 4, dtype=F16)), {"alpha": 1.0, "limit": 7.0}),
        both("limit", t(6, 4), t(6, 4), alpha=1.0, limit=-7.0),
    ],
    "swiglu_clamp": [
        both("dim 1 differs", t(6, 4), t(6, 3), limit=7.0),
        Fault("found bf16", (t(6, 4, dtype=GGMLType.bf16), t(6, 4, dtype=GGMLType.bf16)), {"limit": 7.0}),
        both("limit", t(6, 4), t(6, 4), limit=-1.0),
    ],
    # rows
    "rms_norm": NORM,
    "norm": NORM,
    "l2_norm": NORM,
    "sum_rows": ROWS,
    "mean": ROWS,
    "cumsum": ROWS,
    "soft_max": [Fault("found f16", (t(6, 4, dtype=F16),)), one("not contiguous", t(6, 4, 3, via=heads_last))],
    "soft_max_ext": [
        both("one entry a key", t(7, 3, 4), t(6, 3)),
        both("row for each query", t(7, 3, 4), t(7, 2)),
        both("does not tile", t(7, 3, 4), t(7, 3, 3)),
        both("mask is not contiguous", t(7, 3, 4), t(3, 7, via=turned)),
        Fault("found i32", (t(7, 3, 4), t(7, 3, dtype=I32)), shows=(1,)),
        Fault("one sink a head", (t(7, 3, 4), None, t(3)), shows=(0, 2)),
        Fault("found f16", (t(7, 3, 4), None, t(4, dtype=F16)), shows=(2,)),
        Fault("must be a vector", (t(7, 3, 4), None, t(4, 2)), shows=(0, 2)),
        one("needs a mask", t(7, 3, 4), max_bias=8.0),
        one("not contiguous", t(7, 4, 3, via=heads_last)),
    ],
    # matrices
    "mul_mat": [
        both("inner dims differ", t(8, 5), t(7, 3)),
        both("does not tile", t(8, 5, 2), t(8, 3, 5)),
        both("does not tile", t(8, 5, 2), t(8, 3)),
        both("first operand is transposed", t(5, 8, via=turned), t(8, 3)),
        both("second operand is transposed", t(8, 5), t(3, 8, via=turned)),
        both("second operand must be f32", t(8, 5), t(8, 3, dtype=F16)),
        both("second operand must be f32", t(32, 5, dtype=Q8_0), t(32, 3, dtype=F16)),
        both("cannot be multiplied", t(8, 5, dtype=I32), t(8, 3)),
        both("is square", t(8, 4), t(8, 3), hadamard=True),
        both("power of two", t(6, 6), t(6, 3), hadamard=True),
    ],
    "out_prod": [
        both("dim 1 differs", t(5, 4), t(3, 2)),
        both("must be f32", t(5, 4, dtype=F16), t(3, 4)),
        both("does not tile", t(5, 4, 2), t(3, 4, 3)),
        both("transposed", t(4, 5, via=turned), t(3, 4)),
    ],
    "mul_mat_id": [
        Fault("inner dims differ", (t(8, 5, 6), t(7, 1, 3), t(2, 3, dtype=I32)), shows=(0, 1)),
        Fault("one list of experts", (t(8, 5, 6), t(8, 1, 3), t(2, 4, dtype=I32)), shows=(1, 2)),
        Fault("do not tile", (t(8, 5, 6), t(8, 3, 3), t(2, 3, dtype=I32)), shows=(1, 2)),
        Fault("found i64", (t(8, 5, 6), t(8, 1, 3), t(2, 3, dtype=I64)), shows=(2,)),
        Fault("at most 3 dims", (t(8, 5, 6, 2), t(8, 1, 3), t(2, 3, dtype=I32)), shows=(0, 1)),
        Fault("at most 2 dims", (t(8, 5, 6), t(8, 1, 3), t(2, 3, 2, dtype=I32)), shows=(1, 2)),
        Fault("must be f32", (t(8, 5, 6), t(8, 1, 3, dtype=F16), t(2, 3, dtype=I32)), shows=(0, 1)),
        Fault("transposed", (t(5, 8, 6, via=turned), t(8, 1, 3), t(2, 3, dtype=I32)), shows=(0, 1)),
    ],
    "add_id": [
        Fault("row widths differ", (t(5, 2, 3), t(4, 6), t(2, 3, dtype=I32)), shows=(0, 1)),
        Fault("one id a row", (t(5, 2, 3), t(5, 6), t(1, 3, dtype=I32)), shows=(0, 2)),
        Fault("one list of ids", (t(5, 2, 3), t(5, 6), t(2, 4, dtype=I32)), shows=(0, 2)),
        Fault("found i64", (t(5, 2, 3), t(5, 6), t(2, 3, dtype=I64)), shows=(2,)),
        Fault("at most 2 dims", (t(5, 2, 3), t(5, 6), t(2, 3, 2, dtype=I32)), shows=(0, 2)),
        Fault("found f16", (t(5, 2, 3, dtype=F16), t(5, 6), t(2, 3, dtype=I32))),
    ],
    # attention
    "flash_attn_ext": [
        Fault("head sizes differ", (t(6, 5, 4), K, V), shows=(0, 1)),
        Fault("as many values as keys", (Q, K, t(6, 8, 2, dtype=F16)), shows=(1, 2)),
        Fault("value heads", (Q, K, t(6, 7, 1, dtype=F16)), shows=(1, 2)),
        Fault("not a multiple", (t(8, 5, 3), K, V), shows=(0, 1)),
        Fault("dim 3 of queries and keys", (t(8, 5, 4, 2), K, V), shows=(0, 1)),
        Fault("dim 3 of queries and values", (t(8, 5, 4, 2), t(8, 7, 2, 2), V), shows=(0, 2)),
        Fault("found f16", (t(8, 5, 4, dtype=F16), K, V)),
        Fault("cannot hold keys", (Q, t(8, 7, 2, dtype=I32), V), shows=(0, 1)),
        Fault("cannot hold values", (Q, K, t(6, 7, 2, dtype=I64)), shows=(0, 2)),
        Fault("transposed", (Q, K, t(7, 6, 2, dtype=F16, via=turned)), shows=(2,)),
        Fault("one entry a key", (Q, K, V, t(6, 5, dtype=F16)), shows=(1, 3)),
        Fault("one row a query", (Q, K, V, t(7, 4, dtype=F16)), shows=(0, 3)),
        Fault("found f32", (Q, K, V, t(7, 5)), shows=(3,)),
        Fault("does not tile", (Q, K, V, t(7, 5, 3, dtype=F16)), shows=(0, 3)),
        Fault("one sink a head", (Q, K, V, MASK, t(2)), shows=(0, 4)),
        Fault("needs a mask", (Q, K, V), {"max_bias": 8.0}),
        Fault("n_kv_max", (Q, K, V), {"n_kv_max": -1}, (0, 1)),
    ],
    "lightning_indexer": [
        Fault("head sizes differ", (t(8, 4, 3), t(6, 1, 6), t(4, 3), t(6, 3, dtype=F16)), shows=(0, 1)),
        Fault("one entry a key", (t(8, 4, 3), t(8, 1, 6), t(4, 3), t(5, 3, dtype=F16)), shows=(1, 3)),
        Fault("one weight a head", (t(8, 4, 3), t(8, 1, 6), t(5, 3), t(6, 3, dtype=F16)), shows=(0, 2)),
        Fault("one row of weights", (t(8, 4, 3), t(8, 1, 6), t(4, 2), t(6, 3, dtype=F16)), shows=(0, 2)),
        Fault("one row a token", (t(8, 4, 3), t(8, 1, 6), t(4, 3), t(6, 2, dtype=F16)), shows=(0, 3)),
        Fault("one head", (t(8, 4, 3), t(8, 2, 6), t(4, 3), t(6, 3, dtype=F16)), shows=(0, 1)),
        Fault("must be 1", (t(8, 4, 3), t(8, 1, 6), t(4, 3, 2), t(6, 3, dtype=F16)), shows=(2, 3)),
        Fault("dim 3 of queries", (t(8, 4, 3, 2), t(8, 1, 6), t(4, 3), t(6, 3, dtype=F16)), shows=(0, 1)),
        Fault("found f32", (t(8, 4, 3), t(8, 1, 6), t(4, 3), t(6, 3)), shows=(3,)),
        Fault("cannot hold", (t(8, 4, 3), t(8, 1, 6, dtype=I32), t(4, 3), t(6, 3, dtype=F16)), shows=(0, 1)),
        Fault("transposed", (t(4, 8, 3, via=turned), t(8, 1, 6), t(4, 3), t(6, 3, dtype=F16))),
    ],
    "rope_ext": ROPE,
    "rope_ext_back": ROPE,
    "rope_multi": [
        both("four positions", t(8, 3, 5), t(5, dtype=I32), **SECTIONS),
        both("mode 0 is none", t(8, 3, 5), t(20, dtype=I32), **SECTIONS, mode=0),
        both("sections", t(8, 3, 5), t(20, dtype=I32), **{**SECTIONS, "n_time": 0, "n_height": 0, "n_width": 0}),
        both("sections", t(8, 3, 5), t(20, dtype=I32), **{**SECTIONS, "n_time": 9}),
        both("outside dim 0", t(8, 3, 5), t(20, dtype=I32), **{**SECTIONS, "n_dims": 10}),
    ],
    # hyper-connections
    "dsv4_hc_comb": [
        Fault("must be (2 + 4)*4", (t(15, 5), t(3), t(15)), {"eps": 0.0, "n_iter": 1}, (0, 2)),
        Fault("one base a mix", (t(24, 5), t(3), t(20)), {"eps": 0.0, "n_iter": 1}, (0, 2)),
        Fault("3 entries", (t(24, 5), t(2), t(24)), {"eps": 0.0, "n_iter": 1}, (0, 1)),
        Fault("at least 1", (t(24, 5), t(3), t(24)), {"eps": 0.0, "n_iter": 0}, (0, 2)),
        Fault("at most 2 dims", (t(24, 5, 2), t(3), t(24)), {"eps": 0.0, "n_iter": 1}, (0, 2)),
        Fault("found f16", (t(24, 5, dtype=F16), t(3), t(24)), {"eps": 0.0, "n_iter": 1}),
    ],
    "dsv4_hc_pre": [
        both("one weight a stream", t(6, 4, 5), t(3, 5)),
        both("weights for each token", t(6, 4, 5), t(4, 6)),
        both("at most 3 dims", t(6, 4, 5, 2), t(4, 5)),
        Fault("found f16", (t(6, 4, 5), t(4, 5, dtype=F16)), shows=(1,)),
    ],
    "dsv4_hc_pre_gated": [
        both("dim 0 differs", t(6, 4, 5), t(5, 4, 5)),
        both("dim 2 differs", t(6, 4, 5), t(6, 4, 4)),
        Fault("found f16", (t(6, 4, 5), t(6, 4, 5, dtype=F16)), shows=(1,)),
    ],
    "dsv4_hc_post": [
        Fault("row widths differ", (t(5, 5), t(6, 4, 5), t(4, 5)), shows=(0, 1)),
        Fault("token counts differ", (t(6, 4), t(6, 4, 5), t(4, 5)), shows=(0, 1)),
        Fault("one weight a stream", (t(6, 5), t(6, 4, 5), t(3, 5)), shows=(1, 2)),
        Fault("weights for each token", (t(6, 5), t(6, 4, 5), t(4, 4)), shows=(0, 2)),
        Fault("number of streams", (t(6, 5), t(6, 4, 5), t(4, 5), t(4, 3, 5)), shows=(1, 3)),
        Fault("a matrix for each token", (t(6, 5), t(6, 4, 5), t(4, 5), t(4, 4, 6)), shows=(0, 3)),
        Fault("found f16", (t(6, 5), t(6, 4, 5, dtype=F16), t(4, 5)), shows=(1,)),
    ],
    # lookup and stores
    "get_rows": [
        both("dim 2 of the table", t(1, 9, 5), t(4, 3, dtype=I32)),
        both("dim 3 of the table", t(1, 9, 5, 2), t(4, 5, dtype=I32)),
        both("at most 3 dims", t(6, 9), t(4, 1, 1, 2, dtype=I32)),
        Fault("found i64", (t(6, 9), t(4, dtype=I64)), shows=(1,)),
        both("no row lookup", t(6, 9, dtype=I64), t(4, dtype=I32)),
        Fault("transposed", (t(9, 6, via=turned), t(4, dtype=I32))),
    ],
    "set_rows": [
        *writes(t(6, 9, via=copied), t(6, 9, 4, via=copied)),
        Fault("weight cannot be written", (t(6, 9, kind=Kind.WEIGHT), t(6, 4), t(4, dtype=I64)), shows=(0, 1)),
        Fault("feed cannot be written", (t(6, 9), t(6, 4), t(4, dtype=I64)), shows=(0, 1)),
        Fault("cannot be written", (t(6, 9, dtype=I64, via=copied), t(6, 4), t(4, dtype=I64)), shows=(0, 1)),
    ],
    "put": [
        both("feed cannot be written", t(6, 9), t(6, 2), axis=1, start=0),
        both("dim 0 differs", t(6, 9, via=copied), t(5, 2), axis=1, start=0),
        both("element types differ", t(6, 9, via=copied), t(6, 2, dtype=I32), axis=1, start=0),
        both("outside dim 1", t(6, 9, via=copied), t(6, 2), axis=1, start=8),
        both("not one of", t(6, 9, via=copied), t(6, 9), axis=2, start=0),
        Fault("found f16", (t(6, 9, dtype=F16, via=copied), t(6, 2, dtype=F16)), {"axis": 1, "start": 0}),
        Fault("transposed", (t(6, 9, via=copied), t(2, 6, via=turned)), {"axis": 1, "start": 0}, (1,)),
    ],
    "store": [
        *writes(STATE, t(6, 9, 4, kind=Kind.STATE)),
        Fault("only state", (t(6, 9, via=copied), t(6, 4), t(4, dtype=I64)), shows=(0, 1)),
        Fault("only state", (t(6, 9, kind=Kind.WEIGHT), t(6, 4), t(4, dtype=I64)), shows=(0, 1)),
        Fault("found i32", (STATE, t(6, 4), t(4, dtype=I32)), shows=(2,)),
        Fault("at most 2 dims", (t(6, 9, 2, kind=Kind.STATE), t(6, 4, 2), t(4, dtype=I64)), shows=(0, 1)),
    ],
    "tap": [],
    # choosing
    "argmax": [
        Fault("found f16", (t(9, 4, dtype=F16),)), one("takes a matrix", t(9, 4, 2)),
        one("transposed", t(4, 9, via=turned)),
    ],
    "top_k": [
        *[Fault(f.says, f.operands, {"k": 2}) for f in SORTED],
        one("k = 10", t(9, 4), k=10),
        one("k = 0", t(9, 4), k=0),
    ],
    "argsort": [*SORTED, one('"asc" nor "desc"', t(9, 4), order="up")],
    "argsort_top_k": [*[Fault(f.says, f.operands, {"k": 2}) for f in SORTED], one("k = 10", t(9, 4), k=10)],
    # views
    "reshape": [
        one("element counts differ", t(6, 4), dims=(5, 5)),
        one("not contiguous", t(4, 6, via=turned), dims=(24,)),
        one("1 to 4 dims", t(6, 4), dims=(1, 1, 6, 2, 2)),
        one("whole q8_0 blocks", t(32, 4, dtype=Q8_0), dims=(16, 8)),
    ],
    "permute": [one("axes must be", t(6, 4), axes=(0, 1, 1, 3)), one("axes must be", t(6, 4), axes=(1, 0))],
    "transpose": [],
    "slice": [
        one("is not one of", t(6, 4), axis=2, start=0, length=1),
        one("outside dim 1", t(6, 4), axis=1, start=2, length=3),
        one("outside dim 1", t(6, 4), axis=1, start=-1, length=3),
        one("whole q8_0 blocks", t(64, 4, dtype=Q8_0), axis=0, start=16, length=32),
        one("transposed", t(4, 6, via=turned), axis=1, start=0, length=2),
    ],
    "select": [
        one("cannot be dropped", t(6, 4), axis=0, index=1),
        one("outside dim 1", t(6, 4), axis=1, index=4),
        one("is not one of", t(6, 4), axis=2, index=0),
        one("transposed", t(4, 6, via=turned), axis=1, index=0),
    ],
    # copies
    "cont": [
        one("element counts differ", t(6, 4), dims=(5, 5)),
        one("transposed quantised", t(32, 32, dtype=Q8_0, via=turned)),
        one("quantised view", t(32, 3, 4, dtype=Q8_0, via=heads_last), dims=(32, 12)),
        one("whole q8_0 blocks", t(32, 4, dtype=Q8_0), dims=(16, 8)),
    ],
    "concat": [
        both("dim 1 differs", t(6, 4), t(6, 3)),
        both("dim 0 differs", t(6, 4), t(5, 4), axis=1),
        both("element types differ", t(6, 4), t(6, 4, dtype=F16)),
        both("not one of 0 to 3", t(6, 4), t(6, 4), axis=4),
        both("transposed", t(32, 32, dtype=Q8_0, via=turned), t(32, 32, dtype=Q8_0)),
    ],
    "repeat": [
        both("does not tile", t(4, 2), t(6, 2)),
        both("cannot be repeated", t(32, 2, dtype=Q8_0), t(32, 4)),
        Fault("transposed", (t(4, 6, via=turned), t(6, 4))),
    ],
    "repeat_4d": [
        one("does not tile", t(4, 2), dims=(6, 2)),
        one("dims are needed", t(4, 2), dims=(4,)),
        one("cannot be repeated", t(32, 2, dtype=Q8_0), dims=(32, 4)),
    ],
    "cast": [
        one("cannot be converted", t(6, 4, dtype=I32), dtype=F16),
        one("cannot be converted", t(32, 4, dtype=Q8_0), dtype=F16),
        one("cannot be converted", t(256, 4), dtype=GGMLType.iq2_xs),
        one("whole q8_0 blocks", t(6, 4), dtype=Q8_0),
        one("transposed", t(4, 32, via=turned), dtype=Q8_0),
    ],
    # from nothing
    "fill": [Fault("found i32", (INTS,), {"c": 0.0}), one("not contiguous", t(4, 6, via=turned), c=0.0)],
    "full": [
        Fault("only f32 and f16", (), {"dims": (3,), "value": 0.0, "dtype": I32}, ()),
        Fault("1 to 4 dims", (), {"dims": (), "value": 0.0}, ()),
        Fault("must be positive", (), {"dims": (3, 0), "value": 0.0}, ()),
    ],
    "arange": [
        Fault("holds no number", (), {"start": 3, "stop": 3}, ()),
        Fault("holds no number", (), {"start": 0, "stop": 3, "step": -1}, ()),
        Fault("exceed", (), {"start": 0, "stop": 1 << 25}, ()),
    ],
    # triangles, padding
    "diag_mask_inf": [
        Fault("found f16", (t(6, 4, dtype=F16),)), one("negative", t(6, 4), n_past=-1),
        one("not contiguous", t(4, 6, via=turned)),
    ],
    "tri": [
        one("not square", t(6, 4), kind="lower"), one("is none of", t(4, 4), kind="left"),
        Fault("found f16", (t(4, 4, dtype=F16),), {"kind": "lower"}),
        one("not contiguous", t(4, 4, via=turned), kind="lower"),
    ],
    "pad": [Fault("found f16", (t(6, 4, dtype=F16),), {"p0": 1}), one("negative", t(6, 4), p0=-1)],
    "pad_ext": [Fault("found f16", (t(6, 4, dtype=F16),), {"lp0": 1}), one("negative", t(6, 4), lp1=-1)],
    "roll": [
        Fault("found f16", (t(6, 4, dtype=F16),), {"s0": 1}), one("cannot be shifted", t(6, 4), s0=6),
        one("cannot be shifted", t(6, 4), s2=1), one("transposed", t(4, 6, via=turned), s0=1),
    ],
}
