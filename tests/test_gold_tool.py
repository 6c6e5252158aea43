"""The replay tool itself: it passes what is right, fails what is not, and says what it cannot read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gold import lattice, loops, record
from tests.gold.cases import find_folders
from tests.gold.compare import Limit, choices, difference
from tests.gold.replay import run
from tests.gold.report import Report

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

KINDS: dict[str, Callable[[Path], Path]] = {
    "target": record.target_case,
    "deepseek4": record.deepseek_case,
    "hf": record.hf_case,
    "draft": record.draft_case,
    "trained": record.trained_case,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("recorded")
    return {kind: make(root / kind) for kind, make in KINDS.items()}


@pytest.fixture
def copy(recorded: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(kind: str) -> Path:
        return Path(shutil.copytree(recorded[kind], tmp_path / kind, symlinks=True))

    return make


def replayed(*folders: Path) -> tuple[int, list[str]]:
    lines: list[str] = []
    return run(folders, lines.append), lines


def edit(folder: Path, *path: Any, value: Any = None, change: Callable[[Any], Any] | None = None) -> None:
    """Change one field of a manifest (or of another file)."""
    file = folder / "manifest.json" if folder.is_dir() else folder
    data = json.loads(file.read_text())
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = change(holder[path[-1]]) if change else value
    file.write_text(json.dumps(data))


def perturb(folder: Path, name: str, by: float = 1.0) -> None:
    """Add to one element of an array."""
    array = np.load(folder / f"{name}.npy")
    array.flat[array.size // 2] += by
    np.save(folder / f"{name}.npy", array)


@pytest.mark.cpu
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_passes(kind: str, recorded: dict[str, Path]) -> None:
    status, lines = replayed(recorded[kind])
    assert status == 0, "\n".join(lines)
    n = sum(line.startswith("ok") for line in lines)
    assert n >= 8
    assert lines[-1] == f"{n} passed, 0 failed"


def add_one(value: Any) -> Any:
    """Another token or count, or a list that starts with another one."""
    if isinstance(value, list):
        return [add_one(value[0]), *value[1:]]
    return value + 1


def failing(folder: Path) -> list[str]:
    status, lines = replayed(folder)
    assert status == 1, "\n".join(lines)
    return [line for line in lines if line.startswith("FAIL")]


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["target", "deepseek4", "draft"])
def test_every_array_is_compared(kind: str, copy: Callable[[str], Path]) -> None:
    folder = copy(kind)
    names = json.loads((folder / "manifest.json").read_text())["outputs"]
    for name in names:
        perturb(folder, name)
    status, lines = replayed(folder)
    assert status == 1
    compared = [line for line in lines if ": max " in line or ": error of a row" in line]
    passed = [line for line in compared if not line.startswith("FAIL") and " features " not in line]
    assert not passed
    assert len(compared) >= len(names)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("kind", "archive", "comparisons"),
    [
        ("hf", "numbers.npz", 6),
        ("trained", "base/reference.npz", 6),
        ("trained", "drafter/reference.npz", 10),
    ],
)
def test_every_array_of_an_archive_is_compared(
    kind: str, archive: str, comparisons: int, copy: Callable[[str], Path]
) -> None:
    folder = copy(kind)
    with np.load(folder / archive) as stored:
        content = dict(stored)
    for array in content.values():
        array.flat[array.size // 2] += 1
    np.savez(folder / archive, **content)
    assert len(failing(folder)) >= comparisons


CHANGES = {
    "deepseek4": {
        "greedy tokens": ("greedy", "tokens"),
        "arg max of all rows": ("argmax_all_rows",),
        "argmax_last_4": ("long", "argmax_last_4"),
        "rollback of 2 of 3": ("rollback", 0, "alt_tokens"),
        "script step 2": ("script", "steps", 1, "seq_rm", "p0"),
    },
    "draft": {
        "multi draft1 tokens of sequence 0": ("sequences", 0, "draft1", "greedy_tokens"),
        "multi draft2 tokens of sequence 1": ("sequences", 1, "draft2", "greedy_tokens"),
        "choices of sequence 1": ("sequences", 1, "verify", "target_argmax"),
        "greedy seq0 tokens": ("greedy_target", "seq0", "tokens"),
        "e2e 0 (n_max 3, p_min 0) tokens": ("e2e", 0, "tokens"),
        "e2e 1 (n_max 4, p_min 0.3) along the recorded path, [drafted, accepted]": ("e2e", 1, "iterations", 0),
    },
}
"""The comparison that each change must fail."""


@pytest.mark.cpu
@pytest.mark.parametrize("kind", CHANGES)
def test_every_decision_is_compared(kind: str, copy: Callable[[str], Path]) -> None:
    folder = copy(kind)
    for path in CHANGES[kind].values():
        edit(folder, *path, change=add_one)
    found = "\n".join(failing(folder))
    assert not [label for label in CHANGES[kind] if label not in found], found


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("path", "label"),
    [
        (("sequences", 0, "draft1", "block_tokens"), "f32 multi draft1 logits"),
        (("sequences", 1, "verify", "keep_positions_below"), "f32 multi draft2 logits"),
        (("e2e", 0, "drafts", 0), "e2e 0 (n_max 3, p_min 0) along the recorded path, drafts: "),
    ],
)
def test_another_input_or_draft_fails(path: tuple[Any, ...], label: str, copy: Callable[[str], Path]) -> None:
    folder = copy("draft")
    edit(folder, *path, change=add_one)
    assert label in "\n".join(failing(folder))


@pytest.mark.cpu
def test_other_features_fail(copy: Callable[[str], Path]) -> None:
    folder = copy("draft")
    for name in ("rows_0", "verified_1"):
        perturb(folder, name)
    found = "\n".join(failing(folder))
    assert "prompt features of sequence 0" in found
    assert "verify features of sequence 1" in found
    assert "prompt features of sequence 1" not in found


@pytest.mark.cpu
def test_another_trained_text_fails(copy: Callable[[str], Path]) -> None:
    folder = copy("trained")
    edit(folder / "base/reference.json", "prompts", 0, "greedy", change=add_one)
    edit(folder / "drafter/reference.json", "prompts", 1, "log", 1, "draft", change=add_one)
    edit(folder / "drafter/reference.json", "mean_accepted_drafts_per_round", change=add_one)
    found = "\n".join(failing(folder))
    assert "prompt 0 greedy tokens" in found
    assert "prompt 1 rounds (p_min 0) along the recorded path, drafts" in found
    assert "mean accepted drafts" in found


@pytest.mark.cpu
def test_nan_and_infinities_fail(copy: Callable[[str], Path]) -> None:
    folder = copy("target")
    perturb(folder, "logits_s1", np.nan)
    assert replayed(folder)[0] == 1


@pytest.mark.cpu
def test_an_output_that_nothing_replays_fails(copy: Callable[[str], Path]) -> None:
    folder = copy("target")
    edit(folder, "outputs", "strange_s0", value={"file": "logits_s0.npy"})
    status, lines = replayed(folder)
    assert status == 1
    assert "FAIL target: strange_s0: recorded, but not replayed" in lines


@pytest.mark.cpu
def test_a_kind_or_model_that_is_not_known_fails(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy("target")
    edit(folder, "kind", value="oracle")
    status, lines = replayed(folder)
    assert status == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert "kind 'oracle'" in lines[0]
    edit(folder, "kind", value="target")
    (tmp_path / "not.gguf").write_bytes(b"GGUF?")
    edit(folder, "target", value=str(tmp_path / "not.gguf"))
    assert replayed(folder)[0] == 1


@pytest.mark.cpu
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "logits_s0.npy").unlink(),
        lambda folder: (folder / "logits_s0.npy").write_bytes(b"no array"),
        lambda folder: np.save(folder / "logits_s0.npy", np.zeros((1, 2))),
        lambda folder: edit(folder, "target", value="nowhere.gguf"),
        lambda folder: edit(folder, "outputs", "logits_s0", value={}),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_what_cannot_be_read(damage: Callable[[Path], Any], copy: Callable[[str], Path]) -> None:
    folder = copy("target")
    damage(folder)
    status, lines = replayed(folder)
    assert status == 2
    assert any(line.startswith("ERROR") for line in lines)
    assert lines[-1].endswith("failed")


@pytest.mark.cpu
def test_folders_of_folders_and_several_arguments(recorded: dict[str, Path], copy: Callable[[str], Path]) -> None:
    folder = copy("target")
    shutil.copytree(folder, folder / "below" / "again")  # cases may lie in cases
    assert len(find_folders(folder)) == 2
    perturb(folder / "below" / "again", "logits_s0")
    status, lines = replayed(folder, recorded["hf"])
    assert status == 1
    assert {line.split()[1] for line in lines[:-1]} == {"target:", "hf:"}
    assert replayed(folder, folder / "nowhere")[0] == 2


@pytest.mark.cpu
def test_command(recorded: dict[str, Path], tmp_path: Path) -> None:
    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.gold", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = call(recorded["target"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed")
    assert call(tmp_path).returncode == 2
    assert call().returncode == 2


@pytest.mark.shared
@pytest.mark.cpu
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the recorded reference data is not there ({SHARED})")
def test_a_changed_copy_of_a_recorded_case(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(SHARED / "gold" / "dflash_plain", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    edit(folder, "target", value=str(SHARED / "gold" / "targets" / "q_base.gguf"))
    for s in range(3):
        moved = SHARED / "gold" / "features" / f"q_base_L1_2_s{s}.npy"
        edit(folder, "sequences", s, "features", "file", value=str(moved))
    assert replayed(folder)[0] == 0
    perturb(folder, "multi_draft2_logits_q8_0_fa")
    status, lines = replayed(folder)
    assert status == 1
    assert "FAIL dflash_plain: q8_0_fa multi draft2 logits" in "\n".join(lines)


# -- rules of comparison ---------------------------------------------------------------------------------------


def silent() -> Report:
    return Report(lambda line: None)


def test_difference() -> None:
    a = np.array([[1.0, 2.0, -np.inf]])
    assert difference(a, a).within(Limit(0.0))
    assert not difference(np.array([[1.0, 2.0, 3.0]]), a).within(Limit(10.0))
    assert not difference(a, np.array([[1.0, np.nan, -np.inf]])).within(Limit(10.0))
    assert not difference(a, a[:, :2]).within(Limit(10.0))
    assert difference(a + 0.5, a).within(Limit(0.5))
    assert not difference(a + 0.5, a).within(Limit(0.5, 0.01))
    assert difference(a + np.array([[9.0, 0.0, 0.0]]), a, np.array([[False, True, True]])).within(Limit(0.0))


def test_another_choice_passes_only_in_a_tie() -> None:
    logits = np.array([[1.0, 0.99, 0.0], [0.0, 1.0, 0.0]])
    best = np.array([0, 1])
    assert choices(silent(), "", np.array([1, 1]), best, logits, Limit(0.02))
    assert not choices(silent(), "", np.array([2, 1]), best, logits, Limit(0.02))
    assert choices(silent(), "", np.array([2, 1]), best, logits, Limit(0.01), np.array([False, True]))
    assert not choices(silent(), "", np.array([0]), best, logits, Limit(0.01))


def lattices(k: int = 3, rows: int = 4) -> tuple[lattice.Lattice, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, rows, 16))
    ids = np.argsort(-logits, axis=-1)[..., :k]
    scores = rng.normal(size=(1, rows, k, k))
    scores[:, 1] = scores[:, 1, :1]
    return (ids, scores), logits


def shuffled(found: lattice.Lattice) -> lattice.Lattice:
    """The same lattice with the candidates of every row in another order."""
    ids, scores = found[0].copy(), found[1].copy()
    before = np.arange(ids.shape[-1])
    for r in range(1, ids.shape[1]):
        order = np.roll(np.arange(ids.shape[-1]), r)
        ids[0, r] = found[0][0, r][order]
        scores[0, r] = found[1][0, r][before][:, order]
        before = order
    return ids, scores


def test_the_order_of_candidates_has_no_meaning() -> None:
    found, logits = lattices()
    limits = (Limit(1e-9), Limit(1e-9))
    report = silent()
    lattice.compare(report, "", shuffled(found), found, logits, 1, limits)
    assert (report.passed, report.failed) == (2, 0)
    other = shuffled(found)
    other[1][0, 3, 0, 0] += 1e-3
    lattice.compare(report, "", other, found, logits, 1, limits)
    assert (report.passed, report.failed) == (3, 1)


def test_another_candidate_passes_only_in_a_tie_at_the_cut() -> None:
    found, logits = lattices()
    other = (found[0].copy(), found[1])
    replaced = int(np.argsort(-logits[0, 2])[found[0].shape[-1]])  # the first one that was cut
    dropped = int(other[0][0, 2, -1])
    other[0][0, 2, -1] = replaced
    gap = logits[0, 2, dropped] - logits[0, 2, replaced]
    report = silent()
    lattice.compare(report, "", other, found, logits, 1, (Limit(1e-9), Limit(1.01 * gap)))
    assert (report.passed, report.failed) == (2, 0)
    lattice.compare(report, "", other, found, logits, 1, (Limit(1e-9), Limit(gap / 2)))
    assert report.failed == 1


def test_packed_lattice() -> None:
    ids, scores = lattice.split(np.arange(12.0).reshape(1, 1, 12))
    assert ids.tolist() == [[[0, 1, 2]]]
    assert scores[0, 0].tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]
    with pytest.raises(ValueError):
        lattice.split(np.zeros((1, 1, 13)))


def test_judging_drafts() -> None:
    ties = loops.Ties(Limit(0.06), Limit(0.05))
    logits = np.array([[0.0, 0.0, 0.0], [1.0, 0.95, 0.0], [0.0, 1.0, 0.0]])
    block = {"logits": logits, "confidence": np.array([0.0, 0.9, 0.52])}
    assert not loops.judge(block, [0, 1], [1, 1], 1, 0.0, ties, False).problem
    assert loops.judge(block, [0, 1], [2, 1], 1, 0.0, ties, False).problem
    assert loops.judge(block, [0, 1], [1, 2], 1, 0.0, ties, False).problem
    assert not loops.judge(block, [0, 1], [1, 2], 1, 0.0, ties, True).problem  # behind a tie in a chain
    assert not loops.judge(block, [0], [0, 1], 1, 0.5, ties, True).problem
    assert loops.judge(block, [0], [0, 1], 1, 0.4, ties, True).problem
