"""The judge itself: known answers of the convolution and of the correlator; and the engine against it in every
variant.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from . import reference
from .drive import Bench, close
from .models import F32, VARIANTS, Kit, tokens_of
from .reference import Correlator


def test_convolution_has_the_published_values() -> None:
    """dflash-family.md CV2, check values."""
    e, k, groups, t = 4, 3, 2, 4
    x = np.sin(0.3 * np.arange(t * e)).reshape(t, e)
    base = np.cos(0.1 * np.arange(e * k * 2)).reshape(2, k, e)
    proj = (0.05 * np.sin(0.7 * np.arange(e * 2 * k * groups))).reshape(2 * k * groups, e)
    mix = (x @ proj.T).reshape(t, 2, k, groups)
    expected = [
        [0, 0.315070, 0.514840, 0.694864],
        [1.041433, 1.382543, 1.335956, 1.348858],
        [1.520845, 1.451047, 1.318892, 0.942936],
        [0.841676, 0.366127, -0.330811, -0.795484],
    ]
    np.testing.assert_allclose(reference.convolve(x, mix[:, 0], base[0]), expected, atol=1e-5)
    expected = [
        [0, 0.070329, 0.123939, 0.094210],
        [0.228407, 0.071555, 0.236967, 0.019337],
        [0.147676, -0.221297, -0.517300, -0.820632],
        [-0.438795, -0.653672, -0.749554, -0.538646],
    ]
    np.testing.assert_allclose(reference.convolve(x, mix[:, 1], base[1]), expected, atol=1e-5)


def test_correlator_has_the_published_values() -> None:
    """dflash-family.md 2.10, test vector."""
    e, h, b, c, f, nh = 32, 8, 4, 3, 8, 2
    shapes = {
        "token_proj.weight": (h, e),
        "pass_hidden_proj.weight": (h, e),
        "context_proj.weight": (h, e),
        "feature_norm.weight": (5,),
        "feature_norm.bias": (5,),
        "feature_mlp.up_proj.weight": (h, 5),
        "feature_mlp.down_proj.weight": (h, h),
        "slot_embedding": (b - 1, h),
        "rank_embedding": (c, h),
        "relative_slot_bias": (nh, 2 * b - 1),
        "same_slot_bias": (nh,),
        "factor_input_proj.weight": (h, 3 * h),
        "out_head.weight": (f, h),
        "in_head.weight": (f, h),
        "anchor_out_head.weight": (f, h),
        "output_norm.weight": (h,),
        "anchor_norm.weight": (h,),
    }
    for i in range(2):
        shapes |= {
            f"layers.{i}.attn_norm.weight": (h,),
            f"layers.{i}.mlp_norm.weight": (h,),
            f"layers.{i}.attn.in_proj_weight": (3 * h, h),
            f"layers.{i}.attn.in_proj_bias": (3 * h,),
            f"layers.{i}.attn.out_proj.weight": (h, h),
            f"layers.{i}.mlp.up_proj.weight": (2 * h, h),
            f"layers.{i}.mlp.down_proj.weight": (h, 2 * h),
        }
    for name in list(shapes):
        if name.endswith(("_proj.weight", "_head.weight")):
            shapes[name.replace(".weight", ".bias")] = shapes[name][:1]

    def get(name: str) -> NDArray[np.floating] | None:
        if name == "attention_bias":
            relative, same = get("relative_slot_bias"), get("same_slot_bias")
            assert relative is not None and same is not None
            slot = np.arange((b - 1) * c) // c
            apart = slot[:, None] - slot[None]
            return relative[:, apart + b - 1] + (apart == 0) * same[:, None, None]
        if name not in shapes:
            return None
        n = int(np.prod(shapes[name]))
        return (0.2 * np.sin(0.17 * np.arange(n) + 0.013 * sum(name.encode()))).reshape(shapes[name])

    m = Correlator(get, 2, nh, 1e-5, 1e-4, 8.0)
    start, pairs = reference.correlate(
        m,
        np.array([[2, 5, 9], [6, 3, 1], [4, 7, 8]]),
        np.array([[-0.4, -1.5, -3], [-0.6, -1.7, -2.7], [-0.2, -2.1, -3.4]]),
        np.linspace(-0.7, 0.9, 96).reshape(3, 32),
        np.linspace(-0.5, 0.4, 32),
        np.linspace(-1.2, 1.3, 512).reshape(16, 32),
    )
    np.testing.assert_allclose(start, [-2.005652, -2.006316, -2.010107], atol=2e-5)
    np.testing.assert_allclose(
        pairs.reshape(-1, 3),
        [
            [1.164374, 1.168126, 1.157015],
            [1.166564, 1.170305, 1.159212],
            [1.170682, 1.174453, 1.163343],
            [1.148061, 1.144596, 1.126989],
            [1.144812, 1.141350, 1.123733],
            [1.144752, 1.141260, 1.123574],
        ],
        atol=2e-5,
    )


@pytest.mark.cpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_engine_equals_reference(kit: Kit, variant: str) -> None:
    file, model = kit.draft(variant)
    bench = Bench(kit, file, model)
    bench.check(n=9)
    bench.check(n=1)
    # everything in the file was needed for that
    assert file.tensors.keys() == bench.reference.f.read


@pytest.mark.cpu
def test_target_equals_reference(kit: Kit) -> None:
    from draftsmith.batch import Batch

    file, model = kit.target()
    context = kit.context(model, F32)
    text = tokens_of(11)
    taps = [("layer_input", il) for il in range(4)]
    found = context.run("decode", Batch.of_tokens(text), ("logits",), taps=taps)
    logits, inputs = reference.forward(file, text)
    close(found["logits"], logits)
    for il in range(4):
        close(found[f"layer_input.{il}"], inputs[il])
