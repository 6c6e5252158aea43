"""Target cases (``kind: target``): logits and layer inputs of whole prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from draftsmith.batch import Batch
from draftsmith.context import Context
from draftsmith.model import Model

from .cases import CONFIGURATION, REFERENCE, Array, Case, as_tokens, configuration
from .compare import Tolerances, choices, coarsest, compare
from .engine import decode, joined, opened
from .report import Report


def replay(case: Case, report: Report) -> None:
    manifest = case.data
    prompts = [as_tokens(p) for p in manifest["prompts"]]
    layers = [int(il) for il in manifest.get("layer_inp_ids", [])]
    recorded = {(m["what"], int(m["seq"]), m["cfg"] or "f32"): name for name, m in case.outputs(rf"(?P<what>logits|layer_inp)_s(?P<seq>\d+)(?:_{CONFIGURATION})?")}
    for name in manifest["outputs"]:
        case.output(name)
        if name not in recorded.values():
            report.error(name, "recorded, but not replayed")
    model = Model.load(case.path(str(manifest["target"])))
    tolerances = Tolerances(case, coarsest(info.type for info in model.file.tensors.values()))
    n_rows = sum(len(p) for p in prompts)
    tap_last = model.bound().n_layer in layers

    def check(label: str, seq: int, cfg_name: str, results: dict[str, Array]) -> None:
        cfg = configuration(cfg_name)
        if ("logits", seq, cfg_name) in recorded:
            logits = case.output(recorded["logits", seq, cfg_name])
            limit = tolerances.limit(cfg, "logits")
            compare(report, f"{label} logits of prompt {seq}", results["logits"], logits, limit)
            choices(report, f"{label} arg max of prompt {seq}", results["argmax"], logits, limit)
        if ("layer_inp", seq, cfg_name) in recorded:
            found = joined(results, layers)
            compare(report, f"{label} layer inputs of prompt {seq}", found, case.output(recorded["layer_inp", seq, cfg_name]), tolerances.limit(cfg, "layer_inp"))

    def each(context: Context, seqs: Sequence[int], cfg_name: str) -> None:
        for seq in seqs:
            context.clear()
            check(f"{cfg_name}", seq, cfg_name, decode(context, Batch.of_tokens(prompts[seq]), ("logits", "argmax"), layers))

    for name in sorted({cfg for _, _, cfg in recorded}, key=lambda n: not configuration(n).is_reference):
        with report.section(name), opened(model, configuration(name), n_rows, 1, n_rows, tap_last) as context:
            each(context, sorted({seq for _, seq, cfg in recorded if cfg == name}), name)
    with report.section("f32 all prompts in one batch"), opened(model, REFERENCE, n_rows, len(prompts), n_rows, tap_last) as context:
        batch = Batch.join([Batch.of_tokens(p, 0, i) for i, p in enumerate(prompts)])
        results = decode(context, batch, ("logits", "argmax"), layers)
        for seq in range(len(prompts)):
            check("f32 all prompts in one batch:", seq, "f32", {n: a[batch.seq == seq] for n, a in results.items()})
    with report.section("f32 token by token"), opened(model, REFERENCE, n_rows, 1, n_rows, tap_last) as context:
        steps = [decode(context, Batch.of_tokens([t], pos), ("logits", "argmax"), layers) for pos, t in enumerate(prompts[0])]
        check("f32 token by token:", 0, "f32", {n: np.concatenate([s[n] for s in steps]) for n in steps[0]})
