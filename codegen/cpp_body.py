"""C++ statements of one function body.

The author's names survive: a statement ``q = rope(norm(q))`` becomes assignments to one variable ``q``, as a careful
ggml programmer writes it. A variable is reused when what it held is no longer needed; a temporary that may not take
the statement's name is ``cur``.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.guards import Guard
from draftsmith.dsl.ir import Apply, Body, Call, Kind, Loop, Node, Ref, Value
from draftsmith.dsl.labels import ends_statement, labels
from draftsmith.dsl.verify import states_written

from .cpp_expr import Names, attribute, condition, integer, negate
from .roll import Choice, Rolled, Straight, Variant, roll

RESERVED = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "constexpr",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "nullptr",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
        "b",
        "g",
        "m",
        "hp",
        "ctx",
        "layer",
        "state",
        "il",
        "in",
        "params",
        "tensors",
    ]
)


@dataclass(frozen=True)
class Line:
    """One statement. ``declares``: variables it introduces; ``text`` has ``{type}`` where their declaration stands."""

    text: str
    declares: tuple[str, ...] = ()
    comment: str = ""
    indent: int = 0

    def render(self, declare: bool = True) -> str:
        text = self.text.replace("{type}", "ggml_tensor * " if declare and self.declares else "")
        return wrap("    " * self.indent + text, f" // {self.comment}" if self.comment else "")

    def shifted(self) -> Line:
        return replace(self, indent=self.indent + 1)

    def mentions(self, variable: str) -> bool:
        return re.search(rf"\b{re.escape(variable)}\b", self.text) is not None


WIDTH = 120


def wrap(text: str, comment: str) -> str:
    """A statement on one line, or with the arguments of its outermost call continued on lines of their own."""
    indent = " " * (len(text) - len(text.lstrip()) + 12)  # inside a function, a continuation stands 8 deeper
    if len(text) + len(comment) + 4 <= WIDTH or "(" not in text:
        return text + comment
    head, _, rest = text.partition("(ctx, ")
    if not rest:
        return text + comment
    lines, line = [], f"{head}(ctx, "
    depth, start = 0, 0
    for i, c in enumerate(rest):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            word, start = rest[start : i + 1], i + 2
            if len(line) + len(word) + 4 > WIDTH:
                lines.append(line.rstrip())
                line = indent
            line += f"{word} "
    lines.append(line + rest[start:] + comment)
    return "\n".join(lines)


@dataclass
class Scope:
    """Variables of a function: who holds what, and until when it is needed."""

    held: dict[str, Value | None] = field(default_factory=dict)
    expr: dict[int, str] = field(default_factory=dict)  # id of a value -> C++
    pinned: set[str] = field(default_factory=set)  # may not be overwritten by a temporary
    carried: dict[str, str] = field(default_factory=dict)  # local variable of the author's loop -> C++ variable

    def child(self) -> Scope:
        return Scope(dict(self.held), dict(self.expr), set(self.pinned), dict(self.carried))


class BodyWriter:
    """Writes one body."""

    def __init__(self, body: Body, loops: Sequence[Loop], names: Names, prefix: str) -> None:
        self.body = body
        self.names = names
        self.scope = Scope()
        self.uses: set[str] = set()  # of: ctx, hp, m, state
        self.pieces = roll(body, loops)
        self.guards: list[tuple[str, list[str], Guard]] = []
        self.labels = labels(body, prefix)
        self._last: tuple[tuple[str, int, int] | None, str] = (None, "")

    # -- values ------------------------------------------------------------------------------------
    def ref(self, value: Value) -> str:
        """A value as a C++ expression."""
        known = self.scope.expr.get(id(value))
        if known is not None:
            return known
        if value.kind is Kind.WEIGHT:
            assert value.ref is not None
            if value.ref.il is None:
                self.uses.add("m")
                return f"m.{value.ref.field}"
            if value.ref.only:
                self.uses.add("m")
                return f"m.{value.ref.group}.front().{value.ref.field}"
            return f"layer.{value.ref.field}"
        if value.kind is Kind.STATE:
            assert value.ref is not None
            field_name = value.ref.field.replace(".", "_")
            self.uses.add("state")
            return f"state.{field_name}"
        raise GraphError(f"{value!r} is used before it exists: the loop that makes it cannot be written in C++")

    def unique(self, want: str) -> str:
        base = re.sub(r"\W", "_", want)
        if base in RESERVED:
            base += "_"
        name, number = base, 2
        while name in self.scope.held:
            name, number = f"{base}_{number}", number + 1
        return name

    # -- whole body ------------------------------------------------------------------------------------
    def write(self, params: Sequence[tuple[str, Value]]) -> list[Line]:
        for name, value in params:
            self.scope.held[name] = value
            self.scope.expr[id(value)] = name
            self.scope.pinned.add(name)  # parameters are the caller's: never reassigned
        lines: list[Line] = []
        remaining = list(self.pieces)
        while remaining:
            piece = remaining.pop(0)
            later = [v for p in remaining for v in _inputs(p)] + self.body.results
            if isinstance(piece, Straight):
                lines += self.straight(piece.nodes, later, final=not remaining)
            else:
                lines += self.loop(piece, later)
        return lines

    # -- straight code -----------------------------------------------------------------------------------
    def straight(self, nodes: Sequence[Node], later: Sequence[Value], final: bool = False) -> list[Line]:
        lines: list[Line] = []
        last_use: dict[int, int] = {}
        for i, node in enumerate(nodes):
            for value in node.inputs:
                last_use[id(value)] = i
        for value in later:
            last_use[id(value)] = len(nodes)
        for i, node in enumerate(nodes):
            statement_ends = ends_statement(node, nodes[i + 1] if i + 1 < len(nodes) else None)
            lines += self.node(nodes, i, last_use, statement_ends, returned=final and i + 1 == len(nodes))
        return lines

    def node(
        self, nodes: Sequence[Node], i: int, last_use: dict[int, int], statement_ends: bool, returned: bool
    ) -> list[Line]:
        node = nodes[i]
        self.uses.add("ctx")
        comment = node.position.own_short if node.position and statement_ends else ""
        gap = self._gap(node)
        args = [self.ref(v) if v is not None else "nullptr" for v in node.operands]
        gap += self.readers_first(node, nodes[:i])
        if isinstance(node, Call):
            return gap + self.call(node, args, i, last_use, statement_ends, comment)
        assert isinstance(node, Apply)
        attrs = {k: attribute(v, self.names) for k, v in node.attrs.items()}
        op = node.op
        text = op.cpp(args, attrs, node)
        if not op.has_result:
            return [*gap, Line(f"{text};", comment=comment)]
        result = node.results[0]
        if id(result) not in last_use:  # only a write to state is kept without a reader
            return [*gap, Line(f"{text};", comment=comment)]
        if returned and node.hint is None and self.body.results == [result] and not op.cpp_after("", args, attrs):
            self.scope.expr[id(result)] = text
            return gap
        variable, declares = self.variable(node, i, last_use, statement_ends)
        lines = [Line(f"{{type}}{variable} = {text};", (variable,) if declares else (), comment)]
        after = op.cpp_after(variable, args, attrs)
        self.hold(variable, result)
        return [*gap, *lines, *(Line(t) for t in after), *self.label(node, variable)]

    def _gap(self, node: Node) -> list[Line]:
        """A blank line where the author left one."""
        if node.position is None:
            return []
        place, function = node.position.own, node.position.function
        (last, last_function), self._last = self._last, (place, function)
        if last is None or last_function != function or last[0] != place[0] or not last[2] < place[1]:
            return []
        between = (linecache.getline(place[0], n).strip() for n in range(last[2] + 1, place[1]))
        return [Line("")] if any(text == "" for text in between) else []

    def readers_first(self, write: Node, before: Sequence[Node]) -> list[Line]:
        """A write goes into the graph at once; what reads the old state must be there already."""
        written = set(states_written(write))
        if not written:
            return []
        seen: set[int] = set()  # views of the old state
        lines = []
        for node in before:
            if not (written & _states_read(node) or any(id(v) in seen for v in node.inputs)):
                continue
            if isinstance(node, Apply) and node.op.is_view:
                seen.add(id(node.results[0]))
            elif not states_written(node):
                lines += [
                    Line(f"ggml_build_forward_expand(b.g.gf, {self.scope.expr[id(result)]});")
                    for result in node.results
                    if id(result) in self.scope.expr
                ]
        return lines

    def call(
        self, node: Call, args: list[str], i: int, last_use: dict[int, int], statement_ends: bool, comment: str
    ) -> list[Line]:
        head = ["b"]
        if node.block.body.uses_layer:
            head.append("layer")
            if uses_state(node.block.body):
                self.uses.add("state")
                head.append("state")
        text = f"{node.block.name}({', '.join([*head, *args])})"
        used = [r for r in node.results if id(r) in last_use]
        if not used:
            return [Line(f"{text};", comment=comment)]
        if len(node.results) == 1:
            variable, declares = self.variable(node, i, last_use, statement_ends)
            self.hold(variable, node.results[0])
            line = Line(f"{{type}}{variable} = {text};", (variable,) if declares else (), comment)
            return [line, *self.label(node, variable)]
        bound = [self.unique(r.name or "r") for r in node.results]
        lines = [Line(f"auto [{', '.join(bound)}] = {text};", tuple(bound), comment)]
        for variable, result in zip(bound, node.results, strict=True):
            self.hold(variable, result)
        return lines

    def variable(self, node: Node, i: int, last_use: dict[int, int], statement_ends: bool) -> tuple[str, bool]:
        """The variable for a node's result and whether it is new."""

        def free(name: str) -> bool:
            held = self.scope.held[name]
            return name not in self.scope.pinned and (held is None or last_use.get(id(held), -1) <= i)

        hint = self.scope.carried.get(node.hint or "", node.hint)
        for want in ([hint] if hint else []) + ["cur"]:
            want = want if want not in RESERVED else f"{want}_"
            if want not in self.scope.held:
                return want, True
            if free(want):
                return want, False
            if statement_ends and want == hint:
                return self.unique(node.hint or want), True
        return self.unique("cur"), True

    def hold(self, variable: str, value: Value) -> None:
        self.scope.held[variable] = value
        self.scope.expr[id(value)] = variable

    def label(self, node: Node, variable: str) -> list[Line]:
        """The name that checks and views know a value by; one per statement of the author."""
        name = self.labels.get(id(node))
        if name is None:
            return []
        layered = self.body.uses_layer or (node.iteration is not None and node.iteration.loop.over_layers)
        return [Line(f'b.g.cb({variable}, "{name}"{", layer.il" if layered else ""});')]

    # -- loops ---------------------------------------------------------------------------------------------
    def loop(self, rolled: Rolled, later: Sequence[Value]) -> list[Line]:
        lines: list[Line] = []
        last = rolled.loop.snapshots[-1]
        carried: dict[str, str] = {}  # local variable -> C++ variable
        needed_later = {id(v) for v in later}
        for name, first in rolled.carried.items():
            expression = None if first is None else self.ref(first)
            own = expression is not None and expression in self.scope.held and expression not in self.scope.pinned
            if own and first is not None and id(first) not in needed_later and expression not in carried.values():
                carried[name] = expression or ""
                continue
            variable = self.unique(name)
            carried[name] = variable
            self.scope.held[variable] = first
            lines.append(Line(f"{{type}}{variable} = {expression or 'nullptr'};", (variable,)))
        start, stop = (integer(x, self.names) for x in (rolled.loop.start, rolled.loop.stop))
        var = rolled.loop.var
        needed = {id(v) for v in _inputs(rolled)} | needed_later
        body = self.arms(rolled.arms, carried, needed)
        if rolled.loop.over_layers:
            self.uses.add("m")
            lines.append(Line(f"for (const auto & layer : m.{rolled.loop.group}) {{", comment=_place(rolled.loop)))
            if any(re.search(r"\bstate\b", line.text) for line in body):
                self.uses.add("states")
                lines.append(Line("const auto & state = states.layers[layer.il];", indent=1))
        else:
            lines.append(
                Line(f"for (int64_t {var} = {start}; {var} < {stop}; ++{var}) {{", comment=_place(rolled.loop))
            )
            body = [*self.counted_guards(rolled), *body]
        lines += [line.shifted() for line in body]
        lines.append(Line("}"))
        for name, variable in carried.items():
            if name in last:
                self.hold(variable, last[name])
        if rolled.loop.over_layers:
            self.guards += [(rolled.loop.group, self.path(path), guard) for path, guard in rolled.guards]
        return lines

    def path(self, taken: Sequence[tuple[Any, bool]]) -> list[str]:
        """Choices as conditions that hold."""
        return [condition(q, self.names) if a else negate(condition(q, self.names)) for q, a in taken]

    def counted_guards(self, rolled: Rolled) -> list[Line]:
        """A choice on the counter that was only ever taken one way: the loop may not run on to where it would be the
        other."""
        lines = []
        for path, guard in rolled.guards:
            broken = self.path([*path, (guard.question, not guard.answer)])
            lines += [
                Line(f"if ({' && '.join(broken)}) {{"),
                Line(
                    f'throw std::runtime_error("this source was generated for {guard} in every iteration");', indent=1
                ),
                Line("}"),
            ]
        return lines

    def arms(self, arms: Choice | Variant, carried: dict[str, str], needed: set[int]) -> list[Line]:
        if isinstance(arms, Variant):
            return self.variant(arms, carried, needed)
        yes, no = self.arms(arms.yes, carried, needed), self.arms(arms.no, carried, needed)
        return merge(condition(arms.question, self.names), yes, no)

    def variant(self, variant: Variant, carried: dict[str, str], needed: set[int]) -> list[Line]:
        """One kind of iteration, ending with every carried variable holding its next value. ``needed``: values that
        every iteration reads, or the code behind the loop."""
        outer, self.scope = self.scope, self.scope.child()
        self.scope.carried |= carried
        k = variant.iteration.index - int(variant.iteration.loop.start)
        before, after = variant.iteration.loop.snapshots[k], variant.iteration.loop.snapshots[k + 1]
        kept: list[Value] = []
        for name, variable in carried.items():
            if name in before:
                self.hold(variable, before[name])
            if name in after:
                kept.append(after[name])
            if after.get(name) is before.get(name):
                self.scope.pinned.add(variable)
        for value in variant.nodes and _inputs(Straight(variant.nodes)):
            if id(value) in variant.reads:
                self.scope.expr[id(value)] = carried[variant.reads[id(value)]]
        for variable, held in outer.held.items():
            if variable not in carried.values() and held is not None and id(held) in needed:
                self.scope.pinned.add(variable)
        self._last = (None, "")
        lines = self.straight(variant.nodes, kept)
        lines += self.moves(
            {
                variable: self.ref(after[name])
                for name, variable in carried.items()
                if name in after and after[name] is not before.get(name)
            }
        )
        self.scope = outer
        return lines

    def moves(self, wanted: dict[str, str]) -> list[Line]:
        """Assignments that take effect all at once, as those of ``a, b = b, a``: none overwrites what another still
        reads."""
        pending = {variable: text for variable, text in wanted.items() if text != variable}
        lines = []
        while pending:
            free = next((v for v in pending if v not in (text for w, text in pending.items() if w != v)), None)
            if free is None:
                free = next(iter(pending))
                spare = self.unique("cur")
                self.scope.held[spare] = None
                lines.append(Line(f"{{type}}{spare} = {free};", (spare,)))
                pending = {v: spare if text == free else text for v, text in pending.items()}
            lines.append(Line(f"{free} = {pending.pop(free)};"))
        return lines


