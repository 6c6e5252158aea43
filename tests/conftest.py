"""Golden files: ``golden("qwen3.cpp", text)`` compares with ``tests/snapshots/qwen3.cpp``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="replay every recorded case, not one of each kind")
    parser.addoption("--update-golden", action="store_true", help="write tests/snapshots anew instead of comparing")


@pytest.fixture(autouse=True)
def _no_architectures_left_behind() -> Iterator[None]:
    """A file that a test loads is known to that test alone."""
    registry = sys.modules.get("draftsmith.registry")
    before = dict(registry._from_files) if registry else {}
    yield
    registry = sys.modules.get("draftsmith.registry")
    if registry is not None:
        registry._from_files.clear()
        registry._from_files.update(before)


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a committed file, or writes the file under ``--update-golden``."""
    return golden_in(SNAPSHOTS, bool(request.config.getoption("--update-golden")))


def golden_in(folder: Path, update: bool) -> Golden:
    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{folder.name}/{name} is missing: run pytest --update-golden, read the new file, commit it")
        # a plain assert: pytest shows the lines that differ
        assert text == path.read_text(encoding="utf-8"), (
            f"{folder.name}/{name} differs: if the change is meant, run pytest --update-golden and review the diff"
        )

    return compare
