"""The GGUF reader: what it reads, what it refuses, and how fast."""

from __future__ import annotations

import math
import os
import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from draftsmith.dsl.dtypes import REMOVED_TYPES, GGMLType
from draftsmith.dsl.errors import GGUFError
from draftsmith.dsl.nvfp4 import dequantize_nvfp4
from draftsmith.gguf_file import GGUFFile, StringArray
from tests.gguf_fuzz import gguf_bytes, header_bytes, kv, string, tensor, try_variants

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLD = SHARED / "gold"
needs_shared = pytest.mark.skipif(not GOLD.is_dir(), reason="the recorded reference data are not here")

ARCH = kv("general.architecture", "str", "qwen3")
F32 = GGMLType.f32.id


@pytest.fixture
def save(tmp_path: Path):
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value(save, version: int) -> None:
    entries = [
        ARCH,
        kv("a.u8", "u8", 255),
        kv("a.i8", "i8", -128),
        kv("a.u16", "u16", 65535),
        kv("a.i16", "i16", -2),
        kv("a.u32", "u32", 2**32 - 1),
        kv("a.i32", "i32", -3),
        kv("a.u64", "u64", 2**64 - 1),
        kv("a.i64", "i64", -(2**63)),
        kv("a.f32", "f32", 0.1),
        kv("a.f64", "f64", 0.1),
        kv("a.yes", "bool", 1),
        kv("a.no", "bool", 0),
        kv("a.text", "str", "grüße\n"),
        kv("a.empty", "str", ""),
        kv("a.numbers", "arr[i16]", [1, -2, 3]),
        kv("a.flags", "arr[bool]", [1, 0]),
        kv("a.nothing", "arr[f32]", []),
        kv("a.words", "arr[str]", ["", "漢字", "x" * 300, "", "end"]),
        kv("a.no_words", "arr[str]", []),
    ]
    file = GGUFFile.open(save(gguf_bytes(entries, version=version)))
    assert file.version == version
    assert file.architecture == "qwen3"
    assert file.alignment == 32
    assert list(file.metadata) == [
        "general.architecture",
        *(
            f"a.{k}"
            for k in (
                [
                    "u8",
                    "i8",
                    "u16",
                    "i16",
                    "u32",
                    "i32",
                    "u64",
                    "i64",
                    "f32",
                    "f64",
                    "yes",
                    "no",
                    "text",
                    "empty",
                    "numbers",
                    "flags",
                    "nothing",
                    "words",
                    "no_words",
                ]
            )
        ),
    ]
    values = {key: value.value for key, value in file.metadata.items()}
    assert (values["a.u8"], values["a.i8"], values["a.u16"], values["a.i16"]) == (255, -128, 65535, -2)
    assert (values["a.u32"], values["a.i32"]) == (2**32 - 1, -3)
    assert (values["a.u64"], values["a.i64"]) == (2**64 - 1, -(2**63))
    assert values["a.f32"] == np.float32(0.1) and values["a.f64"] == 0.1
    assert values["a.yes"] is True and values["a.no"] is False
    assert values["a.text"] == "grüße\n" and values["a.empty"] == ""
    numbers = values["a.numbers"]
    assert isinstance(numbers, np.ndarray) and numbers.dtype == np.int16 and numbers.tolist() == [1, -2, 3]
    assert not numbers.flags.writeable
    flags = values["a.flags"]
    assert isinstance(flags, np.ndarray) and flags.dtype == bool and flags.tolist() == [True, False]
    assert len(values["a.nothing"]) == 0
    assert file.metadata["a.words"].type == "arr[str]" and file.metadata["a.nothing"].type == "arr[f32]"
    assert list(values["a.no_words"]) == []


