"""The op table. Importing this package enters every op; authors write ``from draftsmith.dsl import ops``."""

from .attention import flash_attn_ext, soft_max_ext
from .elementwise import (
    add,
    clamp,
    div,
    fill,
    geglu_split,
    gelu,
    mul,
    scale,
    scale_bias,
    sigmoid,
    silu,
    sub,
    swiglu_split,
    tanh,
)
from .matmul import mul_mat
from .norm import l2_norm, norm, rms_norm
from .rope import rope_ext
from .rows import get_rows, set_rows, store, tap
from .shape import cast, concat, cont, first_rows, permute, repeat, reshape, slice_, transpose
from .sort import argmax, top_k

__all__ = [
    "add", "argmax", "cast", "clamp", "concat", "cont", "div", "fill", "first_rows", "flash_attn_ext", "geglu_split",
    "gelu", "get_rows", "l2_norm", "mul", "mul_mat", "norm", "permute", "repeat", "reshape", "rms_norm", "rope_ext",
    "scale", "scale_bias", "set_rows", "sigmoid", "silu", "slice_", "soft_max_ext", "store", "sub", "swiglu_split",
    "tanh", "tap", "top_k", "transpose",
]
