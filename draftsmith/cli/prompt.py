"""Where the prompt comes from."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from draftsmith.dsl.errors import RequestError


def read_prompt(text: str | None, file: str | None) -> str:
    """The text of ``-p`` or of the file of ``-f``, less one line feed at its end as in llama.cpp."""
    if text is not None and file is not None:
        raise click.UsageError("--prompt and --file exclude one another")
    if text is not None:
        prompt = text
    elif file is not None:
        prompt = _decoded(file)
    else:
        raise click.UsageError("no prompt: give --prompt TEXT or --file FILE (- is standard input)")
    if not prompt:
        where = "" if file is None else f"{_shown(file)}: "
        raise RequestError(f"{where}the prompt is empty: there is no token to continue")
    return prompt


def _decoded(file: str) -> str:
    where = _shown(file)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise RequestError(f"{where}: no such file") from None
    except IsADirectoryError:
        raise RequestError(f"{where}: is a directory, expected a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"{where}: cannot read the prompt: {reason.lower()}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{where}: the prompt is not valid UTF-8 (byte 0x{data[error.start]:02X} at offset {error.start})"
        ) from None
    return text.removesuffix("\n")


def _shown(file: str) -> str:
    return "standard input" if file == "-" else file
