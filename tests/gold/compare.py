"""Differences, and the tolerances that a manifest justifies (the rule: package docstring)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from draftsmith.context import Context
from draftsmith.dsl.dtypes import GGMLType

from .cases import Array, Case, Configuration
from .report import Report

EXACT = 2e-5
"""Float32 weights and caches: the order of float32 sums is all that may differ."""

GELU = 1e-3
"""ggml's GELU on the CPU is a table of half-precision values."""

ROUNDED = {"f16": (1e-2, 1e-5), "bf16": (6e-2, 1e-4), "quantised": (0.5, 1e-3)}
"""Weights whose products round the activations: largest difference and NMSE where a manifest measured nothing."""

CACHE = {"f32": (EXACT, 1e-9), "f16": (3e-2, 1e-5), "bf16": (6e-2, 1e-4), "quantised": (0.5, 1e-3)}
"""The same for the types of a cache (flash attention rounds like f16)."""


@dataclass(frozen=True)
class Limit:
    """Largest absolute difference and normalised squared error (sum of squared differences over sum of squares)."""

    max_abs: float
    nmse: float = np.inf

    def __str__(self) -> str:
        return f"{self.max_abs:.2g}" + ("" if np.isinf(self.nmse) else f", nmse {self.nmse:.1g}")

    def widen(self, *others: Limit) -> Limit:
        every = (self, *others)
        return Limit(max(o.max_abs for o in every), max(o.nmse for o in every))


@dataclass(frozen=True)
class Difference:
    max_abs: float
    nmse: float
    infinities: str = ""

    def within(self, limit: Limit) -> bool:
        return not self.infinities and self.max_abs <= limit.max_abs and self.nmse <= limit.nmse

    def __str__(self) -> str:
        return f"max {self.max_abs:.2e}, nmse {self.nmse:.0e}" + (f", {self.infinities}" if self.infinities else "")


def difference(found: Array, recorded: Array, where: Array | None = None) -> Difference:
    """``where``: rows that count (all). Infinities must stand in the same places; NaN never passes."""
    if found.shape != recorded.shape:
        return Difference(np.inf, np.inf, f"shape {list(found.shape)} for {list(recorded.shape)}")
    a, b = np.asarray(found, np.float64), np.asarray(recorded, np.float64)
    if where is not None:
        a, b = a[where], b[where]
    if np.isnan(a).any() or np.isnan(b).any():
        return Difference(np.inf, np.inf, f"{int(np.isnan(a).sum())} NaN")
    infinite = np.isinf(a) | np.isinf(b)
    wrong = int((a[infinite] != b[infinite]).sum())
    delta, reference = a[~infinite] - b[~infinite], b[~infinite]
    squares = float(np.square(reference).sum())
    error = float(np.square(delta).sum())
    nmse = error / squares if squares else (0.0 if error == 0 else np.inf)
    return Difference(
        float(np.abs(delta).max(initial=0.0)), nmse, f"{wrong} values infinite on one side only" if wrong else ""
    )


def precision(context: Context) -> str:
    """The coarsest type among the matrices that a context reads: f32, f16, bf16 or quantised."""
    kinds = {info.type for info in context.model.file.tensors.values()}
    if context.model.target is not None:
        lender = context.model.target.file.tensors
        kinds |= {lender[name].type for name in context.bound.borrowed().values()}
    return coarsest(kinds)


def coarsest(kinds: Iterable[GGMLType]) -> str:
    kinds = set(kinds)
    if any(t.is_quantized for t in kinds):
        return "quantised"
    return next((t.name for t in (GGMLType.bf16, GGMLType.f16) if t in kinds), "f32")


def figure(text: Any) -> Limit | None:
    """The measured difference in an entry of a manifest's ``tolerance``."""
    if isinstance(text, Mapping) and "max_abs" in text:
        return Limit(float(text["max_abs"]), float(text.get("nmse", np.inf)))
    return None


class Tolerances:
    """The limits that one manifest justifies, by configuration and output.

    ``gelu``: the model uses GELU. ``measured`` entries look like ``tolerance[configuration][output]``, or
    ``tolerance[configuration]`` alone.
    """

    def __init__(self, case: Case, precision: str, gelu: bool = False) -> None:
        self.measured: Mapping[str, Any] = case.data.get("tolerance", {})
        self.checks: Mapping[str, Any] = case.data.get("checks", {})
        self.precision = precision
        self.base = GELU if gelu else EXACT

    def find(self, table: Mapping[str, Any], name: str, output: str) -> Limit | None:
        entry = table.get(name)
        if not isinstance(entry, Mapping):
            return None
        return figure(entry.get(output)) or figure(entry)

    def same_arithmetic(self, output: str) -> Limit:
        """Float32 throughout, summed in another order: the fixed figure, or more where the reference itself shows more."""
        names = ("f32_single", "f32_unified", "one_batch_all_seqs", "token_by_token")
        runs = ("unified_kv", "threads_2", "inject_in_3_chunks", "no_weight_repacking", "swa_full_false")
        seen = [self.find(self.measured, n, output) for n in names] + [self.find(self.checks, n, output) for n in runs]
        return Limit(max([self.base] + [s.max_abs for s in seen if s is not None]))

    def limit(self, cfg: Configuration, output: str) -> Limit:
        """The limit of an output (``draft1_logits``) against what the same configuration recorded."""
        if cfg.is_reference and self.precision == "f32":
            return self.same_arithmetic(output)
        floor = Limit(self.base, 1e-9)
        names = ["f32_fa", "f16", "f16_fa"] if self.precision != "f32" else []
        if not cfg.is_reference:
            names.append(cfg.name)
        measured = [self.find(self.measured, f"{n}{s}", output) for n in names for s in ("", "_single")]
        known = [m for m in measured if m is not None]
        if known:
            return floor.widen(*known)
        kind = "quantised" if cfg.cache.is_quantized else "f16" if cfg.flash_attn else cfg.cache.name
        known = [Limit(*CACHE[kind])]
        if self.precision != "f32":
            known.append(Limit(*ROUNDED[self.precision]))
        return floor.widen(*known)


def compare(report: Report, what: str, found: Array, recorded: Array, limit: Limit, where: Array | None = None, note: str = "") -> bool:
    """Report the difference of two arrays."""
    seen = difference(found, recorded, where)
    return report.add(what, seen.within(limit), f"{seen}{note}", str(limit))


def choices(report: Report, what: str, found: Array, logits: Array, limit: Limit, where: Array | None = None) -> bool:
    """Report the arg max of rows against recorded logits; another choice passes where the recorded ones lie within twice the
    limit of each other."""
    ids, rows = found.reshape(-1), logits.reshape(-1, logits.shape[-1])
    if len(ids) != len(rows):
        return report.add(what, False, f"{len(ids)} rows for {len(rows)}", "exact")
    counted = np.ones(len(ids), bool) if where is None else where.reshape(-1)
    best = rows.argmax(axis=-1)
    wrong = [i for i in np.flatnonzero(counted) if ids[i] != best[i] and not rows[i, best[i]] - rows[i, ids[i]] <= 2 * limit.max_abs]
    near = int((counted & (ids != best)).sum()) - len(wrong)
    text = f"{int(counted.sum()) - len(wrong) - near}/{int(counted.sum())} rows equal"
    if near:
        text += f", {near} near ties"
    if wrong:
        i = wrong[0]
        text += f"; row {i}: found {ids[i]}, recorded {best[i]}, {rows[i, best[i]] - rows[i, ids[i]]:.2e} above it"
    return report.add(what, not wrong, text, f"exact beyond a tie of {2 * limit.max_abs:.2g}")
