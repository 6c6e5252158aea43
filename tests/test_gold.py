"""Recorded cases, replayed in the process of the tests (the tool: tests/gold)."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.gold.cases import Case, CaseError, find_folders, read_case
from tests.gold.replay import replay
from tests.gold.report import Report

SHARED = Path(__file__).resolve().parents[2] / "shared"
RECORDED = ("gold", "gold-hf", "models")

LANDED = (
    "target/*",
    "dflash/*",
    "dspark/*",
    "!dspark/dspark_dsv4",
    "dflash2/*",
    "lilicorr/*",
    "trained-target/*",
    "trained-draft/*",
)
"""Cases of the suite as kind/name, ! takes out: those whose architectures exist. The tool itself runs every case."""


def landed(case: Case) -> bool:
    name = f"{case.kind}/{case.name}"
    matching = [p for p in LANDED if fnmatch(name, p.removeprefix("!"))]
    return bool(matching) and not matching[-1].startswith("!")


def found() -> list[Case]:
    cases: list[Case] = []
    for name in RECORDED:
        try:
            cases += map(read_case, find_folders(SHARED / name))
        except CaseError:  # not there: test_there_are_cases says so
            continue
    return [case for case in cases if landed(case)]


SAMPLE = ("target_q_base", "dflash_swa", "dflash_q4_k", "dspark_bonus_d2t", "dflash2_softcap", "lilicorr-a")
"""What a run without --all-cases replays: every kind, each with other options. All of them take some minutes of
compiling; the trained pairs are also run by tests/drafting."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    everything = metafunc.config.getoption("--all-cases")
    cases = [case for case in found() if everything or case.name in SAMPLE]
    metafunc.parametrize("case", cases, ids=[f"{case.kind}-{case.name}" for case in cases])


@pytest.mark.shared
def test_there_are_cases() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"the recorded reference data is not there ({SHARED})")
    assert {case.name for case in found()} >= set(SAMPLE)


@pytest.mark.shared
@pytest.mark.cpu
def test_case(case: Case) -> None:
    lines: list[str] = []
    report = Report(lines.append)
    replay(case, report)
    assert not report.failed, "\n".join(line for line in lines if not line.startswith("ok"))
    assert report.passed
