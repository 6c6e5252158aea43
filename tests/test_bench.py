"""``draftsmith bench``: the report's fields and its counters, on the embedded pair. No test judges a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from draftsmith.bench import Bench, Plan, markdown, report
from draftsmith.cli.bench import bench as bench_command
from draftsmith.dsl.errors import RequestError
from draftsmith.session import Session, default_pair

pytestmark = pytest.mark.cpu

PLAN = Plan(prefill=(24, 40), decode=(6,), blocks=(4, 8), depth=9, repetitions=3)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    target, draft = default_pair()
    opened = Session(target, draft, threads=1, n_ctx=256)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def found(session: Session) -> dict[str, Any]:
    return report(session, PLAN)


def test_report_names_machine_ggml_and_settings(found: dict[str, Any], session: Session) -> None:
    assert found["machine"]["cpu"] and found["machine"]["cores"] >= 1
    assert found["ggml"]["version"] and "cpu" in found["ggml"]["backends"]
    assert found["settings"] == {
        "model": session.model.path.name,
        "draft": session.draft_model.path.name if session.draft_model else None,
        "threads": 1,
        "n_ctx": 256,
        "n_ubatch": 512,
        "flash_attn": True,
        "type_k": "f16",
        "type_v": "f16",
        "depth": 9,
        "repetitions": 3,
    }


def test_every_measurement_is_there_with_median_min_and_max(found: dict[str, Any]) -> None:
    results = found["results"]
    rounds = [f"{step}{block}" for block in (4, 8) for step in ("draft", "verify", "inject")]
    assert [r["name"] for r in results] == ["pp24", "pp40", "tg6", *rounds]
    for r in results:
        assert len(r["samples_s"]) == 3
        assert 0 < r["min_s"] <= r["median_s"] <= r["max_s"]
        assert r["tokens_per_second"] == pytest.approx(r["n_tokens"] / r["median_s"])


def test_equal_steps_build_no_graph_again(found: dict[str, Any]) -> None:
    assert {r["name"]: r["graph_builds"] for r in found["results"] if r["graph_builds"]} == {}


def test_graph_runs_are_counted(found: dict[str, Any]) -> None:
    runs = {r["name"]: r["graph_runs"] for r in found["results"]}
    assert runs["pp24"] == runs["draft8"] == 3
    assert runs["tg6"] == 3 * 6
    assert runs["verify8"] == runs["inject8"] == 3 * 2  # one needs the other


def test_memory_is_accounted_for(found: dict[str, Any], session: Session) -> None:
    memory = found["memory"]
    files = [session.model, session.draft_model]
    assert sum(memory["weights"].values()) == sum(
        t.nbytes for m in files if m for t in m.file.tensors.values()
    )
    assert memory["state"] > 0 and memory["compute"] > 0 and memory["peak_rss"] > memory["state"]


def test_steps_leave_the_caches_as_they_were(session: Session) -> None:
    bench = Bench(session)
    bench.begin(9)
    for step in (bench.draft, bench.verify, bench.inject):
        step(8)
        assert [c.last(0) for c in bench.contexts()] == [8, 8]


def test_markdown_has_a_row_for_each(found: dict[str, Any]) -> None:
    text = markdown(found)
    for r in found["results"]:
        assert f"| {r['name']} " in text
    assert "process, peak" in text


@pytest.mark.parametrize("block", [1, 9])
def test_a_block_that_the_drafter_has_not(session: Session, block: int) -> None:
    with pytest.raises(RequestError, match=f"a block of {block} rows; this drafter's has 2 to 8"):
        report(session, Plan((), (), (block,), repetitions=1))


def test_blocks_need_a_drafter() -> None:
    alone = Session(default_pair()[0], threads=1, n_ctx=256)
    with pytest.raises(RequestError, match="there is none"):
        report(alone, Plan((), (), (8,), repetitions=1))
    alone.close()


def test_context_has_room_for_the_longest_measurement() -> None:
    assert Plan((512,), (128,), (), 64).n_ctx(16) == 512
    assert Plan((16,), (), (8,), 600).n_ctx(16) == 608
    assert Plan((16,), (), (), 600).n_ctx(16) == 616


def test_command_prints_json() -> None:
    options = [
        "-p",
        "8",
        "-n",
        "2",
        "-b",
        "8",
        "-d",
        "4",
        "-r",
        "1",
        "-t",
        "1",
        "-fa",
        "off",
        "--kv-type",
        "q8_0",
    ]
    result = CliRunner().invoke(bench_command, [*options, "-o", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [r["name"] for r in found["results"]] == ["pp8", "tg2", "draft8", "verify8", "inject8"]
    assert not found["settings"]["flash_attn"] and found["settings"]["type_k"] == "q8_0"


def test_command_refuses_what_is_no_size() -> None:
    result = CliRunner().invoke(bench_command, ["-p", "many"])
    assert result.exit_code == 2 and "not a list of sizes" in result.output
