"""Rewrites the parts of the documentation that are made by a program: ``python docs/refresh.py``.

A line ``<!-- from: KIND ... -->`` says where the fenced block behind it comes from:

    run ARGS [| lines A-B ...]    what ``draftsmith ARGS`` prints, all of it or some lines
    run ARGS [| tail TEXT]        the same from the first line on that begins with TEXT
    head SUBJECT                  the comment at the head of the C++ of an architecture
    cpp SUBJECT FUNCTION [| NAME] one function of that C++, or its lines from the declaration of NAME to its first label
    python FILE [NAME]            a Python file, or a function or class in it, by its dotted name
    error                         how ``draftsmith show`` fails on the Python block before, as methods of a subclass of
                                  the complete example of docs/language.md
    mistake                       how ``show`` fails on examples/my_drafter.py without the last line of `weighted`
    ops MODULE ...                the op table, for the modules of dsl/ops/ that are named

``python docs/refresh.py --check`` changes nothing and fails if something is out of date, as tests/test_docs.py does.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "cli", "language", "new_drafter"))
]

_DIRECTIVE = re.compile(r"(?m)^<!-- from: (.+?) -->\n(```\w*\n)(.*?)(^```$)", re.DOTALL)
_PYTHON = re.compile(r"(?m)^```python\n(.*?)^```$", re.DOTALL)


def refreshed(text: str) -> str:
    """A page with all its generated blocks as they should be."""

    def replace(match: re.Match[str]) -> str:
        kind, _, rest = match[1].partition(" ")
        before = _PYTHON.findall(text[: match.start()])
        body = _error(before[-1]) if kind == "error" else _KINDS[kind](rest)
        return f"<!-- from: {match[1]} -->\n{match[2]}{body.rstrip()}\n{match[4]}"

    return _DIRECTIVE.sub(replace, text)


def run_command(*args: str) -> str:
    """What a command prints, on both streams."""
    import click
    from click.testing import CliRunner

    from draftsmith import registry
    from draftsmith.cli import cli

    def call() -> None:
        cli.main(list(args), prog_name="draftsmith")

    mixed = {"mix_stderr": True} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    with_columns = {"COLUMNS": "110", "NO_COLOR": "1"}
    known = dict(registry._from_files)
    try:
        return CliRunner(env=with_columns, **mixed).invoke(click.Command("run", callback=call), []).output
    finally:  # what a command loaded is not there for the next one
        registry._from_files.clear()
        registry._from_files.update(known)


def _run(rest: str) -> str:
    command, _, cut = rest.partition(" | ")
    output = run_command(*command.split())
    how, _, cut = cut.partition(" ")
    if how == "tail":
        output = output[re.search(rf"(?m)^{cut}", output).start() :]
        return f"$ draftsmith {command}\n...\n{output}"
    if how == "lines":
        lines = output.splitlines()
        parts = []
        for part in cut.split():
            first, last = map(int, part.split("-"))
            parts.append("\n".join(lines[first - 1 : last]))
        output = "\n...\n".join(parts)
        output += "\n..." if last < len(lines) else ""
    return f"$ draftsmith {command}\n{output}"


@lru_cache(maxsize=8)
def _source(subject: str) -> str:
    return run_command("emit", subject)


def _head(subject: str) -> str:
    return _source(subject).partition("\n\n")[0]


def _cpp(rest: str) -> str:
    rest, _, variable = rest.partition(" | ")
    subject, name = rest.split()
    found = re.search(rf"(?m)^((?:// .*\n)*)^[\w* ]*\b{name}\(\n?(?:.*\n)*?^}}$", _source(subject))
    if found is None:
        raise SystemExit(f"{subject} has no function {name}")
    if not variable:
        return found[0]
    lines = found[0].splitlines()
    first = next(i for i, line in enumerate(lines) if f" {variable} = " in line)
    last = next(i for i, line in enumerate(lines) if f"b.g.cb({variable}," in line)
    return textwrap.dedent("\n".join(lines[first : last + 1]))


def _python(rest: str) -> str:
    file, _, name = rest.partition(" ")
    text = (ROOT / file).read_text(encoding="utf-8")
    if not name:
        return text
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(
            child for child in ast.iter_child_nodes(node)
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.name == part
        )
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def complete_example() -> str:
    """The architecture that docs/language.md shows in full."""
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    return next(block for block in _PYTHON.findall(text) if "@arch(" in block)


def _error(methods: str) -> str:
    broken = '\n\n@arch("small", variant="broken")\nclass Broken(Small):\n    """With a fault."""\n\n'
    return failure(complete_example() + broken + textwrap.indent(methods, "    "))


def _mistake(file: str) -> str:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("        return ops.reshape(parts"))
    lines[at] = "        return parts"
    return failure("\n".join(lines), "my_drafter.py", "gated_dflash")


def failure(source: str, name: str = "arch.py", variant: str = "broken") -> str:
    """How ``draftsmith show`` fails on an architecture of a file of this name."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "my"
        place.mkdir()
        (place / name).write_text(source, encoding="utf-8")
        os.chdir(place)
        try:
            return run_command("show", variant, "--arch", name).replace(f"{place}{os.sep}", "")
        finally:
            os.chdir(here)


def _ops(rest: str) -> str:
    import draftsmith.dsl.ops as ops
    from draftsmith.dsl.op import TABLE, signature

    lines = []
    modules = {getattr(ops, name).__module__.rpartition(".")[2] for name in ops.__all__}
    if unknown := set(rest.split()) - modules:
        raise SystemExit(f"no ops in {', '.join(unknown)}; there are {', '.join(sorted(modules))}")
    for name in ops.__all__:
        op = getattr(ops, name)
        if op.__module__.rpartition(".")[2] not in rest.split():
            continue
        if inspect.isfunction(op):
            given, doc = _plain_signature(op), inspect.getdoc(op)
        else:
            given, doc = str(signature(TABLE[op.name])), inspect.getdoc(op)
        lines.append(f"{name}{given}\n    {_sentence(doc or '')}")
    return "\n".join(lines)


def _plain_signature(function: Callable[..., object]) -> str:
    """Without annotations."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r"<GGMLType\.(\w+): [^>]*>", r"GGMLType.\1", text)


def _sentence(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split()).replace("``", "").replace(":class:", "").replace("`", "")


_KINDS: dict[str, Callable[[str], str]] = {
    "run": _run, "head": _head, "cpp": _cpp, "python": _python, "mistake": _mistake, "ops": _ops,
}


def main() -> None:
    os.chdir(ROOT)
    check = "--check" in sys.argv
    stale = []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    print("\n".join(f"{'out of date' if check else 'rewritten'}: {name}" for name in stale) or "nothing to do")
    if check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
