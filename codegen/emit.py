"""A traced architecture as one C++ source file.

:func:`emit` writes every block as a static function, every graph as a build function, and the structs that hold what
they use: hyperparameters, weights, state. The text depends on the choices the trace took, never on sizes: one
compiled file serves every GGUF that takes the same choices, and the choices (guards) stand at its top and are checked
when it loads.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from draftsmith.dsl.arch import Architecture
from draftsmith.dsl.bind import BoundModel
from draftsmith.dsl.expr import PRESENT, Cond, Flag, Matches, Scope, lift
from draftsmith.dsl.guards import Guard
from draftsmith.dsl.ir import Block, Body, Call, Graph, Kind, Value
from draftsmith.dsl.specs import KVCache, LayerGroup, Tensor, declared, groups
from draftsmith.ggml import cache_dir
from draftsmith.ggml.headers import called_functions

from .cpp_body import BodyWriter, Line, uses_state
from .cpp_expr import Names, condition, integer, negate

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass
class Function:
    """One C++ function, ready to print."""

    name: str
    returns: str
    params: list[str]
    comment: list[str]
    prologue: list[str]
    lines: list[str]


@dataclass
class Field:
    """A member of a struct: ``type name; // comment`` and how it is filled."""

    type: str
    name: str
    comment: str = ""
    source: str = ""


@dataclass
class Source:
    """A generated file."""

    name: str
    text: str

    @property
    def functions(self) -> frozenset[str]:
        """The ggml functions it calls."""
        return called_functions(self.text)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclass
class _File:
    """What is collected while functions are written."""

    names: Names = field(default_factory=Names)
    model_weights: dict[str, Value] = field(default_factory=dict)
    layer_weights: dict[str, dict[str, Value]] = field(default_factory=dict)  # by group
    layer_state: dict[str, Value] = field(default_factory=dict)
    checks: list[tuple[str, str]] = field(default_factory=list)  # C++ condition that must hold, text
    layer_checks: list[tuple[str, str, str]] = field(default_factory=list)  # group, C++ condition, text
    present: list[tuple[str, str]] = field(default_factory=list)  # group ("" for the model), tensor that must be there
    absent: list[tuple[str, str]] = field(default_factory=list)


def emit(model: BoundModel, graphs: Mapping[str, Graph]) -> Source:
    """The C++ of all graphs of a model. Deterministic to the byte."""
    with model.binding({}):
        return _emit(model, graphs)


def _emit(model: BoundModel, graphs: Mapping[str, Graph]) -> Source:
    file = _File()
    blocks = blocks_in_order(graphs.values())
    structs: list[dict[str, Any]] = []
    functions: list[Function] = []
    for block in blocks:
        functions.append(_block_function(model, block, file))
        if len(block.body.results) > 1:
            structs.append({"name": f"{block.name}_result", "fields": block.body.result_names})
    builders = [_graph_function(model, graph, file) for graph in graphs.values()]
    for graph in graphs.values():
        for guard in graph.guards:
            _guard(model, guard, file)
    context = _template_context(model, graphs, file, structs, functions, builders)
    text = _environment().get_template("arch.cpp.j2").render(context)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return Source(model.cls.variant, text)


