"""Trained models (``reference.json``): text as PyTorch continued it, and what a drafter proposed for it.

Every GGUF of the folder is replayed. A drafter runs against the most exact file of its target, in a folder beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.batch import Batch
from draftsmith.gguf_file import GGUFFile
from draftsmith.model import Model
from draftsmith.pairing import pair

from . import loops
from .cases import REFERENCE, Array, Case, CaseError, Record, as_tokens, npz, read_case, read_json
from .compare import Limit, choices, coarsest, compare, precision, weights
from .engine import decode, draft_blocks, inject, joined, load, opened
from .report import Report

LIMITS = {
    "f32": Limit(1e-4, 1e-11),
    "f16": Limit(5e-2, 1e-6),
    "bf16": Limit(0.5, 1e-4),
    "quantised": Limit(2.0, 1e-2),
}
"""By type of the weights. Logits of trained models are larger than those of random ones: the NMSE is what counts."""

ROUNDING = 6e-5
"""Mean lengths are recorded with four decimals."""

ARRAYS = "reference.npz"


def files(case: Case) -> list[Path]:
    """The GGUF files of a folder, the most exact first."""
    order = list(LIMITS)
    found = sorted(case.folder.glob("*.gguf"))
    if not found:
        raise CaseError("no GGUF file in the folder")
    types = {path: coarsest(t.type for t in GGUFFile.open(path).tensors.values()) for path in found}
    return sorted(found, key=lambda path: order.index(types[path]))


def prompts(case: Case) -> list[Record]:
    return list(case.data["prompts"])


# -- a target --------------------------------------------------------------------------------------------------


def replay_target(case: Case, report: Report) -> None:
    arrays = npz(case.path(ARRAYS))
    for path in files(case):
        with report.section(path.name):
            target(case, report, arrays, path)


def target(case: Case, report: Report, arrays: Mapping[str, Array], path: Path) -> None:
    model = load(path)
    limit = LIMITS[weights(model)]
    every = range(model.bound().n_layer + 1)
    n_tokens = max(len(p["ids"]) + len(p["greedy"]) for p in prompts(case))
    with opened(model, REFERENCE, n_tokens, tap_last=True) as context:
        for p in prompts(case):
            i, ids, greedy = int(p["prompt"]), as_tokens(p["ids"]), as_tokens(p["greedy"])
            label, hidden, logits = f"{path.name} prompt {i}", f"p{i}_hidden", f"p{i}_logits"
            context.clear()
            results = decode(context, Batch.of_tokens(ids), ("logits", "argmax"), every if hidden in arrays else ())
            compare(report, f"{label} last logits", results["logits"][-1], arrays[f"p{i}_last_logits"], limit)
            if logits in arrays:
                best = arrays[logits].argmax(axis=-1)
                compare(report, f"{label} logits of all tokens", results["logits"], arrays[logits], limit)
                choices(report, f"{label} arg max of all tokens", results["argmax"], best, arrays[logits], limit)
            if hidden in arrays:
                found = np.stack([results[f"layer_input.{il}"] for il in every])
                compare(report, f"{label} hidden states", found, arrays[hidden], limit)
            done = loops.generate(loops.Engine(context), ids, loops.Settings(), len(greedy))
            report.equal(f"{label} greedy tokens", done.tokens, greedy)


# -- a drafter -------------------------------------------------------------------------------------------------


def find_target(case: Case) -> Case:
    """The folder of the target: the verifier that the checkpoint names, else the only trained target beside it."""
    beside = case.folder.resolve().parent
    config = case.folder / "config.json"
    if config.is_file():
        verifier: Any = read_json(config).get("speculators_config", Record()).get("verifier", Record())
        named = beside / str(verifier.get("name_or_path", ""))
        if named != beside and (named / "reference.json").is_file():
            return read_case(named)
    folders = [f for f in sorted(beside.iterdir()) if (f / "reference.json").is_file()]
    found = [other for other in map(read_case, folders) if other.kind == "trained-target"]
    if len(found) != 1:
        raise CaseError(f"{len(found)} folders beside it hold a trained target, one is needed")
    return found[0]


def replay_draft(case: Case, report: Report) -> None:
    arrays = npz(case.path(ARRAYS))
    base = find_target(case)
    model = load(files(base)[0])
    for path in files(case):
        with report.section(path.name):
            Drafter(case, report, base, arrays, model, path).replay()


class Drafter:
    def __init__(
        self, case: Case, report: Report, base: Case, arrays: Mapping[str, Array], target: Model, path: Path
    ) -> None:
        self.case, self.report, self.arrays = case, report, arrays
        self.texts = {int(p["prompt"]): p for p in prompts(base)}
        self.target, self.draft = target, load(path, target)
        self.pairing = pair(target, self.draft)
        self.label = path.name

    def replay(self) -> None:
        extra = [read_json(p) for p in sorted(self.case.folder.glob("reference_*.json"))]
        n_tokens = max(len(p["ids"]) + len(p["greedy"]) for p in (*self.texts.values(), *extra))
        n_tokens += 2 * self.pairing.block_size
        tap_last = self.target.bound().n_layer in self.pairing.layers
        with (
            opened(self.target, REFERENCE, n_tokens, tap_last=tap_last) as target,
            opened(self.draft, REFERENCE, n_tokens) as draft,
        ):
            self.engine = loops.Engine(target, draft, self.pairing)
            self.limit = LIMITS[precision(draft)]
            for p in prompts(self.case):
                with self.report.section(f"{self.label} prompt {p['prompt']}"):
                    self.first_block(int(p["prompt"]))
            with self.report.section(f"{self.label} rounds"):
                done = [
                    self.rounds(f"prompt {p['prompt']}", self.texts[int(p["prompt"])], p) for p in prompts(self.case)
                ]
                mean = sum(r.n_accepted for r in done) / sum(len(r.iterations) for r in done)
                expected = float(self.case.data["mean_accepted_drafts_per_round"])
                label, text = f"{self.label} mean accepted drafts per round", f"{mean:.4f} for {expected}"
                self.report.add(label, abs(mean - expected) <= ROUNDING, text, f"{ROUNDING:g}")
            for text in extra:
                with self.report.section(f"{self.label} loop"):
                    self.rounds("loop", text, text)
            with self.report.section(f"{self.label} program"):
                self.program()

    def first_block(self, i: int) -> None:
        """The first draft behind a prompt, from features of our own target."""
        target, draft = self.engine.target, self.engine.draft
        assert draft is not None
        contract, layers = self.pairing.contract, self.pairing.layers
        label, arrays = f"{self.label} prompt {i}", {n.removeprefix(f"p{i}_"): n for n in self.arrays}
        recorded = {short: self.arrays[name] for short, name in arrays.items() if name != short}
        ids, anchor = as_tokens(self.texts[i]["ids"]), int(recorded["anchor"])
        target.clear()
        draft.clear()
        results = decode(target, Batch.of_tokens(ids), ("argmax",), layers)
        self.report.equal(f"{label} anchor", int(results["argmax"][-1]), anchor)
        features = joined(results, layers)
        if "features" in recorded:
            compare(self.report, f"{label} features", features, recorded["features"], LIMITS[weights(self.target)])
        fused = inject(draft, Batch.of_features(features), ("fused",) if "context" in recorded else ())
        if "context" in recorded:
            compare(self.report, f"{label} context", fused["fused"], recorded["context"], self.limit)
        n_rows = len(recorded["block_logits"])
        block = Batch.of_tokens([anchor] + [self.pairing.mask_token] * (n_rows - 1), len(ids))
        wanted = ("logits", *contract.outputs(0.0), "confidence", "base_logits")
        outputs = {n: a[0] for n, a in draft_blocks(draft, [block], wanted).items()}
        draft.remove(0, len(ids))
        names = {"block_logits": "logits", "base_logits": "base_logits", "confidence": "confidence"}
        for name, output in names.items():
            if name in recorded:
                found = outputs.get(output, np.zeros(0))
                compare(self.report, f"{label} {name.replace('_', ' ')}", found, recorded[name], self.limit)
        drafted = as_tokens(recorded["draft"])
        found_tokens = contract.propose(outputs, self.pairing.first_row, len(drafted), 0.0)
        self.report.equal(f"{label} first draft", list(found_tokens), drafted)

    def rounds(self, what: str, text: Record, recorded: Record) -> loops.Generation:
        """Every round of a loop that starts behind the target's first token; the last round counts in full."""
        drafts = [as_tokens(r["draft"]) for r in recorded["log"]]
        iterations = [[len(r["draft"]), int(r["accepted"])] for r in recorded["log"]]
        run = loops.Generation(as_tokens(text["greedy"]), iterations, drafts)
        how, ties = loops.Settings(from_prompt=False), loops.Ties(self.limit, self.limit)
        return loops.compare(
            self.report, f"{self.label} {what} rounds", self.engine, as_tokens(text["ids"]), run, how, ties
        )

    def program(self) -> None:
        """Counts of llama.cpp's program over all prompts, where they were recorded with an f32 cache."""
        recorded = self.case.data.get("llama_cpp")
        if not isinstance(recorded, Record) or recorded.get("kv_cache") != REFERENCE.name:
            return
        done = [
            loops.generate(self.engine, as_tokens(t["ids"]), loops.Settings(n_predict=len(t["greedy"])))
            for t in self.texts.values()
        ]
        found = [sum(d.n_drafted for d in done), sum(d.n_accepted for d in done)]
        expected = [int(recorded["drafted"]), int(recorded["accepted"])]
        self.report.equal(f"{self.label} program over all prompts [drafted, accepted]", found, expected)