def merge(question: str, yes: list[Line], no: list[Line], python: bool = False) -> list[Line]:
    """``if`` around what differs; what both begin or end with stands once."""
    left, right = _statements(yes), _statements(no)
    most = min(len(left), len(right))
    n_head = 0
    while n_head < most and left[n_head] == right[n_head]:
        n_head += 1
    n_tail = 0
    while n_tail < most - n_head and left[-1 - n_tail] == right[-1 - n_tail]:
        n_tail += 1
    head, tail = sum(map(len, left[:n_head])), sum(map(len, left[len(left) - n_tail :]))
    common = yes[len(yes) - tail :]
    parts = [yes[head : len(yes) - tail], no[head : len(no) - tail]]
    hoisted: list[str] = []
    for variable in dict.fromkeys(v for part in parts for line in part for v in line.declares):
        first = next((line for line in common if line.mentions(variable)), None)
        if first is not None and variable not in first.declares:
            if any(line.text.startswith("auto [") and variable in line.declares for part in parts for line in part):
                # a structured binding cannot be declared ahead: keep the two ways apart to their ends
                return [*yes[:head], *_branches(question, yes[head:], no[head:], python)]
            hoisted.append(variable)
    first_part, second_part = ([_without(line, hoisted) for line in part] for part in parts)
    ahead = [Line(f"{{type}}{v} = nullptr;", (v,)) for v in hoisted]
    return [
        *yes[:head],
        *ahead,
        *_branches(question, first_part, second_part, python),
        *(_without(line, hoisted) for line in common),
    ]


