"""Differences, and the tolerances that a manifest justifies (the rule: package docstring)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.context import Context
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.model import Model

from .cases import Array, Case, Configuration
from .report import Report

EXACT = 3e-5
"""Float32 weights and caches: the order of sums is all that may differ. A float64 model differed from the reference by
less than this in every case (README of the recording)."""

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
        figures = [f"{self.max_abs:.2g}"] if np.isfinite(self.max_abs) else []
        if np.isfinite(self.nmse):
            figures.append(f"nmse {self.nmse:.1g}")
        return ", ".join(figures)

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


def weights(model: Model) -> str:
    """The coarsest type in a model's file."""
    return coarsest(info.type for info in model.file.tensors.values())


def unmeasured(model: Model) -> Limit:
    """The limit of what a model computes in f32 where no manifest measured anything: by type of its weights."""
    kind = weights(model)
    return Limit(EXACT) if kind == "f32" else Limit(*ROUNDED[kind])


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
        """Float32 throughout, summed in another order: the fixed figure, or what the reference itself shows."""
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
        known = [Limit(2 * m.max_abs, m.nmse) for m in measured if m is not None]  # two runs, each as far from f32
        if known:
            return floor.widen(*known)
        kind = "quantised" if cfg.cache.is_quantized else "f16" if cfg.flash_attn else cfg.cache.name
        known = [Limit(*CACHE[kind])]
        if self.precision != "f32":
            known.append(Limit(*ROUNDED[self.precision]))
        return floor.widen(*known)


def compare(
    report: Report, what: str, found: Array, recorded: Array, limit: Limit, where: Array | None = None, note: str = ""
) -> bool:
    """Report the difference of two arrays."""
    seen = difference(found, recorded, where)
    return report.add(what, seen.within(limit), f"{seen}{note}", str(limit))


def choices(
    report: Report, what: str, found: Array, recorded: Array, logits: Array, limit: Limit, where: Array | None = None
) -> bool:
    """Report the choices of rows. Another one than the recorded one passes where the two lie within the limit of
    each other in ``logits``, whose rows the choices were made from."""
    ours, theirs, rows = found.reshape(-1), recorded.reshape(-1), logits.reshape(-1, logits.shape[-1])
    if not len(ours) == len(theirs) == len(rows):
        return report.add(what, False, f"{len(ours)} rows for {len(theirs)}", "exact")
    counted = np.ones(len(ours), bool) if where is None else where.reshape(-1)
    other = np.flatnonzero(counted & (ours != theirs))
    gaps = np.abs(rows[other, ours[other]] - rows[other, theirs[other]])
    wrong = other[~(gaps <= limit.max_abs)]
    text = f"{int(counted.sum()) - len(other)}/{int(counted.sum())} rows equal"
    if len(other) > len(wrong):
        text += f", {len(other) - len(wrong)} in ties of up to {gaps[gaps <= limit.max_abs].max():.1e}"
    if len(wrong):
        i = wrong[0]
        text += f"; row {i}: found {ours[i]}, recorded {theirs[i]}, which lie {gaps[other == i][0]:.2e} apart"
    return report.add(what, not len(wrong), text, exact_beyond(limit))


def exact_beyond(limit: Limit) -> str:
    """The tolerance of a decision."""
    return f"exact beyond a tie of {limit.max_abs:.2g}"