@pytest.mark.parametrize("long", [0, 255, 256, 70_000])
def test_string_arrays(save, long: int) -> None:
    """Lengths of one, two and three bytes, which the fast walk and the plain one divide between them."""
    words = ["first", "", "é" * 3, "y" * long, "last"]
    file = GGUFFile.open(save(gguf_bytes([kv("w", "arr[str]", words), kv("after", "u32", 7)])))
    array = file.metadata["w"].value
    assert isinstance(array, StringArray)
    assert array.tolist() == words and list(array) == words and len(array) == 5
    assert [array[i] for i in range(5)] == words
    assert array[-1] == "last" and array[1:3] == ["", "ééé"] and array[::-1] == words[::-1]
    assert array.raw(2) == "ééé".encode()
    for outside in (5, -6):
        with pytest.raises(IndexError):
            array[outside]
    assert file.metadata["after"].value == 7


def test_tensors_of_plain_types(save) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.array([-1, 2**40], dtype=np.int64)
    c = np.array([1.5, -2], dtype=np.float16)
    d = np.array([3.0, -math.inf], dtype=np.float32)
    data = b"".join(
        x.tobytes() + bytes(-x.nbytes % 32)
        for x in (a, b, c, d.view(np.uint16)[1::2])  # bf16: upper halves
    )
    infos = [
        tensor("a", (3, 2), 0, 0),
        tensor("b", (2, 1, 1), 27, 32),
        tensor("c", (2,), 1, 64),
        tensor("d", (2,), 30, 96),
    ]
    path = save(gguf_bytes([], infos, data))
    file = GGUFFile.open(path)
    assert list(file.tensors) == ["a", "b", "c", "d"]
    info = file.tensors["a"]
    assert (info.ne, info.type, info.nbytes) == ((3, 2), GGMLType.f32, 24)
    assert path.read_bytes()[info.offset : info.offset + 24] == a.tobytes() == info.data().tobytes()
    assert not info.data().flags.writeable
    np.testing.assert_array_equal(info.dequantize(), a)
    assert file.tensors["b"].dequantize(np.int64).tolist() == [[[-1, 2**40]]]
    assert file.tensors["c"].dequantize().dtype == np.float32
    np.testing.assert_array_equal(file.tensors["c"].dequantize(np.float64), c.astype(np.float64))
    np.testing.assert_array_equal(file.tensors["d"].dequantize(), d)


def test_tensor_data_outlive_the_file_object(save) -> None:
    data = np.arange(8, dtype=np.float32)
    view = (
        GGUFFile.open(save(gguf_bytes([], [tensor("a", (8,), F32, 0)], data.tobytes())))
        .tensors["a"]
        .dequantize()
    )
    np.testing.assert_array_equal(view, data)


def test_alignment_moves_the_data(save) -> None:
    entries = [kv("general.alignment", "u32", 256)]
    infos = [tensor("a", (1,), F32, 0), tensor("b", (1,), F32, 256)]
    data = np.array([1], np.float32).tobytes() + bytes(252) + np.array([2], np.float32).tobytes()
    file = GGUFFile.open(save(gguf_bytes(entries, infos, data, alignment=256)))
    assert file.alignment == 256
    assert [t.dequantize().tolist() for t in file.tensors.values()] == [[1.0], [2.0]]
    assert all(t.offset % 256 == 0 for t in file.tensors.values())


def test_a_file_without_tensors_or_metadata(save) -> None:
    file = GGUFFile.open(save(gguf_bytes()))
    assert not file.metadata and not file.tensors
    with pytest.raises(GGUFError, match=r"key 'general\.architecture' is missing"):
        _ = file.architecture
    with pytest.raises(GGUFError, match="is of type u32, expected str"):
        _ = GGUFFile.open(save(gguf_bytes([kv("general.architecture", "u32", 1)]))).architecture


def test_metadata_and_tensors_cannot_be_changed(save) -> None:
    file = GGUFFile.open(save(gguf_bytes([ARCH])))
    with pytest.raises(TypeError):
        file.metadata["x"] = file.metadata["general.architecture"]  # type: ignore[index]


# --- what is refused ----------------------------------------------------------------------------


def entry(*numbers: int, layout: str) -> bytes:
    """A file with the key ``k`` and whatever follows it."""
    return gguf_bytes([string("k") + struct.pack(layout, *numbers) + bytes(16)])


