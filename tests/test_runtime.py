"""The native runtime against NumPy, on a tiny hand-written architecture."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from draftsmith import ggml
from draftsmith.codegen.native import (
    Backends,
    NativeContext,
    NativeModel,
    StateDesc,
    Usage,
    WeightDesc,
    Weights,
    add_rpc_server,
)
from draftsmith.codegen.runtime_lib import build_architecture
from draftsmith.dsl.dtypes import GGMLType
from draftsmith.dsl.errors import BackendError

pytestmark = pytest.mark.cpu

N_EMBD, N_VOCAB, N_LAYER, N_CTX = 64, 96, 2, 16
PARAMS: dict[str, Any] = {"n_embd": N_EMBD, "n_layer": N_LAYER, "eps": 1e-5, "n_layer_list": [10, 11]}
STATE = [StateDesc("kv.k", GGMLType.f32, (N_EMBD, N_CTX), il) for il in range(N_LAYER)]
USAGE = {"token_embd.weight": Usage.GET_ROWS, "output.weight": Usage.MUL_MAT}
NODES = 64


@pytest.fixture(scope="session")
def tiny_library() -> Path:
    return build_architecture("tiny", [Path(__file__).parent / "test_runtime_arch.cpp"])


@pytest.fixture(scope="session")
def backends() -> Backends:
    return Backends(n_threads=2)


@dataclass
class Tiny:
    """A model file, and the same weights in NumPy."""

    path: Path
    descs: list[WeightDesc]
    w: dict[str, np.ndarray]

    def desc(self, name: str) -> WeightDesc:
        return next(d for d in self.descs if d.name == name)


def write_model(
    path: Path, quant: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, alignment: int = 32
) -> Tiny:
    rng = np.random.default_rng(0)
    w = {
        "token_embd.weight": rng.standard_normal((N_VOCAB, N_EMBD)),
        "output.weight": rng.standard_normal((N_VOCAB, N_EMBD)),
    }
    for il in range(N_LAYER):
        w[f"blk.{il}.norm.weight"] = rng.standard_normal(N_EMBD)
        w[f"blk.{il}.ffn.weight"] = rng.standard_normal((N_EMBD, N_EMBD)) / 8
    writer = gguf.GGUFWriter(path, "tiny")
    writer.add_custom_alignment(alignment)
    for name, value in w.items():
        value = w[name] = value.astype(np.float32)
        if name.endswith(("ffn.weight", "output.weight")) and quant != gguf.GGMLQuantizationType.F32:
            data = gguf.quantize(value, quant)
            w[name] = gguf.dequantize(data, quant)
            writer.add_tensor(name, data, raw_dtype=quant)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tiny(path, read_descs(path), w)


def read_descs(path: Path) -> list[WeightDesc]:
    return [
        WeightDesc(
            t.name,
            GGMLType.from_id(int(t.tensor_type)),
            tuple(int(n) for n in t.shape),
            int(t.data_offset),
            int(t.n_bytes),
            USAGE.get(t.name, Usage.MUL_MAT if "ffn" in t.name else Usage.OTHER),
        )
        for t in gguf.GGUFReader(path).tensors
    ]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def weights(backends: Backends, tiny: Tiny) -> Weights:
    return Weights.load(backends, tiny.path, tiny.descs)


@pytest.fixture(scope="session")
def model(tiny_library: Path, weights: Weights) -> NativeModel:
    return NativeModel(tiny_library, PARAMS, weights)


@pytest.fixture
def ctx(backends: Backends, model: NativeModel) -> Iterator[NativeContext]:
    with NativeContext(backends, model, STATE, max_graphs=3) as context:
        yield context


def reference(w: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, Any]:
    """The same model in NumPy: layer inputs, what goes to state, hidden, logits."""
    cur = w["token_embd.weight"][tokens].astype(np.float64)
    result: dict[str, Any] = {"embd": cur, "layer_input": [], "k": []}
    for il in range(N_LAYER):
        result["layer_input"].append(cur)
        h = cur / np.sqrt((cur**2).mean(-1, keepdims=True) + 1e-5) * w[f"blk.{il}.norm.weight"]
        h = h @ w[f"blk.{il}.ffn.weight"].T.astype(np.float64)
        result["k"].append(h)
        cur = cur + h
    return result | {"hidden": cur, "logits": cur @ w["output.weight"].T.astype(np.float64)}


TOKENS = np.array([3, 0, 95], np.int32)
ROWS = np.array([1, 0, 5], np.int64)


def run(
    ctx: NativeContext, outputs: tuple[str, ...] = ("logits",), tokens: np.ndarray = TOKENS, **kw: Any
) -> None:
    inputs = {"tokens": tokens, "rows": ROWS[: len(tokens)]} | kw.pop("inputs", {})
    ctx.run("main", {"n_tokens": len(tokens)}, inputs, outputs, max_nodes=NODES, **kw)


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_outputs_and_taps(ctx: NativeContext, tiny: Tiny) -> None:
    run(ctx, ("logits", "hidden"), taps=[("layer_input", 1), ("layer_input", 0)])
    want = reference(tiny.w, TOKENS)
    close(ctx.result("logits"), want["logits"])
    close(ctx.result("hidden"), want["hidden"])
    for il in range(N_LAYER):
        close(ctx.result("layer_input", il), want["layer_input"][il])
    assert ctx.result("logits").dtype == np.float32
    assert ctx.result("logits").flags.owndata


def test_rank_of_results(ctx: NativeContext) -> None:
    run(ctx, ("hidden",), tokens=TOKENS[:1])
    assert ctx.result("hidden").shape == (N_EMBD,)
    assert ctx.result("hidden", ndim=2).shape == (1, N_EMBD)
    assert ctx.result("hidden", ndim=4).shape == (1, 1, 1, N_EMBD)
    run(ctx, ("hidden",))
    with pytest.raises(BackendError, match="is not of 1 dims"):
        ctx.result("hidden", ndim=1)


def test_state_is_written_even_when_nothing_is_wanted(ctx: NativeContext, tiny: Tiny) -> None:
    run(ctx, ())
    want = reference(tiny.w, TOKENS)
    for il in range(N_LAYER):
        k = ctx.state_get("kv.k", il)
        assert k.shape == (N_CTX, N_EMBD)
        close(k[ROWS], want["k"][il])
        assert not k[[2, 3, 4]].any()


def test_state_in_and_out(ctx: NativeContext) -> None:
    value = np.arange(N_CTX * N_EMBD, dtype=np.float32).reshape(N_CTX, N_EMBD)
    ctx.state_set("kv.k", 0, value)
    np.testing.assert_array_equal(ctx.state_get("kv.k", 0), value)
    assert not ctx.state_get("kv.k", 1).any()
    ctx.clear()
    assert not ctx.state_get("kv.k", 0).any()
    assert ctx.stats().state_bytes >= 2 * value.nbytes


def test_contexts_have_their_own_state(backends: Backends, model: NativeModel, ctx: NativeContext) -> None:
    with NativeContext(backends, model, STATE) as other:
        run(other)
        assert other.state_get("kv.k", 0).any()
    assert not ctx.state_get("kv.k", 0).any()


def test_reuse_of_graphs(ctx: NativeContext, tiny: Tiny) -> None:
    for tokens in (TOKENS, TOKENS[::-1].copy(), TOKENS):
        run(ctx, tokens=tokens)
        close(ctx.result("logits"), reference(tiny.w, tokens)["logits"])
    assert (ctx.stats().n_runs, ctx.stats().n_builds) == (3, 1)
    run(ctx, tokens=TOKENS[:2])  # another dim
    run(ctx, ("hidden",))  # another output
    assert (ctx.stats().n_runs, ctx.stats().n_builds) == (5, 3)
    run(ctx, tokens=TOKENS[:2])
    run(ctx)
    assert ctx.stats().n_builds == 3


def test_the_least_recently_used_graph_goes_first(ctx: NativeContext) -> None:
    sizes = {n: TOKENS[:n] for n in (1, 2, 3)}
    for tokens in sizes.values():
        run(ctx, tokens=tokens)
    run(ctx, tokens=sizes[1])  # now 2 is the oldest of three
    run(ctx, ("hidden",))
    assert ctx.stats().n_builds == 4
    run(ctx, tokens=sizes[1])
    run(ctx, tokens=sizes[3])
    assert ctx.stats().n_builds == 4
    run(ctx, tokens=sizes[2])
    assert ctx.stats().n_builds == 5


def test_only_what_is_wanted_is_computed(ctx: NativeContext) -> None:
    run(ctx, ("hidden",))
    without = ctx.stats().n_nodes
    assert not [n for n in ctx.nodes() if n.name == "logits"]
    run(ctx, ("hidden", "logits"))
    assert ctx.stats().n_nodes == without + 1


def test_inputs_that_nothing_needs_may_be_given_or_left_out(ctx: NativeContext, tiny: Tiny) -> None:
    bias = np.ones(N_EMBD, np.float32)
    run(ctx, ("hidden",))
    run(ctx, ("hidden",), inputs={"bias": bias})
    assert ctx.stats().n_builds == 1
    run(ctx, ("biased",), inputs={"bias": bias})
    close(ctx.result("biased"), reference(tiny.w, TOKENS)["hidden"] + 1)


def test_results_that_are_views_or_leaves(ctx: NativeContext, tiny: Tiny) -> None:
    want = reference(tiny.w, TOKENS)
    outputs = ("transposed", "tokens_out", "rows_view", "norm_out", "k_out", "output_out", "logits")
    for _ in range(2):
        run(ctx, outputs)
        close(ctx.result("transposed"), want["hidden"].T)
        np.testing.assert_array_equal(ctx.result("tokens_out"), TOKENS)
        np.testing.assert_array_equal(ctx.result("rows_view"), ROWS[:1])
        np.testing.assert_array_equal(ctx.result("norm_out"), tiny.w["blk.0.norm.weight"])
        close(ctx.result("k_out")[[1, 0]], want["k"][0][:2])
        np.testing.assert_array_equal(ctx.result("output_out"), tiny.w["output.weight"])
        close(ctx.result("logits"), want["logits"])


def test_a_graph_of_leaves_only(ctx: NativeContext, tiny: Tiny) -> None:
    x = np.arange(5, dtype=np.float32)
    ctx.run("leaves", {"n": 5}, {"x": x}, ("x", "norm"), max_nodes=NODES)
    np.testing.assert_array_equal(ctx.result("x"), x)
    np.testing.assert_array_equal(ctx.result("norm"), tiny.w["blk.0.norm.weight"])
    assert ctx.nodes() == []


def test_trace(ctx: NativeContext, tiny: Tiny) -> None:
    run(ctx, trace=True)
    want = reference(tiny.w, TOKENS)
    nodes = {n.name: n for n in ctx.nodes()}
    for il in range(N_LAYER):
        close(nodes[f"ffn-{il}"].data, want["k"][il])
    close(nodes["embd"].data, want["embd"])
    close(nodes["logits"].data, want["logits"])
    assert nodes["ffn-0"].op == "MUL_MAT"
    assert nodes["ffn-0"].backend == "CPU"
    assert nodes["ffn-0"].ne == (N_EMBD, 3, 1, 1)
    assert nodes["ffn-0"].type is GGMLType.f32
    assert "renamed" not in nodes
    close(ctx.result("logits"), want["logits"])
    run(ctx)
    assert all(n.data is None for n in ctx.nodes())


def test_inputs_may_be_strided(ctx: NativeContext, tiny: Tiny) -> None:
    tokens = np.array([3, 9, 0, 9, 95, 9], np.int32)[::2]
    ctx.run("main", {"n_tokens": 3}, {"tokens": tokens, "rows": ROWS}, ("logits",), max_nodes=NODES)
    close(ctx.result("logits"), reference(tiny.w, TOKENS)["logits"])


def test_children_keep_parents_alive(tiny_library: Path, tiny: Tiny) -> None:
    backends = Backends(n_threads=1)
    weights = Weights.load(backends, tiny.path, tiny.descs)
    model = NativeModel(tiny_library, PARAMS, weights)
    ctx = NativeContext(backends, model, STATE)
    for parent in (backends, weights, model):
        parent.close()
        parent.close()
    del backends, weights, model, parent
    gc.collect()
    run(ctx)
    close(ctx.result("logits"), reference(tiny.w, TOKENS)["logits"])
    ctx.close()
    ctx.close()
    for use in (
        ctx.stats,
        ctx.nodes,
        ctx.clear,
        lambda: run(ctx),
        lambda: ctx.result("logits"),
        lambda: ctx.state_get("kv.k", 0),
    ):
        with pytest.raises(BackendError, match="NativeContext is closed"):
            use()


def test_overhead_of_a_run(ctx: NativeContext) -> None:
    x = np.ones(4, np.float32)

    def once() -> None:
        ctx.run("chain", {"n": 1, "cb": 0}, {"x": x}, ("y",), max_nodes=NODES)

    once()
    best = float("inf")
    for _ in range(30):
        before, start = ctx.stats().compute_us, time.perf_counter()
        for _ in range(20):
            once()
        took = (time.perf_counter() - start) * 1e6 - (ctx.stats().compute_us - before)
        best = min(best, took / 20)
    assert best < 60, f"{best:.1f} us"


@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal", "none"])
@pytest.mark.parametrize("n", [11, 1024, 1025, 5000])
def test_ops_of_our_own(ctx: NativeContext, n: int, order: str) -> None:
    rows, k = 3, 10
    x = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32)
    if order in ("rising", "falling"):
        x = np.sort(x, axis=1)[:, :: 1 if order == "rising" else -1].copy()
    elif order != "random":
        x[:] = 1.5 if order == "equal" else -np.inf
    wanted = ("argmax", "top_k", "filled", "padded")
    ctx.run("cpu_ops", {"n": n, "rows": rows, "k": k}, {"x": x}, wanted, max_nodes=NODES)
    last = n - 1 - x[:, ::-1].argmax(axis=1)  # of equal values, as ggml has it
    np.testing.assert_array_equal(ctx.result("argmax"), last)

    top, tail = ctx.result("top_k"), x[:, 1:]
    assert all(len(set(ids)) == k for ids in top.tolist())
    in_order = top[:, [1, 0, *range(2, k)]]
    best = -np.sort(-tail, axis=1)[:, :k]
    np.testing.assert_array_equal(np.take_along_axis(tail, in_order, axis=1), best)

    np.testing.assert_array_equal(ctx.result("filled"), np.tile(x[None, :, :, None], (2, 1, 1, 5)))
    np.testing.assert_array_equal(ctx.result("padded"), np.pad(tail, ((2, 1), (0, 0))))
    assert {n.op for n in ctx.nodes()} >= {"ARGMAX", "TOP_K", "REPEAT", "PAD"}


# weights and their places


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_quantised_weights(
    backends: Backends, tiny_library: Path, tmp_path: Path, quant: str, use_mmap: bool
) -> None:
    tiny = write_model(tmp_path / "q.gguf", gguf.GGMLQuantizationType[quant])
    weights = Weights.load(backends, tiny.path, tiny.descs, use_mmap)
    report = weights.report()
    assert sum(report.values()) == sum(d.nbytes for d in tiny.descs)
    if quant == "F32":
        assert set(report) == ({"CPU_Mapped"} if use_mmap else {"CPU"})
    with NativeContext(backends, NativeModel(tiny_library, PARAMS, weights), STATE) as ctx:
        run(ctx)
        want = reference(tiny.w, TOKENS)["logits"]
        error = np.abs(ctx.result("logits") - want).max() / np.abs(want).max()
        assert error < (1e-5 if quant == "F32" else 0.03)


def repacked(backends: Backends, tiny: Tiny, **changes: Any) -> list[str]:
    """The kinds of memory other than plain ones that the weights land in."""
    descs = [replace(d, **changes) if d.type.is_quantized else d for d in tiny.descs]
    return sorted(set(Weights.load(backends, tiny.path, descs).report()) - {"CPU", "CPU_Mapped"})


def test_a_q4_0_matrix_is_repacked(backends: Backends, tmp_path: Path) -> None:
    tiny = write_model(tmp_path / "q.gguf", gguf.GGMLQuantizationType.Q4_0)
    places = repacked(backends, tiny)
    if not places:
        pytest.skip("this CPU has no repacked layout of q4_0")
    assert places == ["CPU_REPACK"]
    # rows of a repacked matrix cannot be read, nor can anything else be done with it
    assert repacked(backends, tiny, usage=Usage.MUL_MAT | Usage.GET_ROWS) == []
    assert repacked(backends, tiny, usage=Usage.GET_ROWS) == []
    assert repacked(backends, tiny, usage=Usage.OTHER) == []


def test_misuse_of_a_repacked_weight_is_an_error(
    backends: Backends, tiny_library: Path, tmp_path: Path
) -> None:
    tiny = write_model(tmp_path / "q.gguf", gguf.GGMLQuantizationType.Q4_0)
    if not repacked(backends, tiny):
        pytest.skip("this CPU has no repacked layout of q4_0")
    model = NativeModel(tiny_library, PARAMS, Weights.load(backends, tiny.path, tiny.descs))
    with NativeContext(backends, model, STATE) as ctx:
        with pytest.raises(
            BackendError, match=r"MUL_MAT '.*' cannot read 'blk\.0\.ffn\.weight \(view\)' in its CPU_REPACK"
        ):
            ctx.run("view_of_weight", {}, {"x": np.ones(N_EMBD, np.float32)}, ("y",), max_nodes=NODES)
        with pytest.raises(
            BackendError, match=r"GET_ROWS '.*' cannot read 'blk\.0\.ffn\.weight' in its CPU_REPACK"
        ):
            ctx.run("rows_of_weight", {}, {"ids": np.zeros(1, np.int32)}, ("y",), max_nodes=NODES)
        with pytest.raises(BackendError, match="'output_out' is a weight in CPU_REPACK layout"):
            run(ctx, ("output_out",))
        run(ctx)


def test_misaligned_data_is_copied(
    backends: Backends, tiny_library: Path, tiny: Tiny, tmp_path: Path
) -> None:
    path = tmp_path / "shifted.gguf"
    path.write_bytes(b"\0" * 4 + tiny.path.read_bytes())
    descs = [replace(d, offset=d.offset + 4) for d in tiny.descs]
    weights = Weights.load(backends, path, descs)
    assert set(weights.report()) == {"CPU"}
    with NativeContext(backends, NativeModel(tiny_library, PARAMS, weights), STATE) as ctx:
        run(ctx)
        close(ctx.result("logits"), reference(tiny.w, TOKENS)["logits"])


def mapped_bytes(path: Path) -> int:
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if str(path) in line]
    return sum(int(last, 16) - int(first, 16) for first, last in spans)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads /proc")
def test_pages_that_nothing_uses_are_given_back(backends: Backends, tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    size = 1 << 20
    path.write_bytes(os.urandom(3 * size))
    ends = [WeightDesc(f"w{i}", GGMLType.f32, (size // 4,), i * size, size) for i in (0, 2)]
    weights = Weights.load(backends, path, ends)
    assert mapped_bytes(path) == 2 * size
    weights.close()
    gc.collect()
    assert mapped_bytes(path) == 0
    copied = Weights.load(backends, path, ends, use_mmap=False)
    assert mapped_bytes(path) == 0
    copied.close()


def test_shared_weights(backends: Backends, tiny_library: Path, tiny: Tiny) -> None:
    target = Weights.load(backends, tiny.path, [tiny.desc("token_embd.weight")])
    own = Weights.load(backends, tiny.path, [d for d in tiny.descs if d.name != "token_embd.weight"])
    shared = {"target.token_embd.weight": "token_embd.weight"}
    with NativeContext(backends, NativeModel(tiny_library, PARAMS, own, target, shared), STATE) as ctx:
        run(ctx)
        close(ctx.result("logits"), reference(tiny.w, TOKENS)["logits"])
    with pytest.raises(BackendError, match="no model to share it with"):
        NativeModel(tiny_library, PARAMS, own, None, shared)
    with pytest.raises(BackendError, match="shared as 'nix', which the other model does not have"):
        NativeModel(tiny_library, PARAMS, own, target, {"target.token_embd.weight": "nix"})


def test_progress(backends: Backends, tiny: Tiny) -> None:
    seen: list[tuple[int, int]] = []
    Weights.load(backends, tiny.path, tiny.descs, progress=lambda done, total: seen.append((done, total)))
    total = sum(d.nbytes for d in tiny.descs)
    assert len(seen) == len(tiny.descs)
    assert seen[-1] == (total, total)
    with pytest.raises(BackendError, match="cancelled"):
        Weights.load(backends, tiny.path, tiny.descs, progress=lambda done, total: False)

    def raises(done: int, total: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Weights.load(backends, tiny.path, tiny.descs, progress=raises)


def test_threads() -> None:
    assert 1 <= Backends().n_threads <= (os.cpu_count() or 1)
    assert Backends(n_threads=3).n_threads == 3


# errors: each raises with a line that says what and where, and the process lives on

F32 = GGMLType.f32
X = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 1 << 40}, "'output.weight' ends at byte .* the file is truncated"),
        ({"offset": (1 << 64) - 8}, "the file is truncated"),
        ({"nbytes": 4}, "'output.weight' takes 24576 bytes as f32, the file gives it 4"),
        ({"ne": (0, 3)}, "impossible shape"),
        ({"ne": (-1, 3)}, "impossible shape"),
        ({"ne": (1 << 40, 1 << 40)}, "impossibly large"),
        ({"type": GGMLType.q4_0, "ne": (33, 3)}, "do not fill whole q4_0 blocks of 32"),
        ({"ne": (1, 1, 1, 1, 1)}, "5 dims"),
        ({"name": "token_embd.weight"}, "'token_embd.weight' is listed twice"),
    ],
)
def test_bad_weights(backends: Backends, tiny: Tiny, change: dict[str, Any], message: str) -> None:
    descs = [replace(d, **change) if d.name == "output.weight" else d for d in tiny.descs]
    for use_mmap in (True, False):
        with pytest.raises(BackendError, match=message):
            Weights.load(backends, tiny.path, descs, use_mmap)


def test_bad_files(backends: Backends, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"cannot open .*/nowhere: No such file"):
        Weights.load(backends, tmp_path / "nowhere", [])
    with pytest.raises(BackendError, match="not a regular file"):
        Weights.load(backends, tmp_path, [])
    (tmp_path / "empty").touch()
    assert Weights.load(backends, tmp_path / "empty", []).report() == {}


def test_bad_devices() -> None:
    with pytest.raises(BackendError, match=r"no device 'CUDA7'; this build of ggml has: .*CPU"):
        Backends(["CUDA7"])
    with pytest.raises(BackendError, match="at most 512"):
        Backends(n_threads=100000)


@pytest.mark.parametrize(
    "endpoint", ["", "host", ":1", "host:", "host:x", "host:0", "host:99999", "127.0.0.1:1"]
)
def test_bad_rpc_servers(endpoint: str) -> None:
    with pytest.raises(BackendError, match="RPC"):
        add_rpc_server(endpoint)


def test_bad_models(
    backends: Backends, tiny_library: Path, tiny: Tiny, weights: Weights, tmp_path: Path
) -> None:
    def build(path: Path = tiny_library, own: Weights | None = weights, **params: Any) -> NativeModel:
        return NativeModel(path, {k: v for k, v in (PARAMS | params).items() if v is not None}, own)

    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: build(tmp_path / "none.so"), "cannot load the architecture: .*none.so"),
        (lambda: build(tiny.path), "cannot load the architecture"),
        (lambda: build(ggml.ensure().libraries[0]), r"exports no draftsmith_arch\(\)"),
        (lambda: build(n_embd=None), "hyperparameter 'n_embd' is missing"),
        (lambda: build(n_embd=1.5), "hyperparameter 'n_embd' is a float"),
        (lambda: build(n_layer_list=[1]), "hyperparameter 'n_layer_list' has 1 values, number 1"),
        (lambda: build(n_layer_list=[1, 2]), r"guard: n_layer_list\[1\] == 11"),
        (lambda: build(own=None), "guard: token_embd.weight is present"),
    ]
    for call, message in bad:
        with pytest.raises(BackendError, match=message):
            call()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([StateDesc("kv.k", F32, (0, 4), 0)], r"state 'kv.k-0' has an impossible shape f32\[0, 4, 1, 1\]"),
        ([StateDesc("kv.k", GGMLType.q4_0, (33,), 0)], "impossible shape"),
        ([StateDesc("kv.k", F32, (1 << 50, 1 << 50), 0)], "impossible shape"),
        ([StateDesc("kv.k", F32, (1 << 44,), 0)], "no room for 67108864.0 MiB of state"),
        ([StateDesc("kv.k", F32, (4,), 0)] * 2, "'kv.k-0' is listed twice"),
    ],
)
def test_bad_state(backends: Backends, model: NativeModel, state: list[StateDesc], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        NativeContext(backends, model, state)


def test_bad_runs(ctx: NativeContext, tiny: Tiny) -> None:
    def main(inputs: dict[str, Any], outputs: tuple[str, ...] = ("logits",), **kw: Any) -> None:
        given = {"tokens": TOKENS, "rows": ROWS} | inputs
        dims = kw.pop("dims", {"n_tokens": 3})
        ctx.run(
            "main",
            dims,
            {k: v for k, v in given.items() if v is not None},
            outputs,
            max_nodes=kw.pop("max_nodes", NODES),
            **kw,
        )

    def chain(n: int, max_nodes: int, cb: int = 1) -> None:
        ctx.run("chain", {"n": n, "cb": cb}, {"x": X}, ("y",), max_nodes=max_nodes)

    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: main({"tokens": None}), "graph 'main': input 'tokens' was not given"),
        (
            lambda: main({"tokens": TOKENS[:2]}),
            r"input 'tokens' takes 12 bytes \(i32\[3, 1, 1, 1\]\), 8 were given",
        ),
        (lambda: main({"tokens": TOKENS.astype(np.int64)}), "24 were given"),
        (lambda: main({"bias": X}), "input 'bias' takes 256 bytes"),
        (lambda: main({"biass": X}), "no input 'biass'; it has: tokens, rows, bias"),
        (
            lambda: main({"tokens": np.array([1, 96, 0], np.int32)}),
            "'tokens' holds 96 at index 1; the rows that it picks are 0 to 95",
        ),
        (lambda: main({"tokens": np.array([1, 2, -1], np.int32)}), "'tokens' holds -1 at index 2"),
        (lambda: main({"rows": np.array([1, 2, 16], np.int64)}), "'rows' holds 16 at index 2"),
        (lambda: main({}, ("biased",)), "input 'bias' was not given"),
        (lambda: main({}, ("logitz",)), "no output 'logitz'; it has: hidden, logits"),
        (
            lambda: main({}, taps=[("layer_input", 2)]),
            "no tap 'layer_input-2'; it has: layer_input-0, layer_input-1",
        ),
        (lambda: main({}, dims={}), "asks for the run-time dim 'n_tokens', which was not given"),
        (lambda: main({}, dims={"n_tokens": -3}), "run-time dim 'n_tokens' is -3"),
        (lambda: main({}, dims={"n_tokens": 1 << 62}), "input 'tokens' would have the shape"),
        (lambda: main({}, ("k_out",), max_nodes=0), "max_nodes is 0"),
        (lambda: main({}, ("k_out",), max_nodes=3), "has 11 nodes, more than the 3 declared"),
        (lambda: chain(100, 99), "has 100 nodes, more than the 99 declared"),
        (lambda: chain(100000, 100), "larger than the 100 nodes declared"),
        (
            lambda: ctx.run("huge", {"n": 1 << 44}, {"x": X[:1]}, ("y",), max_nodes=NODES),
            r"graph 'huge' \(1 nodes\) cannot be allocated \(ggml: ",
        ),
        (lambda: ctx.run("throws", {}, {}, max_nodes=NODES), "^the graph threw$"),
        (lambda: ctx.run("twice", {}, {}, ("y",), max_nodes=NODES), "declares the input 'x' twice"),
        (lambda: ctx.run("nix", {}, {}, max_nodes=NODES), "no graph 'nix'; it has: main, leaves"),
        (lambda: ctx.result("logits"), "nothing was run, or the last run failed"),
        (lambda: ctx.nodes(), "nothing was run, or the last run failed"),
        (lambda: ctx.state_get("kv.v", 0), "no state 'kv.v-0'; there is: kv.k-0, kv.k-1"),
        (lambda: ctx.state_set("kv.k", 0, X), r"state 'kv.k-0' has 4096 bytes, not 16"),
        (lambda: ctx.state_set("kv.k", 0, TOKENS), "state 'kv.k' is f32, the given array int32"),
    ]
    for call, message in bad:
        with pytest.raises(BackendError) as caught:
            call()
            pytest.fail(f"no error: {message}")
        assert re.search(message, str(caught.value))
        assert "\n" not in str(caught.value)

    run(ctx)
    close(ctx.result("logits"), reference(tiny.w, TOKENS)["logits"])
    with pytest.raises(BackendError, match="'hidden' was not asked for in the last run of graph 'main'"):
        ctx.result("hidden")
    with pytest.raises(BackendError, match="'layer_input-0' was not asked for"):
        ctx.result("layer_input", 0)


def test_contexts_in_threads_take_turns(backends: Backends, model: NativeModel, tiny: Tiny) -> None:
    failures: list[BaseException] = []

    def work(tokens: np.ndarray) -> None:
        try:
            with NativeContext(backends, model, STATE) as context:
                for _ in range(50):
                    run(context, tokens=tokens)
                    close(context.result("logits"), reference(tiny.w, tokens)["logits"])
        except BaseException as error:
            failures.append(error)

    batches = (TOKENS, TOKENS[::-1].copy(), TOKENS[:2])
    threads = [threading.Thread(target=work, args=(tokens,)) for tokens in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_nothing_is_leaked(tiny_library: Path, tiny: Tiny) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def once() -> None:
        with (
            Backends(n_threads=1) as backends,
            Weights.load(backends, tiny.path, tiny.descs, use_mmap=False) as weights,
            NativeModel(tiny_library, PARAMS, weights) as model,
            NativeContext(backends, model, STATE, max_graphs=1) as context,
        ):
            for n in (1, 2, 3):
                run(context, tokens=TOKENS[:n])
            with pytest.raises(BackendError):
                run(context, ("nix",))

    for _ in range(20):
        once()
    before = resident()
    for _ in range(100):
        once()
    assert resident() - before < 4 << 20
