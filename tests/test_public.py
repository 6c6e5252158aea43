"""What ``import draftsmith`` offers, and how sessions and reports look in a notebook."""

from __future__ import annotations

import subprocess
import sys

import pytest

import draftsmith
from draftsmith import Report, Session, Statistics, default_pair
from draftsmith.reporting import as_dict, rows
from draftsmith.session import Conditions


def test_every_public_name_is_there() -> None:
    assert sorted(draftsmith._HOME_OF) == sorted(draftsmith.__all__) == draftsmith.__all__
    for name in draftsmith.__all__:
        assert getattr(draftsmith, name).__name__ == name
    assert set(draftsmith.__all__) <= set(dir(draftsmith))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = draftsmith.nothing


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, draftsmith; print([m for m in sys.modules if m.startswith(('draftsmith.', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def report(draft: str | None = "<b>drafter</b>") -> Report:
    """A report of three rounds of four drafts."""
    statistics = Statistics()
    if draft is not None:
        for accepted in (4, 1, 0):
            statistics.count(4, accepted)
    made = Report(Conditions("target", draft, "code", n_max=4), prompt_tokens=5, tokens=[1] * 9, seconds=2.0)
    made.statistics = statistics
    made.timing.prefill, made.timing.draft, made.timing.verify = 0.4, 0.6, 0.8
    return made


def test_acceptance_never_stands_alone() -> None:
    found = dict(rows(report()))
    assert found["rounds"] == (
        "3: 12 drafted, 5 accepted; mean accepted length 2.67 tokens (1.67 drafts and the target's own)"
    )
    assert found["acceptance"] == "67 %  50 %  100 %  100 %  by position, where all before were accepted"
    assert found["drafting"] == "temperature 0 (greedy), n_max 4, n_min 0, p_min 0"
    assert (found["target"], found["prompt"]) == ("target", "5 tokens, code")
    assert "acceptance" not in dict(rows(report(draft=None)))


def test_time_adds_up() -> None:
    times = as_dict(report())["time"]
    assert times["host"] == pytest.approx(0.2) and sum(times.values()) == pytest.approx(2.0)


def test_reports_are_tables_in_notebooks() -> None:
    html = report()._repr_html_()
    assert html.startswith("<table>") and "&lt;b&gt;drafter" in html and "by position" in html
    assert Report()._repr_html_()


@pytest.mark.cpu
def test_sessions_close_behind_a_with_block() -> None:
    with Session(*default_pair(), n_ctx=64, threads=1) as session:
        assert repr(session) == (
            "Session('tiny-qwen3-f16 (Tiny Qwen3)', draft='tiny-qwen3-dflash-f16 (Tiny Qwen3 DFlash)', n_ctx=64)"
        )
        assert session.complete("def", 4)
    with pytest.raises(draftsmith.BackendError, match="closed"):
        session.complete("def", 4)
