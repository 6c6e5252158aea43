"""Target cases (``kind: target``): logits and layer inputs of whole prompts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from draftsmith.batch import Batch

from .cases import CONFIGURATION, REFERENCE, Array, Case, Configuration, as_tokens, configuration
from .compare import Tolerances, choices, compare, weights
from .engine import decode, joined, load, opened
from .report import Report

OUTPUTS = ("logits", "argmax")


def replay(case: Case, report: Report) -> None:
    Target(case, report).replay()


class Target:
    def __init__(self, case: Case, report: Report) -> None:
        self.case, self.report = case, report
        self.prompts = [as_tokens(p) for p in case.data["prompts"]]
        self.layers = [int(il) for il in case.data.get("layer_inp_ids", [])]
        pattern = rf"(?P<what>logits|layer_inp)_s(?P<seq>\d+)(?:_{CONFIGURATION})?"
        self.recorded = {
            (m["what"], int(m["seq"]), m["cfg"] or REFERENCE.name): name for name, m in case.outputs(pattern)
        }
        for name in case.data["outputs"]:
            case.output(name)
        self.model = load(case.path(str(case.data["target"])))
        self.tolerances = Tolerances(case, weights(self.model))
        self.tap_last = self.model.bound().n_layer in self.layers

    def replay(self) -> None:
        configurations = {configuration(name) for _, _, name in self.recorded}
        for cfg in sorted(configurations, key=lambda c: (not c.is_reference, c.name)):
            with self.report.section(cfg.name):
                self.alone(cfg)
        with self.report.section("one batch"):
            self.together()
        with self.report.section("token by token"):
            self.steps()
        for name in self.case.data["outputs"]:
            if name not in self.recorded.values():
                self.report.error(name, "recorded, but not replayed")

    def alone(self, cfg: Configuration) -> None:
        """Each prompt in a batch of its own."""
        longest = max(map(len, self.prompts))
        with opened(self.model, cfg, longest, 1, longest, self.tap_last) as context:
            for seq in sorted({seq for _, seq, name in self.recorded if name == cfg.name}):
                context.clear()
                batch = Batch.of_tokens(self.prompts[seq])
                self.check(cfg.name, cfg, seq, decode(context, batch, OUTPUTS, self.layers))

    def together(self) -> None:
        batch = Batch.join([Batch.of_tokens(p, 0, i) for i, p in enumerate(self.prompts)])
        with opened(self.model, REFERENCE, len(batch), len(self.prompts), len(batch), self.tap_last) as context:
            results = decode(context, batch, OUTPUTS, self.layers)
        for seq in range(len(self.prompts)):
            rows = {name: a[batch.seq == seq] for name, a in results.items()}
            self.check("f32 all prompts in one batch:", REFERENCE, seq, rows)

    def steps(self) -> None:
        tokens = self.prompts[0]
        with opened(self.model, REFERENCE, len(tokens), tap_last=self.tap_last) as context:
            steps = [decode(context, Batch.of_tokens([t], pos), OUTPUTS, self.layers) for pos, t in enumerate(tokens)]
        rows = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
        self.check("f32 token by token:", REFERENCE, 0, rows)

    def check(self, label: str, cfg: Configuration, seq: int, results: Mapping[str, Array]) -> None:
        name = self.recorded.get(("logits", seq, cfg.name))
        if name is not None:
            logits, limit = self.case.output(name), self.tolerances.limit(cfg, "logits")
            compare(self.report, f"{label} logits of prompt {seq}", results["logits"], logits, limit)
            best = logits.argmax(axis=-1)
            choices(self.report, f"{label} arg max of prompt {seq}", results["argmax"], best, logits, limit)
        name = self.recorded.get(("layer_inp", seq, cfg.name))
        if name is not None:
            limit = self.tolerances.limit(cfg, "layer_inp")
            inputs = joined(results, self.layers)
            compare(self.report, f"{label} layer inputs of prompt {seq}", inputs, self.case.output(name), limit)
