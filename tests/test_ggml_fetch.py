"""Fetching, verifying and unpacking the pinned archive, with a fake pip and a tiny archive."""

from __future__ import annotations

import errno
import io
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import fetch, source
from draftsmith.ggml.pin import Pin, load_pin
from tests.test_ggml_support import Recorder, fake_pip, make_archive, make_pin


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(path))
    return path


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Pin]:
    """The tiny archive, where the fake pip finds it, and its pin."""
    folder = tmp_path / "index"
    folder.mkdir()
    return make_archive(folder)


def use_pip(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    command = fake_pip(folder, body)
    monkeypatch.setattr(fetch, "_pip_command", lambda: command)


def pip_serves(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    use_pip(monkeypatch, archive.parent, f"shutil.copy({str(archive)!r}, dest)\n")


def put(archive: Path, pin: Pin) -> Path:
    """Put an archive where a user without network would."""
    target = fetch.archive_path(pin)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(archive, target)
    return target


def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[str]:
        raise AssertionError("pip must not be needed")

    monkeypatch.setattr(fetch, "_pip_command", refuse)


def test_pin_is_complete() -> None:
    pin = load_pin()
    assert pin.file == f"{pin.project.replace('-', '_')}-{pin.version}.tar.gz"
    assert len(pin.sha256) == len(pin.tree_sha256) == 64
    assert pin.root.startswith(pin.file.removesuffix(".tar.gz"))
    assert pin.id == "llama-cpp-python-0.3.36"


def test_fetch_unpacks_only_the_tree(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    pip_serves(monkeypatch, archive)
    progress = Recorder()
    tree = fetch.fetch_tree(pin, progress)
    assert progress.stages == ["fetch", "verify", "unpack"]
    assert source.is_tree(tree)
    assert source.tree_digest(tree) == pin.tree_sha256
    assert source.tree_version(tree) == "0.9.7"
    assert not list(cache.rglob("outside.txt"))
    assert not fetch.archive_path(pin).exists(), "a downloaded archive is not kept"
    assert not list(fetch.archive_path(pin).parent.iterdir()), "nor anything of the download"


def test_pip_meets_a_backend_that_only_knows_name_and_version(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, pin = served
    seen = tmp_path / "seen.txt"
    use_pip(
        monkeypatch,
        archive.parent,
        "import scikit_build_core.build as backend\n"
        "name = backend.prepare_metadata_for_build_wheel(str(dest))\n"
        "text = (dest / name / 'METADATA').read_text()\n"
        f"pathlib.Path({str(seen)!r}).write_text(chr(10).join([*sys.argv, name, text]))\n"
        f"shutil.copy({str(archive)!r}, dest)\n",
    )
    fetch.fetch_tree(pin, Recorder())
    lines = seen.read_text().splitlines()
    assert {"download", "--no-deps", "--no-build-isolation", "--no-binary=fake-pkg", "fake-pkg==1.0"} <= set(
        lines
    )
    assert {"fake_pkg-1.0.dist-info", "Name: fake_pkg", "Version: 1.0"} <= set(lines)


def test_an_archive_put_in_place_needs_no_pip_and_stays(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    no_pip(monkeypatch)
    kept = put(archive, pin)
    fetch.fetch_tree(pin, Recorder())
    assert kept.exists()


def test_wrong_hash_names_both_hashes_and_the_file(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    kept = put(archive, pin)
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(BuildError) as caught:
        fetch.fetch_tree(pin, Recorder())
    message = str(caught.value)
    assert pin.sha256 in message and str(kept) in message and "found " in message and "\n" not in message
    assert kept.exists(), "the user's file is left for the user to see"

    kept.unlink()
    pip_serves(monkeypatch, archive)
    with pytest.raises(BuildError, match=f"expected SHA-256 {'0' * 64}, found {pin.sha256}"):
        fetch.fetch_tree(replace(pin, sha256="0" * 64), Recorder())
    assert not kept.exists(), "a bad download is not kept"
    assert not fetch.tree_path(pin).exists()


def test_an_interrupted_download_restarts_cleanly(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    left = fetch.archive_path(pin).parent / "pip-killed" / "out"
    left.mkdir(parents=True)
    (left / pin.file).write_bytes(b"half")
    use_pip(
        monkeypatch,
        archive.parent,
        "(dest / 'fake_pkg-1.0.tar.gz').write_bytes(b'half'); sys.exit('ERROR: cut off')\n",
    )
    with pytest.raises(BuildError, match=r"cannot download fake-pkg==1\.0: ERROR: cut off"):
        fetch.fetch_tree(pin, Recorder())
    assert not list(fetch.archive_path(pin).parent.iterdir())
    pip_serves(monkeypatch, archive)
    assert fetch.fetch_tree(pin, Recorder()).is_dir()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "WARNING: ... connection broken by 'NewConnectionError'\nERROR: No matching distribution found",
            "no package index",
        ),
        ("ERROR: No matching distribution found for fake-pkg==1.0", "has no such source archive"),
        ("OSError: [Errno 28] No space left on device", "disk full while downloading"),
        ("ERROR: something new", "ERROR: something new"),
        ("", "pip said nothing"),
    ],
)
def test_what_pip_says_becomes_one_line(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch, said: str, expected: str
) -> None:
    archive, pin = served
    use_pip(monkeypatch, archive.parent, f"print({said!r}); sys.exit(1)\n")
    with pytest.raises(BuildError) as caught:
        fetch.fetch_tree(pin, Recorder())
    message = str(caught.value)
    assert expected in message and "\n" not in message
    log = cache / "ggml" / "log" / "fetch.log"
    assert str(log) in message and said in log.read_text()


def test_pip_delivers_something_else(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    use_pip(monkeypatch, archive.parent, "(dest / 'fake_pkg-1.0-py3-none-any.whl').touch()\n")
    with pytest.raises(BuildError, match=r"pip downloaded fake_pkg-1.0-py3-none-any.whl instead of"):
        fetch.fetch_tree(pin, Recorder())


def test_no_pip_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="pip is needed to fetch ggml"):
        fetch._pip_command()


def test_a_disk_too_small_is_refused_before_the_download(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pin = served
    no_pip(monkeypatch)
    with pytest.raises(BuildError, match=r"disk full: fetching and unpacking .* found \d+ MB free"):
        fetch.fetch_tree(replace(pin, scratch=10**18), Recorder())


def test_disk_full_while_unpacking(
    cache: Path, served: tuple[Path, Pin], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, pin = served
    put(archive, pin)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(BuildError, match="disk full while unpacking the ggml source"):
        fetch.fetch_tree(pin, Recorder())
    assert not fetch.tree_path(pin).exists()
    monkeypatch.undo()
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(cache))
    assert source.is_tree(fetch.fetch_tree(pin, Recorder())), "the next attempt starts anew"


def test_truncated_archive_of_the_right_hash(cache: Path, served: tuple[Path, Pin]) -> None:
    archive, pin = served
    archive.write_bytes(archive.read_bytes()[:600])
    pin = make_pin(archive, pin.tree_sha256)
    put(archive, pin)
    with pytest.raises(BuildError, match="cannot be unpacked"):
        fetch.fetch_tree(pin, Recorder())


def test_tree_that_is_not_the_pinned_one(cache: Path, served: tuple[Path, Pin]) -> None:
    archive, pin = served
    put(archive, pin)
    with pytest.raises(BuildError, match=f"expected digest {'1' * 64}, found {pin.tree_sha256}"):
        fetch.fetch_tree(replace(pin, tree_sha256="1" * 64), Recorder())
    assert not fetch.tree_path(pin).exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fake_pkg-1.0/vendor/ggml/link", tarfile.SYMTYPE),
        ("fake_pkg-1.0/vendor/ggml/hard", tarfile.LNKTYPE),
        ("fake_pkg-1.0/vendor/ggml/pipe", tarfile.FIFOTYPE),
        ("fake_pkg-1.0/vendor/ggml/../../../../escaped", tarfile.REGTYPE),
    ],
)
def test_unsafe_members_are_refused(
    cache: Path, tmp_path: Path, name: str, kind: bytes, served: tuple[Path, Pin]
) -> None:
    _, pin = served
    archive = tmp_path / "fake_pkg-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    pin = make_pin(archive, pin.tree_sha256)
    put(archive, pin)
    with pytest.raises(BuildError, match="refusing to unpack"):
        fetch.fetch_tree(pin, Recorder())
    assert not list(tmp_path.rglob("escaped"))


def test_members_outside_the_tree_are_not_touched(cache: Path, tmp_path: Path) -> None:
    archive, pin = make_archive(tmp_path)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "fake_pkg-1.0", "fake_pkg-1.0")
        tar.addfile(tarfile.TarInfo(str(tmp_path / "escaped")), io.BytesIO())
    pin = make_pin(archive, pin.tree_sha256)
    put(archive, pin)
    assert source.is_tree(fetch.fetch_tree(pin, Recorder()))
    assert not (tmp_path / "escaped").exists()
