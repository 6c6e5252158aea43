"""Trained models (``reference.json``): text that a PyTorch implementation continued, and what a drafter proposed for it.

Everything that the folder holds in GGUF is replayed; a drafter runs against the most exact file of its target, which lies in a
folder beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from draftsmith.batch import Batch
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.gguf_file import GGUFFile
from draftsmith.model import Model
from draftsmith.pairing import pair

from . import loops
from .cases import REFERENCE, Array, Case, CaseError, Record, as_tokens, npz, read_case, read_json
from .compare import Limit, choices, coarsest, compare, precision
from .engine import decode, draft_blocks, inject, joined, layer_taps, opened
from .report import Report

LIMITS = {"f32": Limit(1e-4, 1e-11), "f16": Limit(5e-2, 1e-6), "bf16": Limit(0.5, 1e-4), "quantised": Limit(2.0, 1e-2)}
"""By type of the weights: logits of a trained model are larger than those of a random one, so the NMSE is what counts."""

ARRAYS = "reference.npz"


def files(case: Case) -> list[Path]:
    found = sorted(case.folder.glob("*.gguf"))
    if not found:
        raise CaseError("no GGUF file in the folder")
    return found


def by_precision(paths: list[Path]) -> list[Path]:
    """The most exact file first."""
    order = ["f32", "f16", "bf16", "quantised"]
    return sorted(paths, key=lambda p: order.index(coarsest(t.type for t in GGUFFile.open(p).tensors.values())))


def prompts(case: Case) -> list[Record]:
    return list(case.data["prompts"])


# -- a target --------------------------------------------------------------------------------------------------


def replay_target(case: Case, report: Report) -> None:
    arrays = npz(case.path(ARRAYS))
    for path in files(case):
        with report.section(path.name):
            target(case, report, arrays, path)


def target(case: Case, report: Report, arrays: Mapping[str, Array], path: Path) -> None:
    model = Model.load(path)
    limit = LIMITS[coarsest(t.type for t in model.file.tensors.values())]
    n_layer = model.bound().n_layer
    n_tokens = max(len(p["ids"]) + len(p["greedy"]) for p in prompts(case))
    with opened(model, REFERENCE, n_tokens, tap_last=True) as context:
        for p in prompts(case):
            i, ids = int(p["prompt"]), as_tokens(p["ids"])
            label = f"{path.name} prompt {i}"
            hidden = f"p{i}_hidden" in arrays
            context.clear()
            results = decode(context, Batch.of_tokens(ids), layers=range(n_layer + 1) if hidden else ())
            compare(report, f"{label} last logits", results["logits"][-1], arrays[f"p{i}_last_logits"], limit)
            if f"p{i}_logits" in arrays:
                compare(report, f"{label} logits of all tokens", results["logits"], arrays[f"p{i}_logits"], limit)
                choices(report, f"{label} arg max of all tokens", results["logits"].argmax(axis=-1), arrays[f"p{i}_logits"], limit)
            if hidden:
                found = np.stack([results[f"{n}.{il}"] for n, il in layer_taps(range(n_layer + 1))])
                compare(report, f"{label} hidden states", found, arrays[f"p{i}_hidden"], limit)
            greedy = as_tokens(p["greedy"])
            done = loops.generate(context, None, None, ids, loops.Settings(), len(greedy))
            report.equal(f"{label} greedy tokens", done.tokens, greedy)


# -- a drafter -------------------------------------------------------------------------------------------------


def find_target(case: Case) -> Case:
    """The folder of the target: the verifier that the checkpoint names, else the only trained target beside this folder."""
    beside = case.folder.resolve().parent
    config = case.folder / "config.json"
    if config.is_file():
        named: Any = read_json(config).get("speculators_config", Record()).get("verifier", Record()).get("name_or_path")
        if named and (beside / str(named) / "reference.json").is_file():
            return read_case(beside / str(named))
    found = []
    for folder in sorted(beside.iterdir()):
        if folder != case.folder.resolve() and (folder / "reference.json").is_file():
            other = read_case(folder)
            if other.kind == "trained-target":
                found.append(other)
    if len(found) != 1:
        raise CaseError(f"{len(found)} folders beside it hold a trained target, one is needed")
    return found[0]


def replay_draft(case: Case, report: Report) -> None:
    arrays = npz(case.path(ARRAYS))
    base = find_target(case)
    model = Model.load(by_precision(files(base))[0])
    for path in files(case):
        with report.section(path.name):
            Drafter(case, report, base, arrays, model, Model.load(path, target=model)).replay()


class Drafter:
    def __init__(
        self, case: Case, report: Report, base: Case, arrays: Mapping[str, Array], target: Model, draft: Model
    ) -> None:
        self.case, self.report, self.arrays = case, report, arrays
        self.texts = {int(p["prompt"]): p for p in prompts(base)}
        self.target, self.draft = target, draft
        self.pairing = pair(target, draft)
        self.label = draft.path.name

    def replay(self) -> None:
        extra = [read_json(p) for p in sorted(self.case.folder.glob("reference_*.json"))]
        longest = max(len(p["ids"]) + len(p["greedy"]) for p in (*self.texts.values(), *extra))
        n_tokens = longest + 2 * self.pairing.block_size
        tap_last = self.target.bound().n_layer in self.pairing.layers
        with opened(self.target, REFERENCE, n_tokens, tap_last=tap_last) as target, opened(self.draft, REFERENCE, n_tokens) as draft:
            self.contexts = target, draft
            self.limit = LIMITS[precision(draft)]
            for p in prompts(self.case):
                with self.report.section(f"{self.label} prompt {p['prompt']}"):
                    self.first_block(p)
            rounds = [self.rounds(f"prompt {p['prompt']}", self.texts[int(p["prompt"])], p) for p in prompts(self.case)]
            done = [r for r in rounds if r is not None]
            accepted, n = sum(r.n_accepted for r in done), sum(len(r.iterations) for r in done)
            expected = float(self.case.data["mean_accepted_drafts_per_round"])
            mean = accepted / n if n else 0.0
            self.report.add(f"{self.label} mean accepted drafts per round", abs(mean - expected) <= 5e-5, f"{mean:.4f} for {expected}", "5e-05")
            for text in extra:
                self.rounds(f"loop {text.get('source', '')}", text, text)
            self.program()

    def first_block(self, p: Record) -> None:
        """The first draft behind the prompt, from features of our own target."""
        i = int(p["prompt"])
        target, draft = self.contexts
        contract = self.pairing.contract
        label = f"{self.label} prompt {i}"
        ids, anchor = as_tokens(self.texts[i]["ids"]), int(self.arrays[f"p{i}_anchor"])
        target.clear()
        draft.clear()
        layers = self.pairing.layers
        results = decode(target, Batch.of_tokens(ids), ("argmax",), layers)
        self.report.equal(f"{label} anchor", int(results["argmax"][-1]), anchor)
        features = joined(results, layers)
        if f"p{i}_features" in self.arrays:
            exact = LIMITS[coarsest(t.type for t in self.target.file.tensors.values())]
            compare(self.report, f"{label} features", features, self.arrays[f"p{i}_features"], exact)
        detail = f"p{i}_context" in self.arrays and "fused" in draft.graphs[contract.inject].outputs
        fused = inject(draft, Batch.of_features(features), ("fused",) if detail else ())
        if detail:
            compare(self.report, f"{label} context", fused["fused"], self.arrays[f"p{i}_context"], self.limit)
        drafted, logits = as_tokens(self.arrays[f"p{i}_draft"]), self.arrays[f"p{i}_block_logits"]
        block = Batch.of_tokens([anchor] + [self.pairing.mask_token] * (len(logits) - 1), len(ids))
        wanted = ("logits", *contract.outputs(0.0), "confidence", "base_logits")
        outputs = {n: a[0] for n, a in draft_blocks(draft, [block], wanted).items()}
        draft.remove(0, len(ids))
        for array, output in (("block_logits", "logits"), ("base_logits", "base_logits"), ("confidence", "confidence")):
            if f"p{i}_{array}" in self.arrays:
                found = outputs.get(output, np.zeros(0))
                compare(self.report, f"{label} {array.replace('_', ' ')}", found, self.arrays[f"p{i}_{array}"], self.limit)
        found_tokens = contract.propose(outputs, self.pairing.first_row, len(drafted), 0.0)
        self.report.equal(f"{label} first draft", list(found_tokens), drafted)

    def rounds(self, what: str, text: Record, recorded: Record) -> loops.Generation | None:
        """Every round of a loop that starts behind the target's first token; the last round counts in full."""
        with self.report.section(f"{self.label} {what}"):
            log = list(recorded["log"])
            run = loops.Generation(
                as_tokens(text["greedy"]), [[len(r["draft"]), int(r["accepted"])] for r in log], [as_tokens(r["draft"]) for r in log]
            )
            how = loops.Settings(from_prompt=False)
            found = loops.compare(
                self.report, f"{self.label} {what} rounds", *self.contexts, self.pairing, as_tokens(text["ids"]), run, how,
                loops.Ties(self.limit, self.limit),
            )
            return found
        return None

    def program(self) -> None:
        """Counts of llama.cpp's program over all prompts, where they were recorded."""
        recorded = self.case.data.get("llama_cpp")
        if not isinstance(recorded, Mapping) or GGMLType.f32.name != recorded.get("kv_cache"):
            return
        drafted = accepted = 0
        with self.report.section(f"{self.label} program"):
            for text in self.texts.values():
                done = loops.generate(*self.contexts, self.pairing, as_tokens(text["ids"]), loops.Settings(n_predict=len(text["greedy"])))
                drafted, accepted = drafted + done.n_drafted, accepted + done.n_accepted
            found, expected = [drafted, accepted], [int(recorded["drafted"]), int(recorded["accepted"])]
            self.report.equal(f"{self.label} [drafted, accepted] of the program over all prompts", found, expected)
