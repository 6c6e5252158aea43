"""A report as a small HTML table, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .reporting import rows

if TYPE_CHECKING:
    from .session import Report


def render(report: Report) -> str:
    """The rows of :func:`draftsmith.reporting.rows`."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value).replace(chr(10), "<br>")}</td></tr>'
        for name, value in rows(report)
    )
    return f"<table><tbody>{body}</tbody></table>"