def one(ne: Sequence[int], type_id: int = F32, offset: int = 0, name: str = "a") -> bytes:
    """A file with one tensor, 32 bytes of data from byte 64 on (for a name of one letter, one dim)."""
    return gguf_bytes([], [tensor(name, ne, type_id, offset)], bytes(32))


BAD = {
    "other magic": (b"GGML" + gguf_bytes([ARCH])[4:], r"starts with b'GGML', expected b'GGUF' \(at byte 0\)"),
    "three bytes": (b"GGU", r"the magic takes 4 bytes, but the file ends after 3 \(at byte 0\)"),
    "version 1": (gguf_bytes([ARCH], version=1), r"is GGUF version 1, expected 2 or 3 \(at byte 4\)"),
    "version 4": (gguf_bytes([ARCH], version=4), r"is GGUF version 4, expected 2 or 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF"),
    "no counts": (b"GGUF\x03\0\0\0", "the number of tensors takes 8 bytes, but the file ends after 0"),
    "many tensors": (gguf_bytes([ARCH], n_tensors=2**40), r"claims 1099511627776 tensors.*\(at byte 8\)"),
    "negative count": (gguf_bytes([ARCH], n_kv=2**64 - 1), r"claims 18446744073709551615 metadata entries"),
    "one entry too many": (
        gguf_bytes([ARCH], n_kv=2),
        r"the length of the key of metadata entry 1|has a length of 0",
    ),
    "empty key": (
        gguf_bytes([ARCH, kv("", "u32", 1)]),
        r"metadata entry 1 has a length of 0 bytes, expected 1 to 65535",
    ),
    "long key": (gguf_bytes([kv("k" * 65536, "u32", 1)]), "length of 65536 bytes, expected 1 to 65535"),
    "key twice": (
        gguf_bytes([ARCH, ARCH]),
        r"metadata key 'general\.architecture' appears twice \(at byte 69\)",
    ),
    "key no UTF-8": (gguf_bytes([kv(b"\xff\xfe", "u32", 1)]), r"entry 0 is not valid UTF-8 \(at byte 32\)"),
    "key with NUL": (gguf_bytes([kv("a\0b", "u32", 1)]), "contains a NUL character"),
    "huge key length": (
        gguf_bytes([struct.pack("<Q", 2**63) + bytes(30)]),
        "has a length of 9223372036854775808 bytes",
    ),
    "type 13": (
        entry(13, 0, layout="<II"),
        r"key 'k' has unknown value type 13, expected 0 to 12 \(at byte 33\)",
    ),
    "element type 77": (entry(9, 77, 0, layout="<IIQ"), "key 'k' has unknown element type 77"),
    "nested array": (entry(9, 9, 0, layout="<IIQ"), "key 'k' is an array of arrays"),
    "long array": (
        entry(9, 12, 2**61, layout="<IIQ"),
        r"claims 2305843009213693952 elements of f64, but only \d+ bytes",
    ),
    "long string array": (entry(9, 8, 2**60, layout="<IIQ"), r"key 'k' claims 1152921504606846976 strings"),
    "string past the end": (
        entry(8, 1000, layout="<IQ"),
        r"the string of key 'k' takes 1000 bytes, but the file ends",
    ),
    "element past the end": (
        gguf_bytes([string("k") + struct.pack("<IIQ", 9, 8, 2) + string("ok") + struct.pack("<Q", 500)]),
        r"string 1 of 2 of key 'k' takes 500 bytes, but the file ends after \d+ \(at byte 59\)",
    ),
    "element of huge length": (
        gguf_bytes([string("k") + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", 2**56) + bytes(16)]),
        r"string 0 of 2 of key 'k' takes 72057594037927936 bytes",
    ),
    "bool of 2": (gguf_bytes([kv("k", "bool", 2)]), "key 'k' is a bool of byte value 2, expected 0 or 1"),
    "bools of 3": (
        gguf_bytes([kv("k", "arr[bool]", [1, 0, 3])]),
        r"key 'k': element 2 is a bool of byte value 3",
    ),
    "alignment 0": (
        gguf_bytes([kv("general.alignment", "u32", 0)]),
        r"'general.alignment' is 0, expected a power of two",
    ),
    "alignment 48": (
        gguf_bytes([kv("general.alignment", "u32", 48)]),
        r"is 48, expected a power of two of at least 8",
    ),
    "alignment u64": (gguf_bytes([kv("general.alignment", "u64", 32)]), "is of type u64, expected u32"),
    "split": (gguf_bytes([kv("split.count", "u16", 3)]), "is one of 3 parts of a split GGUF"),
    "name twice": (
        gguf_bytes([], [tensor("a", (1,), F32, 0), tensor("a", (1,), F32, 32)], bytes(64)),
        "tensor name 'a' appears twice",
    ),
    "long name": (one((1,), name="n" * 64), "has a length of 64 bytes, expected 1 to 63"),
    "no dims": (
        gguf_bytes([], [tensor("a", (), F32, 0) + bytes(8)], bytes(32)),
        "tensor 'a' has 0 dims, expected 1 to 4",
    ),
    "five dims": (one((1,) * 5), "tensor 'a' has 5 dims, expected 1 to 4"),
    "dim of 0": (one((4, 0)), r"dim 1 of tensor 'a' is 0 \(at byte 45\)"),
    "overflow": (one((2**40, 2**40)), r"dims \[1099511627776, 1099511627776\] has more than 2\^63"),
    "half a block": (one((48,), 2), "dim 0 of tensor 'a' is 48, expected a multiple of 32 for q4_0"),
    "unknown type": (one((1,), 99), r"tensor 'a' is of type 99 \(unknown\)"),
    "removed type": (one((32,), 31), r"type 31 \(q4_0_4_4, which ggml no longer reads\)"),
    "odd offset": (one((1,), offset=4), "offset 4 of tensor 'a' is not a multiple of the alignment 32"),
    "offset outside": (one((1,), offset=1024), r"tensor 'a' take bytes 1088 to 1092, but the file has 96"),
    "huge offset": (one((1,), offset=2**64 - 32), "but the file has 96"),
    "cut data": (one((9,)), "take bytes 64 to 100, but the file has 96"),
    "overlap": (
        gguf_bytes([], [tensor("a", (1,), F32, 32), tensor("b", (9,), F32, 0)], bytes(64)),
        "the data of tensors 'b' and 'a' overlap",
    ),
    "line break in a name": (one((1,), 99, name="a\nb"), r"tensor 'a\\nb' is of type 99"),
}


@pytest.mark.parametrize("fault", BAD)
def test_refuses(save, fault: str) -> None:
    data, message = BAD[fault]
    path = save(data)
    with pytest.raises(GGUFError, match=message) as caught:
        GGUFFile.open(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.isprintable(), "one line"
    assert "(at byte " in text or "at byte" in text


def test_bad_utf8_in_a_value_is_found_when_it_is_read(save) -> None:
    entries = [kv("s", "str", b"ab\xff"), kv("w", "arr[str]", [b"ok", b"\xc3", b"x"])]
    path = save(gguf_bytes(entries))
    data = path.read_bytes()
    file = GGUFFile.open(path)
    with pytest.raises(GGUFError, match=rf"key 's': .*not valid UTF-8 \(at byte {data.index(b'ab')}\)"):
        _ = file.metadata["s"].value
    words = file.metadata["w"].value
    assert words[0] == "ok" and words[2] == "x" and words.raw(1) == b"\xc3"
    expected = rf"key 'w': string 1 is not valid UTF-8 \(at byte {data.index(bytes([0xC3]))}\)"
    for read in (words.tolist, lambda: words[1], lambda: words[-2]):
        with pytest.raises(GGUFError, match=expected):
            read()


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match="is a directory"):
        GGUFFile.open(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match="the file is empty"):
        GGUFFile.open(tmp_path / "empty.gguf")
    with pytest.raises(GGUFError, match="cannot read the file"):
        GGUFFile.open("a\0b")
    with pytest.raises(GGUFError, match=r"no such file|cannot read the file"):
        GGUFFile.open(tmp_path / "empty.gguf" / "below")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="is not a regular file"):
        GGUFFile.open(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(save) -> None:
    path = save(gguf_bytes([ARCH]))
    path.chmod(0)
    with pytest.raises(GGUFError, match="no permission"):
        GGUFFile.open(path)


def test_one_part_of_one_is_no_split(save) -> None:
    assert GGUFFile.open(save(gguf_bytes([kv("split.count", "u16", 1)]))).metadata["split.count"].value == 1


def test_every_truncation_is_refused(save) -> None:
    entries = [ARCH, kv("w", "arr[str]", ["one", "two"]), kv("n", "arr[u16]", [1, 2]), kv("x", "f64", 1)]
    data = gguf_bytes(entries, [tensor("a", (32, 2), 8, 0)], bytes(68))
    GGUFFile.open(save(data))
    for end in range(len(data)):
        with pytest.raises(GGUFError):
            GGUFFile.open(save(data[:end]))


def test_absurd_counts_take_no_memory(save) -> None:
    paths = []
    for name in (
        "many tensors",
        "negative count",
        "long array",
        "long string array",
        "element of huge length",
    ):
        paths.append(save(BAD[name][0]).rename(save(b"").with_name(f"{name}.gguf")))
    tracemalloc.start()
    try:
        for path in paths:
            with pytest.raises(GGUFError):
                GGUFFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@needs_shared
@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre")
@pytest.mark.parametrize("case", ["dflash_f16/draft.gguf", "dflash_nvfp4/draft.gguf"])
def test_damaged_files_give_clear_errors_only(tmp_path: Path, case: str) -> None:
    path = GOLD / case
    refused, longest = try_variants(path.read_bytes(), header_bytes(path), 1000, 7, tmp_path / "damaged.gguf")
    assert 500 < refused < 1000, "some damages hit values that may be anything"
    assert longest < 2


# --- types --------------------------------------------------------------------------------------


def test_types_agree_with_gguf_py() -> None:
    theirs = {id.value: (id.name.lower(), *gguf.GGML_QUANT_SIZES[id]) for id in gguf.GGML_QUANT_SIZES}
    ours = {t.id: (t.name.lower(), t.block_size, t.block_bytes) for t in GGMLType}
    # gguf-py still has the size that q8_1 had when its scalars were f32; ggml has 2 x f16 + 32 x i8.
    assert ours.pop(9) == ("q8_1", 32, 2 * 2 + 32)
    theirs.pop(9)
    assert set(theirs) <= set(ours)
    assert {id: ours[id] for id in theirs} == theirs
    assert {GGMLType.from_id(id).name for id in set(ours) - set(theirs)} <= {"q2_0", "q1_0", "nvfp4", "mxfp4"}
    assert not set(REMOVED_TYPES) & set(ours)


def test_type_lookups() -> None:
    assert GGMLType.from_id(12) is GGMLType.q4_K is GGMLType["q4_K"]
    assert str(GGMLType.q4_K) == "q4_K" and GGMLType.q4_K.c_name == "GGML_TYPE_Q4_K"
    assert GGMLType.q4_K.is_quantized and not GGMLType.bf16.is_quantized
    assert GGMLType.q4_K.row_bytes(512) == 288
    with pytest.raises(ValueError, match="does not fill whole q4_K blocks"):
        GGMLType.q4_K.row_bytes(100)
    with pytest.raises(ValueError, match="4 is not the id of a ggml type"):
        GGMLType.from_id(4)
    assert GGMLType.i64.numpy_dtype == np.int64 and GGMLType.bf16.numpy_dtype is None


def nvfp4_scalar_by_scalar(block: Sequence[int]) -> list[float]:
    """The definition of ggml's dequantize_row_nvfp4, in plain Python, for one block."""
    doubled = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
    out = [0.0] * 64
    for group in range(4):
        scale = block[group]
        exponent, mantissa = scale >> 3 & 15, scale & 7
        if scale in (0, 0x7F):
            value = 0.0
        elif exponent == 0:
            value = mantissa * 2.0**-9
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        for j in range(8):
            byte = block[4 + group * 8 + j]
            out[group * 16 + j] = doubled[byte & 15] * value / 2
            out[group * 16 + 8 + j] = doubled[byte >> 4] * value / 2
    return out


def test_nvfp4_follows_its_definition() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (64, 36), dtype=np.uint8)
    blocks[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)  # every scale once
    expected = np.array([nvfp4_scalar_by_scalar(block.tolist()) for block in blocks], dtype=np.float32)
    np.testing.assert_array_equal(dequantize_nvfp4(blocks), expected)
    np.testing.assert_array_equal(dequantize_nvfp4(blocks.reshape(16, 144)), expected.reshape(16, 256))


@needs_shared
@pytest.mark.shared
def test_nvfp4_weights_give_the_recorded_activations() -> None:
    """Two matrix products of the recorded run; ggml rounds the activations to 8 bits on the way."""
    tensors = GGUFFile.open(GOLD / "dflash_nvfp4/draft.gguf").tensors
    trace = np.load(GOLD / "dflash_nvfp4/trace.npz")
    fused = trace["inject.inp_g_embeddings"]
    for il in range(2):
        assert tensors[f"blk.{il}.attn_v.weight"].type is GGMLType.nvfp4
        weight, scale = (tensors[f"blk.{il}.attn_v.{part}"].dequantize() for part in ("weight", "scale"))
        expected = trace[f"inject.Vcur_injected-{il}"][:, 0]
        error = fused @ weight.T * scale - expected
        assert np.sum(error**2) / np.sum(expected**2) < 2e-4


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize(
    "case",
    ["targets/ds4_types", "targets/q_base", "dflash_q4_k/draft", "dflash_q6_k/draft", "dflash_bf16/draft"],
)
def test_agrees_with_gguf_py(case: str) -> None:
    path = GOLD / f"{case}.gguf"
    ours, theirs = GGUFFile.open(path), gguf.GGUFReader(path)
    assert len(theirs.tensors) == len(ours.tensors) > 0
    for their in theirs.tensors:
        info = ours.tensors[their.name]
        assert info.ne == tuple(their.shape.tolist())
        assert (info.offset, info.nbytes, info.type.id) == (
            their.data_offset,
            their.n_bytes,
            their.tensor_type,
        )
        if info.type in (GGMLType.i32, GGMLType.i64):
            expected = np.asarray(their.data)
        else:
            expected = gguf.quants.dequantize(their.data, their.tensor_type)
        got = info.dequantize(expected.dtype)
        assert got.shape == info.ne[::-1]
        np.testing.assert_array_equal(got.ravel(), expected.ravel())
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value, expected = ours.metadata[key].value, field.contents()
            assert list(value) == expected if isinstance(expected, list) else value == expected


def test_a_type_without_a_decoder_says_so(save) -> None:
    file = GGUFFile.open(save(gguf_bytes([], [tensor("a", (256,), GGMLType.q8_K.id, 0)], bytes(292))))
    assert len(file.tensors["a"].data()) == 292
    with pytest.raises(GGUFError, match="is of type q8_K, which the installed gguf package cannot decode"):
        file.tensors["a"].dequantize()


# --- speed --------------------------------------------------------------------------------------


def test_a_large_vocabulary_opens_fast(save) -> None:
    n = 150_000
    words = [f"token{i:06}" for i in range(n)]
    path = save(
        gguf_bytes([kv("tokenizer.ggml.tokens", "arr[str]", words), kv("types", "arr[i32]", [1] * n)])
    )
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        file = GGUFFile.open(path)
        seconds.append(time.perf_counter() - start)
    tokens = file.metadata["tokenizer.ggml.tokens"].value
    assert tokens[n - 1] == words[-1] and tokens.tolist() == words
    # 0.02 s on an idle machine; reading token by token as gguf-py does takes seconds.
    assert min(seconds) < 0.3
