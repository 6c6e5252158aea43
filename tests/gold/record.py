"""Small cases recorded from this engine itself with the embedded models, for the tests of the tool."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.batch import Batch
from draftsmith.context import Context
from draftsmith.model import Model
from draftsmith.pairing import Pairing, pair
from draftsmith.session import default_pair

from . import loops
from .cases import REFERENCE, Array, configuration
from .engine import decode, draft_blocks, inject, joined, load, opened

PROMPTS = ([699, 198, 261, 302, 366, 602], [258, 999, 386, 269], [5, 261, 310, 465, 964, 360, 294, 686, 319])
N_CTX = 256


@cache
def models() -> tuple[Model, Model]:
    target, draft = default_pair()
    model = load(target)
    return model, load(draft, model)


@contextmanager
def target_context(n_seqs: int = 1, cfg: str = "f32") -> Iterator[Context]:
    with opened(models()[0], configuration(cfg), N_CTX, n_seqs, tap_last=True) as context:
        yield context


def n_layer() -> int:
    return models()[0].bound().n_layer


class Folder:
    """A case being written."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path = path
        self.data: dict[str, Any] = {"case": path.name, "outputs": {}, **fields}
        path.mkdir(parents=True)

    def array(self, name: str, array: Array) -> dict[str, Any]:
        np.save(self.path / f"{name}.npy", array)
        return {"file": f"{name}.npy", "shape": list(array.shape), "dtype": str(array.dtype)}

    def output(self, name: str, array: Array) -> dict[str, Any]:
        self.data["outputs"][name] = self.array(name, array)
        return dict(self.data["outputs"][name])

    def write(self, file: str = "manifest.json") -> Path:
        (self.path / file).write_text(json.dumps(self.data))
        return self.path


def target_case(path: Path) -> Path:
    layers = [0, 2, n_layer()]
    case = Folder(path, kind="target", target=str(default_pair()[0]), prompts=PROMPTS[:2], layer_inp_ids=layers)
    with target_context() as context:
        for i, prompt in enumerate(PROMPTS[:2]):
            context.clear()
            results = decode(context, Batch.of_tokens(prompt), layers=layers)
            case.output(f"logits_s{i}", results["logits"])
            case.output(f"layer_inp_s{i}", joined(results, layers))
    with target_context(cfg="f16_fa") as context:
        case.output("logits_s0_f16_fa", decode(context, Batch.of_tokens(PROMPTS[0]))["logits"])
    return case.write()


def deepseek_case(path: Path) -> Path:
    """A case of that kind with another model: the tool does not care."""
    prompt, layers, rows = PROMPTS[2] + PROMPTS[1] + PROMPTS[0], [0, n_layer()], [0, 3, 11, 18]
    case = Folder(path, kind="deepseek4", target=str(default_pair()[0]), prompt=prompt, rows=rows, layer_inp_ids=layers)
    case.data |= {"prompt_s1": PROMPTS[0], "prompt_s2": PROMPTS[1]}
    ways = ("batches_of_5", "batches_of_3_1", "token_by_token", "after_full_removal", "three_seqs_one_batch_s0")
    case.data["tolerance"] = {way: {"max_abs": 0.02, "nmse": 1e-6} for way in (*ways, "f16_fa")}
    case.data["tolerance"]["f16_fa"]["row_err_over_rms_quantiles_50_90_99_100"] = [0.01, 0.01, 0.01, 0.01]
    with target_context() as context:
        results = decode(context, Batch.of_tokens(prompt), ("logits", "argmax"), layers)
        case.output("logits_rows_f32", results["logits"][rows])
        case.output("layer_inp_rows_f32", joined(results, layers)[rows])
        case.output("top1_logit_all_rows_f32", results["logits"].max(axis=-1))
        case.data["argmax_all_rows"] = results["argmax"].tolist()
        long = case.output("long_logits_rows_f32", results["logits"][-2:])
        chosen = results["argmax"][-4:].tolist()
        last = [len(prompt) - 2, len(prompt) - 1]
        case.data["long"] = {"prompt": prompt, "rows": last, "logits": long, "argmax_last_4": chosen}
        for name, tokens, n in (("logits_s1_last3_f32", PROMPTS[0], 3), ("logits_s2_f32", PROMPTS[1], 0)):
            context.clear()
            case.output(name, decode(context, Batch.of_tokens(tokens))["logits"][-n:])

        context.clear()
        decode(context, Batch.of_tokens(prompt[:6]))
        found = []
        for start, tokens in ((6, [5, 6, 7]), (7, [8, 9])):  # the second rollback takes two of three tokens back
            context.remove(0, start)
            found.append(decode(context, Batch.of_tokens(tokens, start))["logits"])
        case.data["rollback"] = [{
            "prefill": 5, "batch": 3, "removed": 2, "n_rs_seq": 8, "seq_rm_ok": True, "alt_tokens": [5, 6, 7],
            "logits": case.output("rollback_logits_f32", found[0]), "alt_tokens_2": [8, 9],
            "logits_2": case.output("rollback_logits_f32_2", found[1]),
        }]  # fmt: skip
        tokens = loops.generate(loops.Engine(context), prompt[:8], loops.Settings(), 5).tokens
        case.data["greedy"] = {"prompt_len": 8, "tokens": tokens}
    with target_context(2) as context:
        steps: list[dict[str, Any]] = [
            {"decode": [{"seq": 0, "pos": 0, "tokens": PROMPTS[0]}, {"seq": 1, "pos": 0, "tokens": PROMPTS[1]}]},
            {"seq_rm": {"seq": 0, "p0": 4}},
            {"decode": [{"seq": 1, "pos": 4, "tokens": [3]}, {"seq": 0, "pos": 4, "tokens": [1, 2]}]},
        ]
        decode(context, Batch.join([Batch.of_tokens(d["tokens"], 0, d["seq"]) for d in steps[0]["decode"]]))
        context.remove(0, 4)
        batch = Batch.join([Batch.of_tokens(d["tokens"], 4, d["seq"]) for d in steps[2]["decode"]])
        steps[2]["logits"] = case.output("script_step2_logits_f32", decode(context, batch)["logits"])
        case.data["script"] = {"n_seq_max": 2, "n_rs_seq": 8, "steps": steps}
    with target_context(cfg="f16_fa") as context:
        case.output("logits_rows_f16_fa", decode(context, Batch.of_tokens(prompt))["logits"][rows])
    return case.write()


