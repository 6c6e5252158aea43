"""Reading GGUF files (versions 2 and 3, little-endian), fast and strictly.

Opening a file walks its header only: tensor data stay in the memory map, and the elements of string
arrays (a vocabulary has 150,000 of them) are located but not decoded. Every fault of a file is a
:class:`GGUFError` of one line that says what was found, what was expected, and at which byte.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Limits that the text leaves open
follow ``gguf.cpp`` of ggml 0.25.3.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from draftsmith.dsl.dtypes import REMOVED_TYPES, GGMLType
from draftsmith.dsl.errors import GGUFError
from draftsmith.dsl.nvfp4 import dequantize_nvfp4

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_KEY_BYTES: Final = 65535  # gguf.md
_MAX_NAME_BYTES: Final = 63  # GGML_MAX_NAME less the closing NUL
_MAX_DIMS: Final = 4
_INT64_MAX: Final = 2**63 - 1

# The least bytes that one entry takes; bounds the counts in the header by the size of the file.
_MIN_KV_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8

_STRING: Final = 8
_ARRAY: Final = 9
# GGUF type id -> name (gguf_type_name) and NumPy code.
_SCALARS: Final[dict[int, tuple[str, str]]] = {
    0: ("u8", "<u1"),
    1: ("i8", "<i1"),
    2: ("u16", "<u2"),
    3: ("i16", "<i2"),
    4: ("u32", "<u4"),
    5: ("i32", "<i4"),
    6: ("f32", "<f4"),
    7: ("bool", "?"),
    10: ("u64", "<u8"),
    11: ("i64", "<i8"),
    12: ("f64", "<f8"),
}
_NUMBER_DTYPES: Final = {name: np.dtype(code) for name, code in _SCALARS.values()}
_NUMBER_STRUCTS: Final = {
    name: struct.Struct("<" + code) for name, code in zip(_NUMBER_DTYPES, "BbHhIif?Qqd", strict=True)
}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

Scalar: TypeAlias = int | float | bool | str


class StringArray(Sequence[str]):
    """The strings of an ``arr[str]`` value, decoded one at a time when asked for."""

    __slots__ = ("_buffer", "_ends", "_where")

    def __init__(self, buffer: mmap.mmap, ends: NDArray[np.int64], where: str) -> None:
        """``ends[i]`` is the offset of the length field of string ``i``, ``ends[-1]`` the end of all."""
        self._buffer = buffer
        self._ends = ends
        self._where = where

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError:
            raise self._bad_utf8(index) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"

    def raw(self, index: int) -> bytes:
        """The undecoded bytes of one string."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of an array of {n}")
        index %= n
        return self._buffer[int(self._ends[index]) + 8 : int(self._ends[index + 1])]

    def tolist(self) -> list[str]:
        """All strings; about 0.3 us each. Raises GGUFError where one is not UTF-8."""
        first = int(self._ends[0])
        block = self._buffer[first : int(self._ends[-1])]
        starts = (self._ends[:-1] + (8 - first)).tolist()
        ends = (self._ends[1:] - first).tolist()
        strings: list[str] = []
        try:
            for start, end in zip(starts, ends, strict=True):
                strings.append(block[start:end].decode())
        except UnicodeDecodeError:
            raise self._bad_utf8(len(strings)) from None
        return strings

    def _bad_utf8(self, index: int) -> GGUFError:
        index %= len(self)
        return GGUFError(
            f"{self._where}: string {index} is not valid UTF-8 (at byte {int(self._ends[index]) + 8})"
        )


