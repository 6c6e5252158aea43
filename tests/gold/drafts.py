"""Draft cases (``dflash``, ``dspark``, ``dflash2``, ``lilicorr``): inject, draft, verify, roll back, draft again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftsmith.batch import Batch
from draftsmith.context import Context
from draftsmith.dsl.errors import RequestError
from draftsmith.pairing import pair

from . import diagnose, lattice, loops
from .cases import (
    CONFIGURATION,
    REFERENCE,
    Array,
    Case,
    CaseError,
    Configuration,
    Record,
    as_tokens,
    configuration,
    read_json,
)
from .compare import Limit, Tolerances, choices, compare, precision, unmeasured
from .engine import contract_of, decode, draft_blocks, inject, joined, load, opened
from .report import Report

CHUNKS = "inject_in_3_chunks"
PROGRAM = "speculative_simple.json"


@dataclass
class Play:
    """One context's way through a case: a configuration, and the sequences that share the context."""

    cfg: Configuration
    mode: str
    sequences: Sequence[Record]
    chunks: int = 1
    suffix: str = ""
    fused: dict[int, Array] = field(default_factory=dict)
    """The injected row before the next block, of each sequence."""

    @property
    def n_seqs(self) -> int:
        return max(int(s["seq_id"]) for s in self.sequences) + 1

    def label(self, *words: str) -> str:
        return " ".join((self.cfg.name, *words)) + self.suffix


def replay(case: Case, report: Report) -> None:
    Drafts(case, report).replay()


