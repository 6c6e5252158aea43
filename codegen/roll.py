"""Rolling traced iterations back into a loop.

A Python loop over layers is traced once per iteration. Here its iterations are compared: those with the same text are
of one kind, the choices they recorded say when each kind applies, and the author's local variables say what is
carried from one iteration to the next. The result still names one iteration's nodes per kind, so that text and C++
are printed from the same structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftsmith.dsl.errors import GraphError
from draftsmith.dsl.guards import Guard
from draftsmith.dsl.ir import Body, Iteration, Kind, Loop, Node, Value
from draftsmith.dsl.source import live_in
from draftsmith.dsl.text import node_text


@dataclass
class Straight:
    """Nodes outside loops."""

    nodes: list[Node]


@dataclass
class Variant:
    """One kind of iteration: ``nodes`` of its representative, and which variable each outer value is read from."""

    iteration: Iteration
    nodes: list[Node]
    reads: dict[int, str]  # id of an outer value -> local variable


@dataclass
class Choice:
    """A question that tells kinds apart; ``yes``/``no`` are Choices or Variants."""

    question: Any
    yes: Choice | Variant
    no: Choice | Variant


@dataclass
class Rolled:
    """A loop. ``carried``: local variables that change from one iteration to the next, with their first values."""

    loop: Loop
    arms: Choice | Variant
    carried: dict[str, Value | None]
    guards: list[tuple[list[tuple[Any, bool]], Guard]] = field(default_factory=list)


def roll(body: Body, loops: Sequence[Loop]) -> list[Straight | Rolled]:
    """A body as straight pieces and loops, in order."""
    pieces: list[Straight | Rolled] = []
    pending: list[Node] = []
    by_loop: dict[int, list[Node]] = {}
    for node in body.nodes:
        if node.iteration is not None:
            by_loop.setdefault(id(node.iteration.loop), []).append(node)
    done: set[int] = set()
    for node in body.nodes:
        if node.iteration is None:
            pending.append(node)
            continue
        loop = node.iteration.loop
        if id(loop) in done:
            continue
        done.add(id(loop))
        if pending:
            pieces.append(Straight(pending))
            pending = []
        pieces.append(_roll_loop(body, loop, by_loop[id(loop)]))
    if pending:
        pieces.append(Straight(pending))
    return pieces


def _roll_loop(body: Body, loop: Loop, nodes: list[Node]) -> Rolled:
    inside = {id(node) for node in nodes}
    per_iteration: list[list[Node]] = [[] for _ in loop.iterations]
    position = {id(iteration): k for k, iteration in enumerate(loop.iterations)}
    for node in nodes:
        per_iteration[position[id(node.iteration)]].append(node)

    after = _used_after(body, nodes, inside)
    changing = _changing(loop)
    # 1. iterations of equal structure, outer values still anonymous
    groups: dict[str, list[int]] = {}
    outer: list[list[Value]] = []
    for k, mine in enumerate(per_iteration):
        text, values = _structure(mine, {id(v) for n in changing if (v := loop.snapshots[k].get(n)) is not None})
        groups.setdefault(text, []).append(k)
        outer.append(values)
    # 2. which variable each outer value is read from
    kinds: dict[int, Variant] = {}
    for members in groups.values():
        for k, variant in _name_reads(loop, members, outer, per_iteration, changing).items():
            kinds[k] = variant
    # 3. what is carried: variables read in the loop or used behind it, and changed by it
    read = {name for variant in kinds.values() for name in variant.reads.values()}
    last = loop.snapshots[-1]
    behind = _behind(loop, changing, read, after)
    carried: dict[str, Value | None] = {}
    for name in changing:
        if name in read or name in behind:
            carried[name] = loop.snapshots[0].get(name)
    for value in after:
        if value.node is not None and id(value.node) in inside and not any(last.get(n) is value for n in carried):
            raise GraphError(f"{value!r} is used behind the loop but no local variable holds it when the loop ends")
    rolled = Rolled(loop, kinds[0], carried)
    rolled.arms = _decide(loop, kinds, list(range(len(loop.iterations))), 0, [], rolled.guards)
    return rolled


def _behind(loop: Loop, changing: list[str], read: set[str], after: list[Value]) -> set[str]:
    """One variable for each value that is used behind the loop: one that the loop reads anyway, else one that existed
    before it."""
    last, first = loop.snapshots[-1], loop.snapshots[0]
    chosen: set[str] = set()
    for value in after:
        holding = [n for n in changing if last.get(n) is value]
        if holding and not any(n in read or n in chosen for n in holding):
            chosen.add(next((n for n in holding if n in first), holding[0]))
    return chosen


def _live_in(loop: Loop) -> frozenset[str]:
    return live_in(loop.position.file, loop.position.line) if loop.position is not None else frozenset()


def _used_after(body: Body, nodes: list[Node], inside: set[int]) -> list[Value]:
    """Values that nodes behind the loop, or the body's results, use."""
    last = max(i for i, node in enumerate(body.nodes) if id(node) in inside)
    used = [v for node in body.nodes[last + 1 :] for v in node.inputs]
    return used + body.results


