"""A new architecture is one file: nothing else has to know of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from draftsmith import registry
from draftsmith.batch import Batch
from draftsmith.check import check_model
from draftsmith.codegen.native import Backends
from draftsmith.context import Context, ContextOptions
from draftsmith.dsl.errors import GraphError
from draftsmith.model import Model

from ..models import Recipe, make_file
from .variants import SMALL, source

ROOT = Path(__file__).resolve().parents[2]

NEW = '''
"""A decoder with a gate of its own, as a newcomer would write it."""

from draftsmith.dsl import Architecture, DecoderHparams, Layer, arch, block, feeds, graph, kv_cache, matrix, nn, ops
from draftsmith.dsl import rope, sqrt, tensor, u32


class hp(DecoderHparams):
    n_gate = u32("{arch}.gate_length")


class GateLayer(Layer):
    norm = tensor("blk.{il}.norm.weight", hp.n_embd)
    q = matrix("blk.{il}.q.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head)
    k = matrix("blk.{il}.k.weight", hp.n_embd, hp.n_embd_head_k * hp.n_head_kv)
    v = matrix("blk.{il}.v.weight", hp.n_embd, hp.n_embd_head_v * hp.n_head_kv)
    o = matrix("blk.{il}.o.weight", hp.n_embd_head_v * hp.n_head, hp.n_embd)
    gate_in = matrix("blk.{il}.gate_in.weight", hp.n_embd, hp.n_gate)
    gate_out = matrix("blk.{il}.gate_out.weight", hp.n_gate, hp.n_embd)
    kv = kv_cache(
        hp.n_embd_head_k * hp.n_head_kv, hp.n_embd_head_v * hp.n_head_kv,
        head_k=hp.n_embd_head_k, head_v=hp.n_embd_head_v,
    )


@arch("gated-newcomer", variant="newcomer")
class Newcomer(Architecture):
    """A gate on every attention output."""

    hparams, layer = hp, GateLayer
    canonical = {"{arch}.gate_length": 48}
    token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab)

    @block
    def gated(self, layer, x, pos, kv):
        cur = nn.rms_norm(x, layer.norm, hp.f_norm_rms_eps)
        q = rope(nn.heads(nn.linear(layer.q, cur), hp.n_embd_head_k, hp.n_head), pos, hp)
        k = rope(nn.heads(nn.linear(layer.k, cur), hp.n_embd_head_k, hp.n_head_kv), pos, hp)
        v = nn.heads(nn.linear(layer.v, cur), hp.n_embd_head_v, hp.n_head_kv)
        k_cache, v_cache = nn.write_kv(layer, k, v, kv)
        out = nn.attention(layer, q, k_cache, v_cache, kv, 1.0 / sqrt(hp.n_embd_head_k), hp.n_head_kv)
        gate = ops.sigmoid(nn.linear(layer.gate_out, ops.relu(nn.linear(layer.gate_in, cur))))
        return ops.mul(nn.linear(layer.o, out), gate)

    @graph
    def decode(self, tokens=feeds.tokens, pos=feeds.positions):
        """All rows."""
        x = nn.embed(self.token_embd, tokens)
        for layer in self.layers:
            x = x + self.gated(layer, x, pos, layer.kv)
        return {"logits": nn.linear(self.token_embd, x)}
'''


@pytest.mark.cpu
def test_one_file_is_all_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_from_files", {})
    path = tmp_path / "newcomer.py"
    path.write_text(NEW)
    (cls,) = registry.load_file(path).values()
    assert registry.by_name("newcomer") is cls and "newcomer" not in registry.builtin()

    file = make_file(cls, Recipe({**SMALL, "{arch}.gate_length": 40})).write(tmp_path / "model.gguf")
    with Backends(n_threads=1) as backends:
        context = Context(Model.load(file, backends), ContextOptions(n_ctx=64, flash_attn=False))
        assert "newcomer.py:" in context.source.text and "hp.n_gate" not in context.source.text
        compared = list(check_model(context))
        assert len(compared) > 40 and all(c.ok for c in compared)
        results = context.run("decode", Batch.of_tokens([1, 2, 3], pos=12), ("logits",))
        assert results["logits"].shape == (3, 160) and np.isfinite(results["logits"]).all()
        context.close()


def test_what_is_no_architecture_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no such architecture file"):
        registry.load_file(tmp_path / "absent.py")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(GraphError, match=r"defines no architecture \(a class with @arch\)"):
        registry.load_file(tmp_path / "empty.py")
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(GraphError, match=r"broken\.py:2: "):
        registry.load_file(tmp_path / "broken.py")
    with pytest.raises(GraphError, match=r"unknown architecture 'none'; known: .*qwen3"):
        registry.by_name("none")


PACKAGES = ("dsl", "codegen", "ggml", "draftsmith")
SUFFIXES = (".py", ".j2", ".cpp", ".hpp", ".h")


def test_no_package_knows_an_architecture_by_name() -> None:
    """Names of architectures occur in graphs/ only; elsewhere as examples and as names of the embedded files."""
    names = list(registry.builtin())
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in SUFFIXES:
                found += [
                    (path.relative_to(ROOT), line)
                    for line in _code(path)
                    if re.search(rf"\b({'|'.join(names)})\b", line)
                ]
    # the embedded pair, and the classes of models whose names their own tables list
    other = [f"{path}: {line.strip()}" for path, line in found if "tiny-qwen3" not in line]
    assert other == []


def _code(path: Path) -> list[str]:
    """Lines without comments, docstrings and messages' examples."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = re.sub(r'"""(?:.|\n)*?"""', "", text)
        return [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    return [re.sub(r"//.*", "", line) for line in text.splitlines()]


def test_source_of_one_architecture_names_no_other() -> None:
    for name in registry.builtin():
        others = "|".join(n for n in registry.builtin() if n != name)
        assert not re.findall(rf"\b(?:{others})_(?:hparams|layer|model|build)\b", source(name).text)
