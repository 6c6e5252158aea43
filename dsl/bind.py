"""Fitting a GGUF to an architecture.

:func:`bind` resolves every declared key and tensor against a file and collects everything that does not fit;
:class:`BoundModel` is the result: the values behind the names while graphs are traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import guards
from .arch import Architecture
from .binding import bound
from .dtypes import GGMLType
from .errors import DraftsmithError, GraphError, MetadataError, WeightError
from .expr import PRESENT, Choice, Cond, Flag, Scope, Sym, lift
from .feeds import Feed
from .ir import Block, Kind, Ref, Value
from .specs import REQUIRED, Derived, HparamList, Key, KVCache, LayerKey, Tensor, TensorDim, declared, groups


class MetadataValue(Protocol):
    """A GGUF metadata value: ``type`` as in the specification ("u32", "arr[i32]")."""

    @property
    def type(self) -> str: ...
    @property
    def value(self) -> Any: ...


class TensorInfo(Protocol):
    """A tensor of a GGUF; ``ne`` in ggml order."""

    @property
    def ne(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> GGMLType: ...
    def data(self) -> NDArray[np.uint8]: ...


class ModelFile(Protocol):
    """What binding needs of a GGUF reader."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, MetadataValue]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


@dataclass(frozen=True)
class Options:
    """Settings of a context that a graph may depend on."""

    flash_attn: bool = True
    type_k: GGMLType = GGMLType.f16
    type_v: GGMLType = GGMLType.f16
    rotate: bool = True
    tap_last: bool = False  # whether the stream behind the last layer is tapped: all rows are then needed to the end


@dataclass(frozen=True)
class Problem:
    """One way in which a file does not fit: a line for the user, with the line of Python that asked."""

    text: str
    kind: type[DraftsmithError]


