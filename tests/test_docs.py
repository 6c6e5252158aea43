"""What the documentation shows is what the code does."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftsmith.dsl import ops
from draftsmith.dsl.op import TABLE

ROOT = Path(__file__).resolve().parents[1]


def _load_refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refresh: Any = _load_refresh()
PAGES: dict[str, str] = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in refresh.PAGES}

FENCE = re.compile(r"(?m)^```(\w*)\n(.*?)^```$", re.DOTALL)
SAMPLE = re.compile(r"(?m)^<!-- sample: (.+?) -->\n```\w*\n(.*?)^```$", re.DOTALL)
COMMAND = re.compile(r"(?m)^    ((?:draftsmith|python|make) .*?)(?:\s+#.*)?$")

every_page = pytest.mark.parametrize("page", PAGES)


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@every_page
def test_generated_blocks_are_up_to_date(page: str, in_root: None) -> None:
    fresh: str = refresh.refreshed(PAGES[page])
    assert PAGES[page] == fresh, "run `python docs/refresh.py` and look at the difference"


@every_page
def test_python_blocks_parse(page: str) -> None:
    for language, text in FENCE.findall(PAGES[page]):
        if language == "python":
            ast.parse(text)


@every_page
def test_links_resolve(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", file.read_text(encoding="utf-8"))
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, target


@every_page
def test_lines_fit(page: str) -> None:
    prose = FENCE.sub("", PAGES[page])
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith(("|", "    ", "<!--"))]
    assert not long


@every_page
def test_commands_and_their_options_exist(page: str) -> None:
    import click

    from draftsmith.cli import cli

    for line in COMMAND.findall(PAGES[page]):
        words = shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"(?m)^{words[1]}:", (ROOT / "Makefile").read_text())
        if words[0] == "draftsmith":
            command = cli.get_command(click.Context(cli), words[1])
            assert command is not None, line
            known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
            assert {w for w in words[2:] if re.match(r"--?[a-z]", w)} <= known, line


def test_every_op_is_in_the_language_reference() -> None:
    text = "\n".join(text for _, text in FENCE.findall(PAGES["docs/language.md"]))
    listed = re.findall(r"(?m)^(\w+)\(.*\)\n    \S", text)
    assert sorted(listed) == sorted(ops.__all__)
    assert {name.rstrip("_") for name in listed} - {"first_rows"} == set(TABLE)


def test_the_words_of_the_language_are_explained() -> None:
    import draftsmith.dsl as dsl

    text = PAGES["docs/language.md"]
    types = {"Architecture", "Feed", "GGMLType", "KVCache", "Layer", "LayerView", "Value", "Contract"}
    missing = [w for w in dsl.__all__ if w not in types and not re.search(rf"\b{w}\b", text)]
    assert not missing


def test_the_complete_example_is_complete(tmp_path: Path, in_root: None) -> None:
    file = tmp_path / "small.py"
    file.write_text(refresh.complete_example(), encoding="utf-8")
    assert refresh.run_command("emit", str(file)).startswith("// small: A small decoder\n")


def test_what_the_pitfalls_recommend_works() -> None:
    """`layer.il == 1` instead of a counter; two tensors for two carried names; containers of a fixed form."""
    loops = (
        "if layer.il == 1:\n    x = ops.scale(x, 2.0)\nx = x + self.feed_forward(layer, x)",
        "before, x = x, x + self.feed_forward(layer, before)",
        'kept["x"] = kept["x"] + self.feed_forward(layer, kept["x"])',
    )
    for loop in loops:
        method = (
            "def backbone(self, x, pos):\n    before, kept = ops.cont(x), {'x': ops.cont(x)}\n"
            "    for layer in self.layers:\n"
            "        x = x + self.self_attention(layer, x, pos, layer.kv)\n        "
            + loop.replace("\n", "\n        ")
            + "\n    return nn.rms_norm(x, self.output_norm, hp.f_norm_rms_eps)"
        )
        shown = refresh._error(method)
        assert "\ngraph decode(" in shown and "error" not in shown, shown


def test_sketch_gaps_are_listed() -> None:
    """The marked block of the sketch and the table in architecture.md name the same words."""
    sketch = (ROOT / "docs" / "sketches" / "deepseek_v41.py").read_text(encoding="utf-8")
    marked = sketch.partition("# --- Not in the language yet")[2].partition("# --- End")[0]
    words = [*re.findall(r"(?m)^    (\w+),  #", marked), "layers=", "paged=", "any_rank=", "recent_tokens", "newest"]
    assert len(words) >= 9
    listed = PAGES["docs/architecture.md"].partition("## What comes next")[2]
    assert not [word for word in words if word not in marked or word not in listed]


# -- what needs ggml -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which the paths in the pages lead to the repository, and in which files may be made."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("draftsmith", "examples", "graphs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(line: str, folder: Path) -> str:
    """A command of a page; its output on both streams."""
    words = shlex.split(line)
    module = ["-m", "draftsmith"] if words[0] == "draftsmith" else []
    command = [sys.executable, "-P", *module, *words[1:]]  # -P: the folder's own draftsmith/ is not the package
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def names_of_lines(text: str) -> list[str]:
    """The first words of lines of two columns: numbers, text and paths depend on the machine."""
    return re.findall(r"(?m)^(\S+(?: \S+)*)  +\S", text)


def check_sample(output: str, sample: str) -> None:
    """Each line of the sample names something that the output names too, in the same order."""
    rest = iter(names_of_lines(output))
    assert all(name in rest for name in names_of_lines(sample)), output
    if "agree" in sample:
        assert output.endswith("native and NumPy agree\n"), output


@pytest.mark.cpu
def test_quick_start_and_samples(workplace: Path) -> None:
    for page in ("README.md", "docs/cli.md"):
        for command, sample in SAMPLE.findall(PAGES[page]):
            output = run(f"draftsmith {command}", workplace)
            check_sample(output, sample)
            if command == "demo":
                assert re.search(r"(?m)^same text +yes$", output) and re.search(r"(?m)^same text +yes$", sample)


@pytest.mark.cpu
def test_python_of_the_quick_start(workplace: Path) -> None:
    (code,) = [text for language, text in FENCE.findall(PAGES["README.md"]) if "Session(" in text]
    (workplace / "start.py").write_text(code, encoding="utf-8")
    output = run("python start.py", workplace)
    assert re.search(r"(?m)^\d\.\d+$", output)


@pytest.mark.cpu
def test_tutorial(workplace: Path) -> None:
    """All its commands in order, with the samples that show what they print."""
    page = PAGES["docs/new_drafter.md"]
    counts = []
    for line in COMMAND.findall(page):
        output = run(line, workplace)
        counts += re.findall(r"(?m)^rounds .*$", output)
        for command, sample in SAMPLE.findall(page):
            if line == f"draftsmith {command}":
                check_sample(output, sample)
    original = run('draftsmith generate -p "def main" -n 64', workplace)  # the embedded pair
    assert counts == re.findall(r"(?m)^rounds .*$", original)