def _changing(loop: Loop) -> list[str]:
    """Local variables that do not hold one and the same tensor in all snapshots."""
    names: list[str] = []
    for snapshot in loop.snapshots:
        names += [n for n in snapshot if n not in names]
    return [n for n in names if any(s.get(n) is not loop.snapshots[0].get(n) for s in loop.snapshots[1:])]


def _structure(nodes: list[Node], held: set[int]) -> tuple[str, list[Value]]:
    """Canonical text of an iteration without the names of outer values, and these values in the order of their uses.
    ``held``: what the author's changing variables hold; a host input counts as an outer value only there."""
    names: dict[int, str] = {}
    outer: list[Value] = []
    made = {id(r) for node in nodes for r in node.results}
    lines = []
    for number, node in enumerate(nodes):
        for value in node.inputs:
            local = value.kind in (Kind.NODE, Kind.PARAM) or (value.kind is Kind.FEED and id(value) in held)
            if local and id(value) not in made:
                names[id(value)] = "outer"
                outer.append(value)
        lines.append(node_text(node, names, number).split(" @")[0])
    return "\n".join(lines), outer


def _name_reads(
    loop: Loop, members: list[int], outer: list[list[Value]], per_iteration: list[list[Node]], changing: list[str]
) -> dict[int, Variant]:
    """Variants of the iterations ``members``, which are equal in structure."""
    chosen: list[str | None] = []  # by use of an outer value; None: one and the same value in all iterations
    for slot in range(len(outer[members[0]])):
        common: list[str] | None = None
        for k in members:
            value = outer[k][slot]
            bound = [n for n, v in loop.snapshots[k].items() if v is value]
            common = bound if common is None else [n for n in common if n in bound]
        moving = [n for n in common or [] if n in changing]
        # two names for one value: the one that the author's loop reads before it assigns it
        moving.sort(key=lambda n: n.partition(".")[0] not in _live_in(loop))
        first = outer[members[0]][slot]
        if not moving and any(outer[k][slot] is not first for k in members):
            raise GraphError(
                f"a loop reads {first!r}, which changes from one iteration to the next but is in no local variable "
                "when an iteration begins: give it a name"
            )
        chosen.append(moving[0] if moving else None)

    # values that only happen to be one in some iteration (the first) are told apart in another
    def reads(k: int) -> set[tuple[int, str | None]]:
        return {(id(value), name) for value, name in zip(outer[k], chosen, strict=True)}

    k = max(members, key=lambda k: (len({value for value, _ in reads(k)}) - len(reads(k)), -k))
    variant = Variant(
        loop.iterations[k], per_iteration[k], {value: name for value, name in reads(k) if name is not None}
    )
    return dict.fromkeys(members, variant)


def _decide(
    loop: Loop,
    kinds: dict[int, Variant],
    members: list[int],
    depth: int,
    path: list[tuple[Any, bool]],
    guards: list[tuple[list[tuple[Any, bool]], Guard]],
) -> Choice | Variant:
    """The tree of questions that tells the kinds of ``members`` apart; one-sided answers become guards."""
    facts = [_distinct(loop.iterations[k].facts) for k in members]
    if any(len(f) <= depth for f in facts):
        variants = {id(kinds[k]) for k in members}
        if len(variants) > 1:
            raise GraphError(
                f"iterations {members} of the loop over {loop.var} differ, but no choice that the "
                "author's code made tells them apart"
            )
        return kinds[members[0]]
    question = facts[0][depth].question
    answers = [f[depth].answer for f in facts]
    if all(a == answers[0] for a in answers):
        guards.append((list(path), facts[0][depth]))
        return _decide(loop, kinds, members, depth + 1, path, guards)
    yes = [k for k, a in zip(members, answers, strict=True) if a]
    no = [k for k, a in zip(members, answers, strict=True) if not a]
    a = _decide(loop, kinds, yes, depth + 1, [*path, (question, True)], guards)
    b = _decide(loop, kinds, no, depth + 1, [*path, (question, False)], guards)
    return a if a is b else Choice(question, a, b)


def _distinct(facts: list[Guard]) -> list[Guard]:
    seen: dict[str, Guard] = {}
    for fact in facts:
        seen.setdefault(fact.key, fact)
    return list(seen.values())
