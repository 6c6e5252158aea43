"""Which line of the author's file made a value, and what name the author gave it.

CPython 3.11 and later know the line and columns of every call; the statement around it gives the target of
the assignment, which becomes the name of the value in the IR, in C++ and in messages.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

_HERE = Path(__file__).resolve().parent
# Modules of the language itself: their frames are neither the author's nor a source of names.
_MACHINERY = {
    str(_HERE / name)
    for name in (
        "source.py",
        "trace.py",
        "op.py",
        "ir.py",
        "expr.py",
        "arch.py",
        "block.py",
        "layers.py",
        "loops.py",
        "bind.py",
        "specs.py",
    )
} | {str(path) for path in (_HERE / "ops").glob("*.py")}
_LIBRARY = str(_HERE)


Span = tuple[str, int, int]
"""A statement: file, first and last line."""

_BLOCK_CALLS = str(_HERE / "block.py")


@dataclass(frozen=True)
class Position:
    """A place in the author's file; columns count from 0. ``own`` is the statement that comments refer to: the
    author's, or that of a block of the library, which an author calls but did not write. ``statement`` is the one
    that gives the name."""

    file: str
    line: int
    column: int
    end_column: int
    function: str
    target: str | None
    own: Span
    statement: Span

    @property
    def own_short(self) -> str:
        """``dflash.py:88`` of the statement in the body's own function."""
        return f"{Path(self.own[0]).name}:{self.own[1]}"

    @property
    def short(self) -> str:
        """``graphs/dflash.py:88``: the last two parts of the path."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"

    def excerpt(self) -> str:
        """The line with a caret under the expression."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text:
            return f"  {self.short}"
        end = self.end_column if self.end_column > self.column else self.column + 1
        # Columns are byte offsets; for the caret characters are wanted.
        lead = len(text.encode()[: self.column].decode(errors="replace"))
        width = max(1, min(end, len(text.encode())) - self.column)
        return f"  {self.short}\n    {text}\n    {' ' * lead}{'^' * width}"


@dataclass(frozen=True)
class _Statement:
    first: int
    last: int
    targets: tuple[str | None, ...]  # one per element of a tuple assignment, else one
    elements: tuple[tuple[int, int, int, int], ...]  # where each element of the right side lies

    def target_at(self, line: int, column: int) -> str | None:
        if len(self.targets) == 1:
            return self.targets[0]
        for target, (l0, c0, l1, c1) in zip(self.targets, self.elements, strict=False):
            if (l0, c0) <= (line, column) < (l1, c1):
                return target
        return None


def _name_of(target: ast.expr) -> str | None:
    return target.id if isinstance(target, ast.Name) else None


def _describe(node: ast.stmt) -> _Statement:
    targets: tuple[str | None, ...] = (None,)
    elements: tuple[tuple[int, int, int, int], ...] = ()
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        left, right = node.targets[0], node.value
        if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple):
            targets = tuple(_name_of(t) for t in left.elts)
            elements = tuple(
                (e.lineno, e.col_offset, e.end_lineno or e.lineno, e.end_col_offset or 0) for e in right.elts
            )
        else:
            targets = (_name_of(left),)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = (_name_of(node.target),)
    return _Statement(node.lineno, node.end_lineno or node.lineno, targets, elements)


@lru_cache(maxsize=64)
def _statements(file: str) -> dict[int, _Statement]:
    """Simple statements of a file by line; of nested ones the innermost."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, _Statement] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)):
            statement = _describe(node)
            for line in range(statement.first, statement.last + 1):
                found[line] = statement
    return found


@lru_cache(maxsize=256)
def live_in(file: str, line: int) -> frozenset[str]:
    """Names that the body of the ``for`` statement at a line reads before it assigns them: what an iteration takes
    from the one before it. Empty where the source cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    loops = [
        n for n in ast.walk(tree) if isinstance(n, ast.For) and n.lineno <= line <= (n.iter.end_lineno or n.lineno)
    ]
    found: set[str] = set()
    for loop in loops:
        _first_reads(loop.body, {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}, found)
    return frozenset(found)