def _statements(lines: list[Line]) -> list[list[Line]]:
    """Lines by statement: a block stays whole."""
    found: list[list[Line]] = []
    for line in lines:
        if found and (line.indent > 0 or line.text.startswith(("}", "else"))):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _without(line: Line, hoisted: list[str]) -> Line:
    if line.declares and all(v in hoisted for v in line.declares):
        return replace(line, declares=())
    return line


def _branches(question: str, yes: list[Line], no: list[Line], python: bool) -> list[Line]:
    if not yes:
        question, yes, no = f"not {question}" if python else negate(question), no, []
    opening, between, closing = ("if {}:", "else:", None) if python else ("if ({}) {{", "}} else {{", "}}")
    lines = [Line(opening.format(question)), *(line.shifted() for line in yes)]
    if no:
        lines += [Line(between.format()), *(line.shifted() for line in no)]
    return [*lines, Line(closing.format())] if closing else lines


def _states_read(node: Node) -> set[Ref]:
    """State that a node, or the body it calls, takes as it is."""
    nodes = [node, *(n for _, n in node.body.walk())] if isinstance(node, Call) else [node]
    return {v.ref for n in nodes for v in n.inputs if v.kind is Kind.STATE and v.ref is not None}


def _inputs(piece: Straight | Rolled) -> list[Value]:
    if isinstance(piece, Straight):
        return [v for node in piece.nodes for v in node.inputs]
    nodes: list[Node] = []

    def collect(arms: Choice | Variant) -> None:
        if isinstance(arms, Variant):
            nodes.extend(arms.nodes)
        else:
            collect(arms.yes)
            collect(arms.no)

    collect(piece.arms)
    first = [v for v in piece.carried.values() if v is not None]
    return first + [v for node in nodes for v in node.inputs]


def uses_state(body: Body) -> bool:
    """Whether a body, or one it calls, names the layer's state."""
    return any(v.kind is Kind.STATE for _, node in body.walk() for v in node.inputs) or any(
        r.kind is Kind.STATE for r in body.results
    )


def _place(loop: Loop) -> str:
    return loop.position.short.rsplit("/", 1)[-1] if loop.position else ""