class Drafts:
    def __init__(self, case: Case, report: Report) -> None:
        self.case, self.report, self.manifest = case, report, case.data
        self.sequences: list[Record] = list(self.manifest["sequences"])
        self.first_row = int(self.manifest["first_draft_row"])
        self.block_size = int(self.manifest["dims"].get("block_size", self.manifest["n_block_tokens"]))
        self.replayed: set[str] = set()
        self.diagnosed = False
        self.read_files()
        self.target = load(case.path(str(self.manifest["target"])))
        self.draft = load(case.path(str(self.manifest["draft"])), self.target)
        self.contract = contract_of(self.draft)
        gelu = "gelu" in str(self.manifest.get("keys", {}).get("dflash.hidden_activation", ""))
        with opened(self.draft, REFERENCE, 256) as context:
            self.tolerances = Tolerances(case, precision(context), gelu)
            self.has = set(context.graphs[self.contract.draft].outputs)
        self.ties = loops.Ties(self.loop_limit("logits", "lattice"), self.loop_limit("conf"))

    def read_files(self) -> None:
        """A broken file makes the case unreadable, not wrong."""
        for name in self.manifest["outputs"]:
            self.case.output(name)
        for s in self.sequences:
            self.case.array(s["features"])
            self.case.array(s["verify"]["features"])

    def loop_limit(self, *outputs: str) -> Limit:
        """The limit of a decision, also where the features are our own target's."""
        recorded = {m["name"] for _, m in self.case.outputs(rf"\w+?_(?P<name>draft\d+_[a-z]+)_{CONFIGURATION}")}
        wanted = {f"{draft}_{output}" for draft in ("draft1", "draft2") for output in outputs}
        limits = [self.tolerances.limit(REFERENCE, name) for name in recorded & wanted]
        if self.tolerances.precision == "f32":
            limits.append(unmeasured(self.target))
        return Limit(0.0, 0.0).widen(*limits)

    # -- the modes that were recorded ------------------------------------------------------------------------
    def replay(self) -> None:
        for play in self.plays():
            with self.report.section(play.label(play.mode)):
                self.play(play)
        if self.manifest.get("standalone") and "single_draft1_logits_f32" in self.manifest["outputs"]:
            with self.report.section("without a target"):
                self.standalone()
        with self.report.section("verify"):
            self.verify()
        with self.report.section("greedy and end to end"):
            self.loops()
        for name in self.manifest["outputs"]:
            if name not in self.replayed:
                self.report.error(name, "recorded, but not replayed")

    def plays(self) -> Iterator[Play]:
        pattern = rf"(?P<mode>multi|single)_draft\d+_.+?_{CONFIGURATION}"
        found = {(m["cfg"], m["mode"]) for _, m in self.case.outputs(pattern)}
        configurations = {configuration(name) for name, _ in found}
        for cfg in sorted(configurations, key=lambda c: (not c.is_reference, c.name)):
            if (cfg.name, "multi") in found:
                yield Play(cfg, "multi", self.sequences)
            if (cfg.name, "single") in found:
                yield Play(cfg, "single", self.sequences[:1])
                if CHUNKS in self.manifest.get("checks", {}):
                    yield Play(cfg, "single", self.sequences[:1], chunks=3, suffix=" (injected in 3 chunks)")

    def play(self, play: Play) -> None:
        blocks = [b for key in ("short_block_tokens", "long_block_tokens") for b in self.manifest.get(key, [])]
        blocks += [s[draft]["block_tokens"] for s in play.sequences for draft in ("draft1", "draft2")]
        n_rows = max(map(len, blocks)) * play.n_seqs
        n_tokens = sum(len(s["prompt"]) + 2 * len(s["verify"]["tokens"]) for s in play.sequences) + n_rows
        with opened(self.draft, play.cfg, n_tokens, play.n_seqs, n_rows) as context:
            self.inject_prompts(context, play)
            self.block(context, play, "draft1", play.mode, [s["draft1"]["block_tokens"] for s in play.sequences])
            for mode in ("short", "long"):
                if play.mode == "multi" and any(self.case.outputs(rf"{mode}_draft1_.+_{play.cfg.name}")):
                    with self.report.section(play.label(mode)):
                        self.block(context, play, "draft1", mode, self.manifest[f"{mode}_block_tokens"])
            for s in play.sequences:
                seq, verify = int(s["seq_id"]), s["verify"]
                rows = Batch.of_features(self.case.array(verify["features"]), int(verify["pos0"]), seq)
                self.inject(context, play, rows, "draft2", s)
                context.remove(seq, int(verify["keep_positions_below"]))
            self.block(context, play, "draft2", play.mode, [s["draft2"]["block_tokens"] for s in play.sequences])

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
        """Write the cache; keep the encoder's row before the block, and compare it where it was recorded."""
        found = inject(context, rows, ("fused",))["fused"]
        before = np.flatnonzero(rows.pos == int(sequence[draft]["pos0"]) - 1)
        if not len(before):
            return
        row = play.fused[int(sequence["seq_id"])] = found[before[0]]
        name = f"{play.mode}_{draft}_context_{play.cfg.name}"
        if name in self.manifest["outputs"]:
            i = list(play.sequences).index(sequence)
            label = play.label(play.mode, draft, f"context of sequence {i}")
            self.compare(play, label, name, row, self.case.output(name)[i], f"{draft}_context")

    def carried(self, play: Play) -> list[Array]:
        """What a drafter is given beside each block; zeros where nothing is injected yet."""
        width = int(self.draft.bound().hparam(self.contract.width))
        return [play.fused.get(int(s["seq_id"]), np.zeros(width, np.float32)) for s in play.sequences]

    # -- one block -----------------------------------------------------------------------------------------------
    def block(self, context: Context, play: Play, draft: str, mode: str, tokens: Sequence[Sequence[int]]) -> None:
        """Draft all sequences in one batch, compare every recorded output, take the block out of the cache again."""
        pattern = rf"{mode}_{draft}_(?P<what>[a-z]+)_{play.cfg.name}"
        recorded = {m["what"]: name for name, m in self.case.outputs(pattern)}
        n_rows = len(tokens[0])
        blocks = [
            Batch.of_tokens(t, int(s[draft]["pos0"]), int(s["seq_id"]))
            for t, s in zip(tokens, play.sequences, strict=True)
        ]
        # the reference leaves the Markov head out of a block longer than trained
        raw = n_rows > self.block_size and "base_logits" in self.has
        wanted = ["base_logits" if raw else "logits", "argmax", "confidence", "candidates", "scores"]
        outputs = draft_blocks(context, blocks, [*wanted, *self.contract.outputs(0.0)], self.carried(play))
        for s in play.sequences:
            context.remove(int(s["seq_id"]), int(s[draft]["pos0"]))
        found, logits = outputs[wanted[0]], self.case.output(recorded["logits"])
        picks = found.argmax(axis=-1) if raw or "argmax" not in outputs else outputs["argmax"]

        live, note = self.comparable(picks, logits.argmax(axis=-1), raw)
        self.compare(
            play, play.label(mode, draft, "logits"), recorded["logits"], found, logits, f"{draft}_logits", live, note
        )
        if loops.is_chain(self.has) and not raw:
            live[:, : self.first_row] = False  # these rows draft nothing
        limit = self.tolerances.limit(play.cfg, f"{draft}_logits")
        choices(self.report, play.label(mode, draft, "arg max"), picks, logits.argmax(axis=-1), logits, limit, live)
        if "conf" in recorded:
            live[:, : self.first_row] = False
            found, conf = self.need(outputs, "confidence"), self.case.output(recorded["conf"])
            label = play.label(mode, draft, "conf")
            self.compare(play, label, recorded["conf"], found, conf, f"{draft}_conf", live, note)
        if "lattice" in recorded:
            self.replayed.add(recorded["lattice"])
            lattice.compare(
                self.report,
                play.label(mode, draft, "lattice"),
                (self.need(outputs, "candidates"), self.need(outputs, "scores")),
                lattice.split(self.case.output(recorded["lattice"])),
                logits,
                max(1, self.first_row),
                limits=(self.tolerances.limit(play.cfg, f"{draft}_lattice"), limit),
            )
        if play.cfg.is_reference and mode == play.mode:
            self.walk(play, draft, outputs)

    def need(self, outputs: Mapping[str, Array], name: str) -> Array:
        if name not in outputs:
            known = ", ".join(sorted(self.has))
            raise RequestError(f"the graph {self.contract.draft!r} has no output {name!r}, only {known}")
        return outputs[name]

    def comparable(self, picks: Array, recorded: Array, raw: bool) -> tuple[Array, str]:
        """Rows that count: in a Markov chain those up to the first other pick of their sequence."""
        live = np.ones(picks.shape, bool)
        if self.manifest["kind"] != "dspark" or raw:
            return live, ""
        places = []
        for i, (ours, theirs) in enumerate(zip(picks, recorded, strict=True)):
            other = [int(r) for r in np.flatnonzero(ours != theirs) if r >= self.first_row]
            if other and other[0] + 1 < len(ours):
                live[i, other[0] + 1 :] = False
                places.append(f"{i}/{other[0]}")
        return live, f", left out behind another pick: sequence/row {', '.join(places)}" if places else ""

    def walk(self, play: Play, draft: str, outputs: Mapping[str, Array]) -> None:
        """The drafted tokens, by the drafter's own rule."""
        for i, s in enumerate(play.sequences):
            recorded = s[draft].get("greedy_tokens", s[draft].get("walk"))
            if recorded is None:
                continue
            rows, expected = {n: a[i] for n, a in outputs.items()}, as_tokens(recorded)
            found = list(self.contract.propose(rows, self.first_row, len(expected), 0.0))
            verdict = loops.judge(rows, found, expected, self.first_row, 0.0, self.ties, loops.is_chain(self.has))
            text = "equal" if found == expected else f"found {found}, recorded {expected}: {verdict}"
            label = play.label(play.mode, draft, f"tokens of sequence {i}")
            self.report.add(label, not verdict.problem, text, str(self.ties))

    def compare(
        self, play: Play, label: str, name: str, found: Array, recorded: Array, output: str,
        where: Array | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """An output against its record; after the first difference in f32, look where it begins."""
        self.replayed.add(name)
        limit = self.tolerances.limit(play.cfg, output)
        same = compare(self.report, label, found, recorded, limit, where, note)
        if not same and play.cfg.is_reference and not self.diagnosed and "trace" in self.manifest:
            self.diagnosed = True
            diagnose.draft(self.case, self.report, self.draft)

    # -- what needs no target, and what does ---------------------------------------------------------------------------
    def standalone(self) -> None:
        """A draft with embeddings and head of its own needs no target."""
        alone = load(self.case.path(str(self.manifest["draft"])))
        play = Play(REFERENCE, "single", self.sequences[:1], suffix=" (no target)")
        s, name = play.sequences[0], "single_draft1_logits_f32"
        tokens = s["draft1"]["block_tokens"]
        with opened(alone, REFERENCE, len(s["prompt"]) + len(tokens), play.n_seqs) as context:
            self.inject_prompts(context, play)
            block = Batch.of_tokens(tokens, int(s["draft1"]["pos0"]), int(s["seq_id"]))
            found = draft_blocks(context, [block], ("logits",), self.carried(play))["logits"]
        label = play.label("single", "draft1", "logits")
        self.compare(play, label, name, found, self.case.output(name), "draft1_logits")

    def verify(self) -> None:
        """The target's features of prompts and verified blocks, and its choices; all sequences in one batch."""
        layers, limit = pair(self.target, self.draft).layers, unmeasured(self.target)
        play = Play(REFERENCE, "multi", self.sequences)
        n_tokens = sum(len(s["prompt"]) + len(s["verify"]["tokens"]) for s in self.sequences)
        tap_last = self.target.bound().n_layer in layers
        with opened(self.target, REFERENCE, n_tokens, play.n_seqs, n_tokens, tap_last) as context:
            begun = [s for s in self.sequences if len(s["prompt"]) > 1]
            if begun:
                prompts = Batch.join([Batch.of_tokens(s["prompt"][:-1], 0, int(s["seq_id"])) for s in begun])
                features = joined(decode(context, prompts, (), layers), layers)
            verified = [
                Batch.of_tokens(s["verify"]["tokens"], int(s["verify"]["pos0"]), int(s["seq_id"]))
                for s in self.sequences
            ]
            blocks = Batch.join(verified)
            results = decode(context, blocks, ("argmax", "logits"), layers)
        for i, s in enumerate(self.sequences):
            if s in begun:
                rows = features[prompts.seq == int(s["seq_id"])]
                compare(self.report, f"prompt features of sequence {i}", rows, self.case.array(s["features"]), limit)
            here, recorded = blocks.seq == int(s["seq_id"]), s["verify"]
            rows = joined(results, layers)[here]
            compare(self.report, f"verify features of sequence {i}", rows, self.case.array(recorded["features"]), limit)
            chosen, logits = np.array(as_tokens(recorded["target_argmax"])), results["logits"][here]
            label = f"verify target's choices of sequence {i}"
            choices(self.report, label, results["argmax"][here], chosen, logits, limit)

    def loops(self) -> None:
        """Greedy continuations and speculative loops, in f32."""
        pairing = pair(self.target, self.draft)
        runs: list[Record] = list(self.manifest.get("e2e", []))
        plain: Mapping[str, Record] = self.manifest.get("greedy_target", {})
        prompts = [as_tokens(s["prompt"]) for s in self.sequences]
        n_tokens = max(map(len, prompts)) + 2 * self.block_size
        n_tokens += max((len(r["tokens"]) for r in (*runs, *plain.values())), default=0)
        program = read_json(self.case.folder / PROGRAM) if (self.case.folder / PROGRAM).is_file() else None
        if program is not None:
            n_tokens += len(program["prompt"])
        tap_last = self.target.bound().n_layer in pairing.layers
        with (
            opened(self.target, REFERENCE, n_tokens, tap_last=tap_last) as target,
            opened(self.draft, REFERENCE, n_tokens) as draft,
        ):
            alone, both = loops.Engine(target), loops.Engine(target, draft, pairing)
            for name, run in plain.items():
                found = loops.generate(
                    alone, prompts[int(name.removeprefix("seq"))], loops.Settings(), len(run["tokens"])
                )
                self.report.equal(f"greedy {name} tokens", found.tokens, as_tokens(run["tokens"]))
            for i, run in enumerate(runs):
                with self.report.section(f"e2e {i}"):
                    how, prompt = loops.settings(run), prompts[int(run["prompt_seq"])]
                    loops.compare(self.report, f"e2e {i}", both, prompt, loops.recorded_run(run), how, self.ties)
            if program is not None and runs:  # it does not state its settings: they are those of the first run
                with self.report.section("program"):
                    how, prompt = loops.settings(runs[0]), as_tokens(program["prompt"])
                    recorded = loops.recorded_run(program["harness"])
                    loops.compare(self.report, "program", both, prompt, recorded, how, self.ties)
