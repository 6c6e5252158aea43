"""From folders to comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import deepseek, drafts, hf, targets, trained
from .cases import Case, CaseError, find_folders, read_case
from .report import Report

KINDS: dict[str, Callable[[Case, Report], None]] = {
    "target": targets.replay,
    **dict.fromkeys(("dflash", "dspark", "dflash2", "lilicorr"), drafts.replay),
    "deepseek4": deepseek.replay,
    **dict.fromkeys(("deepseek_v4", "deepseek_v41", "mistral_large4"), hf.replay_target),
    "deepseek_v41_dspark": hf.replay_draft,
    "units": hf.replay_units,
    "trained-target": trained.replay_target,
    "trained-draft": trained.replay_draft,
}
"""How each kind of case is replayed."""


def replay(case: Case, report: Report) -> None:
    """All comparisons of one case."""
    report.case = case.name
    if case.kind not in KINDS:
        report.error(f"kind {case.kind!r}", f"not known; known: {', '.join(KINDS)}")
        return
    with report.section(case.kind):
        KINDS[case.kind](case, report)


def run(arguments: Sequence[str | Path], write: Callable[[str], object] = print) -> int:
    """Replay every case at or below the given folders; the exit status."""
    report = Report(write)
    unreadable = 0
    folders: dict[Path, None] = {}
    for argument in arguments:
        try:
            folders |= dict.fromkeys(find_folders(Path(argument)))
        except CaseError as e:
            write(f"ERROR {argument}: {e}")
            unreadable += 1
    for folder in folders:
        try:
            replay(read_case(folder), report)
        except CaseError as e:
            write(f"ERROR {folder}: {e}")
            unreadable += 1
    write(f"{report.passed} passed, {report.failed} failed")
    return 2 if unreadable else 1 if report.failed else 0
