"""Generated C++ and printed IR of every architecture against the committed files; what the text may depend on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith import registry
from draftsmith.codegen.emit import emit
from draftsmith.model import trace_all
from draftsmith.show import render

from ..conftest import SNAPSHOTS, Golden, golden_in
from .variants import BY_TITLE, VARIANTS, ir_text, source, traced

ROOT = Path(__file__).resolve().parents[2]
every_variant = pytest.mark.parametrize("title", BY_TITLE)


@every_variant
def test_generated_source(title: str, golden: Golden) -> None:
    golden(f"{title}.cpp", source(title).text)


@every_variant
def test_printed_ir(title: str, golden: Golden) -> None:
    golden(f"{title}.txt", ir_text(title))


def test_every_snapshot_belongs_to_a_variant() -> None:
    names = {path.name for path in SNAPSHOTS.iterdir() if path.suffix in (".cpp", ".txt")}
    assert names <= {f"{title}{suffix}" for title in BY_TITLE for suffix in (".cpp", ".txt")}


def test_every_architecture_has_snapshots() -> None:
    assert {v.arch for v in VARIANTS if not v.name} == set(registry.builtin())


def test_a_missing_golden_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        golden_in(tmp_path, update=False)("none.cpp", "text")
    golden_in(tmp_path, update=True)("none.cpp", "text\n")
    golden_in(tmp_path, update=False)("none.cpp", "text\n")
    with pytest.raises(AssertionError, match="--update-golden"):
        golden_in(tmp_path, update=False)("none.cpp", "other\n")


@every_variant
def test_text_depends_on_no_sizes(title: str) -> None:
    small, large = traced(title, True)[0], traced(title)[0]
    differing = [k for k, v in small.values.items() if large.values[k] != v]
    assert len(differing) > 5, "the two files hardly differ: this test shows nothing"
    assert source(title, True).text == source(title).text
    assert ir_text(title, True) == ir_text(title)


@every_variant
def test_text_depends_on_no_run_time_dims(title: str) -> None:
    model = BY_TITLE[title].bind()
    dims = {"n_tokens": 24, "n_outputs": 5, "n_blocks": 3}
    caches = {f"{n}_{g}": size for g in ("kv", "kv_swa") for n, size in (("n", 96), ("n_cells", 160))}
    graphs = trace_all(model, {**dims, **caches})
    assert emit(model, graphs).text == source(title).text
    assert render(model, graphs) == ir_text(title)


def test_text_is_the_same_a_second_time() -> None:
    for title in registry.builtin():
        model = BY_TITLE[title].bind()
        graphs = trace_all(model)
        assert emit(model, graphs).text == source(title).text == emit(*traced(title)).text
        assert render(model, graphs) == ir_text(title) == render(*traced(title))


_DIGESTS = """
import hashlib, json
from tests.graphs.variants import BY_TITLE, ir_text, source
digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
print(json.dumps({t: [digest(source(t).text), digest(ir_text(t))] for t in BY_TITLE}))
"""


def test_text_is_the_same_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout)
    ours = {t: [hashlib.sha256(text.encode()).hexdigest() for text in (source(t).text, ir_text(t))] for t in BY_TITLE}
    assert theirs == ours


@every_variant
def test_text_names_no_machine(title: str) -> None:
    """Paths are relative to the package; generated lines fit and end cleanly."""
    text = source(title).text + ir_text(title)
    assert str(Path.home()) not in text and str(ROOT) not in text
    assert "\t" not in text and not re.search(r"[ ]+$", text, re.MULTILINE)
    assert text.endswith("\n")


@every_variant
def test_every_guard_at_the_top_is_checked(title: str) -> None:
    """What the head of a file states, its loader requires; what it requires, the head states."""
    text = source(title).text
    head = "\n".join(
        line.removeprefix("//").strip() for line in text.split('#include "draftsmith.h"')[0].splitlines()[5:]
    )
    required = [m.replace('\\"', '"') for m in re.findall(r'require\(.*, "(.*)"\);', text)]
    assert required and all(r in head for r in required)
    named = re.findall(r'^ {12}"(.+)",$|for \(const char \* name : \{ (.+) \}\)', text, re.MULTILINE)
    tensors = [t for line, row in named for t in ([line] if line else re.findall(r'"([^"]+)"', row))]
    stated = re.sub(r"\s+", " ", head)
    assert all(t.replace("{il}", "*") in stated for t in tensors)
    assert len(re.findall(r"require\(", text)) > len(required)
