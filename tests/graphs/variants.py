"""The variants of every architecture in graphs/ that lead to different generated source, at two sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from draftsmith import registry
from draftsmith.codegen.emit import Source, emit
from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import BoundModel, Options, bind
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.ir import Graph
from draftsmith.model import trace_all
from draftsmith.show import render

from ..models import FakeFile, Recipe, make_file

SMALL: dict[str, Any] = {
    "{arch}.embedding_length": 192,
    "{arch}.feed_forward_length": 128,
    "{arch}.attention.head_count": 4,
    "{arch}.attention.head_count_kv": 2,
    "{arch}.attention.key_length": 32,
    "{arch}.attention.value_length": 32,
    "{arch}.rope.dimension_count": 32,
    "{arch}.context_length": 128,
    "{arch}.vocab_size": 160,
}
"""Sizes of the files that are run; the canonical ones differ in every one of these."""

FLASH_OFF = Options(flash_attn=False)


@dataclass(frozen=True)
class Variant:
    """``small``: keys of the run-able file besides SMALL (those that the recipe gives for the canonical sizes)."""

    arch: str
    name: str = ""
    recipe: Recipe = field(default_factory=Recipe)
    options: Options = field(default_factory=Options)
    small: Mapping[str, Any] = field(default_factory=dict)
    small_sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.arch}.{self.name}" if self.name else self.arch

    @property
    def cls(self) -> type[Architecture]:
        return registry.builtin()[self.arch]

    def file(self, small: bool = False) -> FakeFile:
        if not small:
            return make_file(self.cls, self.recipe)
        drafter = {} if self.cls.contract is None else {"tokenizer.ggml.mask_token_id": 159}
        recipe = Recipe(**{**vars(self.recipe), "sizes": {**self.recipe.sizes, **self.small_sizes}})
        return make_file(self.cls, recipe, {**SMALL, **drafter, **self.small})

    def bind(self, small: bool = False, options: Options | None = None) -> BoundModel:
        return bind(self.cls, self.file(small), options or self.options)


SPLIT_V = ("attn_v",)
NVFP4 = {"": GGMLType.nvfp4, "token_embd": GGMLType.f16}
MIXED = {"{arch}.attention.sliding_window": 24, "{arch}.attention.sliding_window_pattern": [True, True, False, True]}

VARIANTS = [
    *(Variant(name) for name in registry.builtin()),
    *(Variant(name, "no_flash", options=FLASH_OFF) for name in ("qwen3", "dflash")),
    Variant("qwen3", "f32_cache", options=Options(type_k=GGMLType.f32, type_v=GGMLType.f32)),
    Variant(
        "qwen3",
        "rotated_cache",
        options=Options(flash_attn=False, type_k=GGMLType.q8_0, type_v=GGMLType.q8_0),
        small={"{arch}.attention.key_length": 64, "{arch}.attention.value_length": 64},
    ),
    Variant("qwen3", "tap_last", Recipe(optional=("output",)), Options(tap_last=True)),
    Variant("qwen3", "scales", Recipe(scales=True, types=NVFP4, optional=("output",))),
    Variant(
        "qwen3",
        "yarn",
        Recipe(
            {
                "{arch}.rope.scaling.type": "yarn",
                "{arch}.rope.scaling.factor": 4.0,
                "{arch}.rope.scaling.original_context_length": 32,
                "{arch}.rope.dimension_count": 16,
            }
        ),
        small={"{arch}.rope.dimension_count": 16},
    ),
    Variant("dflash", "separate_v", Recipe(optional=SPLIT_V)),
    Variant("dflash", "mixed", Recipe(MIXED, optional=(*SPLIT_V, "token_embd", "output"))),
    Variant("dflash", "sinks", Recipe(MIXED, optional=SPLIT_V, only_layers={"attn_sinks": (0, 1, 3)})),
    Variant(
        "dflash",
        "gemma",
        Recipe(
            {
                "{arch}.hidden_activation": "gelu_pytorch_tanh",
                "{arch}.embedding_scale": 8.0,
                "{arch}.attention.scale": 0.2,
                "{arch}.rope.dimension_count": 32,
            },
            optional=("post_attention_norm", "post_ffw_norm", "layer_output_scale", "rope_freqs"),
            only_layers={"attn_v": (0, 2)},
        ),
        FLASH_OFF,
        small={"{arch}.rope.dimension_count": 16},
    ),
    Variant("dflash", "mrope", Recipe({"{arch}.rope.dimension_sections": [4, 2, 2, 0]}, optional=SPLIT_V), FLASH_OFF),
    Variant(
        "dflash",
        "mimo",
        Recipe(
            {**MIXED, "{arch}.attention.value_scale": 0.7, "{arch}.attention.causal": True},
            optional=(*SPLIT_V, "attn_sinks"),
        ),
        FLASH_OFF,
    ),
    Variant(
        "dflash",
        "conv",
        Recipe({"{arch}.conv_kernel_size": 3, "{arch}.conv_group_size": 8}, optional=SPLIT_V),
        FLASH_OFF,
        small={"{arch}.conv_kernel_size": 2, "{arch}.conv_group_size": 4},
    ),
    Variant(
        "dflash",
        "d2t",
        Recipe(sizes={"n_vocab_draft": 300}, optional=(*SPLIT_V, "d2t", "output")),
        FLASH_OFF,
        small_sizes={"n_vocab_draft": 90},
    ),
    Variant("dflash", "scales", Recipe(scales=True, types=NVFP4, optional=(*SPLIT_V, "output"))),
    Variant(
        "dspark",
        "d2t",
        Recipe(
            {"{arch}.sample_from_anchor": False},
            {"n_markov": 64, "n_vocab_draft": 300},
            (*SPLIT_V, "d2t", "output", "conf_proj", "conf_bias"),
            types={"": GGMLType.f16},
        ),
        FLASH_OFF,
        small_sizes={"n_markov": 16, "n_vocab_draft": 90},
    ),
    Variant("dspark", "confidence", Recipe(optional=(*SPLIT_V, "conf_proj")), FLASH_OFF),
    Variant(
        "dflash2",
        "softcap",
        Recipe(
            {"{arch}.logit_scale": 0.5, "{arch}.final_logit_softcapping": 20.0, **MIXED},
            optional=(*SPLIT_V, "attn_sinks"),
        ),
        FLASH_OFF,
        small={"{arch}.selector_top_k": 3, "{arch}.conv_kernel_size": 3, "{arch}.conv_group_size": 8},
    ),
]
BY_TITLE = {v.title: v for v in VARIANTS}


@cache
def traced(title: str, small: bool = False) -> tuple[BoundModel, dict[str, Graph]]:
    model = BY_TITLE[title].bind(small)
    return model, trace_all(model)


@cache
def source(title: str, small: bool = False) -> Source:
    return emit(*traced(title, small))


@cache
def ir_text(title: str, small: bool = False) -> str:
    return render(*traced(title, small))
