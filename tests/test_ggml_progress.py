"""What a user sees while ggml is fetched and built."""

from __future__ import annotations

import io

from draftsmith.ggml.progress import LiveBars, PlainLines, default_progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_plain_lines() -> None:
    stream = io.StringIO()
    progress = PlainLines(stream, every=0)
    progress.stage("fetch", "a file")
    progress.update(0, 70_000_000, "B")
    progress.update(35_000_000, 70_000_000, "B")
    progress.stage("build")
    progress.update(3, 40)
    progress.note("something")
    progress.close(success=True)
    assert stream.getvalue().splitlines() == [
        "ggml: fetch a file",
        "ggml: fetch 35 of 70 MB",
        "ggml: fetch done in 0 s",
        "ggml: build",
        "ggml: build [3/40]",
        "ggml: something",
        "ggml: build done in 0 s",
    ]


def test_plain_lines_are_few_and_do_not_praise_a_failure() -> None:
    stream = io.StringIO()
    progress = PlainLines(stream, every=60)
    progress.stage("build")
    for step in range(100):
        progress.update(step, 100)
    progress.close(success=False)
    assert stream.getvalue() == "ggml: build\n"


def test_live_bars_on_a_terminal() -> None:
    stream = Terminal()
    progress = default_progress(stream)
    assert isinstance(progress, LiveBars)
    progress.stage("fetch", "a file")
    progress.update(35_000_000, 70_000_000, "B")
    progress.stage("build")
    progress.update(3, 40)
    progress.note("a [note]")
    progress.close(success=True)
    text = stream.getvalue()
    assert "35/70 MB" in text and "3/40" in text and "a [note]" in text


def test_bars_that_never_began() -> None:
    progress = LiveBars(Terminal())
    progress.update(1, 2)
    progress.close(success=False)


def test_no_bars_in_a_file() -> None:
    assert isinstance(default_progress(io.StringIO()), PlainLines)
