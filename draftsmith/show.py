"""The IR as text: what ``draftsmith show`` prints and golden tests keep.

One line is one statement of the author, with the shape of its result and the Python line it came from::

    block feed_forward(layer, x: f32[n_embd, n_tokens]) -> f32[n_embd, n_tokens]    # graphs/qwen3.py:72
        cur: f32[n_embd, n_tokens] = mul(rms_norm(x, eps=f_norm_rms_eps), layer.ffn_norm)    # qwen3.py:75
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftsmith.codegen.cpp_body import Line, merge
from draftsmith.codegen.emit import blocks_in_order, source_path
from draftsmith.codegen.roll import Choice, Rolled, Straight, Variant, roll
from draftsmith.dsl.bind import BoundModel
from draftsmith.dsl.expr import Sym
from draftsmith.dsl.guards import Guard
from draftsmith.dsl.ir import Apply, Body, Call, Graph, Loop, Node, Value, describe_type
from draftsmith.dsl.labels import labels
from draftsmith.dsl.text import reference


def render(model: BoundModel, graphs: Mapping[str, Graph]) -> str:
    """All blocks, callees first, then the graphs."""
    with model.binding({}):
        parts = [f"arch {model.name}    # {source_path(model.cls)}"]
        guards = dict.fromkeys(str(g) for graph in graphs.values() for g in graph.guards)
        parts.append("\n".join(["guards", *(f"    {g}" for g in guards)]))
        for block in blocks_in_order(graphs.values()):
            body = block.body
            head = ", ".join((["layer"] if body.uses_layer else []) + [_typed(p) for p in body.params])
            place = f"    # {block.position.short}" if block.position else ""
            parts.append(f"block {block.name}({head}){_arrow(body)}{place}\n" + _Printer(body, _loops(body)).text())
        for graph in graphs.values():
            head = ", ".join(_typed(v) for v in graph.feeds.values())
            place = f"    # {graph.position.short}" if graph.position else ""
            parts.append(
                f"graph {graph.name}({head}){_arrow(graph.body)}{place}\n" + _Printer(graph.body, graph.loops).text()
            )
    return "\n\n".join(parts) + "\n"


def _typed(value: Value) -> str:
    return f"{value.name}: {describe_type(value)}"


def _arrow(body: Body) -> str:
    if not body.results:
        return ""
    if len(body.results) == 1 and body.result_names == ["result"]:
        return f" -> {describe_type(body.results[0])}"
    return " -> " + ", ".join(f"{n}: {describe_type(v)}" for n, v in zip(body.result_names, body.results, strict=True))


def _loops(body: Body) -> list[Loop]:
    found: list[Loop] = []
    for node in body.nodes:
        if node.iteration is not None and node.iteration.loop not in found:
            found.append(node.iteration.loop)
    return found


class _Printer:
    """Prints one body; a value used once inside its own statement stands where it is used."""

    def __init__(self, body: Body, loops: Sequence[Loop]) -> None:
        self.body = body
        self.pieces = roll(body, loops)
        self.labels = labels(body, "")
        self.names: dict[int, str] = {id(p): p.name or "p" for p in body.params}
        self.uses: dict[int, int] = {}
        for node in body.nodes:
            for value in node.inputs:
                self.uses[id(value)] = self.uses.get(id(value), 0) + 1
        self.kept = {id(v) for v in body.results}

    def text(self) -> str:
        lines: list[Line] = []
        for piece in self.pieces:
            if isinstance(piece, Straight):
                lines += self.straight(piece.nodes)
            else:
                lines += self.loop(piece)
        if self.body.results:
            lines.append(Line("return " + ", ".join(self.ref(v) for v in self.body.results)))
        return "\n".join("    " + self._show(line) for line in lines)

    @staticmethod
    def _show(line: Line) -> str:
        return "    " * line.indent + line.text + (f"    # {line.comment}" if line.comment else "")

    def ref(self, value: Value) -> str:
        known = self.names.get(id(value))
        if known is not None:
            return known
        return reference(value).removeprefix("feed:") if value.ref is not None else "?"

    def straight(self, nodes: Sequence[Node]) -> list[Line]:
        lines: list[Line] = []
        for node, following in zip(nodes, [*nodes[1:], None], strict=False):
            text = self.expression(node)
            place = node.position.own_short if node.position else ""
            if len(node.results) > 1:
                names = [r.name or "r" for r in node.results]
                for name, result in zip(names, node.results, strict=True):
                    self.names[id(result)] = name
                typed = ", ".join(f"{n}: {describe_type(r)}" for n, r in zip(names, node.results, strict=True))
                lines.append(Line(f"{typed} = {text}", comment=place))
                continue
            if not node.results:
                lines.append(Line(text, comment=place))
                continue
            result = node.results[0]
            label = self.labels.get(id(node))
            inner = label is None and self.uses.get(id(result), 0) == 1 and id(result) not in self.kept
            if (inner and following is not None and any(v is result for v in following.inputs)) or (
                label is None and id(result) in self.kept and following is None
            ):
                self.names[id(result)] = text
            elif isinstance(node, Apply) and not node.op.has_result:
                lines.append(Line(text, comment=place))
            else:
                name = label or node.hint or node.describe()
                self.names[id(result)] = name
                lines.append(Line(f"{name}: {describe_type(result)} = {text}", comment=place))
        return lines

    def expression(self, node: Node) -> str:
        operands = ["none" if v is None else self.ref(v) for v in node.operands]
        if isinstance(node, Call):
            layer = ["layer"] if node.block.body.uses_layer else []
            return f"{node.block.name}({', '.join([*layer, *operands])})"
        assert isinstance(node, Apply)
        while operands and operands[-1] == "none":
            operands.pop()
        attrs = [f"{k}={_attr(v)}" for k, v in node.attrs.items() if v is not None and not _default(node, k, v)]
        return f"{node.op.name}({', '.join([*operands, *attrs])})"

    def loop(self, rolled: Rolled) -> list[Line]:
        loop = rolled.loop
        carried = list(rolled.carried)
        what = "layer in layers" if loop.over_layers else f"{loop.var} in {loop.start}..{loop.stop}"
        carrying = f", carrying {', '.join(carried)}" if carried else ""
        lines = [Line(f"for {what}{carrying}:", comment=loop.position.own_short if loop.position else "")]
        lines += [line.shifted() for line in self.arms(rolled.arms, carried)]
        for name in carried:
            if name in loop.snapshots[-1]:
                self.names[id(loop.snapshots[-1][name])] = name
        return lines

    def arms(self, arms: Choice | Variant, carried: list[str]) -> list[Line]:
        if isinstance(arms, Choice):
            yes, no = self.arms(arms.yes, carried), self.arms(arms.no, carried)
            return merge(_question(arms.question), yes, no, python=True)
        loop = arms.iteration.loop
        k = arms.iteration.index - int(loop.start)
        for name in carried:
            if name in loop.snapshots[k]:
                self.names[id(loop.snapshots[k][name])] = name
        lines = self.straight(arms.nodes)
        for name in carried:
            after = loop.snapshots[k + 1].get(name)
            if after is not None and after is not loop.snapshots[k].get(name):
                lines.append(Line(f"next {name} = {self.ref(after)}"))
        return lines


def _question(question: Any) -> str:
    return str(Guard(question, True))


def _default(node: Apply, name: str, value: Any) -> bool:
    default = node.op.attrs[name]
    return default is not ... and type(value) is type(default) and bool(value == default)


def _attr(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_attr(v) for v in value)}]"
    if isinstance(value, Sym):
        return str(value)
    return getattr(value, "name", None) or repr(value)
