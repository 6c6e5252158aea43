"""Draft cases (``dflash``, ``dspark``, ``dflash2``, ``lilicorr``): inject, draft, verify, roll back, draft again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from draftsmith.batch import Batch
from draftsmith.context import Context
from draftsmith.dsl.errors import RequestError
from draftsmith.model import Model
from draftsmith.pairing import pair

from . import diagnose, lattice, loops
from .cases import CONFIGURATION, REFERENCE, Array, Case, CaseError, Configuration, Record, as_tokens, configuration, read_json
from .compare import EXACT, ROUNDED, Limit, Tolerances, choices, coarsest, compare, precision
from .engine import contract_of, decode, draft_blocks, inject, joined, opened
from .report import Report

CHUNKS = "inject_in_3_chunks"
STANDALONE = "standalone_without_target"


@dataclass
class Play:
    """One context's way through a case: a configuration, and the sequences that share the context."""

    cfg: Configuration
    mode: str
    sequences: Sequence[Record]
    chunks: int = 1
    suffix: str = ""

    @property
    def label(self) -> str:
        return f"{self.cfg.name} {self.mode}{self.suffix}"


def replay(case: Case, report: Report) -> None:
    Drafts(case, report).replay()


class Drafts:
    def __init__(self, case: Case, report: Report) -> None:
        self.case = case
        self.report = report
        self.manifest = case.data
        self.sequences: list[Record] = list(self.manifest["sequences"])
        self.first_row = int(self.manifest["first_draft_row"])
        self.block_size = int(self.manifest["dims"].get("block_size", 0)) or int(self.manifest["n_block_tokens"])
        self.replayed: set[str] = set()
        self.diagnosed = False
        target = case.path(str(self.manifest["target"]))
        draft = case.path(str(self.manifest["draft"]))
        self.target = Model.load(target)
        self.draft = Model.load(draft, target=self.target)
        self.contract = contract_of(self.draft)
        gelu = "gelu" in str(self.manifest["keys"].get("dflash.hidden_activation", ""))
        with opened(self.draft, REFERENCE, 256) as context:
            self.tolerances = Tolerances(case, precision(context), gelu)
            self.has = set(context.graphs[self.contract.draft].outputs)

    # -- the modes that were recorded ------------------------------------------------------------------------
    def replay(self) -> None:
        self.files()
        for play in self.plays():
            with self.report.section(play.label):
                self.play(play)
        if self.manifest.get("standalone"):
            with self.report.section("without a target"):
                self.standalone()
        with self.report.section("verify"):
            self.verify()
        with self.report.section("greedy and end to end"):
            self.loops()
        for name in self.manifest["outputs"]:
            if name not in self.replayed and not any(name in line for line in self.report.failures):
                self.report.error(name, "recorded, but not replayed")

    def files(self) -> None:
        """Read everything first: a broken file makes the case unreadable, not wrong."""
        for name in self.manifest["outputs"]:
            self.case.output(name)
        for s in self.sequences:
            self.case.array(s["features"])
            self.case.array(s["verify"]["features"])

    def plays(self) -> Iterator[Play]:
        found = {(m["mode"], m["cfg"]) for _, m in self.case.outputs(rf"(?P<mode>multi|single)_draft\d+_.+?_{CONFIGURATION}")}
        configurations = list(dict.fromkeys(cfg for _, cfg in sorted(found)))
        configurations.sort(key=lambda name: not configuration(name).is_reference)
        for name in configurations:
            cfg = configuration(name)
            if ("multi", name) in found:
                yield Play(cfg, "multi", self.sequences)
            if ("single", name) in found:
                yield Play(cfg, "single", self.sequences[:1])
                if CHUNKS in self.manifest.get("checks", {}):
                    yield Play(cfg, "single", self.sequences[:1], chunks=3, suffix=" (injected in 3 chunks)")

    def play(self, play: Play) -> None:
        n_tokens = sum(len(s["prompt"]) + 2 * len(s["verify"]["tokens"]) for s in play.sequences)
        blocks = [len(b) for key in ("short_block_tokens", "long_block_tokens") for b in self.manifest.get(key, [])]
        blocks += [len(s[d]["block_tokens"]) for s in play.sequences for d in ("draft1", "draft2")]
        longest = max(blocks)
        n_seqs = max(int(s["seq_id"]) for s in play.sequences) + 1
        with opened(self.draft, play.cfg, n_tokens + longest * n_seqs, n_seqs, longest * n_seqs) as context:
            self.inject_prompts(context, play)
            self.block(context, play, "draft1", [as_tokens(s["draft1"]["block_tokens"]) for s in play.sequences])
            if play.mode == "multi":
                for mode in ("short", "long"):
                    if any(self.case.outputs(rf"{mode}_draft1_.+_{play.cfg.name}")):
                        tokens = [as_tokens(b) for b in self.manifest[f"{mode}_block_tokens"]]
                        with self.report.section(f"{play.cfg.name} {mode} draft1"):
                            self.block(context, play, "draft1", tokens, mode)
            for s in play.sequences:
                verify = s["verify"]
                rows = Batch.of_features(self.case.array(verify["features"]), int(verify["pos0"]), int(s["seq_id"]))
                self.inject(context, play, rows, "draft2", s)
                context.remove(int(s["seq_id"]), int(verify["keep_positions_below"]))
            self.block(context, play, "draft2", [as_tokens(s["draft2"]["block_tokens"]) for s in play.sequences])

    def inject_prompts(self, context: Context, play: Play) -> None:
        for s in play.sequences:
            features, (first, last) = self.case.array(s["features"]), as_tokens(s["inject_pos"])
            if len(features) != last - first + 1:
                raise CaseError(f"{len(features)} feature rows for positions {first} to {last}")
            if len(features):
                batch = Batch.of_features(features, first, int(s["seq_id"]))
                for _, part in batch.parts(-(-len(batch) // play.chunks)):
                    self.inject(context, play, part, "draft1", s)

    def inject(self, context: Context, play: Play, rows: Batch, draft: str, sequence: Record) -> None:
        """Write the cache; where the encoder's row before the block was recorded, compare it."""
        name = f"{play.mode}_{draft}_context_{play.cfg.name}"
        before = np.flatnonzero(rows.pos == int(sequence[draft]["pos0"]) - 1)
        if name not in self.manifest["outputs"] or not len(before):
            inject(context, rows)
            return
        row = inject(context, rows, ("fused",))["fused"][before[0]]
        i = list(play.sequences).index(sequence)
        limit = self.tolerances.limit(play.cfg, f"{draft}_context")
        self.compare(play, f"{play.label} {draft} context of sequence {i}", name, row, self.case.output(name)[i], limit)

    # -- one block -----------------------------------------------------------------------------------------------
    def block(self, context: Context, play: Play, draft: str, tokens: Sequence[Sequence[int]], mode: str = "") -> None:
        """Draft all sequences in one batch, compare every recorded output, take the block back out of the cache."""
        mode = mode or play.mode
        label = f"{play.cfg.name} {mode} {draft}{play.suffix}"
        recorded = {m["what"]: n for n, m in self.case.outputs(rf"{mode}_{draft}_(?P<what>[a-z]+)_{play.cfg.name}")}
        n_rows = len(tokens[0])
        # the reference leaves the Markov head out of a block longer than trained
        logits_name = "base_logits" if n_rows > self.block_size and "base_logits" in self.has else "logits"
        blocks = [
            Batch.of_tokens(t, int(s[draft]["pos0"]), int(s["seq_id"])) for t, s in zip(tokens, play.sequences, strict=True)
        ]
        wanted = [logits_name, *self.contract.outputs(0.0), "argmax", "confidence", "candidates", "scores"]
        outputs = draft_blocks(context, blocks, wanted)
        for s in play.sequences:
            context.remove(int(s["seq_id"]), int(s[draft]["pos0"]))

        logits, found = self.case.output(recorded["logits"]), outputs[logits_name]
        limit = self.tolerances.limit(play.cfg, f"{draft}_logits")
        chained = logits_name == "logits" and "argmax" in outputs
        picks = outputs["argmax"] if chained else found.argmax(axis=-1)
        live, note = self.comparable(picks, logits, n_rows)
        self.compare(play, f"{label} logits", recorded["logits"], found, logits, limit, live, note)
        if chained:
            live[:, : self.first_row] = False  # these rows draft nothing
        choices(self.report, f"{label} arg max", picks, logits, limit, live)
        if "conf" in recorded:
            self.needs(outputs, "confidence")
            live[:, : self.first_row] = False  # the anchor's row is filler
            conf, limit_conf = self.case.output(recorded["conf"]), self.tolerances.limit(play.cfg, f"{draft}_conf")
            self.compare(play, f"{label} conf", recorded["conf"], outputs["confidence"], conf, limit_conf, live, note)
        if "lattice" in recorded:
            self.replayed.add(recorded["lattice"])
            self.needs(outputs, "candidates", "scores")
            packed, limit_scores = self.case.output(recorded["lattice"]), self.tolerances.limit(play.cfg, f"{draft}_lattice")
            lattice.compare(
                self.report, f"{label} lattice", outputs["candidates"], outputs["scores"], packed, logits, max(1, self.first_row),
                limit_scores, limit,
            )
        if play.cfg.is_reference and mode == play.mode:
            self.walk(label, play, draft, outputs)

    def needs(self, outputs: dict[str, Array], *names: str) -> None:
        for name in names:
            if name not in outputs:
                raise RequestError(f"the graph {self.contract.draft!r} has no output {name!r}, only {', '.join(sorted(self.has))}")

    def comparable(self, picks: Array, logits: Array, n_rows: int) -> tuple[Array, str]:
        """Rows that count: in a Markov chain those up to the first other pick of their sequence."""
        live = np.ones(picks.shape, bool)
        if self.manifest["kind"] != "dspark" or n_rows > self.block_size:
            return live, ""
        notes = []
        best = logits.argmax(axis=-1)
        for i in range(len(picks)):
            other = [r for r in range(self.first_row, n_rows) if picks[i, r] != best[i, r]]
            if other and other[0] + 1 < n_rows:
                live[i, other[0] + 1 :] = False
                notes.append(f"{i}/{other[0]}")
        return live, f", rows behind another pick left out (sequence/row {', '.join(notes)})" if notes else ""

    def walk(self, label: str, play: Play, draft: str, outputs: dict[str, Array]) -> None:
        """The drafted tokens, by the drafter's own rule."""
        for i, s in enumerate(play.sequences):
            expected = s[draft].get("greedy_tokens", s[draft].get("walk"))
            if expected is None:
                continue
            rows = {n: a[i] for n, a in outputs.items()}
            found = self.contract.propose(rows, self.first_row, len(expected), 0.0)
            self.report.equal(f"{label} tokens of sequence {i}", list(found), as_tokens(expected))

    def compare(
        self, play: Play, label: str, name: str, found: Array, recorded: Array, limit: Limit, where: Array | None = None, note: str = ""
    ) -> None:
        self.replayed.add(name)
        if compare(self.report, label, found, recorded, limit, where, note) or self.diagnosed or not play.cfg.is_reference:
            return
        self.diagnosed = True
        if "trace" in self.manifest:
            diagnose.draft(self.case, self.report, self.draft)

    # -- what needs the target, and what does not ---------------------------------------------------------------------
    def standalone(self) -> None:
        """A draft with embeddings and head of its own needs no target."""
        alone = Model.load(self.case.path(str(self.manifest["draft"])))
        s = self.sequences[0]
        name = "single_draft1_logits_f32"
        if name not in self.manifest["outputs"]:
            return
        with opened(alone, REFERENCE, len(s["prompt"]) + len(s["draft1"]["block_tokens"])) as context:
            play = Play(REFERENCE, "single", [s], suffix=" (no target)")
            self.inject_prompts(context, play)
            block = Batch.of_tokens(s["draft1"]["block_tokens"], int(s["draft1"]["pos0"]))
            found = draft_blocks(context, [block], ("logits",))["logits"]
            limit = self.tolerances.limit(REFERENCE, "draft1_logits")
            compare(self.report, "f32 single draft1 (no target) logits", found, self.case.output(name), limit)

    def features_limit(self) -> Limit:
        """A draft's manifest measures no target, so the fixed figures by type of its weights."""
        kind = coarsest(info.type for info in self.target.file.tensors.values())
        return Limit(EXACT) if kind == "f32" else Limit(*ROUNDED[kind])

    def loop_limit(self, *outputs: str) -> Limit:
        """The limit of a decision in a loop, where the features are the target's own."""
        recorded = {m["name"] for _, m in self.case.outputs(rf"\w+?_(?P<name>draft\d+_[a-z]+)_{CONFIGURATION}")}
        wanted = {f"{draft}_{output}" for draft in ("draft1", "draft2") for output in outputs}
        limits = [self.tolerances.limit(REFERENCE, name) for name in sorted(recorded & wanted)] or [Limit(0.0)]
        exact = self.tolerances.precision == "f32"
        return limits[0].widen(*limits[1:], *([self.features_limit()] if exact else []))

    def verify(self) -> None:
        """The target's features of prompt and verified block, and its choices; all sequences in one batch."""
        layers = pair(self.target, self.draft).layers
        n_seqs = max(int(s["seq_id"]) for s in self.sequences) + 1
        n_tokens = sum(len(s["prompt"]) + len(s["verify"]["tokens"]) for s in self.sequences)
        tap_last = self.target.bound().n_layer in layers
        limit = self.features_limit()
        with opened(self.target, REFERENCE, n_tokens, n_seqs, n_tokens, tap_last) as context:
            begun = [Batch.of_tokens(s["prompt"][:-1], 0, int(s["seq_id"])) for s in self.sequences if len(s["prompt"]) > 1]
            if begun:
                prompts = Batch.join(begun)
                results = decode(context, prompts, (), layers)
                recorded = [self.case.array(s["features"]) for s in self.sequences]
                self.features("prompt features", prompts, results, layers, recorded, limit)
            blocks = Batch.join(
                [Batch.of_tokens(s["verify"]["tokens"], int(s["verify"]["pos0"]), int(s["seq_id"])) for s in self.sequences]
            )
            results = decode(context, blocks, ("argmax", "logits"), layers)
            recorded = [self.case.array(s["verify"]["features"]) for s in self.sequences]
            self.features("verify features", blocks, results, layers, recorded, limit)
        for i, s in enumerate(self.sequences):
            rows = blocks.seq == int(s["seq_id"])
            logits, chosen = results["logits"][rows], as_tokens(s["verify"]["target_argmax"])
            found = as_tokens(results["argmax"][rows])
            ties = [
                r for r, (a, b) in enumerate(zip(found, chosen, strict=True))
                if a != b and logits[r, a] - logits[r, b] <= 2 * limit.max_abs
            ]
            wrong = [r for r, (a, b) in enumerate(zip(found, chosen, strict=True)) if a != b and r not in ties]
            text = "equal" if found == chosen else f"found {found}, recorded {chosen}" + ("" if wrong else ", near ties")
            self.report.add(f"verify target's choices of sequence {i}", not wrong, text, f"exact beyond a tie of {2 * limit.max_abs:.2g}")

    def features(
        self, label: str, batch: Batch, results: dict[str, Array], layers: Sequence[int], recorded: Sequence[Array], limit: Limit
    ) -> None:
        found = joined(results, layers)
        for i, (s, expected) in enumerate(zip(self.sequences, recorded, strict=True)):
            compare(self.report, f"{label} of sequence {i}", found[batch.seq == int(s["seq_id"])], expected, limit)

    def loops(self) -> None:
        pairing = pair(self.target, self.draft)
        runs: list[Record] = list(self.manifest.get("e2e", []))
        plain: dict[str, Record] = dict(self.manifest.get("greedy_target", {}))
        longest = max((len(s["prompt"]) for s in self.sequences), default=0)
        most = max((len(r["tokens"]) for r in (*runs, *plain.values())), default=0)
        n_tokens = longest + most + 2 * self.block_size
        tap_last = self.target.bound().n_layer in pairing.layers
        with opened(self.target, REFERENCE, n_tokens, tap_last=tap_last) as target, opened(self.draft, REFERENCE, n_tokens) as draft:
            for name, run in plain.items():
                prompt = self.sequences[int(name.removeprefix("seq"))]["prompt"]
                found = loops.generate(target, None, None, as_tokens(prompt), loops.Settings(), len(run["tokens"]))
                self.report.equal(f"greedy {name} tokens", found.tokens, as_tokens(run["tokens"]))
            ties = loops.Ties(self.loop_limit("logits", "lattice"), self.loop_limit("conf"))
            for i, run in enumerate(runs):
                with self.report.section(f"e2e {i}"):
                    prompt = self.sequences[int(run["prompt_seq"])]["prompt"]
                    loops.compare(self.report, f"e2e {i}", target, draft, pairing, as_tokens(prompt), loops.recorded_run(run), loops.settings(run), ties)
            program = self.case.folder / "speculative_simple.json"
            if program.is_file() and runs:  # it does not state its settings: they are those of the first run
                recorded = read_json(program)
                with self.report.section("program"):
                    loops.compare(
                        self.report, "program", target, draft, pairing, as_tokens(recorded["prompt"]),
                        loops.recorded_run(recorded["harness"]), loops.settings(runs[0]), ties,
                    )