class Weight(Value):
    """A tensor of the file, with the one-element tensors that belong to it."""

    __slots__ = ("_scale", "flag")

    def __init__(self, *args: Any, scale: Value | None = None, flag: Flag | None = None, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self._scale = scale
        self.flag = flag

    @property
    def scale(self) -> Value | None:
        """Multiplies the product with this matrix; None (recorded) when the file has none."""
        if self.flag is None or not self.flag:
            return None
        return self._scale


@dataclass(eq=False)
class BoundModel:
    """An architecture fitted to one file. Cheap: holds no weights."""

    cls: type[Architecture]
    file: ModelFile
    options: Options
    values: dict[tuple[str, str], Any]
    layer_values: list[dict[str, Any]]
    target: BoundModel | None = None
    blocks: dict[str, Block] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    _cache: dict[tuple[str, int | None, str, bool], Weight | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arch = self.cls(self)
        self.group_specs: dict[str, dict[str, Any]] = {
            group.name: {s.name: s for kind in (Tensor, LayerKey, KVCache) for s in declared(group.layer, kind)}
            for group in groups(self.cls)
        }

    @property
    def name(self) -> str:
        return self.cls.variant

    @property
    def layer_count(self) -> Sym:
        count: Sym = self.cls.hparams.n_layer  # type: ignore[attr-defined]
        return count

    @property
    def n_layer(self) -> int:
        return int(self.values[Scope.HPARAM.value, "n_layer"])

    def read_integers(self, tensor: str) -> NDArray[np.int64]:
        """The values of an integer tensor of the file."""
        info = self.file.tensors[tensor]
        return np.frombuffer(info.data(), info.type.numpy_dtype).astype(np.int64)

    def hparam(self, name: str) -> Any:
        """The value of a declared key in this file."""
        return self.values[Scope.HPARAM.value, name]

    @contextmanager
    def binding(self, dims: Mapping[str, int]) -> Iterator[None]:
        """Give names their values: hparams, options, run-time dims."""
        runtime = {(Scope.DIM.value, k): v for k, v in dims.items()}
        with bound({**self.values, **runtime}):
            yield

    def cache_rotation(self, spec: KVCache) -> tuple[bool, bool]:
        """Whether K and V are rotated: quantised type and heads that a Hadamard matrix of 64 divides
        (DFlash specification, KA-1)."""

        def rotated(dtype: GGMLType, head: Sym | None) -> bool:
            if not (self.options.rotate and spec.rotatable and dtype.is_quantized) or head is None:
                return False
            return int(head) % 64 == 0

        with bound(self.values):
            return rotated(self.options.type_k, spec.head_k), rotated(self.options.type_v, spec.head_v)

    def weight(
        self, spec: Tensor, il: int | None, group: str = "layers", index: int = 0, only: bool = False
    ) -> Weight | None:
        """The tensor of a declaration; None for an optional one that is absent (recorded as a choice). ``il``: its
        layer in the file's numbering, which is number ``index`` of its group."""
        key = (spec.name, il, group, only)
        if key not in self._cache:
            self._cache[key] = self._make(spec, il, group, index, only)
        weight = self._cache[key]
        if spec.optional and spec.required_if is None:
            scope = Scope.HPARAM if il is None else Scope.LAYER
            own = tensor_name(spec, il, index) in self.file.tensors
            guards.record(Flag(scope, f"{PRESENT}{spec.name}", own), own)
        if weight is not None and weight.ref is not None and weight.ref.tensor is not None:
            self.read.add(weight.ref.tensor)
        return weight

    def _make(self, spec: Tensor, il: int | None, group: str, index: int, only: bool) -> Weight | None:
        tensor = tensor_name(spec, il, index)
        info = self.file.tensors.get(tensor)
        if info is None:
            return self._borrow(spec) if spec.shared is not None and il is None else None
        scale, flag = None, None
        if spec.scaled:
            base = tensor.removesuffix(".weight")
            present = f"{base}.scale" in self.file.tensors
            flag = Flag(Scope.HPARAM if il is None else Scope.LAYER, f"{PRESENT}{spec.name}_scale", present)
            if present:
                scale = Value(
                    (1,),
                    GGMLType.f32,
                    Kind.WEIGHT,
                    name=f"{spec.name}_scale",
                    ref=Ref(f"{spec.name}_scale", il, f"{base}.scale", group, only),
                )
                self.read.update((f"{base}.scale", f"{base}.input_scale"))
            self.read.add(f"{base}.input_scale")
        return Weight(
            spec.dims,
            info.type,
            Kind.WEIGHT,
            name=spec.name,
            ref=Ref(spec.name, il, tensor, group, only),
            scale=scale,
            flag=flag,
        )

    def _borrow(self, spec: Tensor) -> Weight:
        """The target's tensor for a role. Without a target the shape is the declared one and the type is open: enough
        to trace, print and emit."""
        assert spec.shared is not None
        dtype, present = GGMLType.f32, False
        if self.target is not None:
            lent = self.target.lends(spec.shared)
            dtype = self.target.file.tensors[lent].type
            present = f"{lent.removesuffix('.weight')}.scale" in self.target.file.tensors
        role = spec.shared
        scale = None
        if present:
            scale = Value(
                (1,),
                GGMLType.f32,
                Kind.WEIGHT,
                name=f"{spec.name}_scale",
                ref=Ref(f"{spec.name}_scale", None, f"target:{role}.scale"),
            )
        flag = Flag(Scope.HPARAM, f"{PRESENT}{spec.name}_scale", present) if spec.scaled else None
        return Weight(
            spec.dims,
            dtype,
            Kind.WEIGHT,
            name=spec.name,
            ref=Ref(spec.name, None, f"target:{role}"),
            scale=scale,
            flag=flag,
        )

    def lends(self, role: str) -> str:
        """The GGUF name of what this target lends for a role; WeightError if it has nothing."""
        for name in self.cls.exports.get(role, ()):
            if name in self.file.tensors:
                return name
        raise WeightError(
            f"{self.file.path}: the drafter needs the target's {role}, which {self.name} does not have "
            f"(looked for {', '.join(self.cls.exports.get(role, ())) or 'nothing'})"
        )

    def borrowed(self) -> dict[str, str]:
        """What this drafter takes from its target: name in our graphs -> GGUF name in the target."""
        found: dict[str, str] = {}
        for spec in declared(self.cls, Tensor):
            if spec.shared is not None and spec.tensor not in self.file.tensors and self.target is not None:
                lent = self.target.lends(spec.shared)
                found[f"target:{spec.shared}"] = lent
                scale = f"{lent.removesuffix('.weight')}.scale"
                if scale in self.target.file.tensors:
                    found[f"target:{spec.shared}.scale"] = scale
        return found

    @property
    def needs_target(self) -> bool:
        """Whether anything is missing from the file that only a target can lend."""
        return any(
            spec.shared is not None and spec.tensor not in self.file.tensors for spec in declared(self.cls, Tensor)
        )


def fits(cls: type[Architecture], file: ModelFile) -> bool:
    """Whether a file announces itself as this architecture (it may still have faults)."""
    announced = file.metadata.get("general.architecture")
    if announced is None or announced.value != cls.gguf_arch:
        return False
    present = file.tensors.keys() | file.metadata.keys()
    return all(r in present for r in cls.requires) and not any(f in present for f in cls.forbids)


def bind(
    cls: type[Architecture], file: ModelFile, options: Options | None = None, target: BoundModel | None = None
) -> BoundModel:
    """Fit a file or raise the first problem (MetadataError or WeightError), saying how many more there are."""
    model, problems = examine(cls, file, options, target)
    if problems or model is None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more: `draftsmith inspect`)" if len(problems) > 1 else ""
        raise first.kind(f"{file.path}: {first.text}{more}")
    return model


def examine(
    cls: type[Architecture], file: ModelFile, options: Options | None = None, target: BoundModel | None = None
) -> tuple[BoundModel | None, list[Problem]]:
    """Fit a file and list everything that is missing, of a wrong type or mis-shaped."""
    options = options or Options()
    problems: list[Problem] = []
    values = read_keys(cls, file, problems)
    values |= {
        (Scope.OPTION.value, "flash_attn"): options.flash_attn,
        (Scope.OPTION.value, "tap_last"): options.tap_last,
        (Scope.OPTION.value, "k_quantized"): options.type_k.is_quantized,
        (Scope.OPTION.value, "v_quantized"): options.type_v.is_quantized,
        (Scope.OPTION.value, "k_f32"): options.type_k is GGMLType.f32,
        (Scope.OPTION.value, "v_f32"): options.type_v is GGMLType.f32,
    }
    if (Scope.HPARAM.value, "n_layer") not in values:
        return None, problems
    too_many = list(_too_many_layers(cls, file, values))
    if too_many:
        return None, problems + too_many
    with bound(values):
        n_layer = int(values[Scope.HPARAM.value, "n_layer"])
        try:
            layer_values = _read_layers(cls, file, n_layer, problems)
            _check_tensors(cls, file, n_layer, problems)
        except GraphError:
            if not problems:
                raise  # else it asks for a value that a bad key did not give
    if problems:
        return None, problems
    model = BoundModel(cls, file, options, values, layer_values, target)
    with bound(values):
        problems += [Problem(text, MetadataError) for text in cls.check(model)]
        for spec in declared(cls.layer, KVCache):
            rotate_k, rotate_v = model.cache_rotation(spec)
            values[Scope.OPTION.value, f"rotate_k_{spec.name}"] = rotate_k
            values[Scope.OPTION.value, f"rotate_v_{spec.name}"] = rotate_v
            head = int(spec.head_k) if spec.head_k is not None else 64
            values[Scope.HPARAM.value, f"n_rot_k_{spec.name}"] = hadamard_size(head)
            values[Scope.HPARAM.value, f"n_rot_v_{spec.name}"] = 64
    return model, problems


def hadamard_size(head: int) -> int:
    """Size of the matrix that rotates keys: the largest 64*2^j that divides the head (DFlash specification, KA-2)."""
    n = 64
    while head % (2 * n) == 0:
        n *= 2
    return n


def _too_many_layers(
    cls: type[Architecture], file: ModelFile, values: Mapping[tuple[str, str], Any]
) -> Iterator[Problem]:
    """A layer count that cannot be: everything that follows takes time and memory for each layer."""
    n_layer = int(values[Scope.HPARAM.value, "n_layer"])
    if n_layer > max(1000, len(file.tensors)):
        spec = next(s for s in declared(cls.hparams, Key) if s.name == "n_layer")
        key = spec.key.format(arch=cls.gguf_arch)
        yield Problem(
            f"metadata key {key} = {n_layer}, but the file has {len(file.tensors)} tensors{_asked(spec)}", MetadataError
        )


def _asked(spec: Any) -> str:
    return f" [{spec.position.short}]" if spec.position is not None else ""


_KINDS = {int: "an integer", float: "a number", bool: "a boolean", str: "a string", list: "an array of integers"}


def _convert(kind: type, stored: MetadataValue) -> Any:
    """A stored value as ``kind``, or None when its type does not fit."""
    value = stored.value
    scalar = not stored.type.startswith("arr")
    is_int = stored.type[0] in "ui" and scalar
    if kind is int and is_int:
        return int(value)
    if kind is float and (stored.type[0] == "f" or is_int) and scalar:
        return float(value)
    if kind is bool and stored.type == "bool":
        return bool(value)
    if kind is str and stored.type == "str":
        return str(value)
    if kind is list and stored.type.startswith("arr["):
        items = list(value)
        if stored.type[4] in "ui":
            return [int(v) for v in items]
    return None


def read_keys(cls: type[Architecture], file: ModelFile, problems: list[Problem]) -> dict[tuple[str, str], Any]:
    """The values of all declared keys; adds to ``problems`` what is missing or of a wrong type."""
    values: dict[tuple[str, str], Any] = {}
    for spec in declared(cls.hparams, Key):
        value = _read_key(cls, spec, file, values, problems)
        if value is None:
            continue
        complaint = _out_of_range(value) or (spec.check(value) if spec.check else None)
        if spec.allowed is not None and value not in spec.allowed:
            complaint = f"must be one of {', '.join(map(str, spec.allowed))}"
        if complaint:
            problems.append(
                Problem(
                    f"metadata key {spec.key.format(arch=cls.gguf_arch)} = {value!r} {complaint}{_asked(spec)}",
                    MetadataError,
                )
            )
            continue
        values[Scope.HPARAM.value, spec.name] = value
        if spec.kind is list:
            values[Scope.HPARAM.value, f"n_{spec.name}"] = len(value)
            values |= {(Scope.HPARAM.value, f"{spec.name}_{i}"): item for i, item in enumerate(value)}
    for size in declared(cls.hparams, TensorDim):
        info = file.tensors.get(size.tensor)
        value = info.ne[size.axis] if info is not None and size.axis < len(info.ne) else None
        if value is None and size.default is not None:
            value = _default(cls, size.default, values, problems)
        if value is not None:
            values[Scope.HPARAM.value, size.name] = value
    for formula in declared(cls.hparams, Derived):
        value = _default(cls, formula.compute, values, problems)
        if value is not None:
            values[Scope.HPARAM.value, formula.name] = formula.kind(value)
    return values


_FLOAT_MAX = 3.4028234663852886e38


def _out_of_range(value: Any) -> str | None:
    """A complaint about a number that C++ could not hold (float, int64_t), or that no computation survives."""
    if isinstance(value, list):
        return next((complaint for item in value if (complaint := _out_of_range(item))), None)
    if isinstance(value, float) and not abs(value) <= _FLOAT_MAX:
        return "is not a finite 32-bit number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is beyond 64 signed bits"
    return None


def _read_key(
    cls: type[Architecture],
    spec: Key[Any],
    file: ModelFile,
    values: dict[tuple[str, str], Any],
    problems: list[Problem],
) -> Any:
    key = spec.key.format(arch=cls.gguf_arch)
    stored = file.metadata.get(key)
    if spec.length:
        if stored is not None and stored.type.startswith("arr["):
            return len(stored.value)
        stored = None
    for alias in spec.aliases:
        if stored is None:
            stored = file.metadata.get(alias.format(arch=cls.gguf_arch))
    if stored is None:
        if spec.default is REQUIRED:
            problems.append(
                Problem(f"missing metadata key {key} ({_KINDS[spec.kind]} is required){_asked(spec)}", MetadataError)
            )
            return None
        return _default(cls, spec.default, values, problems)
    value = _convert(spec.kind, stored)
    if value is None:
        problems.append(
            Problem(
                f"metadata key {key}: expected {_KINDS[spec.kind]}, found {stored.type}{_asked(spec)}", MetadataError
            )
        )
    return value


def _default(cls: type[Architecture], default: Any, values: dict[tuple[str, str], Any], problems: list[Problem]) -> Any:
    if not callable(default):
        return default
    try:
        with bound(values):
            result = default(cls.hparams)
            return result.value if isinstance(result, (Sym, Flag, Choice, HparamList, Cond)) else result
    except GraphError:
        return None  # it builds on a key that is itself missing and already reported


def _read_layers(
    cls: type[Architecture], file: ModelFile, n_layer: int, problems: list[Problem]
) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = [{} for _ in range(n_layer)]
    for spec in declared(cls.layer, LayerKey):
        key = spec.key.format(arch=cls.gguf_arch)
        stored = file.metadata.get(key)
        column: list[Any] | None = None
        if stored is None:
            if spec.default is REQUIRED or (spec.required_if is not None and spec.required_if(cls.hparams)):
                problems.append(Problem(f"missing metadata key {key}{_asked(spec)}", MetadataError))
                continue
            default = spec.default(cls.hparams) if callable(spec.default) else spec.default
            column = [default.value if isinstance(default, Sym) else default] * n_layer
        elif stored.type.startswith("arr["):
            items = list(stored.value)
            inner = stored.type[4:-1]
            right = (
                inner == "bool" if spec.kind is bool else (inner[0] in "ui" or (spec.kind is float and inner[0] == "f"))
            )
            if not right:
                problems.append(
                    Problem(
                        f"metadata key {key}: expected an array of {spec.kind.__name__}, found "
                        f"{stored.type}{_asked(spec)}",
                        MetadataError,
                    )
                )
                continue
            if len(items) != n_layer:
                problems.append(
                    Problem(
                        f"metadata key {key}: expected {n_layer} values, one a layer, found {len(items)}{_asked(spec)}",
                        MetadataError,
                    )
                )
                continue
            column = [spec.kind(item) for item in items]
        else:
            value = None if spec.array_only else _convert(spec.kind, stored)
            if value is None:
                problems.append(
                    Problem(
                        f"metadata key {key}: expected an array of {spec.kind.__name__}, one value a layer, "
                        "found a single "
                        f"{stored.type}{_asked(spec)}",
                        MetadataError,
                    )
                )
                continue
            column = [value] * n_layer
        complaint = _out_of_range(column)
        if complaint:
            problems.append(Problem(f"metadata key {key}: a value {complaint}{_asked(spec)}", MetadataError))
            continue
        for il, value in enumerate(column):
            layers[il][spec.name] = value
    return layers


def tensor_name(spec: Tensor, il: int | None, index: int = 0) -> str:
    """The GGUF name of a tensor of layer ``il``, which is number ``index`` of its group."""
    return spec.tensor if il is None else spec.tensor.format(il=il, i=index)


def is_required(cls: type[Architecture], spec: Tensor) -> bool:
    """Whether a file must hold a tensor; needs the values of the hparams to be bound."""
    return not spec.optional if spec.required_if is None else bool(spec.required_if(cls.hparams))


def _sizes(spec: Tensor) -> tuple[int, ...]:
    """The shape in numbers; empty when a key that it depends on is missing (and reported)."""
    try:
        return tuple(int(d.value if isinstance(d, Sym) else d) for d in spec.dims)
    except GraphError:
        return ()


def declared_tensors(cls: type[Architecture], n_layer: int) -> Iterator[tuple[Tensor, str, tuple[int, ...]]]:
    """Every tensor that a file may hold with its GGUF name and shape; needs the values of the hparams to be bound."""
    wanted = [(spec, spec.tensor) for spec in declared(cls, Tensor)]
    for group in groups(cls):
        first = int(lift(group.first))
        for spec in declared(group.layer, Tensor):
            wanted += [(spec, tensor_name(spec, first + i, i)) for i in range(int(group.count))]
    for spec, name in wanted:
        # what is required on a condition must be absent where the condition does not hold
        if spec.required_if is None or is_required(cls, spec):
            yield spec, name, _sizes(spec)


def _check_tensors(cls: type[Architecture], file: ModelFile, n_layer: int, problems: list[Problem]) -> None:
    known: set[str] = set()
    for spec, name, expected in declared_tensors(cls, n_layer):
        known.add(name)
        if spec.scaled:
            for suffix in (".scale", ".input_scale"):
                companion = name.removesuffix(".weight") + suffix
                known.add(companion)
                info = file.tensors.get(companion)
                if info is not None and (info.type is not GGMLType.f32 or info.ne != (1,)):
                    problems.append(
                        Problem(
                            f"tensor {companion}: expected f32[1], found {info.type.name}{list(info.ne)}{_asked(spec)}",
                            WeightError,
                        )
                    )
        info = file.tensors.get(name)
        shape = ", ".join(str(d) for d in spec.dims)
        if info is None:
            if is_required(cls, spec):
                problems.append(
                    Problem(f"missing tensor {name} [{shape}] = {list(expected)}{_asked(spec)}", WeightError)
                )
            continue
        found = tuple(info.ne)
        # files may store trailing ones or not
        if expected and _trim(found) != _trim(expected):
            problems.append(
                Problem(
                    f"tensor {name}: expected shape [{shape}] = {list(expected)}, found {list(found)}{_asked(spec)}",
                    WeightError,
                )
            )
        elif info.type not in spec.types:
            names = (
                ", ".join(t.name for t in spec.types) if len(spec.types) < 6 else "a floating-point or quantised type"
            )
            problems.append(
                Problem(
                    f"tensor {name}: expected element type {names}, found {info.type.name}{_asked(spec)}", WeightError
                )
            )
    for name in file.tensors:
        if name not in known:
            problems.append(Problem(f"unknown tensor {name}: {cls.variant} has no use for it", WeightError))


def _trim(ne: tuple[int, ...]) -> tuple[int, ...]:
    dims = list(ne)
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    return tuple(dims)


def check_readers(model: BoundModel) -> None:
    """Every tensor of the file must have been read by a traced graph (call after tracing all graphs)."""
    unread = [name for name in model.file.tensors if name not in model.read]
    if unread:
        raise WeightError(
            f"{model.file.path}: tensor {unread[0]} is never read by a graph of {model.name}"
            + (f" (and {len(unread) - 1} more)" if len(unread) > 1 else "")
        )
