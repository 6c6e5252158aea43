"""Contexts for recorded configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.batch import Batch
from draftsmith.codegen.native import Backends
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.contract import Contract
from draftsmith.dsl.errors import ContractError
from draftsmith.model import Model

from .cases import Array, Configuration

ROOM = 64
"""Positions beyond what a replay writes, so that the end of the context never cuts a draft."""


def load(path: str | Path, target: Model | None = None) -> Model:
    """A model on the CPU with one thread, as the records were made: threads that wait for one another are slow where
    several tests share the processors."""
    return Model.load(path, target.backends if target else Backends(n_threads=1), target)


@contextmanager
def opened(
    model: Model,
    cfg: Configuration,
    n_tokens: int,
    n_seqs: int = 1,
    n_rows: int = 0,
    tap_last: bool = False,
    **settings: Any,
) -> Iterator[Context]:
    """A context for ``n_tokens`` tokens in ``n_seqs`` sequences, batches of up to ``n_rows`` rows."""
    options = ContextOptions(
        n_ctx=n_tokens + ROOM * n_seqs,
        n_ubatch=max(512, n_rows),
        n_seq_max=n_seqs,
        flash_attn=cfg.flash_attn,
        type_k=cfg.cache,
        type_v=cfg.cache,
        tap_last=tap_last,
        **settings,
    )
    context = Context(model, options)
    try:
        yield context
    finally:
        context.close()


def layer_taps(layers: Sequence[int]) -> tuple[tuple[str, int], ...]:
    return tuple(("layer_input", int(il)) for il in dict.fromkeys(layers))


def decode(
    context: Context, batch: Batch, outputs: Sequence[str] = ("logits",), layers: Sequence[int] = ()
) -> dict[str, Array]:
    """All rows of a batch through a target, in as many runs as it takes."""
    results: list[dict[str, Array]] = [
        context.run("decode", part, outputs, taps=layer_taps(layers))
        for _, part in batch.parts(context.options.n_ubatch)
    ]
    return {name: np.concatenate([r[name] for r in results]) for name in results[0]}


def joined(results: Mapping[str, Array], layers: Sequence[int]) -> Array:
    """Tapped layer inputs side by side; a layer may be listed twice."""
    return np.concatenate([results[f"layer_input.{il}"] for il in layers], axis=1)


def contract_of(model: Model) -> Contract:
    contract = model.cls.contract
    if contract is None:
        raise ContractError(f"{model.cls.variant} is no drafter: it declares no contract")
    return contract


def blocks_of(model: Model, blocks: Sequence[Batch], carried: Sequence[Array] = ()) -> tuple[Batch, bool]:
    """Blocks as one batch, and whether their rows see only rows before them. ``carried``: for each block the injected
    row before it, which some drafters are given again."""
    contract = contract_of(model)
    with model.bound().binding({}):
        causal = bool(contract.causal(model.cls.hparams))
    batch = Batch.join(blocks)
    if contract.carry is not None:
        batch.block_rows[contract.carry[1]] = np.stack(carried)
    return batch, causal


def draft_blocks(
    context: Context, blocks: Sequence[Batch], outputs: Iterable[str], carried: Sequence[Array] = ()
) -> dict[str, Array]:
    """Blocks of one length through a drafter: outputs by [block, row], without those that the graph lacks."""
    contract = contract_of(context.model)
    batch, causal = blocks_of(context.model, blocks, carried)
    known = context.graphs[contract.draft].outputs
    wanted = [name for name in dict.fromkeys(outputs) if name in known]
    results = context.run_blocks(contract.draft, batch, wanted, causal=causal)
    return {name: a.reshape(len(blocks), -1, *a.shape[1:]) for name, a in results.items()}


def inject(context: Context, rows: Batch, outputs: Sequence[str] = ()) -> dict[str, Array]:
    """Feature rows into a drafter's cache."""
    contract = contract_of(context.model)
    parts = rows.parts(context.options.n_ubatch)
    results = [context.run(contract.inject, part, outputs, causal=False) for _, part in parts]
    return {name: np.concatenate([r[name] for r in results]) for name in outputs}
