"""After a failure: which recorded inner tensor does not occur in a traced run of ours.

Names differ between the two engines, so a recorded tensor counts as found when some node of ours holds its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from draftsmith.batch import Batch
from draftsmith.codegen.native import NodeInfo
from draftsmith.model import Model

from .cases import REFERENCE, Array, Case, npz
from .engine import blocks_of, contract_of, opened
from .report import Report

CLOSE = 1e-3
"""Relative to the largest value of the tensor."""


def draft(case: Case, report: Report, model: Model) -> None:
    """Sequence 0 alone, as the trace was recorded: injection, then the first block."""
    trace = case.data["trace"]
    recorded = npz(case.path(str(trace["file"])))
    kept = [int(t) for t in trace["inject_tokens_kept"]]
    s = case.data["sequences"][0]
    contract = contract_of(model)
    features, block = case.array(s["features"]), s["draft1"]["block_tokens"]
    with report.section("diagnosis"), opened(model, REFERENCE, len(features) + len(block)) as context:
        rows = Batch.of_features(features, int(s["inject_pos"][0]))
        fused = context.run(contract.inject, rows, ("fused",), causal=False, trace=True)["fused"]
        inner = {n: a for n, a in recorded.items() if n.startswith("inject.")}
        if first_missing(report, inner, context.native.nodes(), len(features), kept):
            return
        batch, causal = blocks_of(model, [Batch.of_tokens(block, int(s["draft1"]["pos0"]))], [fused[-1]])
        context.run(contract.draft, batch, causal=causal, trace=True)
        inner = {n: a for n, a in recorded.items() if n.startswith("draft1.")}
        first_missing(report, inner, context.native.nodes(), len(block), range(len(block)))


def first_missing(
    report: Report, recorded: dict[str, Array], nodes: Iterable[NodeInfo], n_tokens: int, kept: Sequence[int]
) -> bool:
    """Name the first recorded tensor that no node holds, with the nearest node."""
    values = [
        (node.name, node.data.reshape(n_tokens, -1)[list(kept)])
        for node in nodes
        if node.data is not None and node.data.size % n_tokens == 0
    ]
    for name, array in recorded.items():
        flat = array.reshape(len(array), -1).astype(np.float64)
        alike = [(node, np.abs(v - flat).max()) for node, v in values if v.shape == flat.shape]
        best = min(alike, key=lambda pair: np.nan_to_num(pair[1], nan=np.inf), default=None)
        if best is None:
            report.note(f"inner tensor {name}{list(array.shape)}: no named node has its size")
        elif not best[1] <= CLOSE * max(1.0, float(np.abs(flat).max())):
            report.note(
                f"first inner tensor that differs: {name}; nearest is our {best[0]} (max difference {best[1]:.2e})"
            )
            return True
        else:
            report.note(f"inner tensor {name} agrees with our {best[0]} (max difference {best[1]:.1e})")
    return False
