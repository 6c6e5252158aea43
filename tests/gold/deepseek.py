"""DeepSeek-V4 targets (``kind: deepseek4``): several ways to feed a prompt, removal of tokens, several sequences in one context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from draftsmith.batch import Batch
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.errors import DraftsmithError
from draftsmith.model import Model

from . import loops
from .cases import CONFIGURATION, REFERENCE, Array, Case, CaseError, Configuration, as_tokens, configuration
from .compare import Limit, Tolerances, coarsest, compare, difference
from .engine import decode, joined, opened
from .report import Report

EXACT = 5e-5
"""llama.cpp and transformers differ by that much in float32 (gold-hf), through discrete choices that both make alike."""

QUANTILES = (50, 90, 99, 100)
QUANTILES_KEY = "row_err_over_rms_quantiles_50_90_99_100"


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
        self.model = Model.load(case.path(str(self.manifest["target"])))
        kinds = {t.type for t in self.model.file.tensors.values() if t.type.numpy_dtype is None or t.type.name[0] != "i"}
        self.tolerances = Tolerances(case, coarsest(kinds))

    def replay(self) -> None:
        for name, _ in self.case.outputs(r"mtp_.+"):
            self.replayed.add(name)
        for what in ("prompts", "batches", "rollbacks", "script", "long", "greedy", "mtp"):
            with self.report.section(what):
                getattr(self, what)()
        for name in self.manifest["outputs"]:
            if name not in self.replayed:
                self.report.error(name, "recorded, but not replayed")

    def context(self, cfg: Configuration, n_tokens: int, n_seqs: int = 1, n_rows: int = 0, n_rs_seq: int = 0) -> Any:
        tap_last = self.model.bound().n_layer in self.layers
        known = {f.name for f in fields(ContextOptions)}
        settings = {"n_rs_seq": n_rs_seq} if n_rs_seq and "n_rs_seq" in known else {}
        return opened(self.model, cfg, n_tokens, n_seqs, n_rows, tap_last, **settings)

    # -- comparison -------------------------------------------------------------------------------------------------
    def exact(self) -> Limit:
        """Float32 throughout: what the reference's own ways of feeding show, at least the fixed figure."""
        seen = [EXACT]
        for name, entry in self.tolerances.measured.items():
            if isinstance(entry, Mapping) and not re.fullmatch(CONFIGURATION, name) and not name.startswith("mtp"):
                seen.append(float(entry.get("max_abs", 0.0)))
        return Limit(max(seen))

    def logits(self, label: str, name: str, found: Array, cfg: Configuration = REFERENCE) -> None:
        """f32 by the largest difference; everything else by quantiles of the rows, because one other choice of expert or row
        moves a whole row."""
        self.replayed.add(name)
        recorded = self.case.output(name)
        if cfg.is_reference and self.tolerances.precision == "f32":
            compare(self.report, label, found, recorded, self.exact())
            return
        names = [cfg.name] if not cfg.is_reference else []
        if self.tolerances.precision != "f32":
            names += ["f32_fa", "f16", "f16_fa"]
        entries = [self.tolerances.measured[n] for n in names if n in self.tolerances.measured]
        allowed = np.max([e[QUANTILES_KEY] for e in entries], axis=0) if entries else np.array([0.01, 0.05, 0.5, 5.0])
        allowed = np.maximum(allowed, EXACT)
        seen = difference(found, recorded)
        if seen.infinities:
            self.report.add(label, False, str(seen), "equal infinities")
            return
        rms = float(np.sqrt(np.mean(np.square(recorded))))
        errors = np.percentile(np.abs(found - recorded).max(axis=-1) / rms, QUANTILES)
        text = ", ".join(f"{e:.1e}" for e in errors)
        self.report.add(
            label, bool((errors <= allowed).all()), f"row error over rms at {QUANTILES} %: {text}", ", ".join(f"{a:.1e}" for a in allowed)
        )

    def all_rows(self, label: str, results: dict[str, Array]) -> None:
        """Arg max and largest logit of every row of the prompt."""
        logits, limit = results["logits"], self.exact()
        if "argmax_all_rows" in self.manifest:
            recorded = np.array(self.case.tokens("argmax_all_rows"))
            chosen = results["argmax"]
            gap = logits.max(axis=-1) - np.take_along_axis(logits, recorded[:, None], axis=-1)[:, 0]
            wrong = int(((chosen != recorded) & (gap > 2 * limit.max_abs)).sum())
            n = len(recorded)
            self.report.add(f"{label} arg max of all rows", wrong == 0, f"{n - wrong}/{n} equal", f"exact beyond a tie of {2 * limit.max_abs:.2g}")
        if "top1_logit_all_rows_f32" in self.manifest["outputs"]:
            self.replayed.add("top1_logit_all_rows_f32")
            compare(self.report, f"{label} largest logit of all rows", logits.max(axis=-1), self.case.output("top1_logit_all_rows_f32"), limit)

    # -- ways to feed a prompt ----------------------------------------------------------------------------------------
    def prompts(self) -> None:
        configurations = [m["cfg"] for _, m in self.case.outputs(rf"logits_rows_{CONFIGURATION}")]
        for name in configurations:
            cfg = configuration(name)
            with self.report.section(name), self.context(cfg, len(self.prompt), n_rows=len(self.prompt)) as context:
                layers = self.layers if cfg.is_reference else []
                results = decode(context, Batch.of_tokens(self.prompt), ("logits", "argmax"), layers)
                self.logits(f"{name} logits", f"logits_rows_{name}", results["logits"][self.rows], cfg)
                if cfg.is_reference:
                    self.all_rows(name, results)
                    if "layer_inp_rows_f32" in self.manifest["outputs"]:
                        inputs = joined(results, layers)
                        self.logits("f32 layer inputs", "layer_inp_rows_f32", inputs[self.rows])
        for name, m in self.case.outputs(rf"logits_s(?P<seq>\d+)(?:_last(?P<last>\d+))?_{CONFIGURATION}"):
            tokens = self.case.tokens(f"prompt_s{m['seq']}")
            cfg = configuration(m["cfg"])
            with self.report.section(name), self.context(cfg, len(tokens), n_rows=len(tokens)) as context:
                found = decode(context, Batch.of_tokens(tokens))["logits"]
                self.logits(f"{m['cfg']} logits of prompt {m['seq']}", name, found[-int(m["last"] or len(tokens)) :], cfg)

    def batches(self) -> None:
        """The manifest's ``tolerance`` names the ways in which the reference was fed."""
        name = "logits_rows_f32"
        n = len(self.prompt)
        for way in self.tolerances.measured:
            sizes: Iterable[int] = ()
            if match := re.fullmatch(r"batches_of_([\d_]+)", way):
                sizes = [int(s) for s in match[1].split("_")]
            elif way == "token_by_token":
                sizes = [1]
            elif match := re.fullmatch(r"ubatch_(\d+)", way):
                sizes = [int(match[1])]
            elif way == "after_full_removal":
                sizes = [n]
            elif way != "three_seqs_one_batch_s0":
                continue
            with self.report.section(way):
                if sizes:
                    with self.context(REFERENCE, n, n_rows=n) as context:
                        if way == "after_full_removal":
                            decode(context, Batch.of_tokens(self.prompt))
                            context.remove(0, 0)
                        found = self.in_pieces(context, list(sizes))
                    self.logits(f"f32 {way} logits", name, found[self.rows])
                else:
                    self.together(way)

    def in_pieces(self, context: Context, sizes: Sequence[int]) -> Array:
        """The sizes in turn, the last one until the prompt ends."""
        pieces: list[Array] = []
        pos = 0
        while pos < len(self.prompt):
            size = sizes[min(len(pieces), len(sizes) - 1)] if len(sizes) == 1 else sizes[len(pieces) % len(sizes)]
            batch = Batch.of_tokens(self.prompt[pos : pos + size], pos)
            pieces.append(decode(context, batch)["logits"])
            pos += len(batch)
        return np.concatenate(pieces)

    def together(self, way: str) -> None:
        others = [self.case.tokens(n) for n in ("prompt_s1", "prompt_s2") if n in self.manifest]
        everything = [self.prompt, *others]
        n = sum(len(p) for p in everything)
        with self.context(REFERENCE, n, len(everything), n) as context:
            batch = Batch.join([Batch.of_tokens(p, 0, i) for i, p in enumerate(everything)])
            logits = decode(context, batch)["logits"]
        self.logits(f"f32 {way} logits", "logits_rows_f32", logits[batch.seq == 0][self.rows])
        for name, m in self.case.outputs(r"logits_s(?P<seq>\d+)(?:_last(?P<last>\d+))?_f32"):
            found = logits[batch.seq == int(m["seq"])]
            self.logits(f"f32 three sequences in one batch, logits of prompt {m['seq']}", name, found[-int(m["last"] or len(found)) :])

    # -- removal ----------------------------------------------------------------------------------------------------------
    def rollbacks(self) -> None:
        for r in self.manifest.get("rollback", []):
            prefill, batch, removed = int(r["prefill"]), int(r["batch"]), int(r["removed"])
            label = f"f32 rollback of {removed} of {batch} behind {prefill}"
            with self.report.section(label), self.context(REFERENCE, len(self.prompt) + 64, n_rows=len(self.prompt), n_rs_seq=int(r["n_rs_seq"])) as context:
                decode(context, Batch.of_tokens(self.prompt[:prefill]), ())
                decode(context, Batch.of_tokens(self.prompt[prefill : prefill + batch], prefill), ())
                start = prefill + batch - removed
                if not r["seq_rm_ok"]:
                    self.refused(label, context, start)
                    continue
                alternative = as_tokens(r["alt_tokens"])
                context.remove(0, start)
                found = decode(context, Batch.of_tokens(alternative, start))["logits"]
                self.logits(label, self.output_of(r["logits"]), found)
                if "alt_tokens_2" in r and "logits_2" in r:
                    again = start + len(alternative) - int(r.get("removed_2", removed))
                    context.remove(0, again)
                    found = decode(context, Batch.of_tokens(as_tokens(r["alt_tokens_2"]), again))["logits"]
                    self.logits(f"{label}, a second time", self.output_of(r["logits_2"]), found)

    def refused(self, label: str, context: Context, start: int) -> None:
        """The reference refuses; an engine that can do more may."""
        try:
            context.remove(0, start)
        except DraftsmithError as e:
            self.report.note(f"{label}: refused, as by the reference ({e})")
        else:
            self.report.note(f"{label}: the reference refuses, ours removes")

    def output_of(self, record: Mapping[str, Any]) -> str:
        """The name under which a record elsewhere in the manifest stands among the outputs."""
        for name, output in self.manifest["outputs"].items():
            if output["file"] == record["file"]:
                return str(name)
        raise CaseError(f"{record['file']} is not among the outputs")

    def script(self) -> None:
        script = self.manifest.get("script")
        if script is None:
            return
        steps = script["steps"]
        n_tokens = sum(len(d["tokens"]) for step in steps for d in step.get("decode", []))
        n_rows = max(sum(len(d["tokens"]) for d in step.get("decode", [])) for step in steps)
        with self.context(REFERENCE, n_tokens, int(script["n_seq_max"]), n_rows, int(script["n_rs_seq"])) as context:
            for number, step in enumerate(steps):
                if "seq_rm" in step:
                    context.remove(int(step["seq_rm"]["seq"]), int(step["seq_rm"]["p0"]))
                    continue
                batch = Batch.join([Batch.of_tokens(as_tokens(d["tokens"]), int(d["pos"]), int(d["seq"])) for d in step["decode"]])
                found = decode(context, batch)["logits"]
                if "logits" in step:
                    self.logits(f"f32 script step {number}", self.output_of(step["logits"]), found)

    # -- long, greedy, multi-token prediction ----------------------------------------------------------------------------------
    def long(self) -> None:
        recorded = self.manifest.get("long")
        if recorded is None:
            return
        tokens = as_tokens(recorded["prompt"])
        with self.context(REFERENCE, len(tokens), n_rows=512) as context:
            results = decode(context, Batch.of_tokens(tokens), ("logits", "argmax"))
        self.logits("f32 long prompt", self.output_of(recorded["logits"]), results["logits"][[int(r) for r in recorded["rows"]]])
        for key in recorded:
            if match := re.fullmatch(r"argmax_last_(\d+)", key):
                self.report.equal(f"f32 long prompt {key}", as_tokens(results["argmax"][-int(match[1]) :]), as_tokens(recorded[key]))

    def greedy(self) -> None:
        recorded = self.manifest.get("greedy")
        if recorded is None:
            return
        tokens = as_tokens(recorded["tokens"])
        prompt = self.prompt[: int(recorded["prompt_len"])]
        with self.context(REFERENCE, len(prompt) + len(tokens)) as context:
            found = loops.generate(context, None, None, prompt, loops.Settings(), len(tokens))
        self.report.equal("greedy tokens", found.tokens, tokens)

    def mtp(self) -> None:
        """Drafting with the model's own multi-token-prediction layer."""
        recorded = [name for name, _ in self.case.outputs(r"mtp_.+") if not name.startswith("mtp_h_target") and "verify_h_target" not in name]
        for name in recorded:
            self.report.error(name, f"{self.model.cls.variant} has no graph for multi-token prediction")
        if recorded:
            for i, _ in enumerate(self.manifest.get("e2e", [])):
                self.report.error(f"e2e {i}", f"{self.model.cls.variant} has no graph for multi-token prediction")