class Value:
    """One metadata value.

    ``type`` is the GGUF type name (``u32``, ``str``, ``arr[f32]`` ...), ``offset`` the byte of the
    file at which the value starts. ``value`` is an int, float, bool or str; a read-only NumPy array (a
    view of the file) for arrays of numbers; a :class:`StringArray` for arrays of strings. Strings are
    decoded when ``value`` is read, which raises GGUFError if they are not UTF-8.
    """

    __slots__ = ("_value", "_where", "offset", "type")

    def __init__(
        self,
        type: str,
        value: int | float | bool | bytes | NDArray[Any] | StringArray,
        offset: int,
        where: str,
    ) -> None:
        self.type = type
        self.offset = offset
        self._value = value
        self._where = where

    @property
    def value(self) -> Scalar | NDArray[Any] | StringArray:
        if not isinstance(self._value, bytes):
            return self._value
        try:
            return self._value.decode()
        except UnicodeDecodeError:
            raise GGUFError(f"{self._where}: the string is not valid UTF-8 (at byte {self.offset})") from None

    def __repr__(self) -> str:
        return f"Value({self.type}, {self._value!r})"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its place in the file, and access to its data.

    ``ne`` is in ggml's order (dimension 0, the contiguous one, first) and has the 1 to 4 dims that
    the file states. ``offset`` and ``nbytes`` are bytes; ``offset`` counts from the start of the file.
    """

    name: str
    ne: tuple[int, ...]
    type: GGMLType
    offset: int
    nbytes: int
    _buffer: mmap.mmap = field(repr=False, compare=False)
    _path: Path = field(repr=False, compare=False)

    def data(self) -> NDArray[np.uint8]:
        """The stored bytes: a read-only view of the memory map, nothing is copied."""
        return np.frombuffer(self._buffer, dtype=np.uint8, count=self.nbytes, offset=self.offset)

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The elements as numbers, in NumPy's order of axes (``ne`` reversed).

        A read-only view of the file where its elements have the wanted type already. Raises
        GGUFError for a type that has no decoder: q8_1 and q8_K, which are types of activations, and
        those that the installed gguf package does not know (q1_0, q2_0 in 0.19).
        """
        shape = self.ne[::-1]
        plain = self.type.numpy_dtype
        if plain is not None:
            stored: NDArray[Any] = self.data().view(plain).reshape(shape)
            return stored.astype(dtype, copy=False)
        if self.type is GGMLType.bf16:
            # bf16 is the upper half of a float32.
            floats = (self.data().view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            rows = self.data().reshape(-1, self.type.row_bytes(self.ne[0]))
            floats = dequantize_nvfp4(rows) if self.type is GGMLType.nvfp4 else self._by_gguf_py(rows)
        return floats.reshape(shape).astype(dtype, copy=False)

    def _by_gguf_py(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        import gguf  # here, because the import takes 0.2 s
        from gguf import quants

        try:
            # Blocks of damaged scales give inf and nan, as they do in ggml; no reason to warn.
            with np.errstate(all="ignore"):
                floats: NDArray[np.float32] = quants.dequantize(rows, gguf.GGMLQuantizationType(self.type.id))
        except (NotImplementedError, ValueError):
            raise GGUFError(
                f"{self._path}: tensor '{shown(self.name)}' is of type {self.type}, "
                f"which the installed gguf package cannot decode"
            ) from None
        return floats


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """An open GGUF file. The memory map lives as long as this object or any array made from it."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    alignment: int
    """Bytes; each tensor's data start at a multiple of it."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map ``path`` and read its header. Raises GGUFError for anything but a sound GGUF file."""
        place = Path(path)
        reader = _Reader(place, _map(place))
        version, n_tensors, n_kv = reader.header()
        metadata = reader.metadata(n_kv)
        _refuse_split(place, metadata)
        alignment = _alignment(place, metadata)
        tensors = reader.tensors(n_tensors, alignment)
        return cls(place, version, MappingProxyType(metadata), MappingProxyType(tensors), alignment)

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture``; GGUFError where the file does not say it."""
        found = self.metadata.get("general.architecture")
        if found is None:
            raise GGUFError(f"{self.path}: key 'general.architecture' is missing")
        name = found.value
        if not isinstance(name, str):
            raise GGUFError(f"{self.path}: key 'general.architecture' is of type {found.type}, expected str")
        return name


def _map(path: Path) -> mmap.mmap:
    try:
        # Asked before opening: opening a named pipe would wait for a writer.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GGUFError(f"{path}: is a directory, expected a GGUF file")
        if not stat.S_ISREG(mode):
            raise GGUFError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise GGUFError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file") from None
    except PermissionError:
        raise GGUFError(f"{path}: no permission to read the file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise GGUFError(f"{str(path)!r}: cannot read the file: {error}") from None


def _refuse_split(path: Path, metadata: Mapping[str, Value]) -> None:
    count = metadata.get("split.count")
    if count is not None and isinstance(count.value, int) and count.value > 1:
        raise GGUFError(
            f"{path}: is one of {count.value} parts of a split GGUF (key 'split.count', at byte "
            f"{count.offset}), expected a whole file; merge the parts with llama-gguf-split --merge"
        )


def _alignment(path: Path, metadata: Mapping[str, Value]) -> int:
    found = metadata.get("general.alignment")
    if found is None:
        return _DEFAULT_ALIGNMENT
    where = f"{path}: key 'general.alignment'"
    value = found.value
    if found.type != "u32" or not isinstance(value, int):
        raise GGUFError(f"{where} is of type {found.type}, expected u32 (at byte {found.offset})")
    if value < 8 or value & (value - 1):
        raise GGUFError(f"{where} is {value}, expected a power of two of at least 8 (at byte {found.offset})")
    return value


class _Reader:
    """Walks a header from its first byte to its last; ``pos`` is the next byte to read."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.pos = 0

    def fail(self, message: str, at: int | None = None) -> GGUFError:
        return GGUFError(f"{self.path}: {message} (at byte {self.pos if at is None else at})")

    def need(self, n: int, what: str) -> None:
        if n > self.size - self.pos:
            raise self.fail(f"{what} takes {n} bytes, but the file ends after {self.size - self.pos}")

    def u32(self, what: str) -> int:
        self.need(4, what)
        value: int = _U32.unpack_from(self.buffer, self.pos)[0]
        self.pos += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value: int = _U64.unpack_from(self.buffer, self.pos)[0]
        self.pos += 8
        return value

    def string(self, what: str) -> bytes:
        n = self.u64(f"the length of {what}")
        self.need(n, what)
        value = self.buffer[self.pos : self.pos + n]
        self.pos += n
        return value

    def name(self, what: str, limit: int) -> str:
        """A string that must be a proper name: not empty, not long, UTF-8, without NUL."""
        start = self.pos
        n = self.u64(f"the length of {what}")
        if not 0 < n <= limit:
            raise self.fail(f"{what} has a length of {n} bytes, expected 1 to {limit}", start)
        self.pos = start
        try:
            text = self.string(what).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8", start + 8) from None
        if "\0" in text:
            raise self.fail(f"{what} contains a NUL character", start + 8)
        return text

    def header(self) -> tuple[int, int, int]:
        """Return version, number of tensors, number of metadata entries."""
        self.need(4, "the magic")
        magic = self.buffer[:4]
        if magic != _MAGIC:
            raise self.fail(f"is not a GGUF file: it starts with {magic!r}, expected {_MAGIC!r}")
        self.pos = 4
        version = self.u32("the version")
        if version not in _VERSIONS:
            if version & 0xFFFF == 0 and version:
                raise self.fail("is a big-endian GGUF, only little-endian files are supported", 4)
            raise self.fail(f"is GGUF version {version}, expected 2 or 3", 4)
        n_tensors = self.u64("the number of tensors")
        n_kv = self.u64("the number of metadata entries")
        left = self.size - self.pos
        for at, n, least, what in (
            (8, n_tensors, _MIN_TENSOR_BYTES, "tensors"),
            (16, n_kv, _MIN_KV_BYTES, "metadata entries"),
        ):
            if n * least > left:
                raise self.fail(
                    f"claims {n} {what}, more than the {self.size} bytes of the file can hold", at
                )
        return version, n_tensors, n_kv

    def metadata(self, n_kv: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        for i in range(n_kv):
            start = self.pos
            key = self.name(f"the key of metadata entry {i}", _MAX_KEY_BYTES)
            if key in entries:
                raise self.fail(f"metadata key '{shown(key)}' appears twice", start)
            entries[key] = self.value(f"key '{shown(key)}'")
        return entries

    def value(self, what: str) -> Value:
        type_at = self.pos
        type_id = self.u32(f"the type of {what}")
        where = f"{self.path}: {what}"
        start = self.pos
        if type_id == _STRING:
            return Value("str", self.string(f"the string of {what}"), start + 8, where)
        if type_id == _ARRAY:
            return self.array(what, where)
        if type_id not in _SCALARS:
            raise self.fail(f"{what} has unknown value type {type_id}, expected 0 to 12", type_at)
        name = _SCALARS[type_id][0]
        layout = _NUMBER_STRUCTS[name]
        self.need(layout.size, f"the value of {what}")
        if name == "bool" and self.buffer[start] > 1:
            raise self.fail(f"{what} is a bool of byte value {self.buffer[start]}, expected 0 or 1")
        value: int | float | bool = layout.unpack_from(self.buffer, start)[0]
        self.pos += layout.size
        return Value(name, value, start, where)

    def array(self, what: str, where: str) -> Value:
        type_at = self.pos
        type_id = self.u32(f"the element type of {what}")
        count_at = self.pos
        n = self.u64(f"the number of elements of {what}")
        start = self.pos
        left = self.size - start
        if type_id == _ARRAY:
            raise self.fail(f"{what} is an array of arrays, which are not supported", type_at)
        if type_id == _STRING:
            if n * 8 > left:
                raise self.fail(
                    f"{what} claims {n} strings, more than the {left} bytes left can hold", count_at
                )
            ends = self.string_ends(n, what)
            self.pos = int(ends[-1])
            return Value("arr[str]", StringArray(self.buffer, ends, where), start, where)
        if type_id not in _SCALARS:
            raise self.fail(f"{what} has unknown element type {type_id}, expected 0 to 12", type_at)
        name = _SCALARS[type_id][0]
        dtype = _NUMBER_DTYPES[name]
        nbytes = n * dtype.itemsize
        if nbytes > left:
            raise self.fail(f"{what} claims {n} elements of {name}, but only {left} bytes are left", count_at)
        raw = np.frombuffer(self.buffer, dtype=np.uint8, count=nbytes, offset=start)
        if name == "bool" and n and raw.max() > 1:
            bad = int(np.argmax(raw > 1))
            raise self.fail(
                f"{what}: element {bad} is a bool of byte value {raw[bad]}, expected 0 or 1", start + bad
            )
        self.pos += nbytes
        return Value(f"arr[{name}]", raw.view(dtype), start, where)

    def string_ends(self, n: int, what: str) -> NDArray[np.int64]:
        """Offsets of the length fields of ``n`` strings from ``pos`` on, and of the end: n + 1 values.

        A length is known only after the one before it, so the walk cannot be vectorised; but reading
        one byte of each (0.1 us) and checking the other seven at once takes half the time of
        unpacking each length. Strings of 256 bytes or more, and faults, take the plain way.
        """
        try:
            ends = np.fromiter(_short_strings(self.buffer, self.pos, n), dtype=np.int64, count=n + 1)
        except IndexError:
            return self.string_ends_checked(n, what)
        if ends[-1] > self.size:
            return self.string_ends_checked(n, what)
        octets = np.frombuffer(self.buffer, dtype=np.uint8)
        for high in range(1, 8):
            # The last end is no length field; that of an empty string at the end of the file may
            # reach to the last byte, hence no index is out of range once n * 8 bytes are there.
            fields = ends[:-1] + high
            if n and (fields[-1] >= self.size or octets[fields].any()):
                return self.string_ends_checked(n, what)
        return ends

    def string_ends_checked(self, n: int, what: str) -> NDArray[np.int64]:
        ends = np.empty(n + 1, dtype=np.int64)
        unpack = _U64.unpack_from
        buffer, size, pos = self.buffer, self.size, self.pos
        for i in range(n):
            ends[i] = pos
            if size - pos < 8:
                raise self.fail(f"the file ends inside string {i} of {n} of {what}", pos)
            length = unpack(buffer, pos)[0]
            if length > size - pos - 8:
                left = size - pos - 8
                raise self.fail(
                    f"string {i} of {n} of {what} takes {length} bytes, but the file ends after {left}", pos
                )
            pos += 8 + length
        ends[n] = pos
        return ends

    def tensors(self, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        # (name, ne, type, offset in the data section, nbytes, place of the offset field)
        found: dict[str, tuple[tuple[int, ...], GGMLType, int, int, int]] = {}
        for i in range(n_tensors):
            start = self.pos
            name = self.name(f"the name of tensor {i}", _MAX_NAME_BYTES)
            if name in found:
                raise self.fail(f"tensor name '{shown(name)}' appears twice", start)
            found[name] = self.tensor(f"tensor '{shown(name)}'", alignment)
        data_start = -(-self.pos // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, (ne, type, offset, nbytes, at) in found.items():
            begin = data_start + offset
            if begin + nbytes > self.size:
                raise self.fail(
                    f"the data of tensor '{shown(name)}' take bytes {begin} to {begin + nbytes}, "
                    f"but the file has {self.size}",
                    at,
                )
            tensors[name] = TensorInfo(name, ne, type, begin, nbytes, self.buffer, self.path)
        self.refuse_overlap(tensors)
        return tensors

    def tensor(self, what: str, alignment: int) -> tuple[tuple[int, ...], GGMLType, int, int, int]:
        at = self.pos
        n_dims = self.u32(f"the number of dims of {what}")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.fail(f"{what} has {n_dims} dims, expected 1 to {_MAX_DIMS}", at)
        at = self.pos
        ne = tuple(self.u64(f"dim {j} of {what}") for j in range(n_dims))
        n_elements = 1
        for j, n in enumerate(ne):
            n_elements *= n
            if n == 0:
                raise self.fail(f"dim {j} of {what} is 0", at + 8 * j)
            if n_elements > _INT64_MAX:
                raise self.fail(f"{what} of dims {list(ne)} has more than 2^63 elements", at + 8 * j)
        dims_at, at = at, self.pos
        type_id = self.u32(f"the type of {what}")
        try:
            type = GGMLType.from_id(type_id)
        except ValueError:
            known = REMOVED_TYPES.get(type_id)
            why = "unknown" if known is None else f"{known}, which ggml no longer reads"
            raise self.fail(f"{what} is of type {type_id} ({why})", at) from None
        if ne[0] % type.block_size:
            raise self.fail(
                f"dim 0 of {what} is {ne[0]}, expected a multiple of {type.block_size} for {type}", dims_at
            )
        at = self.pos
        offset = self.u64(f"the offset of {what}")
        if offset % alignment:
            raise self.fail(
                f"the offset {offset} of {what} is not a multiple of the alignment {alignment}", at
            )
        return ne, type, offset, n_elements // type.block_size * type.block_bytes, at

    def refuse_overlap(self, tensors: Mapping[str, TensorInfo]) -> None:
        last: TensorInfo | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if last is not None and tensor.offset < last.offset + last.nbytes:
                raise self.fail(
                    f"the data of tensors '{shown(last.name)}' and '{shown(tensor.name)}' overlap",
                    tensor.offset,
                )
            last = tensor


def _short_strings(buffer: mmap.mmap, pos: int, n: int) -> Iterator[int]:
    """The offsets of ``n`` strings and their end, were all shorter than 256 bytes."""
    for _ in range(n):
        yield pos
        pos += 8 + buffer[pos]
    yield pos


def shown(name: str) -> str:
    """A text from a file, fit for one line of a message: escaped, and cut where it is long."""
    text = name if name.isprintable() else name.encode("unicode_escape").decode()
    return text if len(text) <= 100 else text[:97] + "..."