def _first_reads(statements: list[ast.stmt], assigned: set[str], found: set[str]) -> set[str]:
    """Add to ``found`` what is read before it is assigned; returns what is assigned at the end, whichever way was
    taken."""
    for node in statements:
        if isinstance(node, ast.If):
            _loads(node.test, assigned, found)
            assigned = _first_reads(node.body, set(assigned), found) & _first_reads(node.orelse, set(assigned), found)
        elif isinstance(node, (ast.For, ast.While)):
            _loads(node.iter if isinstance(node, ast.For) else node.test, assigned, found)
            own = (
                {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)} if isinstance(node, ast.For) else set()
            )
            _first_reads(node.body, assigned | own, found)
        else:
            _loads(node, assigned, found)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in assigned:
                found.add(node.target.id)
            assigned = assigned | {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return assigned


def _loads(node: ast.AST, assigned: set[str], found: set[str]) -> None:
    found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - assigned


@lru_cache(maxsize=4096)
def _columns(code: CodeType, instruction: int) -> tuple[int, int, int]:
    """Line, first and last column of one instruction."""
    positions = next(itertools.islice(code.co_positions(), instruction, None), (None, None, None, None))
    line, end_line, column, end_column = positions
    if line is None:
        return code.co_firstlineno, 0, 0
    return line, column or 0, (end_column or 0) if end_line == line else 0


def here(within: tuple[str, int] | None = None) -> Position | None:
    """The innermost place in an author's file that is being executed, with the name being assigned.

    The position is that of the first frame outside the ``dsl`` package. ``within``: file and first line of the
    function being traced as a body. The name is that of the innermost assignment up to that function: helpers of
    ``dsl/nn.py`` name the inner steps of an attention, a helper that only returns leaves the naming to its caller.
    """
    frame: FrameType | None = sys._getframe(1)
    target: str | None = None
    named: Span | None = None
    own: Span | None = None
    place: tuple[str, int, int, int, str] | None = None
    inside = within is not None
    while frame is not None and (place is None or inside):
        code = frame.f_code
        file = code.co_filename
        if file not in _MACHINERY:
            line, column, end_column = _columns(code, frame.f_lasti // 2)
            statement = _statements(file).get(line)
            span = (file, statement.first, statement.last) if statement else (file, line, line)
            if named is None and (inside or within is None) and statement is not None:
                target = statement.target_at(line, column)
                named = span if target is not None else None
            by_author = not file.startswith(_LIBRARY)
            if place is None and by_author:
                place = (file, line, column, end_column, code.co_name)
                own = own or span
            if within == (file, code.co_firstlineno):
                own = own or span
                inside = False
        elif place is not None and file == _BLOCK_CALLS:
            break  # out of the body without having met its function
        frame = frame.f_back
    if place is None:
        return None
    own = own or (place[0], place[1], place[1])
    return Position(*place, target, own, named or own)


def of_declaration() -> Position | None:
    """Where a key, a tensor or a state is being declared: the first frame that is not the language's own machinery."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # "<string>" is the __init__ that dataclasses write
        if code.co_filename not in _MACHINERY and not code.co_filename.startswith("<"):
            line, column, end_column = _columns(code, frame.f_lasti // 2)
            return Position(
                code.co_filename,
                line,
                column,
                end_column,
                code.co_name,
                None,
                (code.co_filename, line, line),
                (code.co_filename, line, line),
            )
        frame = frame.f_back
    return None


def of_function(function: object) -> Position | None:
    """Where a function was defined."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    span = (code.co_filename, code.co_firstlineno, code.co_firstlineno)
    return Position(code.co_filename, code.co_firstlineno, 0, 0, code.co_name, None, span, span)
