"""Quantised weights and the tensors beside them (part D of the list of reports)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftsmith.dsl.dtypes import GGMLType
from draftsmith.gguf_file import GGUFFile
from draftsmith.model import Model

from ..gguf_rewrite import rewrite
from ..models import FakeFile
from .drive import Bench, close, inject, relative
from .models import VARIANTS, Kit, array_of, draft_file, with_arrays

pytestmark = pytest.mark.cpu

Array = NDArray[Any]
NVFP4 = {"": GGMLType.nvfp4, "token_embd": GGMLType.f16}
WHOLE_BLOCKS = {"{arch}.feed_forward_length": 128}


def scaled_file(variant: str = "dflash") -> FakeFile:
    return draft_file(variant, optional=("output",), scales=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_d54_every_scale_is_applied_once(kit: Kit, variant: str) -> None:
    """In the injected rows and in the block: as if each matrix had been multiplied by its scale."""
    file = scaled_file(variant)
    folded: dict[str, Array | None] = {}
    for name in file.tensors:
        if name.endswith(".scale"):
            weight = name.removesuffix(".scale") + ".weight"
            folded[name], folded[weight] = None, array_of(file, weight) * array_of(file, name)[0]
    assert len(folded) > 30
    model = kit.keep(("scaled", variant), lambda: kit.load(file, kit.target()[1]))
    scaled = Bench(kit, file, model).check()
    plain = Bench(kit, with_arrays(file, folded)).both()[0]
    close(scaled["logits"], plain["logits"])


@pytest.mark.parametrize("name", ["fc", "blk.0.attn_k", "blk.1.attn_v", "output"])
def test_d54_doubling_a_scale_doubles_what_it_scales(kit: Kit, name: str) -> None:
    """Doubled scale and halved matrix change nothing; the doubled head scale alone doubles the logits."""
    file = scaled_file()
    scale, weight = array_of(file, f"{name}.scale") * 2, array_of(file, f"{name}.weight") / 2
    before = Bench(kit, file).both()[0]["logits"]
    both = Bench(kit, with_arrays(file, {f"{name}.scale": scale, f"{name}.weight": weight})).both()[0]["logits"]
    np.testing.assert_array_equal(both, before)
    if name == "output":
        doubled = Bench(kit, with_arrays(file, {"output.scale": scale})).both()[0]["logits"]
        np.testing.assert_array_equal(doubled, before * 2)


def test_d54_scale_of_a_borrowed_head(kit: Kit) -> None:
    """It belongs to the matrix, and comes with it from the target."""
    made = with_arrays(kit.target()[0], {"output.scale": np.array([1.7], np.float32)})
    target = kit.load(made)
    file = draft_file()
    Bench(kit, file, kit.load(file, target), target=made).check()


@pytest.mark.parametrize("name", ["fc", "blk.0.attn_q", "blk.1.ffn_down"])
def test_input_scales_change_nothing(kit: Kit, name: str) -> None:
    """A calibration value (NV-2); with and without a scale beside it."""
    for file in (scaled_file(), draft_file(optional=("output",))):
        before = Bench(kit, file).both()[0]["logits"]
        after = Bench(kit, with_arrays(file, {f"{name}.input_scale": np.array([3.0], np.float32)})).both()[0]["logits"]
        np.testing.assert_array_equal(after, before)


def test_d54_d57_nvfp4_is_like_its_values(kit: Kit) -> None:
    """Norms and scales do not depend on how the matrices are stored; and the Q/K norms are there."""
    file = draft_file(keys=WHOLE_BLOCKS, optional=("output",), scales=True, types=NVFP4)
    path = kit.write(file)
    target = kit.target()[1]
    packed = Bench(kit, file, Model.load(path, kit.backends, target))
    values = {n: t.dequantize() for n, t in GGUFFile.open(path).tensors.items() if t.type is GGMLType.nvfp4}
    assert len(values) > 14
    plain = Bench(kit, with_arrays(file, {n: np.ascontiguousarray(v, np.float32) for n, v in values.items()}))
    rows = packed.rows(9)
    # activations are rounded to 8 bits in a quantised product
    assert relative(inject(packed.context, rows), inject(plain.context, rows)) < 2e-2
    found, expected = packed.mine(rows)["logits"], plain.check(rows=rows)["logits"]
    assert relative(found, expected) < 6e-2
    norm = "blk.0.attn_k_norm.weight"
    other = with_arrays(file, {norm: array_of(file, norm)[::-1].copy()})
    assert relative(Bench(kit, other).mine(rows)["logits"], found) > 1e-3


def test_d56_every_tensor_survives_being_copied(kit: Kit) -> None:
    sizes = {"n_vocab_draft": 40, "n_markov": 64}
    file = draft_file("dspark", WHOLE_BLOCKS, ("output", "d2t", "conf_bias"), scales=True, types=NVFP4, sizes=sizes)
    first = GGUFFile.open(kit.write(file))
    second = GGUFFile.open(rewrite(first.path, kit.folder / "copy.gguf"))
    assert first.tensors.keys() == second.tensors.keys() == file.tensors.keys()
    for name, info in first.tensors.items():
        assert (info.ne, info.type) == (second.tensors[name].ne, second.tensors[name].type)
        np.testing.assert_array_equal(info.data(), second.tensors[name].data())
