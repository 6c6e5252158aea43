"""The op table. Importing this package enters every op; authors write ``from draftsmith.dsl import ops``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ir import Value

    # An op is declared as a class whose call gives a tensor (see OpMeta), which type checkers do not follow.
    def __getattr__(name: str) -> Callable[..., Value]: ...
else:
    from .attention import flash_attn_ext, soft_max, soft_max_ext
    from .copy import cast, concat, cont, repeat, repeat_4d
    from .create import arange, fill, full
    from .elementwise import add, clamp, div, mul, scale, scale_bias, sub
    from .experts import add_id, mul_mat_id
    from .glu import (
        geglu,
        geglu_erf,
        geglu_erf_split,
        geglu_quick,
        geglu_quick_split,
        geglu_split,
        reglu,
        reglu_split,
        swiglu,
        swiglu_clamp,
        swiglu_oai,
        swiglu_split,
    )
    from .hyper import dsv4_hc_comb, dsv4_hc_post, dsv4_hc_pre, dsv4_hc_pre_gated
    from .indexer import lightning_indexer
    from .mask import diag_mask_inf, tri
    from .matmul import mul_mat, out_prod
    from .norms import l2_norm, norm, rms_norm
    from .padding import pad, pad_ext, roll
    from .pieces import put
    from .reduce import cumsum, mean, sum_rows
    from .rope import rope_ext, rope_ext_back, rope_multi
    from .rows import get_rows, set_rows
    from .shape import first_rows, permute, reshape, select, slice_, transpose
    from .sort import argmax, argsort, argsort_top_k, top_k
    from .state import store, tap
    from .unary import (
        abs_,
        ceil,
        cos,
        exp,
        expm1,
        floor,
        gelu,
        gelu_erf,
        gelu_quick,
        log,
        neg,
        relu,
        sgn,
        sigmoid,
        silu,
        sin,
        softplus,
        sqr,
        sqrt,
        step,
        tanh,
    )

__all__ = [
    "abs_", "add", "add_id", "arange", "argmax", "argsort", "argsort_top_k", "cast", "ceil", "clamp", "concat",
    "cont", "cos", "cumsum", "diag_mask_inf", "div", "dsv4_hc_comb", "dsv4_hc_post", "dsv4_hc_pre",
    "dsv4_hc_pre_gated", "exp", "expm1", "fill", "first_rows", "flash_attn_ext", "floor", "full", "geglu",
    "geglu_erf", "geglu_erf_split", "geglu_quick", "geglu_quick_split", "geglu_split", "gelu", "gelu_erf",
    "gelu_quick", "get_rows", "l2_norm", "lightning_indexer", "log", "mean", "mul", "mul_mat", "mul_mat_id", "neg",
    "norm", "out_prod", "pad", "pad_ext", "permute", "put", "reglu", "reglu_split", "relu", "repeat", "repeat_4d",
    "reshape", "rms_norm", "roll", "rope_ext", "rope_ext_back", "rope_multi", "scale", "scale_bias", "select",
    "set_rows", "sgn", "sigmoid", "silu", "sin", "slice_", "soft_max", "soft_max_ext", "softplus", "sqr", "sqrt",
    "step", "store", "sub", "sum_rows", "swiglu", "swiglu_clamp", "swiglu_oai", "swiglu_split", "tanh", "tap",
    "top_k", "transpose", "tri",
]