def hf_case(path: Path) -> Path:
    """A target judged as transformers' are; arrays in one .npz."""
    target, prompt = default_pair()[0], PROMPTS[2]
    case = Folder(path, kind="mistral_large4", target=str(target), prompts={"9": prompt}, selection_margins={"9": {}})
    every = range(n_layer() + 1)
    with target_context() as context:
        results = decode(context, Batch.of_tokens(prompt), layers=every)
    inputs = np.stack([results[f"layer_input.{il}"] for il in every])
    arrays = {
        "logits_9": results["logits"],
        "logits_9_f64": results["logits"].astype(np.float64),
        "logits_9_incremental": results["logits"][-3:],
        "stream_9_f64": inputs[:, -1],
        "layer_inputs_9": inputs,
        "layer_input_mean_9": inputs[:, [0, 2, 8]],
    }
    np.savez(path / "numbers.npz", **arrays)  # type: ignore[arg-type]
    case.data["outputs"] = {n: {"file": "numbers.npz", "shape": list(a.shape)} for n, a in arrays.items()}
    case.data["outputs"]["layer_input_mean_9"]["meaning"] = "rows at positions 0, 2, 8 (rounded)"
    return case.write()


def draft_case(path: Path) -> Path:
    """Two sequences through inject, draft, verify, removal, draft."""
    target, draft = models()
    pairing = pair(target, draft)
    paths = [str(p) for p in default_pair()]
    case = Folder(path, kind="dflash", target=paths[0], draft=paths[1], first_draft_row=pairing.first_row)
    case.data |= {"n_block_tokens": pairing.block_size, "dims": {"block_size": pairing.block_size}, "sequences": []}
    case.data["checks"] = {"inject_in_3_chunks": {}}
    with target_context(2) as targets, opened(draft, REFERENCE, N_CTX, 2) as drafts:
        for seq, prompt in enumerate(PROMPTS[:2]):
            case.data["sequences"].append(_sequence(case, targets, drafts, pairing, seq, prompt))
    for cfg in ("f32", "f16_fa"):
        for mode, n_seqs in (("multi", 2), ("single", 1))[: 2 if cfg == "f32" else 1]:
            _blocks(case, draft, cfg, mode, case.data["sequences"][:n_seqs])
    with target_context() as one, opened(draft, REFERENCE, N_CTX) as other:
        alone, both = loops.Engine(one), loops.Engine(one, other, pairing)
        tokens = loops.generate(alone, PROMPTS[0], loops.Settings(), 6).tokens
        case.data["greedy_target"] = {"seq0": {"tokens": tokens}}
        case.data["e2e"] = []
        for settings in ({"n_predict": 9, "n_max": 3, "p_min": 0.0}, {"n_max": 4, "p_min": 0.3}):
            how = loops.Settings(settings.get("n_predict"), settings["n_max"], settings["p_min"])  # type: ignore[arg-type]
            done = loops.generate(both, PROMPTS[1], how, 4)
            run = {"tokens": done.tokens, "iterations": done.iterations, "drafts": done.drafts}
            case.data["e2e"].append({**run, **settings, "prompt_seq": 1})
    return case.write()


