"""The target and the family of drafters in plain NumPy float64, written from the specification alone.

No cache and no batches: every call computes everything from the tokens or features it is given, so that it also says
what a state must be after any sequence of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models import FakeFile

Array = NDArray[Any]


class File:
    """Metadata and tensors of a file; remembers which tensors were read."""

    def __init__(self, file: FakeFile) -> None:
        self.file = file
        self.read: set[str] = set()
        self._arrays: dict[str, Array] = {}

    def key(self, name: str, default: Any = None) -> Any:
        stored = self.file.metadata.get(name)
        return default if stored is None else stored.value

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def get(self, name: str) -> Array:
        self.read.add(name)
        if name not in self._arrays:
            tensor = self.file.tensors[name]
            dtype = np.dtype({"f32": "<f4", "f16": "<f2", "i64": "<i8"}[tensor.type.name])
            array = tensor.data().view(dtype).reshape(tensor.ne[::-1])
            self._arrays[name] = array if dtype.kind == "i" else array.astype(np.float64)
        return self._arrays[name]

    def maybe(self, name: str) -> Array | None:
        return self.get(name) if self.has(name) else None

    def linear(self, name: str, x: Array) -> Array:
        """x times the matrix, its scale behind it, then its bias."""
        y = x @ self.get(f"{name}.weight").T
        if self.has(f"{name}.scale"):
            y = y * self.get(f"{name}.scale")[0]
        return y + self.get(f"{name}.bias") if self.has(f"{name}.bias") else y


def rms(x: Array, eps: float, weight: Array | None = None) -> Array:
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def rope(x: Array, pos: Array, n_rot: int, base: float, factors: Array | None = None) -> Array:
    """Pairs (i, i + n_rot/2) of the first n_rot dims of x [n, heads, d]."""
    half = n_rot // 2
    theta = pos[:, None] * base ** (-2.0 * np.arange(half) / n_rot)
    if factors is not None:
        theta = theta / factors
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]
    a, b = x[..., :half], x[..., half:n_rot]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., n_rot:]], axis=-1)


def attend(q: Array, k: Array, v: Array, visible: Array, scale: float, sinks: Array | None = None) -> Array:
    """q [t, hq, d], k and v [n, hk, d], visible [t, n] -> rows [t, hq*d]."""
    group = q.shape[1] // k.shape[1]
    out = np.empty(q.shape)
    for h in range(q.shape[1]):
        s = np.where(visible, q[:, h] @ k[:, h // group].T * scale, -np.inf)
        top = s.max(-1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[h])
        e = np.exp(s - top)
        total = e.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[h] - top)
        out[:, h] = e / total @ v[:, h // group]
    return out.reshape(len(q), -1)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def log_softmax(z: Array) -> Array:
    top = z.max(-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))


def softmax(z: Array) -> Array:
    return np.exp(log_softmax(z))


def forward(file: FakeFile, tokens: Sequence[int]) -> tuple[Array, list[Array]]:
    """The target over a text: logits of all rows, and the stream before each layer and behind the last."""
    f = File(file)
    n_head, n_kv, d = (int(f.key(f"qwen3.attention.{n}")) for n in ("head_count", "head_count_kv", "key_length"))
    eps, base = float(f.key("qwen3.attention.layer_norm_rms_epsilon")), float(f.key("qwen3.rope.freq_base", 10000.0))
    n_rot = int(f.key("qwen3.rope.dimension_count", d))
    pos = np.arange(len(tokens))
    x = f.get("token_embd.weight")[np.asarray(tokens)]
    inputs = [x]
    for il in range(int(f.key("qwen3.block_count"))):
        b = f"blk.{il}"
        a = rms(x, eps, f.get(f"{b}.attn_norm.weight"))
        q = rms(f.linear(f"{b}.attn_q", a).reshape(-1, n_head, d), eps, f.get(f"{b}.attn_q_norm.weight"))
        k = rms(f.linear(f"{b}.attn_k", a).reshape(-1, n_kv, d), eps, f.get(f"{b}.attn_k_norm.weight"))
        v = f.linear(f"{b}.attn_v", a).reshape(-1, n_kv, d)
        q, k = rope(q, pos, n_rot, base), rope(k, pos, n_rot, base)
        x = x + f.linear(f"{b}.attn_output", attend(q, k, v, pos[None] <= pos[:, None], d**-0.5))
        a = rms(x, eps, f.get(f"{b}.ffn_norm.weight"))
        x = x + f.linear(f"{b}.ffn_down", silu(f.linear(f"{b}.ffn_gate", a)) * f.linear(f"{b}.ffn_up", a))
        inputs.append(x)
    head = "output" if f.has("output.weight") else "token_embd"
    return f.linear(head, rms(x, eps, f.get("output_norm.weight"))), inputs


def features(file: FakeFile, tokens: Sequence[int], layers: Sequence[int]) -> Array:
    """What the drafter is given for each token of a text."""
    inputs = forward(file, tokens)[1]
    return np.concatenate([inputs[il] for il in layers], axis=1)


def greedy(file: FakeFile, prompt: Sequence[int], n: int) -> list[int]:
    """Continuation by arg max, one token after the other."""
    text = list(prompt)
    for _ in range(n):
        text.append(int(forward(file, text)[0][-1].argmax()))
    return text[len(prompt) :]


def convolve(x: Array, kernel: Array, base: Array) -> Array:
    """One block: x [t, e], kernel [t, taps, groups], base [taps, e] (CV2-2)."""
    out = np.zeros(x.shape)
    width = x.shape[1] // kernel.shape[2]
    for p in range(len(x)):
        for t in range(min(kernel.shape[1], p + 1)):
            out[p] += (base[t] + np.repeat(kernel[p, t], width)) * x[p - t]
    return out


@dataclass
class Drafted:
    """Outputs of one block; what a variant lacks stays empty. ``scores[row]`` by (predecessor, candidate) id;
    predecessor -1 is the anchor.
    """

    logits: Array
    hidden: Array
    base: Array
    confidence: list[float] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    scores: list[dict[tuple[int, int], float]] = field(default_factory=list)


class Drafter:
    """Any variant of the family; ``target`` lends what the file lacks."""

    def __init__(self, file: FakeFile, target: FakeFile | None = None) -> None:
        self.f = f = File(file)
        self.t = File(target) if target is not None else f
        self.n_head, self.n_kv, self.d = (
            int(f.key(f"dflash.attention.{n}")) for n in ("head_count", "head_count_kv", "key_length")
        )
        self.eps = float(f.key("dflash.attention.layer_norm_rms_epsilon"))
        self.n_layer, self.block = int(f.key("dflash.block_count")), int(f.key("dflash.block_size", 16))
        self.layers = [int(k) for k in f.key("dflash.target_layers")]
        self.window = int(f.key("dflash.attention.sliding_window", 0))
        self.pattern = list(f.key("dflash.attention.sliding_window_pattern", [False] * self.n_layer))
        self.anchor_first = f.has("markov_w1.weight") and bool(f.key("dflash.sample_from_anchor", True))
        taps, group = int(f.key("dflash.conv_kernel_size", 0)), int(f.key("dflash.conv_group_size", 0))
        self.taps, self.group = (taps, group) if taps and group else (0, 0)

    @property
    def first_row(self) -> int:
        return 0 if self.anchor_first else 1

    def fuse(self, rows: Array) -> Array:
        return rms(self.f.linear("fc", rows), self.eps, self.f.get("enc.output_norm.weight"))

    def rotate(self, x: Array, pos: Array) -> Array:
        f = self.f
        factors = None if any(f.key("dflash.rope.dimension_sections", [0])) else f.maybe("rope_freqs.weight")
        n_rot = int(f.key("dflash.rope.dimension_count", self.d))
        return rope(x, pos, n_rot, float(f.key("dflash.rope.freq_base", 10000.0)), factors)

    def keys_values(self, il: int, x: Array, pos: Array) -> tuple[Array, Array]:
        k = self.f.linear(f"blk.{il}.attn_k", x).reshape(-1, self.n_kv, self.d)
        if self.f.has(f"blk.{il}.attn_v.weight"):
            v = self.f.linear(f"blk.{il}.attn_v", x).reshape(-1, self.n_kv, self.d)
        else:
            v = rms(k, self.eps)
        return self.rotate(rms(k, self.eps, self.f.get(f"blk.{il}.attn_k_norm.weight")), pos), v

    def convolver(self, name: str, x: Array) -> Callable[[Array, int], Array]:
        if not self.taps:
            return lambda rows, side: rows
        mix = self.f.linear(f"{name}_conv_proj", x).reshape(len(x), 2, self.taps, -1)
        base = self.f.get(f"{name}_conv_base")
        return lambda rows, side: convolve(rows, mix[:, side], base[side])

    def draft(
        self,
        given: Array,
        given_pos: Sequence[int] | Array,
        tokens: Sequence[int],
        pos0: int,
        context: Array | None = None,
    ) -> Drafted:
        """One block behind injected feature rows at their positions."""
        f, n = self.f, self.f.file
        ids, old = np.asarray(tokens), np.asarray(given_pos)
        pos = pos0 + np.arange(len(ids))
        fused = self.fuse(given) if len(given) else np.zeros((0, int(f.key("dflash.embedding_length"))))
        embd = (f if f.has("token_embd.weight") else self.t).get("token_embd.weight")
        h = embd[ids] * (float(f.key("dflash.embedding_scale", 0.0)) or 1.0)
        everything = np.concatenate([old, pos])
        visible = np.ones((len(ids), len(everything)), bool)
        if f.key("dflash.attention.causal", False):
            visible &= everything[None] <= pos[:, None]
        scale = float(f.key("dflash.attention.scale", 0.0)) or self.d**-0.5
        act = silu if f.key("dflash.hidden_activation", "silu") == "silu" else gelu
        for il in range(self.n_layer):
            b = f"blk.{il}"
            a = rms(h, self.eps, f.get(f"{b}.attn_norm.weight"))
            conv = self.convolver(f"{b}.attn", a)
            a = conv(a, 0)
            q = rms(
                f.linear(f"{b}.attn_q", a).reshape(-1, self.n_head, self.d), self.eps, f.get(f"{b}.attn_q_norm.weight")
            )
            k, v = self.keys_values(il, a, pos)
            k0, v0 = self.keys_values(il, fused, old)
            seen = visible
            if self.window and self.pattern[il]:
                seen = visible & (pos[:, None] - everything[None] < self.window)
            out = attend(
                self.rotate(q, pos),
                np.concatenate([k0, k]),
                np.concatenate([v0, v]),
                seen,
                scale,
                f.maybe(f"{b}.attn_sinks.weight"),
            )
            out = f.linear(f"{b}.attn_output", out) * (float(f.key("dflash.attention.value_scale", 0.0)) or 1.0)
            out = conv(out, 1)
            if f.has(f"{b}.post_attention_norm.weight"):
                out = rms(out, self.eps, f.get(f"{b}.post_attention_norm.weight"))
            r = h + out
            a = rms(r, self.eps, f.get(f"{b}.ffn_norm.weight"))
            conv = self.convolver(f"{b}.ffn", a)
            a = conv(a, 0)
            a = conv(f.linear(f"{b}.ffn_down", act(f.linear(f"{b}.ffn_gate", a)) * f.linear(f"{b}.ffn_up", a)), 1)
            if f.has(f"{b}.post_ffw_norm.weight"):
                a = rms(a, self.eps, f.get(f"{b}.post_ffw_norm.weight"))
            h = a + r
            if f.has(f"{b}.layer_output_scale.weight"):
                h = h * f.get(f"{b}.layer_output_scale.weight")[0]
        hidden = rms(h, self.eps, f.get("output_norm.weight"))
        logits = self.head(hidden)
        result = Drafted(logits, hidden, logits)
        if f.has("markov_w1.weight"):
            self.markov(result, int(ids[0]))
        elif f.has("selector_hidden.weight"):
            self.select(result, int(ids[0]))
        elif "lilicorr.hidden_size" in n.metadata:
            assert context is not None
            self.correlate(result, context, embd)
        return result

    def head(self, hidden: Array) -> Array:
        f = self.f
        own = f if f.has("output.weight") else self.t
        logits = own.linear("output" if own.has("output.weight") else "token_embd", hidden)
        if f.has("selector_hidden.weight"):
            logits = logits * (float(f.key("dflash.logit_scale", 0.0)) or 1.0)
            cap = float(f.key("dflash.final_logit_softcapping", 0.0))
            logits = np.tanh(logits / cap) * cap if cap else logits
        return self.spread(logits, -np.inf)

    def spread(self, rows: Array, fill: float) -> Array:
        if not self.f.has("d2t"):
            return rows
        n_vocab = int(self.f.key("dflash.vocab_size"))
        wide = np.full((*rows.shape[:-1], n_vocab), fill)
        wide[..., self.f.get("d2t")] = rows
        return wide

    def markov(self, r: Drafted, anchor: int) -> None:
        f = self.f
        r.logits = r.base.copy()
        before = anchor
        for i in range(self.first_row, len(r.base)):
            w = f.get("markov_w1.weight")[before]
            r.logits[i] = r.base[i] + self.spread(f.linear("markov_w2", w), 0.0)
            if f.has("conf_proj.weight"):
                z = f.linear("conf_proj", np.concatenate([r.hidden[i], w]))
                r.confidence.append(float(1 / (1 + np.exp(-z[0]))))
            before = int(r.logits[i].argmax())
            r.chain.append(before)

    def select(self, r: Drafted, anchor: int) -> None:
        f, k = self.f, int(self.f.key("dflash.selector_top_k"))
        gate = f.linear("selector_hidden", r.hidden)
        previous, r.scores = [anchor], [{}]
        for p in range(1, len(r.logits)):
            best = np.argsort(-r.logits[p])[:k].tolist()
            r.scores.append(
                {
                    (-1 if p == 1 else a, c): float(
                        (f.get("selector_predecessor.weight")[a] * gate[p]) @ f.get("selector_successor.weight")[c]
                        + r.logits[p, c]
                    )
                    for a in previous
                    for c in best
                }
            )
            previous = best

    def correlate(self, r: Drafted, context: Array, table: Array) -> None:
        c = int(self.f.key("lilicorr.candidate_topk"))
        ids = np.argsort(-r.logits[1:], axis=-1, kind="stable")[:, :c]
        lp = np.take_along_axis(log_softmax(r.logits[1:]), ids, axis=-1)
        start, pairs = correlate(self.correlator(), ids, lp, r.hidden[1:], context, table)
        r.scores = [{}, {(-1, int(t)): float(s) for t, s in zip(ids[0], start, strict=True)}]
        for s in range(len(pairs)):
            r.scores.append(
                {
                    (int(a), int(b)): float(pairs[s, i, j])
                    for i, a in enumerate(ids[s])
                    for j, b in enumerate(ids[s + 1])
                }
            )

    def correlator(self) -> Correlator:
        f, first = self.f, self.n_layer
        n = int(f.key("lilicorr.num_layers"))

        def get(name: str) -> Array | None:
            for i in range(n):
                for old, new in (
                    ("attn_norm", f"blk.{first + i}.attn_norm"),
                    ("mlp_norm", f"blk.{first + i}.ffn_norm"),
                    ("attn.out_proj", f"blk.{first + i}.attn_output"),
                    ("mlp.up_proj", f"blk.{first + i}.ffn_up"),
                    ("mlp.down_proj", f"blk.{first + i}.ffn_down"),
                ):
                    if name.startswith(f"layers.{i}.{old}."):
                        return f.maybe(name.replace(f"layers.{i}.{old}", new))
                if name.startswith(f"layers.{i}.attn.in_proj_"):
                    return f.maybe(f"lilicorr.layers.{i}.attn.in_proj." + name.rsplit("_", 1)[1])
            for old, new in (
                ("feature_norm", "ffn_norm"),
                ("feature_mlp.up_proj", "ffn_up"),
                ("feature_mlp.down_proj", "ffn_down"),
            ):
                if name.startswith(f"{old}."):
                    return f.maybe(name.replace(old, f"blk.{first + n}.{new}"))
            if name in ("slot_embedding", "rank_embedding"):
                return f.maybe(f"lilicorr.{name}.weight")
            if name == "attention_bias":
                return f.maybe("lilicorr.attention_bias.bias")
            return f.maybe(f"lilicorr.{name}")

        return Correlator(
            get,
            n,
            int(f.key("lilicorr.num_heads")),
            self.eps,
            float(f.key("lilicorr.vector_eps")),
            float(f.key("lilicorr.logit_scale")),
        )


@dataclass
class Correlator:
    """Weights by the names of the published checkpoints, and the scalars."""

    get: Callable[[str], Array | None]
    n_layer: int
    n_head: int
    eps: float
    vector_eps: float
    scale: float

    def affine(self, name: str, x: Array) -> Array:
        weight, bias, scale = self.get(f"{name}.weight"), self.get(f"{name}.bias"), self.get(f"{name}.scale")
        assert weight is not None and bias is not None
        return x @ weight.T * (1.0 if scale is None else scale[0]) + bias

    def norm(self, name: str, x: Array) -> Array:
        return rms(x, self.eps, self.get(f"{name}.weight"))


def correlate(m: Correlator, ids: Array, lp: Array, hidden: Array, context: Array, table: Array) -> tuple[Array, Array]:
    """LC-1 to LC-9 for one block: ids and log-probabilities [slots, c], hidden [slots, e] -> start [c], pairs
    [slots-1, c, c].
    """
    slots, c = ids.shape
    rank = np.broadcast_to(np.arange(c) / max(c - 1, 1), lp.shape)
    feats = np.stack([lp, np.exp(lp), lp - lp.max(-1, keepdims=True), rank, (rank == 0) * 1.0], axis=-1)
    feats = (feats - feats.mean(-1, keepdims=True)) / np.sqrt(feats.var(-1, keepdims=True) + 1e-5)
    feats = feats * m.get("feature_norm.weight") + m.get("feature_norm.bias")
    tokens = table[ids]
    if m.get("token_proj.weight") is not None:
        tokens = m.affine("token_proj", tokens)
    x = tokens + m.affine("pass_hidden_proj", hidden)[:, None]
    x = x + m.affine("feature_mlp.down_proj", silu(m.affine("feature_mlp.up_proj", feats)))
    slot, rank_embedding, bias = m.get("slot_embedding"), m.get("rank_embedding"), m.get("attention_bias")
    assert slot is not None and rank_embedding is not None and bias is not None
    x = (x + slot[:, None] + rank_embedding[None]).reshape(slots * c, -1)
    h = x.shape[1]
    d = h // m.n_head
    for i in range(m.n_layer):
        a = m.norm(f"layers.{i}.attn_norm", x)
        w, b = m.get(f"layers.{i}.attn.in_proj_weight"), m.get(f"layers.{i}.attn.in_proj_bias")
        assert w is not None and b is not None
        q, k, v = np.split(a @ w.T + b, 3, axis=-1)
        out = np.concatenate(
            [
                softmax(q[:, s] @ k[:, s].T / np.sqrt(d) + bias[j]) @ v[:, s]
                for j in range(m.n_head)
                for s in [slice(j * d, (j + 1) * d)]
            ],
            axis=-1,
        )
        x = x + m.affine(f"layers.{i}.attn.out_proj", out)
        a = m.norm(f"layers.{i}.mlp_norm", x)
        x = x + m.affine(f"layers.{i}.mlp.down_proj", silu(m.affine(f"layers.{i}.mlp.up_proj", a)))
    x = m.norm("output_norm", x)
    a = m.norm("anchor_norm", m.affine("context_proj", context))
    wide = np.broadcast_to(a, x.shape)
    y = silu(m.affine("factor_input_proj", np.concatenate([x, wide, x * wide], axis=-1)))

    def unit(v: Array) -> Array:
        return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), m.vector_eps)

    before = unit(m.affine("out_head", y)).reshape(slots, c, -1)
    after = unit(m.affine("in_head", y)).reshape(slots, c, -1)
    start = m.scale * after[0] @ unit(m.affine("anchor_out_head", a))
    return start, m.scale * np.einsum("scf,sdf->scd", before[:-1], after[1:])
