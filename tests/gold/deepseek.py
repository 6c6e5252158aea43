"""DeepSeek-V4 targets (``kind: deepseek4``): ways to feed a prompt, removal of tokens, several sequences together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

import numpy as np

from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.errors import DraftsmithError

from . import loops
from .cases import CONFIGURATION, REFERENCE, Array, Case, CaseError, Configuration, as_tokens, configuration
from .compare import Limit, Tolerances, choices, compare, difference, weights
from .engine import decode, joined, load, opened
from .report import Report

EXACT = 5e-5
"""llama.cpp and transformers differ by that much in float32, where both make the same discrete choices."""

QUANTILES = (50, 90, 99, 100)
MEASURED = "row_err_over_rms_quantiles_50_90_99_100"
FEW = 30
"""With fewer rows only the largest error is held against the quantiles of the whole prompt."""

ALONE = rf"logits_s(?P<seq>\d+)(?:_last(?P<last>\d+))?_{CONFIGURATION}"
"""Outputs of the other prompts."""


def replay(case: Case, report: Report) -> None:
    DeepSeek(case, report).replay()


class DeepSeek:
    def __init__(self, case: Case, report: Report) -> None:
        self.case, self.report, self.manifest = case, report, case.data
        self.prompt = case.tokens("prompt")
        self.rows = [int(r) for r in self.manifest["rows"]]
        self.layers = [int(il) for il in self.manifest.get("layer_inp_ids", [])]
        self.replayed: set[str] = set()
        for name in self.manifest["outputs"]:
            case.output(name)
        self.model = load(case.path(str(self.manifest["target"])))
        self.tolerances = Tolerances(case, weights(self.model))

    def replay(self) -> None:
        for what in (self.prompts, self.batches, self.rollbacks, self.script, self.long, self.greedy, self.mtp):
            with self.report.section(what.__name__):
                what()
        for name in self.manifest["outputs"]:
            if name not in self.replayed:
                self.report.error(name, "recorded, but not replayed")

    def context(
        self, cfg: Configuration, n_tokens: int, n_seqs: int = 1, n_rows: int = 0, n_rs_seq: int = 0
    ) -> AbstractContextManager[Context]:
        """``n_rs_seq``: how many tokens must be removable, for an engine that has to know."""
        tap_last = self.model.bound().n_layer in self.layers
        known = {f.name for f in fields(ContextOptions)}
        settings = {"n_rs_seq": n_rs_seq} if "n_rs_seq" in known else {}
        return opened(self.model, cfg, n_tokens, n_seqs, n_rows, tap_last, **settings)

    # -- comparison ------------------------------------------------------------------------------------------
    def limit(self) -> Limit:
        """f32: what the reference's own ways of feeding show, at least the fixed figure."""
        seen = [EXACT]
        for name, entry in self.tolerances.measured.items():
            other_way = not re.fullmatch(CONFIGURATION, name) and not name.startswith("mtp")
            rounded = self.tolerances.precision != "f32" and name in ("f32_fa", "f16", "f16_fa")
            if isinstance(entry, Mapping) and (other_way or rounded):
                seen.append(float(entry.get("max_abs", 0.0)))
        return Limit(max(seen))

    def compare(self, label: str, name: str, found: Array, cfg: Configuration = REFERENCE) -> None:
        """f32 by the largest difference; everything else by quantiles of the error of a row."""
        self.replayed.add(name)
        recorded = self.case.output(name)
        seen = difference(found, recorded)
        exact = cfg.is_reference and self.tolerances.precision == "f32"
        if exact or seen.infinities or found.ndim < 2:
            compare(self.report, label, found, recorded, self.limit())
            return
        names = [] if cfg.is_reference else [cfg.name]
        if self.tolerances.precision != "f32":
            names += ["f32_fa", "f16", "f16_fa"]
        entries = [self.tolerances.measured[n][MEASURED] for n in names if n in self.tolerances.measured]
        if not entries:
            raise CaseError(f"the tolerance of none of {', '.join(names)} was measured")
        quantiles = QUANTILES if len(found) >= FEW else QUANTILES[-1:]
        allowed = np.maximum(np.max(entries, axis=0)[-len(quantiles) :], EXACT)
        allowed[-1] *= 2  # two runs, each as far from f32
        scale = float(np.sqrt(np.mean(np.square(recorded))))
        errors = np.percentile(np.abs(found - recorded).max(axis=-1) / scale, quantiles)
        figures, limits = (", ".join(f"{x:.1e}" for x in xs) for xs in (errors, allowed))
        text = f"error of a row over rms at {'/'.join(map(str, quantiles))} %: {figures}"
        self.report.add(label, bool((errors <= allowed).all()), text, limits)

    def output_of(self, record: Mapping[str, Any]) -> str:
        """The name under which a record elsewhere in the manifest stands among the outputs."""
        for name, output in self.manifest["outputs"].items():
            if output["file"] == record["file"]:
                return str(name)
        raise CaseError(f"{record['file']} is not among the outputs")

    # -- ways to feed a prompt -------------------------------------------------------------------------------
    def prompts(self) -> None:
        for output, m in self.case.outputs(rf"logits_rows_{CONFIGURATION}"):
            cfg, n = configuration(m["cfg"]), len(self.prompt)
            with self.report.section(output), self.context(cfg, n, n_rows=n) as context:
                layers = self.layers if cfg.is_reference else []
                results = decode(context, Batch.of_tokens(self.prompt), ("logits", "argmax"), layers)
                self.compare(f"{cfg.name} logits", output, results["logits"][self.rows], cfg)
                if cfg.is_reference:
                    self.all_rows(results)
                if "layer_inp_rows_f32" in self.manifest["outputs"] and layers:
                    self.compare("f32 layer inputs", "layer_inp_rows_f32", joined(results, layers)[self.rows])
        for output, m in self.case.outputs(ALONE):
            tokens, cfg = self.case.tokens(f"prompt_s{m['seq']}"), configuration(m["cfg"])
            n = len(tokens)
            with self.report.section(output), self.context(cfg, n, n_rows=n) as context:
                found = decode(context, Batch.of_tokens(tokens))["logits"]
                self.compare(f"{cfg.name} logits of prompt {m['seq']}", output, found[-int(m["last"] or n) :], cfg)

    def all_rows(self, results: Mapping[str, Array]) -> None:
        """Arg max and largest logit of every row of the prompt."""
        logits, limit = results["logits"], self.limit()
        if "argmax_all_rows" in self.manifest:
            recorded = np.array(self.case.tokens("argmax_all_rows"))
            choices(self.report, "f32 arg max of all rows", results["argmax"], recorded, logits, limit)
        if "top1_logit_all_rows_f32" in self.manifest["outputs"]:
            self.compare("f32 largest logit of all rows", "top1_logit_all_rows_f32", logits.max(axis=-1))

    def batches(self) -> None:
        """The manifest's ``tolerance`` names the ways in which the reference was fed."""
        n = len(self.prompt)
        for way in self.tolerances.measured:
            with self.report.section(way):
                if way == "three_seqs_one_batch_s0":
                    self.together()
                elif way == "after_full_removal":
                    self.in_pieces(way, [n], removed=True)
                elif match := re.fullmatch(r"(?:batches_of|ubatch)_([\d_]+)", way):
                    self.in_pieces(way, [int(s) for s in match[1].split("_")])
                elif way == "token_by_token":
                    self.in_pieces(way, [1])

    def in_pieces(self, way: str, sizes: Sequence[int], removed: bool = False) -> None:
        """The prompt in batches of these sizes, over and over."""
        n = len(self.prompt)
        with self.context(REFERENCE, n, n_rows=n) as context:
            if removed:
                decode(context, Batch.of_tokens(self.prompt))
                context.remove(0, 0)
            pieces: list[Array] = []
            pos = 0
            while pos < n:
                size = sizes[len(pieces) % len(sizes)]
                pieces.append(decode(context, Batch.of_tokens(self.prompt[pos : pos + size], pos))["logits"])
                pos += size
        self.compare(f"f32 {way} logits", "logits_rows_f32", np.concatenate(pieces)[self.rows])

    def together(self) -> None:
        others = [self.case.tokens(name) for name in ("prompt_s1", "prompt_s2") if name in self.manifest]
        batch = Batch.join([Batch.of_tokens(p, 0, i) for i, p in enumerate([self.prompt, *others])])
        with self.context(REFERENCE, len(batch), 1 + len(others), len(batch)) as context:
            logits = decode(context, batch)["logits"]
        label = "f32 all sequences in one batch, logits"
        self.compare(label, "logits_rows_f32", logits[batch.seq == 0][self.rows])
        for output, m in self.case.outputs(ALONE):
            if configuration(m["cfg"]).is_reference:
                found = logits[batch.seq == int(m["seq"])]
                self.compare(f"{label} of prompt {m['seq']}", output, found[-int(m["last"] or len(found)) :])

    # -- removal ---------------------------------------------------------------------------------------------
    def rollbacks(self) -> None:
        """Tokens of the last batch are removed, others decoded instead; then the same once more."""
        for r in self.manifest.get("rollback", []):
            prefill, batch, removed = int(r["prefill"]), int(r["batch"]), int(r["removed"])
            label, n = f"f32 rollback of {removed} of {batch} behind {prefill}", len(self.prompt)
            with (
                self.report.section(label),
                self.context(REFERENCE, n, n_rows=n, n_rs_seq=int(r["n_rs_seq"])) as context,
            ):
                decode(context, Batch.of_tokens(self.prompt[:prefill]), ())
                decode(context, Batch.of_tokens(self.prompt[prefill : prefill + batch], prefill), ())
                start = prefill + batch - removed
                if not r["seq_rm_ok"]:
                    self.refused(label, context, start)
                    continue
                for again in ("", "_2"):
                    if f"logits{again}" not in r:
                        break
                    tokens = as_tokens(r[f"alt_tokens{again}"])
                    context.remove(0, start)
                    found = decode(context, Batch.of_tokens(tokens, start))["logits"]
                    self.compare(
                        label + (", a second time" if again else ""), self.output_of(r[f"logits{again}"]), found
                    )
                    start += len(tokens) - removed

    def refused(self, label: str, context: Context, start: int) -> None:
        """The reference refuses; an engine that can do more may."""
        try:
            context.remove(0, start)
        except DraftsmithError as e:
            self.report.note(f"{label}: refused, as by the reference ({e})")
        else:
            self.report.note(f"{label}: the reference refuses, ours removes")

    def script(self) -> None:
        """Steps for several sequences in one context."""
        script = self.manifest.get("script")
        if script is None:
            return
        steps = list(script["steps"])
        sizes = [sum(len(d["tokens"]) for d in step.get("decode", [])) for step in steps]
        n_seqs, n_rs_seq = int(script["n_seq_max"]), int(script["n_rs_seq"])
        with self.context(REFERENCE, sum(sizes), n_seqs, max(sizes), n_rs_seq) as context:
            for number, step in enumerate(steps):
                if "seq_rm" in step:
                    context.remove(int(step["seq_rm"]["seq"]), int(step["seq_rm"]["p0"]))
                    continue
                parts = [Batch.of_tokens(d["tokens"], int(d["pos"]), int(d["seq"])) for d in step["decode"]]
                found = decode(context, Batch.join(parts))["logits"]
                if "logits" in step:
                    self.compare(f"f32 script step {number}", self.output_of(step["logits"]), found)

    # -- long, greedy, multi-token prediction ----------------------------------------------------------------
    def long(self) -> None:
        recorded = self.manifest.get("long")
        if recorded is None:
            return
        tokens, rows = as_tokens(recorded["prompt"]), [int(r) for r in recorded["rows"]]
        with self.context(REFERENCE, len(tokens)) as context:
            results = decode(context, Batch.of_tokens(tokens), ("logits", "argmax"))
        self.compare("f32 long prompt", self.output_of(recorded["logits"]), results["logits"][rows])
        for key in recorded:
            if match := re.fullmatch(r"argmax_last_(\d+)", key):
                n, chosen = int(match[1]), np.array(as_tokens(recorded[key]))
                found, logits = results["argmax"][-n:], results["logits"][-n:]
                choices(self.report, f"f32 long prompt, {key}", found, chosen, logits, self.limit())

    def greedy(self) -> None:
        recorded = self.manifest.get("greedy")
        if recorded is None:
            return
        tokens, prompt = as_tokens(recorded["tokens"]), self.prompt[: int(recorded["prompt_len"])]
        with self.context(REFERENCE, len(prompt) + len(tokens)) as context:
            found = loops.generate(loops.Engine(context), prompt, loops.Settings(), len(tokens))
        self.report.equal("greedy tokens", found.tokens, tokens)

    def mtp(self) -> None:
        """Drafting with the model's own multi-token-prediction layer."""
        names = [name for name, _ in self.case.outputs(r"mtp_.+")]
        names += [f"e2e {i}" for i, _ in enumerate(self.manifest.get("e2e", []))]
        self.replayed |= set(names)
        for name in names:
            if not name.endswith("h_target"):  # an input
                self.report.error(name, f"{self.model.cls.variant} has no graph for multi-token prediction")