@lru_cache(maxsize=1)
def _environment() -> Any:
    import jinja2

    # compiling the template takes as long as tracing a model: keep it beside the compiled libraries
    folder = cache_dir() / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        bytecode_cache=jinja2.FileSystemBytecodeCache(str(folder)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.tests["search_layer"] = lambda name: "%d" in name
    return environment


def blocks_in_order(graphs: Iterable[Graph]) -> list[Block]:
    """Callees before callers, each once."""
    ordered: list[Block] = []

    def visit(body: Body) -> None:
        for node in body.nodes:
            if isinstance(node, Call) and node.block not in ordered:
                visit(node.block.body)
                if node.block not in ordered:
                    ordered.append(node.block)

    for graph in graphs:
        visit(graph.body)
    return ordered


def _collect(body: Body, file: _File) -> None:
    for _, node in body.walk():
        for value in node.inputs:
            _collect_value(value, file)
    for value in body.results:
        _collect_value(value, file)


def _collect_value(value: Value, file: _File) -> None:
    if value.ref is None:
        return
    if value.kind is Kind.WEIGHT:
        grouped = file.model_weights if value.ref.il is None else file.layer_weights.setdefault(value.ref.group, {})
        grouped.setdefault(value.ref.field, value)
    elif value.kind is Kind.STATE:
        file.layer_state.setdefault(value.ref.field, value)


def _block_function(model: BoundModel, block: Block, file: _File) -> Function:
    body = block.body
    _collect(body, file)
    writer = BodyWriter(body, _loops_of(body), file.names, f"{block.name}.")
    params = [(p.name or f"p{i}", p) for i, p in enumerate(body.params)]
    lines = writer.write(params)
    for group, path, guard in writer.guards:
        _layer_guard(model, group, path, guard, file)
    results = [writer.ref(r) for r in body.results]
    if len(results) == 1:
        lines.append(Line(f"return {results[0]};"))
    elif results:
        lines.append(Line(f"return {{ {', '.join(results)} }};"))
    returns = {0: "void", 1: "ggml_tensor *"}.get(len(results), f"{block.name}_result")
    head = [f"const {model.cls.variant}_build & b"]
    if body.uses_layer:
        head.append(f"const {layer_struct(model.cls.variant, body.group)} & layer")
        if uses_state(body):
            head.append(f"const {model.cls.variant}_layer_state & state")
    args = [f"ggml_tensor * {n}" for n, _ in params]
    comment = [_first_sentence(block.doc)] if block.doc else []
    if block.position is not None:
        comment.append(f"{block.position.short} {block.position.function}")
    shapes = ", ".join(f"{n} {_shape(p)}" for n, p in params)
    if shapes:
        comment.append(f"in:  {shapes}")
    if body.results:
        comment.append(
            "out: "
            + ", ".join(
                (f"{n} " if len(results) > 1 else "") + _shape(r)
                for n, r in zip(body.result_names, body.results, strict=True)
            )
        )
    return Function(block.name, returns, [*head, *args], comment, _prologue(writer, lines), [x.render() for x in lines])


def _graph_function(model: BoundModel, graph: Graph, file: _File) -> Function:
    _collect(graph.body, file)
    writer = BodyWriter(graph.body, graph.loops, file.names, "")
    prefix: list[Line] = []
    for field_name, feed in graph.feeds.items():
        variable = field_name
        ne = ", ".join(integer(d, file.names) for d in feed.shape)
        prefix.append(Line(f'ggml_tensor * {variable} = g.input("{field_name}", {feed.dtype.c_name}, {ne});'))
    body = writer.write([(n, v) for n, v in graph.feeds.items()])
    for output, value in graph.outputs.items():
        body.append(Line(f'g.output("{output}", {writer.ref(value)});'))
    for group, path, guard in writer.guards:
        _layer_guard(model, group, path, guard, file)
    text = [x.render() for x in body]
    # a graph function gets g itself
    text = [t.replace("b.g.", "g.") for t in text]
    comment = [_first_sentence(graph.doc)] if graph.doc else []
    if graph.position is not None:
        comment.append(f"{graph.position.short} {graph.name}")
    prologue = _prologue(writer, prefix + body)
    lines = [x.render() for x in prefix] + ([""] if prefix else []) + text
    return Function(f"build_{graph.name}", "void", [], comment, prologue, lines)


def _loops_of(body: Body) -> list[Any]:
    loops: list[Any] = []
    for node in body.nodes:
        if node.iteration is not None and node.iteration.loop not in loops:
            loops.append(node.iteration.loop)
    return loops


def _prologue(writer: BodyWriter, lines: list[Line]) -> list[str]:
    text = "\n".join(line.text for line in lines)
    prologue = []
    if "(ctx, " in text:
        prologue.append("ggml_context * ctx = b.ctx;")
    if "hp." in text:
        prologue.append("const auto & hp = b.hp;")
    if "m." in text and writer.uses & {"m"}:
        prologue.append("const auto & m = b.m;")
    if "states." in text:
        prologue.append("const auto & states = b.states;")
    return prologue


def _layer_guard(model: BoundModel, name: str, path: list[str], guard: Guard, file: _File) -> None:
    """A choice that every layer of a group (on that path of choices) took alike."""
    question = guard.question
    group = next(g for g in groups(model.cls) if g.name == name)
    if isinstance(question, Flag) and question.name.startswith(PRESENT):
        asked = _layer_tensor(group, question.name.removeprefix(PRESENT))
        first, count = int(lift(group.first)), int(group.count)
        everywhere = {asked.format(il=first + i, i=i) in model.file.tensors for i in range(count)}
        if len(everywhere) == 1:
            _note(file.present if guard.answer else file.absent, (name, asked))
            return
    wanted = condition(question, file.names)
    if not guard.answer:
        wanted = negate(wanted)
    _note(file.layer_checks, (name, wanted if not path else f"!({' && '.join(path)}) || {wanted}", str(guard)))


def _note(entries: list[Any], entry: Any) -> None:
    if entry not in entries:
        entries.append(entry)


def _layer_tensor(group: LayerGroup, field_name: str) -> str:
    """The GGUF name behind a layer's presence flag, with {il} or {i} for the layer."""
    for spec in declared(group.layer, Tensor):
        if spec.name == field_name:
            return str(spec.tensor)
        if f"{spec.name}_scale" == field_name:
            return f"{spec.base}.scale"
    raise KeyError(field_name)


def _guard(model: BoundModel, guard: Guard, file: _File) -> None:
    """A choice on the whole model as a check in C++."""
    question = guard.question
    if isinstance(question, Flag):
        if question.scope is Scope.HPARAM and question.name.startswith(PRESENT):
            asked = _gguf_name(model, question.name.removeprefix(PRESENT))
            _note(file.present if guard.answer else file.absent, ("", asked))
            return
        name = f"{'opt.' if question.scope is Scope.OPTION else ''}{question.name}"
        entry = (f'params.get_i64("{name}") == {int(guard.answer)}', f"{name} is {str(guard.answer).lower()}")
    elif isinstance(question, Matches):
        name = f"{question.choice.name}={question.text}"
        entry = (f'params.get_i64("{name}") == {int(guard.answer)}', str(guard))
    else:
        assert isinstance(question, Cond)
        text = condition(question, file.names)
        entry = (text if guard.answer else negate(text), str(guard))
    _note(file.checks, entry)


def _gguf_name(model: BoundModel, field_name: str) -> str:
    """The GGUF name behind a presence flag."""
    for spec in declared(model.cls, Tensor):
        if spec.name == field_name:
            return str(spec.tensor)
        if f"{spec.name}_scale" == field_name:
            own = spec.tensor in model.file.tensors or spec.shared is None
            return f"{spec.base}.scale" if own else f"target:{spec.shared}.scale"
    raise KeyError(field_name)


def guard_params(graphs: Iterable[Graph]) -> dict[str, int]:
    """The values that the generated file's checks of flags and text choices read, by the names they use."""
    found: dict[str, int] = {}
    for graph in graphs:
        for guard in graph.guards:
            question = guard.question
            if isinstance(question, Flag) and not question.name.startswith(PRESENT):
                name = f"{'opt.' if question.scope is Scope.OPTION else ''}{question.name}"
                found[name] = int(guard.answer)
            elif isinstance(question, Matches):
                found[f"{question.choice.name}={question.text}"] = int(guard.answer)
    return found


def _template_context(
    model: BoundModel,
    graphs: Mapping[str, Graph],
    file: _File,
    structs: list[dict[str, Any]],
    functions: list[Function],
    builders: list[Function],
) -> dict[str, Any]:
    names = file.names
    used = [g for g in groups(model.cls) if g.name == "layers" or g.name in file.layer_weights]
    spans = {g.name: (integer(lift(g.first), names), integer(lift(g.count), names)) for g in used}
    hparams = [
        Field("float" if is_float else "int64_t", n, source=f'params.get_{"f32" if is_float else "i64"}("{n}")')
        for n, is_float in sorted(names.hparams.items())
        if not n.startswith(PRESENT)
    ]
    layer_fields = [
        Field(
            kind,
            n,
            source=f'params.get_{"f32" if kind == "float" else "i64"}("layer.{n}", i)'
            + (" != 0" if kind == "bool" else ""),
        )
        for n, kind in sorted(names.layer_values.items())
    ]
    return {
        "arch": model.cls.variant,
        "doc": _first_sentence(model.cls.__doc__ or ""),
        "source": source_path(model.cls),
        "guards": _guard_text(file),
        "checks": file.checks,
        "groups": [
            {
                "name": g.name,
                "struct": layer_struct(model.cls.variant, g.name),
                "first": spans[g.name][0],
                "count": spans[g.name][1],
                "values": _aligned(layer_fields) if g.name == "layers" else [],
                "weights": _aligned([_weight_field(f, v, g) for f, v in file.layer_weights.get(g.name, {}).items()]),
                "checks": [(check, text) for name, check, text in file.layer_checks if name == g.name],
                "present": [asked for name, asked in file.present if name == g.name],
                "absent": [asked for name, asked in file.absent if name == g.name],
            }
            for g in used
        ],
        "present": [asked for name, asked in file.present if not name],
        "absent": [asked for name, asked in file.absent if not name],
        "hparams": _aligned(hparams),
        "model_weights": _aligned([_weight_field(f, v, None) for f, v in file.model_weights.items()]),
        "layer_state": _aligned(
            [
                Field("ggml_tensor *", f.replace(".", "_"), _shape(v), f'tensors.state("{f}", il)')
                for f, v in file.layer_state.items()
            ]
        ),
        "dims": sorted(names.dims),
        "includes": sorted(_includes(functions + builders) | {"memory", "stdexcept", "string", "vector"}),
        "structs": structs,
        "functions": functions,
        "builders": [(graph, function) for graph, function in zip(graphs, builders, strict=True)],
    }


def layer_struct(variant: str, group: str) -> str:
    """The name of the struct of one layer of a group."""
    return f"{variant}_layer" if group == "layers" else f"{variant}_{group}_layer"


def _weight_field(field_name: str, value: Value, group: LayerGroup | None) -> Field:
    """A weight's member: filled by its GGUF name, in which {il} stands for the layer's number."""
    assert value.ref is not None and value.ref.tensor is not None
    if group is None:
        tensor = value.ref.tensor
        return Field("ggml_tensor *", field_name, f"{tensor} {_shape(value)}", f'"{tensor}"')
    pattern = _layer_tensor(group, field_name)
    number = "i" if "{i}" in pattern else "layer.il"
    shown = pattern.replace("{i}", "{il}")
    return Field("ggml_tensor *", field_name, f"{shown} {_shape(value)}", f'"{shown}", {number}')


def _aligned(fields: list[Field]) -> list[Field]:
    if fields:
        width = max(len(f.name) for f in fields)
        for f in fields:
            f.name = f.name.ljust(width)
    return fields


_HEADERS = {
    "std::array": "array",
    "std::min": "algorithm",
    "std::max": "algorithm",
    "sqrtf(": "cmath",
    "logf(": "cmath",
    "INFINITY": "cmath",
}


def _includes(functions: Iterable[Function]) -> set[str]:
    """Standard headers that the bodies need."""
    text = "\n".join(line for f in functions for line in f.lines)
    return {header for word, header in _HEADERS.items() if word in text}


def _guard_text(file: _File) -> list[str]:
    """The guards as lines for the head of the file."""
    lines = [text for _, text in file.checks]
    lines += [f"every layer{_of(name)}: {text}" for name, _, text in file.layer_checks]
    for word, entries in (("has", file.present), ("without", file.absent)):
        if entries:
            shown = ", ".join(dict.fromkeys(asked.replace("{il}", "*").replace("{i}", "*") for _, asked in entries))
            lines += textwrap.wrap(f"{word} {shown}", 110, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def _of(group: str) -> str:
    return "" if group == "layers" else f" of {group}"


def _shape(value: Value) -> str:
    return f"[{', '.join(str(d) for d in value.shape)}]"


def _first_sentence(doc: str) -> str:
    flat = " ".join(doc.split())
    end = flat.find(". ")
    return (flat if end < 0 else flat[: end + 1]).rstrip(".")


def source_path(cls: type[Architecture]) -> str:
    """``graphs/dflash.py``: the last two parts of the path of an architecture's file."""
    return "/".join(Path(inspect.getfile(cls)).parts[-2:])


def state_specs(model: BoundModel) -> list[KVCache]:
    """Cache declarations of an architecture's layers."""
    return list(declared(model.cls.layer, KVCache))
