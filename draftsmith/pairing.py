"""A drafter and its target: the contract, checked before the first token.

A breach would not give wrong text, only low acceptance, so nothing else would tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftsmith.dsl.bind import BoundModel
from draftsmith.dsl.contract import Contract
from draftsmith.dsl.errors import ContractError

from .model import Model


@dataclass(frozen=True)
class Pairing:
    """What the two agree on. ``layers``: target layers whose input streams are the features, in order."""

    contract: Contract
    layers: tuple[int, ...]
    block_size: int
    mask_token: int
    first_row: int
    causal: bool

    @property
    def max_draft(self) -> int:
        """The longest draft of a trained block (DFlash specification, SL-2)."""
        return self.block_size - self.first_row

    @property
    def taps(self) -> tuple[tuple[str, int], ...]:
        return tuple((self.contract.tap, il) for il in self.layers)

    def block_tokens(self, n_draft: int) -> int:
        """Rows of a block that drafts ``n_draft`` tokens (OV-10)."""
        return self.block_size if self.contract.full_blocks else n_draft + self.first_row


def pair(target: Model, draft: Model) -> Pairing:
    """Check a drafter against its target; ContractError with both sides at the first breach."""
    return agree(target.bound(), draft.bound())


def agree(t: BoundModel, d: BoundModel) -> Pairing:
    """:func:`pair` for models whose weights are not loaded: ``t`` the target, ``d`` the drafter."""
    contract = d.cls.contract
    if contract is None:
        raise ContractError(f"{d.file.path}: {d.name} is not a drafter (it declares no contract)")
    if t.cls.contract is not None:
        raise ContractError(f"{t.file.path}: {t.name} is a drafter itself, not a target")
    layers = tuple(int(k) for k in d.hparam(contract.features))
    names = f"draft {d.file.path.name}, target {t.file.path.name}"
    bad = [k for k in layers if not 0 <= k <= t.n_layer]
    if bad:
        raise ContractError(
            f"the drafter taps the input of target layer {bad[0]}, the target has layers 0..{t.n_layer - 1} "
            f"(and {t.n_layer} for its last output) ({names})"
        )
    _equal("hidden size", d, contract.width, t, "n_embd", names)
    _equal("vocabulary", d, contract.vocab, t, "n_vocab", names)
    mask = int(d.hparam(contract.mask_token))
    if not 0 <= mask < int(d.hparam(contract.vocab)):
        raise ContractError(f"the mask token {mask} is outside the vocabulary of {d.hparam(contract.vocab)} ({names})")
    block = int(d.hparam(contract.block_size))
    with d.binding({}):
        first_row = int(contract.first_row(d.cls.hparams))
        causal = bool(contract.causal(d.cls.hparams))
    if block - first_row < 1:
        raise ContractError(f"a block of {block} leaves no row to draft with ({names})")
    return Pairing(contract, layers, block, mask, first_row, causal)


def _equal(what: str, d: BoundModel, d_name: str, t: BoundModel, t_name: str, names: str) -> None:
    ours, theirs = int(d.hparam(d_name)), int(t.hparam(t_name))
    if ours != theirs:
        raise ContractError(f"{what} differs: the drafter's is {ours}, the target's {theirs} ({names})")
