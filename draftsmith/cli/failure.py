"""How a command ends: exit codes, and the one line that is printed for a failure.

0: done. 2: an error that the user can do something about, or wrong usage. 130: interrupted. 1: a fault in
Draftsmith itself, with a traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import click

USER_ERROR = 2
INTERRUPTED = 130


def guarded(run: Callable[[], Any]) -> int:
    """Call ``run`` and return the exit code of the process. A fault of Draftsmith's own is raised."""
    _prepare_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            result = run()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        return _usage(error)
    except Exception as error:
        text = explain(error)
        if text is None:
            error.add_note("This is a fault in Draftsmith, not in what you gave it. Please report it.")
            raise
        complain(text)
        return USER_ERROR
    finally:
        _flush()


def complain(text: str) -> None:
    """Print an error. Lines behind the first are excerpts."""
    click.echo(f"draftsmith: error: {text}", err=True)


def note(text: str) -> None:
    """Print something worth knowing that is no error."""
    click.echo(f"draftsmith: {text}", err=True)


def explain(error: Exception) -> str | None:
    """What to tell the user about an exception; None if it is a fault in Draftsmith."""
    from draftsmith.dsl.errors import DraftsmithError  # loaded already, or nothing of ours was raised

    if isinstance(error, DraftsmithError):
        return str(error)
    if (place := _in_user_file(error)) is not None:
        return place
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    return None


def _in_user_file(error: Exception) -> str | None:
    """The line of the user's own architecture file that an exception passed through last."""
    frames = traceback.extract_tb(error.__traceback__)
    modules = [f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame, module in zip(frames, modules, strict=True) if module.startswith("draftsmith_user_")]
    if not own:
        return None
    line = f"\n  {own[-1].line}" if own[-1].line else ""
    message = " ".join(str(error).split())
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{own[-1].filename}:{own[-1].lineno}: {what}{line}"


def _usage(error: click.ClickException) -> int:
    ctx = getattr(error, "ctx", None)
    no_arguments = getattr(click.exceptions, "NoArgsIsHelpError", None)  # click 8.2 and later
    if no_arguments is not None and isinstance(error, no_arguments):
        click.echo(error.format_message(), err=True)
        return USER_ERROR
    complain(_sentence(error.format_message()))
    if ctx is not None:
        click.echo(f"try: {ctx.command_path} --help", err=True)
    return USER_ERROR


def _sentence(text: str) -> str:
    """click's "Invalid value for '-n': 0 is ..." as the other messages are written: no capital, no full stop."""
    flat = " ".join(text.split()).removesuffix(".")
    return flat[:1].lower() + flat[1:]


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        click.echo(f"draftsmith: warning: {message}", err=True)


def _prepare_streams() -> None:
    """Text that the terminal's encoding lacks is replaced, not an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")


def _flush() -> None:
    """Write what is left; a reader that has gone away (``| head``) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
