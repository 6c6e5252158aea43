"""A generation's report as rows of text and as JSON.

Acceptance never stands alone: both forms name the models, the kind of prompt, the temperature and the longest draft,
without which an acceptance figure cannot be compared with another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Report


def rows(report: Report) -> list[tuple[str, str]]:
    """Name and value of each line; values may have several lines."""
    c = report.conditions
    found = [
        ("target", c.target),
        ("drafter", c.draft or "none"),
        ("prompt", f"{_count(report.prompt_tokens, 'token')}, {c.prompt}"),
        ("output", f"{_count(len(report.tokens), 'token')} in {report.seconds:.2f} s, ended by {_ENDS[report.stop]}"),
        ("speed", f"{report.tokens_per_second:.1f} tokens/s behind the prompt"),
    ]
    if c.draft is not None:
        found += [
            ("drafting",
             f"{c.sampling}, n_max {c.n_max}, n_min {c.n_min}, p_min {c.p_min:g}"),
            ("rounds", _rounds(report)),
            ("acceptance", _by_position(report)),
        ]
    return [*found, ("time", _times(report))]


def as_dict(report: Report) -> dict[str, Any]:
    """The same for programs; seconds everywhere."""
    c, s = report.conditions, report.statistics
    speculative = {
        "rounds": s.rounds,
        "drafted": s.drafted,
        "accepted": s.accepted,
        "mean_accepted_length": s.mean_accepted + 1 if s.rounds else None,
        "by_position": [
            {"tried": tried, "accepted": kept, "rate": rate}
            for tried, kept, rate in zip(s.tried, s.kept, s.acceptance(), strict=True)
        ],
    }
    return {
        "target": c.target,
        "draft": c.draft,
        "prompt": c.prompt,
        "sampling": c.sampling,
        "n_max": c.n_max,
        "n_min": c.n_min,
        "p_min": c.p_min,
        "prompt_tokens": report.prompt_tokens,
        "tokens": len(report.tokens),
        "seconds": report.seconds,
        "tokens_per_second": report.tokens_per_second,
        "stop": report.stop,
        "speculation": speculative if c.draft is not None else None,
        "time": seconds(report),
    }


def seconds(report: Report) -> dict[str, float]:
    """Wall time by part; the parts add up to the whole."""
    t = report.timing
    return {
        "prefill": t.prefill,
        "draft": t.draft,
        "verify": t.verify,
        "inject": t.inject,
        "host": report.host_seconds,
    }


_ENDS = {"length": "its length", "stop": "a stop", "context": "the end of the context"}


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _rounds(report: Report) -> str:
    s = report.statistics
    if not s.rounds:
        return "0"
    return (
        f"{s.rounds}: {s.drafted} drafted, {s.accepted} accepted; "
        f"mean accepted length {s.mean_accepted + 1:.2f} tokens ({s.mean_accepted:.2f} drafts and the target's own)"
    )


def _by_position(report: Report) -> str:
    rates = [f"{100 * rate:.0f} %" if rate is not None else "-" for rate in report.statistics.acceptance()]
    if not rates:
        return "nothing was drafted"
    return f"{'  '.join(rates)}  by position, where all before were accepted"


def _times(report: Report) -> str:
    total = report.seconds or 1.0
    parts = {name: t for name, t in seconds(report).items() if t > 0}
    return ", ".join(f"{name} {1e3 * t:.1f} ms ({100 * t / total:.0f} %)" for name, t in parts.items())
