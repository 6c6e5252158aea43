"""Text in aligned columns, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import click


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; the columns numbered in ``right`` are aligned to the right. The header is bold on a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [_line(row, widths, right) for row in [header, *rows]]
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values; values of several lines stay in their column."""
    width = max((len(name) for name, _ in rows), default=0)
    lines: list[str] = []
    for name, value in rows:
        first, *more = value.split("\n")
        lines += [f"{name.ljust(width)}  {first}", *(f"{'':{width}}  {line}" for line in more)]
    return "\n".join(line.rstrip() for line in lines)


def size(n_bytes: int) -> str:
    """Bytes in the largest unit of 1024 that leaves a whole part."""
    amount = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{n_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    sized = enumerate(zip(row, widths, strict=True))
    return "  ".join(cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in sized).rstrip()