def _sequence(
    case: Folder, target: Context, draft: Context, pairing: Pairing, seq: int, prompt: Sequence[int]
) -> dict[str, Any]:
    n = len(prompt) - 1
    masks = [pairing.mask_token] * (pairing.block_size - 1)
    features = joined(decode(target, Batch.of_tokens(prompt[:-1], 0, seq), (), pairing.layers), pairing.layers)
    inject(draft, Batch.of_features(features, 0, seq))
    drafted = draft_blocks(draft, [Batch.of_tokens([prompt[-1], *masks], n, seq)], ("argmax",))["argmax"][
        0, 1:
    ].tolist()
    draft.remove(seq, n)
    verified = [prompt[-1], *drafted]
    results = decode(target, Batch.of_tokens(verified, n, seq), ("argmax",), pairing.layers)
    rows, chosen = joined(results, pairing.layers), results["argmax"].tolist()
    inject(draft, Batch.of_features(rows, n, seq))
    kept = n + 2
    draft.remove(seq, kept)
    second = [chosen[1], *masks]
    again = _drafted(draft, second, kept, seq)
    return {
        "seq_id": seq, "prompt": list(prompt), "inject_pos": [0, n - 1],
        "features": case.array(f"rows_{seq}", features),
        "draft1": {"block_tokens": [prompt[-1], *masks], "pos0": n, "greedy_tokens": drafted},
        "verify": {
            "tokens": verified, "pos0": n, "features": case.array(f"verified_{seq}", rows), "target_argmax": chosen,
            "accepted": 1, "keep_positions_below": kept,
        },
        "draft2": {"block_tokens": second, "pos0": kept, "greedy_tokens": again},
    }  # fmt: skip


def _drafted(context: Context, block: Sequence[int], pos: int, seq: int) -> list[int]:
    found = draft_blocks(context, [Batch.of_tokens(block, pos, seq)], ("argmax",))["argmax"]
    context.remove(seq, pos)
    return [int(t) for t in found[0, 1:]]


def _blocks(case: Folder, model: Model, cfg: str, mode: str, sequences: Sequence[dict[str, Any]]) -> None:
    def features(record: dict[str, Any]) -> Array:
        return np.asarray(np.load(case.path / record["features"]["file"]))

    with opened(model, configuration(cfg), N_CTX, len(sequences)) as context:
        for s in sequences:
            inject(context, Batch.of_features(features(s), 0, s["seq_id"]))
        for draft in ("draft1", "draft2"):
            blocks = [Batch.of_tokens(s[draft]["block_tokens"], s[draft]["pos0"], s["seq_id"]) for s in sequences]
            case.output(f"{mode}_{draft}_logits_{cfg}", draft_blocks(context, blocks, ("logits",))["logits"])
            for s in sequences:
                seq, verify = s["seq_id"], s["verify"]
                context.remove(seq, s[draft]["pos0"])
                if draft == "draft1":
                    inject(context, Batch.of_features(features(verify), verify["pos0"], seq))
                    context.remove(seq, verify["keep_positions_below"])


def trained_case(path: Path) -> Path:
    """A folder with a target's and a drafter's folder, which name the embedded files by links."""
    base, drafter = path / "base", path / "drafter"
    n_new = 5
    for folder, file in zip((base, drafter), default_pair(), strict=True):
        folder.mkdir(parents=True)
        (folder / file.name).symlink_to(file)
    target, draft = models()
    pairing = pair(target, draft)
    every = range(n_layer() + 1)
    texts: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []
    theirs: dict[str, Array] = {}
    ours: dict[str, Array] = {}
    with target_context() as one, opened(draft, REFERENCE, N_CTX) as other:
        for i, prompt in enumerate(PROMPTS[:2]):
            greedy = loops.generate(loops.Engine(one), prompt, loops.Settings(), n_new).tokens
            texts.append({"prompt": i, "ids": prompt, "greedy": greedy})
            one.clear()
            results = decode(one, Batch.of_tokens(prompt), layers=every)
            theirs |= {f"p{i}_last_logits": results["logits"][-1], f"p{i}_logits": results["logits"]}
            theirs[f"p{i}_hidden"] = np.stack([results[f"layer_input.{il}"] for il in every])
            features = joined(results, pairing.layers)
            other.clear()
            fused = inject(other, Batch.of_features(features), ("fused",))["fused"]
            block = [greedy[0]] + [pairing.mask_token] * (pairing.block_size - 1)
            logits = draft_blocks(other, [Batch.of_tokens(block, len(prompt))], ("logits",))["logits"][0]
            ours |= {f"p{i}_features": features, f"p{i}_context": fused, f"p{i}_block_logits": logits}
            ours |= {f"p{i}_anchor": np.array(greedy[0]), f"p{i}_draft": logits[pairing.first_row :].argmax(axis=-1)}
            how = loops.Settings(from_prompt=False)
            done = loops.generate(loops.Engine(one, other, pairing), prompt, how, 3)
            rounds = zip(done.drafts, done.iterations, strict=True)
            logs.append({"prompt": i, "log": [{"draft": d, "accepted": n} for d, (_, n) in rounds]})
    kept = [r["accepted"] for log in logs for r in log["log"]]
    summary = {
        "drafted_per_round": pairing.max_draft,
        "mean_accepted_drafts_per_round": round(sum(kept) / len(kept), 4),
    }
    for folder, data, arrays in ((base, {"prompts": texts}, theirs), (drafter, {**summary, "prompts": logs}, ours)):
        (folder / "reference.json").write_text(json.dumps(data))
        np.savez(folder / "reference.npz", **arrays)  # type: ignore[arg-type]
    return path
