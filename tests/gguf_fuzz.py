"""Small GGUF files made by hand, and damaged copies of files.

Run as ``python -m tests.gguf_fuzz FILE... [--variants N]`` to try many more damages than the tests do.
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from draftsmith.dsl.errors import DraftsmithError, GGUFError
from draftsmith.gguf_file import GGUFFile
from draftsmith.tokenizer import load_tokenizer

_FORMATS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "B"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
_EXTREMES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x100,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def kv(key: str | bytes, type: str, value: object) -> bytes:
    """A metadata entry; ``type`` is a scalar's name, ``str``, or ``arr[...]`` of either."""
    if type.startswith("arr["):
        element = type[4:-1]
        assert isinstance(value, Sequence | np.ndarray)
        id = 8 if element == "str" else _FORMATS[element][0]
        payload = struct.pack("<IIQ", 9, id, len(value)) + b"".join(_scalar(element, v) for v in value)
        return string(key) + payload
    id = 8 if type == "str" else _FORMATS[type][0]
    return string(key) + struct.pack("<I", id) + _scalar(type, value)


def _scalar(type: str, value: object) -> bytes:
    if type == "str":
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack("<" + _FORMATS[type][1], value)


def tensor(name: str | bytes, ne: Sequence[int], type_id: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_id, offset)


def gguf_bytes(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    n_tensors: int | None = None,
    n_kv: int | None = None,
) -> bytes:
    """A file of these parts; the counts are those of the parts unless given."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(entries) if n_kv is None else n_kv)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def damaged(data: bytes, header: int, n: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``n`` named variants of ``data``, all with a fault in its first ``header`` bytes or cut short."""
    rng = random.Random(seed)
    for i in range(n):
        kind = i % 4
        at = rng.randrange(header)
        copy = bytearray(data)
        if kind == 0:
            # Mostly in the header; cuts further on hit the data of the last tensors.
            at = at if rng.random() < 0.8 else rng.randrange(len(data))
            yield f"cut at {at}", data[:at]
        elif kind == 1:
            flips = [rng.randrange(header) for _ in range(rng.choice((1, 1, 1, 2, 8)))]
            for flip in flips:
                copy[flip] ^= 1 << rng.randrange(8)
            yield f"bits flipped at {flips}", bytes(copy)
        elif kind == 2:
            width = rng.choice((1, 4, 8))
            value = rng.choice(_EXTREMES) % 2 ** (8 * width)
            copy[at : at + width] = value.to_bytes(width, "little")
            yield f"{width}-byte value {value} at {at}", bytes(copy[: len(data)])
        else:
            end = min(header, at + rng.randrange(1, 64))
            to = rng.randrange(header)
            copy[to : to + end - at] = data[at:end]
            yield f"bytes {at} to {end} copied to {to}", bytes(copy[: len(data)])


def touch_all(gguf: GGUFFile) -> None:
    """Read every value, and decode every tensor that is not large."""
    for value in gguf.metadata.values():
        if value.type == "arr[str]":
            list(value.value)  # type: ignore[arg-type]
        else:
            np.asarray(value.value)
    for info in gguf.tensors.values():
        assert len(info.data()) == info.nbytes
        if info.nbytes < 20_000:
            assert info.dequantize().shape == info.ne[::-1]


def try_variants(data: bytes, header: int, n: int, seed: int, path: Path) -> tuple[int, float]:
    """Try ``n`` damages; return how many were found out and the longest time of one, in seconds.

    Raises whatever a variant raises that is neither a GGUFError of one line (reading the file) nor
    another DraftsmithError of one line (loading the tokenizer), named by the variant.
    """
    refused, longest = 0, 0.0
    for name, variant in damaged(data, header, n, seed):
        path.write_bytes(variant)
        start = time.perf_counter()
        try:
            gguf = GGUFFile.open(path)
            try:
                touch_all(gguf)
            except GGUFError as error:
                _check_message(error, path)
            try:
                load_tokenizer(gguf)
            except DraftsmithError as error:
                _check_message(error, path)
        except GGUFError as error:
            _check_message(error, path)
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error
        longest = max(longest, time.perf_counter() - start)
    return refused, longest


def _check_message(error: DraftsmithError, path: Path) -> None:
    message = str(error)
    assert message.isprintable(), message
    assert len(message) < 600 or "known:" in message, message
    assert str(path) in message, message


def header_bytes(path: Path) -> int:
    """Where the tensor data of a file begin; its size where it has no tensors."""
    gguf = GGUFFile.open(path)
    return min((info.offset for info in gguf.tensors.values()), default=path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for file in args.files:
            data = file.read_bytes()
            start = time.perf_counter()
            refused, longest = try_variants(
                data, header_bytes(file), args.variants, args.seed, Path(folder) / "damaged.gguf"
            )
            print(
                f"{file}: {refused} of {args.variants} refused, longest {longest:.3f} s, "
                f"all {time.perf_counter() - start:.1f} s"
            )


if __name__ == "__main__":
    main()
