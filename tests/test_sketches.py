"""Sketches under docs/ run ahead of the language: every word they borrow from its future must be listed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import draftsmith.dsl as dsl
from draftsmith.dsl import nn, ops

ROOT = Path(__file__).resolve().parents[1]
SKETCHES = sorted((ROOT / "docs" / "sketches").glob("*.py"))
SPECS = [path for place in (ROOT, ROOT.parent) for path in sorted((place / "shared" / "specs").glob("*.md"))]
BEGIN, END = "# --- Not in the language yet", "# --- End"

every_sketch = pytest.mark.parametrize("path", SKETCHES, ids=lambda p: p.stem)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def marked(path: Path) -> tuple[range, str]:
    """Line numbers and text of the block that lists what is missing."""
    lines = path.read_text().splitlines()
    begins = [i for i, line in enumerate(lines, 1) if line.startswith(BEGIN)]
    ends = [i for i, line in enumerate(lines, 1) if line.startswith(END)]
    assert len(begins) == len(ends) == 1 and begins[0] < ends[0]
    return range(begins[0], ends[0]), "\n".join(lines[begins[0] : ends[0]])


def strings(tree: ast.Module) -> list[str]:
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_there_are_sketches() -> None:
    assert SKETCHES


@every_sketch
def test_lines_fit(path: Path) -> None:
    too_long = [i for i, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 110]
    assert not too_long


@every_sketch
def test_imports_are_the_language_or_listed(path: Path) -> None:
    lines, _ = marked(path)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= {"numpy"}
        elif isinstance(node, ast.ImportFrom):
            assert node.module in ("draftsmith.dsl", "math", "typing"), f"line {node.lineno}: {node.module}"
            if node.module == "draftsmith.dsl" and node.lineno not in lines:
                missing = [alias.name for alias in node.names if not hasattr(dsl, alias.name)]
                assert not missing, f"{missing} are not in the language: list them in the marked block"


@every_sketch
def test_every_listed_import_says_what_it_means(path: Path) -> None:
    lines, text = marked(path)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.lineno in lines:
            for alias in node.names:
                assert re.search(rf"^    {alias.name},  # \S", text, re.M), f"{alias.name} has no comment"


@every_sketch
def test_ops_exist_or_are_listed(path: Path) -> None:
    _, text = marked(path)
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        module, name = {"ops": ops, "nn": nn}.get(node.value.id), f"{node.value.id}.{node.attr}"
        if module is not None and not hasattr(module, node.attr):
            assert re.search(rf"\b{re.escape(name)}\b", text), f"{name} is not in the language: list it"


@every_sketch
@pytest.mark.skipif(not SPECS, reason="the specifications are not at hand")
def test_gguf_names_are_those_of_the_specification(path: Path) -> None:
    known = "\n".join(spec.read_text() for spec in SPECS)
    names = {s for s in strings(parse(path)) if re.fullmatch(r"\{arch\}\.\S+|\S+\.(weight|bias)", s)}
    assert len(names) > 60
    for name in sorted(names):
        stem = re.escape(re.sub(r"^(\{arch\}|blk\.\{il\})\.|\.(weight|bias)$", "", name))
        assert re.search(rf"(?<!\w){stem}(?!\w)", known), name


def host_function(stem: str, name: str) -> Any:
    """One NumPy function of a sketch that cannot be imported as a whole yet."""
    tree = parse(ROOT / "docs" / "sketches" / f"{stem}.py")
    body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    namespace: dict[str, Any] = {"np": np}
    exec(compile(ast.Module(body, []), stem, "exec"), namespace)
    return namespace[name]


def primes_from(start: int, count: int) -> list[int]:
    found: list[int] = []
    n = start
    while len(found) < count:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return found


def test_engram_rows_of_the_release() -> None:
    """Multipliers, primes and the check row published with the model."""
    primes = primes_from(16_000_000, 48)
    assert primes[:3] == [16000057, 16000079, 16000081] and primes[23] == 16000463 and primes[24] == 16000477
    sums = [0, *np.cumsum(primes[:23]), 0, *np.cumsum(primes[24:47])]
    values = {
        "engram_layers": [1, 14], "engram_ngram": 4, "n_engram_head": 8, "engram_pad": 2,
        "engram_token_map": list(range(100)), "engram_primes": primes,
        "engram_offsets": [int(s) for s in sums],
        "engram_multipliers": [
            76632096046245, 4839876093313, 35959672319349, 73987337458391,
            67716810739261, 51510806800915, 30921347202721, 82619226485591,
        ],
    }
    model = SimpleNamespace(hparam=values.__getitem__)
    recent = np.array([[5, 7, 11, 13], [5, 7, -1, 13], [5, 7, 2, 2]])
    batch = SimpleNamespace(recent_tokens=lambda n: recent[:, :n])
    rows = host_function("deepseek_v41", "engram_rows")(batch, model, 1)
    assert rows.shape == (3, 24) and rows.dtype == np.int32
    assert [rows[0, c] for c in (0, 8, 16, 23)] == [6961830, 128920094, 267226692, 372696692]
    assert (rows[1] == rows[2]).all()  # what lies behind a gap is padding
