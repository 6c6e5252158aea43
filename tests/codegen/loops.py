"""Small graphs with a loop of every kind, for the tests of rolling: ``LOOPS`` by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from draftsmith.dsl import (
    Architecture,
    Feed,
    GGMLType,
    Layer,
    LayerKey,
    Value,
    arch,
    block,
    boolean,
    counted,
    feeds,
    graph,
    kv_cache,
    minimum,
    n_tokens,
    ops,
    tensor,
    u32,
)
from draftsmith.dsl.arch import Hparams, trace_graph
from draftsmith.dsl.bind import BoundModel, bind
from draftsmith.dsl.ir import Graph
from draftsmith.model import sample_dims

from ..models import Recipe, make_file


class hp(Hparams):
    n_layer = u32("{arch}.block_count")
    n_embd = u32("{arch}.embedding_length")
    n_taps = u32("{arch}.n_taps")
    n_vocab = u32("{arch}.vocab_size")
    fancy = boolean("{arch}.fancy", False)


class TinyLayer(Layer):
    sliding = LayerKey("{arch}.sliding", bool)
    gain = LayerKey("{arch}.gain", int)
    w = tensor("blk.{il}.w", hp.n_embd)
    v = tensor("blk.{il}.v", hp.n_embd, optional=True)
    kv = kv_cache(hp.n_embd, hp.n_embd)


LOOPS: dict[str, Callable[..., dict[str, Value]]] = {}
x_feed: Any = Feed("x", GGMLType.f32, (hp.n_embd, n_tokens))
row_feed: Any = Feed("rows", GGMLType.i32, (n_tokens,))


def loop(function: Callable[..., dict[str, Value]]) -> Callable[..., dict[str, Value]]:
    LOOPS[function.__name__] = function
    return function


@loop
def carried(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        x = ops.mul(x, layer.w)
    return {"out": x}


@loop
def swapped(self: Any, x: Value = x_feed) -> dict[str, Value]:
    a, b = x, ops.scale(x, 0.5)
    for layer in self.layers:
        a, b = b, a + ops.mul(b, layer.w)
    return {"a": a, "b": b}


@loop
def turned_round(self: Any, x: Value = x_feed) -> dict[str, Value]:
    a, b, c = ops.scale(x, 1.0), ops.scale(x, 2.0), ops.scale(x, 3.0)
    for layer in self.layers:
        if layer.sliding:
            x = ops.mul(a, layer.w)
        a, b, c = c, a, b
    return {"out": x, "a": a, "b": ops.scale(b, 5.0), "c": c}


@loop
def defined_inside(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        y = ops.mul(x, layer.w)
        x = x + y
    return {"x": x, "y": y}


@loop
def last_is_special(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        y = ops.mul(x, layer.w)
        if layer.is_last:
            y = ops.scale(y, 3.0)
        x = x + y
    return {"out": x}


@loop
def first_is_special(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        y = ops.mul(x, layer.w)
        x = y if layer.is_first else x + y
    return {"out": x}


@loop
def two_kinds(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        if layer.sliding:  # noqa: SIM108 (both forms are to be tested)
            x = ops.add(x, layer.w)
        else:
            x = ops.mul(ops.sqr(x), layer.w)
    return {"out": x}


@loop
def tree_of_choices(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        if layer.v is not None:
            x = ops.add(x, layer.v)
            if layer.sliding:
                x = ops.sqr(x)
        elif layer.gain > 2:
            x = ops.scale(x, 2.0)
        x = ops.mul(x, layer.w)
    return {"out": x}


@loop
def number_of_a_layer(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        y = ops.slice_(x, 0, layer.gain, 1)
        x = x + ops.mul(ops.repeat(y, x), layer.w)
    return {"out": x}


@loop
def model_wide_choice(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        x = ops.mul(x, layer.w) if hp.fancy else ops.add(x, layer.w)
    return {"out": x}


@loop
def two_names(self: Any, x: Value = x_feed) -> dict[str, Value]:
    kept = x
    for layer in self.layers:
        before = x
        x = x + ops.mul(x, layer.w)
    return {"x": x, "kept": kept + before}


@loop
def previous(self: Any, x: Value = x_feed) -> dict[str, Value]:
    older = x
    for layer in self.layers:
        newer = ops.mul(x, layer.w) + older
        older = x
        x = newer
    return {"x": x, "older": older}


class Streams(NamedTuple):
    left: Value
    right: Value


@loop
def held_together(self: Any, x: Value = x_feed) -> dict[str, Value]:
    s = Streams(x, ops.neg(x))
    for layer in self.layers:
        s = Streams(s.left + ops.mul(s.right, layer.w), s.left)
    return {"out": s.left + s.right}


@loop
def counted_rows(self: Any, x: Value = x_feed) -> dict[str, Value]:
    total = ops.scale(ops.slice_(x, 1, 0, 1), 1.0)
    for i in counted(1, n_tokens):
        total = ops.add(ops.scale(total, 0.5), ops.cont(ops.slice_(x, 1, i, 1)))
    return {"out": total}


@loop
def first_of_the_count(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for t in counted(0, minimum(hp.n_taps, n_tokens), "t"):
        term = ops.scale(ops.cont(ops.slice_(x, 1, t, 1)), 0.5)
        out = term if t == 0 else out + term  # noqa: F821 (bound by the first iteration)
    return {"out": out}


@loop
def two_loops(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        x = x + layer.w
    middle = ops.sqr(x)
    for layer in self.layers:
        x = ops.mul(middle, layer.w) + x
    return {"out": x}


@loop
def inner_blocks(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        x = outer_block(layer, x)
    return {"out": x}


@block
def inner_block(layer: Any, x: Value) -> Value:
    """The square of the gated input."""
    return ops.sqr(ops.mul(x, layer.w))


@block
def outer_block(layer: Any, x: Value) -> Value:
    """A block that calls another."""
    y = inner_block(layer, x)
    if layer.sliding:
        y = ops.scale(y, 0.5)
    return x + y


@block
def halves(x: Value) -> tuple[Value, Value]:
    """Two results."""
    small = ops.scale(x, 0.25)
    large = ops.scale(x, 4.0)
    return small, large


@loop
def two_results(self: Any, x: Value = x_feed) -> dict[str, Value]:
    for layer in self.layers:
        small, large = halves(x)
        x = small + ops.mul(large, layer.w)
    return {"out": x, "small": small}


@loop
def read_before_write(self: Any, x: Value = x_feed, rows: Value = row_feed) -> dict[str, Value]:
    for layer in self.layers:
        old = ops.get_rows(layer.kv.k, rows)
        new = ops.store(layer.kv.k, x, layer.kv.cells)
        x = old + ops.scale(ops.get_rows(new, rows), 2.0)
    return {"out": x}


@arch("tiny")
class Tiny(Architecture):
    """Loops of every kind."""

    hparams, layer = hp, TinyLayer
    canonical: ClassVar = {"{arch}.n_taps": 3}


for _name, _function in LOOPS.items():
    setattr(Tiny, _name, graph(_function))


def tiny_model(
    n_layer: int, cls: type[Architecture] = Tiny, with_v: Sequence[int] | None = None, **keys: Any
) -> BoundModel:
    """Layers alternate: the even ones slide, the first of every three has ``v``, gains are 1, 2, 3, 1, ..."""
    recipe = Recipe(
        {
            "{arch}.block_count": n_layer,
            "{arch}.sliding": [il % 2 == 0 for il in range(n_layer)],
            "{arch}.gain": [il % 3 + 1 for il in range(n_layer)],
            "{arch}.embedding_length": 16,
            **{f"{{arch}}.{k}": v for k, v in keys.items()},
        },
        only_layers={"v": range(0, n_layer, 3) if with_v is None else with_v},
    )
    return bind(cls, make_file(cls, recipe))


def trace_one(function: Callable[..., Any], n_layer: int = 3, **keys: Any) -> tuple[BoundModel, dict[str, Graph]]:
    """A model whose only graph is ``function``, traced."""
    body = {
        "__doc__": "One loop.",
        "hparams": hp,
        "layer": TinyLayer,
        "canonical": Tiny.canonical,
        "run": graph(function),
    }
    model = tiny_model(n_layer, arch("tiny")(type("One", (Architecture,), body)), **keys)
    return model, {"run": trace_graph(model, next(iter(model.cls.graphs())), sample_dims(model))}


__all__ = ["LOOPS", "Tiny", "feeds", "hp", "loop", "tiny_model", "trace_one"]
