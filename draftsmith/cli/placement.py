"""Where the models of a session lie and how their graphs ran, for ``--verbose``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .table import size

if TYPE_CHECKING:
    from draftsmith.context import Context
    from draftsmith.session import Session


def rows(session: Session) -> list[tuple[str, str]]:
    """One entry for each model, of three lines."""
    return [("target runs on", _describe(session.target))] + (
        [("drafter runs on", _describe(session.draft))] if session.draft is not None else []
    )


def _describe(context: Context) -> str:
    stats = context.stats()
    weights = ", ".join(f"{name} {size(n)}" for name, n in sorted(context.model.weights.report().items()))
    return "\n".join([
        f"weights {weights}",
        f"state {size(stats.state_bytes)}, compute buffers {size(stats.compute_bytes)}",
        f"{stats.n_runs} runs, {stats.n_builds} graphs built in {stats.build_us / 1e3:.1f} ms; "
        f"the last one of {stats.n_nodes} nodes in {stats.n_splits} split{'' if stats.n_splits == 1 else 's'}",
    ])  # fmt: skip
