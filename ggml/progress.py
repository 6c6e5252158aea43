"""How far a fetch or a build has come: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID


class Progress(Protocol):
    """What fetch and build report to. Stages follow one another; each may count its steps."""

    def stage(self, name: str, detail: str = "") -> None:
        """Begin a stage, which ends the one before."""

    def update(self, done: int, total: int, unit: str = "") -> None:
        """Set how far the current stage is; ``unit`` is ``"B"`` for bytes."""

    def note(self, text: str) -> None:
        """Say something once."""

    def close(self, success: bool) -> None:
        """End the display; the last stage is complete only with ``success``."""


class Silent:
    """Reports nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Ignore."""

    def update(self, done: int, total: int, unit: str = "") -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def close(self, success: bool) -> None:
        """Ignore."""


class PlainLines:
    """One line for each stage and, at most every few seconds, one for its count."""

    def __init__(self, stream: TextIO, every: float = 5.0) -> None:
        self._stream = stream
        self._every = every
        self._name = ""
        self._began = self._last = 0.0

    def stage(self, name: str, detail: str = "") -> None:
        """Print the stage's name."""
        self._end_stage()
        self._name = name
        self._began = self._last = time.monotonic()
        self._print(f"{name} {detail}".rstrip())

    def update(self, done: int, total: int, unit: str = "") -> None:
        """Print the count if some seconds have passed since the last line."""
        now = time.monotonic()
        if not done or now - self._last < self._every:
            return
        self._last = now
        if unit == "B":
            self._print(f"{self._name} {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        else:
            self._print(f"{self._name} [{done}/{total}]")

    def note(self, text: str) -> None:
        """Print the text."""
        self._print(text)

    def close(self, success: bool) -> None:
        """Say how long the last stage took, if it succeeded and was long."""
        if success:
            self._end_stage()

    def _end_stage(self) -> None:
        took = time.monotonic() - self._began
        if self._name and took >= self._every:
            self._print(f"{self._name} done in {took:.0f} s")
        self._name = ""

    def _print(self, text: str) -> None:
        print(f"ggml: {text}", file=self._stream, flush=True)


class LiveBars:
    """A rich progress display: one row for each stage."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._bars: RichBars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("[bold]ggml[/] {task.fields[name]:<9}"),
            BarColumn(bar_width=20, table_column=Column(min_width=20)),
            TextColumn("{task.fields[count]:>8}", table_column=Column(min_width=8)),
            TimeElapsedColumn(table_column=Column(min_width=7)),
            TextColumn("[dim]{task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(file=stream),
        )
        self._task: TaskID | None = None

    def stage(self, name: str, detail: str = "") -> None:
        """Add a row."""
        self._finish()
        self._bars.start()
        self._task = self._bars.add_task(name, total=None, name=name, detail=detail, count="")

    def update(self, done: int, total: int, unit: str = "") -> None:
        """Move the current row's bar."""
        if self._task is None:
            return
        count = f"{done / 1e6:.0f}/{total / 1e6:.0f} MB" if unit == "B" else f"{done}/{total}"
        self._bars.update(self._task, completed=done, total=total, count=count)

    def note(self, text: str) -> None:
        """Print a line above the rows."""
        self._bars.console.print(f"ggml: {text}", markup=False, highlight=False)

    def close(self, success: bool) -> None:
        """Leave the display standing as it is, the last row complete with ``success``."""
        if success:
            self._finish()
        self._bars.stop()

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total or 1
            self._bars.update(self._task, completed=total, total=total)
            self._task = None


def default_progress(stream: TextIO | None = None) -> Progress:
    """Return live bars if the stream (standard error unless given) is a terminal, else plain lines."""
    stream = stream or sys.stderr
    return LiveBars(stream) if stream.isatty() else PlainLines(stream)
