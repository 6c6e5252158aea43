"""Cases judged by transformers and by a float64 reference: whole prompts through targets, and a drafter's blocks.

The limits are those of the recording's README: NMSE 1e-9 and equal arg max for float32, integers equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from draftsmith.batch import Batch
from draftsmith.context import Context
from draftsmith.model import Model

from .cases import REFERENCE, Array, Case, Record, as_tokens, configuration
from .compare import Limit, choices, compare, difference
from .engine import contract_of, decode, draft_blocks, inject, load, opened
from .report import Report

SINGLE = Limit(np.inf, 1e-9)
HALF = Limit(np.inf, 1e-5)
TIE = Limit(5e-4)
"""What transformers in float32 differs by from the float64 reference."""


def replay_target(case: Case, report: Report) -> None:
    Target(case, report).replay()


class Target:
    def __init__(self, case: Case, report: Report) -> None:
        self.case, self.report, self.manifest = case, report, case.data
        self.prompts = {str(n): as_tokens(t) for n, t in self.manifest["prompts"].items()}
        self.recorded = {n: r for n, r in self.manifest["outputs"].items() if ":" not in n}  # the others are traces
        for name in self.recorded:
            case.output(name)
        self.replayed: set[str] = set()
        self.model = load(case.path(str(self.manifest.get("target", "model.gguf"))))
        self.n_layer = self.model.bound().n_layer

    def replay(self) -> None:
        longest = max(len(t) for t in self.prompts.values())
        with opened(self.model, REFERENCE, longest, n_rows=longest, tap_last=True) as context:
            for name, tokens in self.prompts.items():
                with self.report.section(f"prompt {name}"):
                    context.clear()
                    self.prompt(context, name, tokens)
            for name, tokens in self.prompts.items():
                if f"logits_{name}_incremental" in self.recorded:
                    with self.report.section(f"prompt {name} incremental"):
                        context.clear()
                        self.incremental(context, name, tokens)
        with (
            self.report.section("f16_fa"),
            opened(self.model, configuration("f16_fa"), longest, n_rows=longest) as context,
        ):
            for name, tokens in self.prompts.items():
                context.clear()
                self.half(name, decode(context, Batch.of_tokens(tokens))["logits"])
        for name in self.recorded:
            if name not in self.replayed:
                self.report.error(name, "recorded, but not replayed")

    def reference(self, name: str) -> Array:
        """The most exact logits of a prompt."""
        exact = f"logits_{name}_f64"
        return self.case.output(exact if exact in self.recorded else f"logits_{name}")

    def check(self, label: str, name: str, found: Array, limit: Limit = SINGLE) -> None:
        self.replayed.add(name)
        compare(self.report, label, np.asarray(found), self.case.output(name), limit)

    def prompt(self, context: Context, name: str, tokens: Sequence[int]) -> None:
        label = f"prompt {name}"
        every = range(self.n_layer + 1)
        results = decode(context, Batch.of_tokens(tokens), ("logits", "argmax"), every)
        for output in (f"logits_{name}", f"logits_{name}_f64"):
            if output in self.recorded:
                # the float32 run of transformers is itself 1e-10 away from the float64 reference
                self.check(f"{label} {output}", output, results["logits"])
        logits = self.reference(name)
        choices(self.report, f"{label} arg max", results["argmax"], logits.argmax(axis=-1), logits, TIE)
        inputs = np.stack([results[f"layer_input.{il}"] for il in every])
        if f"layer_inputs_{name}" in self.recorded:
            self.check(f"{label} layer inputs", f"layer_inputs_{name}", inputs)
        mean = f"layer_input_mean_{name}"
        if mean in self.recorded:
            self.check(f"{label} layer inputs", mean, inputs[:, self.positions(mean, len(tokens))])
        if f"stream_{name}_f64" in self.recorded:
            self.check(f"{label} stream", f"stream_{name}_f64", inputs[:, -1])
        for output, tap, il in self.decisions(name):
            self.replayed.add(output)
            with self.report.section(f"{label} {output}"):
                context.clear()
                found = context.run("decode", Batch.of_tokens(tokens), taps=((tap, il),))[f"{tap}.{il}"]
                self.integers(f"{label} {output}", found, self.case.output(output))

    def positions(self, name: str, n: int) -> list[int]:
        """Which rows were kept; the manifest says it in words."""
        stated = re.search(r"positions ([\d, ]+)", str(self.recorded[name].get("meaning", "")))
        return [int(p) for p in re.findall(r"\d+", stated[1])] if stated else [0, n // 2, n - 1]

    def decisions(self, name: str) -> Iterator[tuple[str, str, int]]:
        """Integer arrays of a prompt, with the tap that gives them: ``<tap>_<prompt>_layer<il>``."""
        for output in self.recorded:
            if match := re.fullmatch(rf"(\w+?)_{name}_layer(\d+)", output):
                yield output, match[1], int(match[2])
            elif output == f"candidates_{name}":
                yield output, "candidates", int(self.manifest["dims"]["cand_src"])

    def integers(self, label: str, found: Array, recorded: Array) -> None:
        """Sets of rows may come in any order; unused places are -1."""
        ours, theirs = np.sort(np.asarray(found, np.int64), axis=-1), np.sort(np.asarray(recorded, np.int64), axis=-1)
        same = ours.shape == theirs.shape and bool((ours == theirs).all())
        text = (
            "equal"
            if same
            else f"shape {list(ours.shape)} for {list(theirs.shape)}"
            if ours.shape != theirs.shape
            else f"{int((ours != theirs).sum())} differ"
        )
        self.report.add(label, same, text, "exact")

    def incremental(self, context: Context, name: str, tokens: Sequence[int]) -> None:
        output = f"logits_{name}_incremental"
        n_rows = len(self.case.output(output))
        start = len(tokens) - n_rows
        decode(context, Batch.of_tokens(tokens[:start]), ())
        rows = [decode(context, Batch.of_tokens([t], start + i))["logits"] for i, t in enumerate(tokens[start:])]
        self.check(f"prompt {name} one token at a time", output, np.concatenate(rows))

    def half(self, name: str, logits: Array) -> None:
        """f16 caches: the whole where nothing is selected, else row by row, and a flip may move single rows."""
        recorded = self.reference(name)
        label = f"f16_fa prompt {name}"
        if "index" not in self.manifest.get("selection_margins", Record()).get(name, Record()):
            compare(self.report, f"{label} logits", logits, recorded, HALF)
            return
        errors = [difference(a, b).nmse for a, b in zip(logits, recorded, strict=True)]
        close = float(np.mean(np.array(errors) <= HALF.nmse))
        self.report.add(
            f"{label} logits by row", close >= 0.5, f"{close:.0%} of the rows within nmse {HALF.nmse:g}", "half of them"
        )


def replay_draft(case: Case, report: Report) -> None:
    """Blocks of a drafter, from recorded features: inject, draft, and a second round behind accepted drafts."""
    manifest = case.data
    for name in manifest["outputs"]:
        if ":" not in name:
            case.output(name)
    target = load(case.path(str(manifest["target"])))
    draft = load(case.path(str(manifest["draft"])), target)
    contract_of(draft)
    for number, block in enumerate([*manifest["blocks"], *([manifest["round2"]] if "round2" in manifest else [])]):
        second = "committed" in block
        label = f"block {number} behind prompt {block['prompt']}" + (" (second round)" if second else "")
        with report.section(label):
            draft_block(case, report, draft, label, block, second)


def draft_block(case: Case, report: Report, model: Model, label: str, block: Record, second: bool) -> None:
    n, tokens, pos = int(block["prompt"]), as_tokens(block["block_tokens"]), int(block["pos0"])
    full = case.data["dims"]["block"] if "block" in case.data["dims"] else len(tokens)
    suffix = "round2" if second else f"{n}" if len(tokens) == int(full) else f"{n}_short"
    with opened(model, REFERENCE, pos + len(tokens)) as context:
        features = case.output(f"features_{n}")
        inject(context, Batch.of_features(features))
        if second:
            inject(context, Batch.of_features(case.output("features_round2"), len(features)))
        names = {"logits": "logits", "conf": "confidence", "base_logits": "base_logits", "u": "u"}
        outputs = draft_blocks(context, [Batch.of_tokens(tokens, pos)], (*names.values(), "argmax"))
    for what, name in names.items():
        recorded = f"{what}_{suffix}"
        if recorded not in case.data["outputs"]:
            continue
        if name in outputs:
            compare(report, f"{label} {what}", outputs[name][0], case.output(recorded), SINGLE)
        elif what == "u":
            report.note(f"{label} {what}: an inner value that the graph does not return, not compared")
        else:
            report.error(f"{label} {what}", f"the graph has no output {name!r}")
    chosen = outputs["argmax"] if "argmax" in outputs else outputs["logits"].argmax(axis=-1)
    report.equal(f"{label} tokens", as_tokens(chosen[0]), as_tokens(block["tokens"]))


def replay_units(case: Case, report: Report) -> None:
    """Single formulas. They are parts of architectures; without one that has them there is nothing to call."""
    for name in sorted({str(r["file"]) for r in case.data["outputs"].values()}):
        case.path(name)
        report.error(name, "no landed architecture has these formulas")
