"""The commands ``draftsmith ggml`` and ``draftsmith devices``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftsmith import ggml
from draftsmith.dsl.errors import BackendError, BuildError
from draftsmith.ggml import cli, options
from draftsmith.ggml.device import Device
from tests.test_ggml_install import make_prefix
from tests.test_ggml_support import make_tree


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(path))
    monkeypatch.delenv("DRAFTSMITH_GGML", raising=False)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.ggml_group, list(arguments), catch_exceptions=False)


def test_info_before_anything_is_built(own_cache: Path) -> None:
    text = run("info").output
    assert "pinned     ggml 0.25.3 from llama_cpp_python-0.3.36.tar.gz" in text
    assert "not built yet" in text and str(own_cache) in text
    facts = json.loads(run("info", "--json").output)
    assert facts["in_use"] is None and facts["others"] == [] and facts["cache_bytes"] == 0
    assert not own_cache.exists(), "looking changes nothing"


def test_info_of_an_own_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = make_prefix(tmp_path / "prefix")
    monkeypatch.setenv("DRAFTSMITH_GGML", str(prefix))
    facts = json.loads(run("info", "--json").output)
    assert facts["in_use"]["prefix"] == facts["draftsmith_ggml"] == str(prefix)
    assert facts["backends"] == ["cpu", "cuda"]
    assert f"own ggml   {prefix}" in run("info").output


def test_info_with_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_GGML", "/nowhere")
    with pytest.raises(BuildError, match="DRAFTSMITH_GGML=/nowhere: expected"):
        run("info")


@pytest.mark.cpu
def test_build_info_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("DRAFTSMITH_GGML", str(make_tree(tmp_path / "own")))
    arguments = ["build", "--no-cuda", "--no-metal", "--no-vulkan"]
    result = run(*arguments)
    install = ggml.locate()
    assert install is not None
    assert result.stdout == f"ggml 0.9.7 (cpu, rpc) is ready at {install.prefix}\n"
    assert "ggml: configure cpu rpc\n" in result.stderr, "progress goes to standard error"
    assert options.chosen_options() == ggml.Options(cuda=False, metal=False, vulkan=False)
    assert run(*arguments).stderr == ""
    assert "ggml: build" in run(*arguments, "--force").stderr

    facts = json.loads(run("info", "--json").output)
    assert facts["in_use"]["key"] == install.key and facts["in_use"]["bytes"] > 0
    assert facts["options"] == {"cuda": False, "metal": False, "vulkan": False}
    assert "options    cuda off, metal off, vulkan off" in run("info").output

    (own_cache / "ggml" / "install" / "older").mkdir()
    (own_cache / "ggml" / "source").mkdir()
    (own_cache / "ggml" / "source" / "unpacked").touch()
    assert run("clean", "--old").stdout.startswith("removed ")
    assert ggml.locate() == install
    assert not (own_cache / "ggml" / "install" / "older").exists()
    run("clean")
    assert ggml.locate() is None
    assert (own_cache / "ggml" / "source" / "unpacked").exists()
    assert options.chosen_options().cuda is False, "the choice outlives what was built"
    run("clean", "--all")
    assert not (own_cache / "ggml" / "source" / "unpacked").exists()


def test_a_failed_build_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_GGML", str(make_tree(tmp_path / "own")))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "none")
    with pytest.raises(BuildError):
        run("build", "--no-cuda")
    assert options.chosen_options() == ggml.Options()


def test_clean_of_nothing(own_cache: Path) -> None:
    assert run("clean").output == f"nothing to remove in {own_cache / 'ggml'}\n"
    assert run("clean", "--old", "--all").exit_code == 2


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    found = [
        Device("CUDA0", "A GPU", "GPU", "CUDA", 3 << 30, 4 << 30),
        Device("RPC0", "far:50052", "GPU", "RPC", 0, 0),
    ]

    def ask(install: object, rpc: object) -> list[Device]:
        asked.append((install, rpc))
        return found

    monkeypatch.setattr(cli, "ensure", lambda: "install")
    monkeypatch.setattr(cli, "devices", ask)
    runner = CliRunner()
    lines = runner.invoke(cli.devices_command, ["--rpc", "far:50052", "--rpc", "b:1"]).output.splitlines()
    assert asked == [("install", ("far:50052", "b:1"))]
    assert lines[0].split() == ["name", "type", "backend", "description", "free", "total"]
    assert lines[1].split() == ["CUDA0", "GPU", "CUDA", "A", "GPU", "3.0", "GiB", "4.0", "GiB"]
    data = json.loads(runner.invoke(cli.devices_command, ["--json"]).output)
    assert data[0]["memory_free"] == 3 << 30 and data[1]["backend"] == "RPC"


def test_devices_with_a_dead_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(install: object, rpc: object) -> list[Device]:
        raise BackendError("RPC server far:50052: connection refused")

    monkeypatch.setattr(cli, "ensure", lambda: "install")
    monkeypatch.setattr(cli, "devices", dead)
    with pytest.raises(BackendError, match="connection refused"):
        CliRunner().invoke(cli.devices_command, ["--rpc", "far:50052"], catch_exceptions=False)
