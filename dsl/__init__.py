"""The language in which architectures are written.

``from draftsmith.dsl import arch, block, graph, ...`` gives everything a file in ``graphs/`` needs.
"""

from . import feeds, nn, ops
from .arch import Architecture, arch, graph, option, tap, tap_last
from .block import block
from .contract import Contract, argmax_rows, sample_lattice, sample_rows, walk_lattice
from .decoder import DecoderHparams, decoder_complaints, rope
from .dtypes import GGMLType
from .expr import exact, log, maximum, minimum, sqrt
from .feeds import Feed, n_block, n_blocks, n_outputs, n_tokens
from .ir import Value
from .layers import Layer, LayerView
from .loops import counted
from .specs import (
    KVCache,
    LayerKey,
    boolean,
    derived,
    f32,
    int_list,
    kv_cache,
    layer_group,
    matrix,
    tensor,
    tensor_dim,
    text,
    u32,
)

__all__ = [
    "Architecture",
    "Contract",
    "DecoderHparams",
    "Feed",
    "GGMLType",
    "KVCache",
    "Layer",
    "LayerKey",
    "LayerView",
    "Value",
    "arch",
    "argmax_rows",
    "block",
    "boolean",
    "counted",
    "decoder_complaints",
    "derived",
    "exact",
    "f32",
    "feeds",
    "graph",
    "int_list",
    "kv_cache",
    "layer_group",
    "log",
    "matrix",
    "maximum",
    "minimum",
    "n_block",
    "n_blocks",
    "n_outputs",
    "n_tokens",
    "nn",
    "ops",
    "option",
    "rope",
    "sample_lattice",
    "sample_rows",
    "sqrt",
    "tap",
    "tap_last",
    "tensor",
    "tensor_dim",
    "text",
    "u32",
    "walk_lattice",
]
