"""What an architecture declares: metadata keys, tensors, state.

Declarations are descriptors. On a class they are names (``hp.n_embd`` is an expression, usable in shapes);
on a model being traced they are that model's tensors. Nothing here reads a file: :mod:`dsl.bind` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from . import source
from .dtypes import GGMLType
from .expr import Atom, Choice, Flag, Scope, Sym, SymLike

T = TypeVar("T")


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()

ANY_FLOAT = tuple(t for t in GGMLType if t.name[0] not in "i" or t.name.startswith("iq"))
"""Element types that hold real numbers: everything a matrix multiplication can read."""


@dataclass(eq=False)
class Key(Generic[T]):
    """One GGUF metadata key.

    ``key``: GGUF name, ``{arch}`` stands for the architecture's name. ``kind``: int, float, bool, str or list (of
    integers). ``default``: a value, a function of the hparams class, or REQUIRED. ``check``: returns a complaint
    about a bad value or None. ``length``: the value is the length of the array under that key.
    """

    key: str
    kind: type
    default: Any = REQUIRED
    check: Callable[[Any], str | None] | None = None
    allowed: tuple[Any, ...] | None = None
    length: bool = False
    aliases: tuple[str, ...] = ()
    doc: str = ""
    name: str = ""
    position: source.Position | None = field(default_factory=lambda: source.of_declaration())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if self.kind in (int, float):
            return Atom(Scope.HPARAM, self.name, self.kind is float)
        if self.kind is bool:
            return Flag(Scope.HPARAM, self.name)
        if self.kind is str:
            return Choice(Scope.HPARAM, self.name)
        return HparamList(self.name)


class HparamList:
    """A list-valued key. Its numbers are data of the host side (taps), never of the generated source."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def value(self) -> list[int]:
        from .binding import current_value

        return list(current_value(Scope.HPARAM.value, self.name))

    @property
    def length(self) -> Sym:
        """How many entries, as a dim ``n_<name>``."""
        return Atom(Scope.HPARAM, f"n_{self.name}")

    def __getitem__(self, index: int) -> Sym:
        """One entry, as a quantity ``<name>_<index>``."""
        return Atom(Scope.HPARAM, f"{self.name}_{index}")


@dataclass(eq=False)
class Derived:
    """A quantity computed from others: ``compute`` gets the hparams class. ``kind``: int, float or bool."""

    kind: type
    compute: Callable[[Any], Any]
    doc: str = ""
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return Flag(Scope.HPARAM, self.name) if self.kind is bool else Atom(Scope.HPARAM, self.name, self.kind is float)


def derived(kind: type, compute: Callable[[Any], Any], **kw: Any) -> Any:
    return Derived(kind, compute, **kw)


@dataclass(eq=False)
class TensorDim:
    """A size that only a tensor of the file tells: dimension ``axis`` of ``tensor``; ``default`` without it (a
    function of the hparams class; None: the quantity has no value then)."""

    tensor: str
    axis: int
    default: Callable[[Any], Any] | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return Atom(Scope.HPARAM, self.name)


def tensor_dim(tensor: str, axis: int, default: Callable[[Any], Any] | None = None) -> Any:
    return TensorDim(tensor, axis, default)


def _positive(value: int) -> str | None:
    return None if value > 0 else "must be positive"


def u32(key: str, default: Any = REQUIRED, **kw: Any) -> Any:
    """A non-negative integer key; a required one must be positive."""
    kw.setdefault("check", _positive if default is REQUIRED else None)
    return Key(key, int, default, **kw)


def f32(key: str, default: Any = REQUIRED, **kw: Any) -> Any:
    """A real-valued key."""
    return Key(key, float, default, **kw)


def boolean(key: str, default: Any = REQUIRED, **kw: Any) -> Any:
    return Key(key, bool, default, **kw)


def text(key: str, default: Any = REQUIRED, **kw: Any) -> Any:
    return Key(key, str, default, **kw)


def int_list(key: str, default: Any = REQUIRED, **kw: Any) -> Any:
    return Key(key, list, default, **kw)


def length_of(key: str, *aliases: str, **kw: Any) -> Any:
    """The length of an array key, else the value of the first of ``aliases`` (integer keys) that exists."""
    return Key(key, int, REQUIRED, check=_positive, length=True, aliases=aliases, **kw)


@dataclass(eq=False)
class LayerKey:
    """A per-layer quantity: from an array key (or a scalar for all layers), or computed from the hparams.

    ``array_only`` refuses a scalar. ``required_if``: a function of the hparams class that says when the key must
    be there.
    """

    key: str
    kind: type
    default: Any = REQUIRED
    array_only: bool = False
    required_if: Callable[[Any], bool] | None = None
    doc: str = ""
    name: str = ""
    position: source.Position | None = field(default_factory=lambda: source.of_declaration())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


@dataclass(eq=False)
class Tensor:
    """One tensor of the GGUF. ``dims`` in ggml order; ``{il}`` in the name stands for the layer.

    ``companions``: suffixes of one-element tensors that belong to it (``.scale``). ``shared``: the role under
    which a target lends it when the file has none. ``required_if``: a function of the hparams class: the tensor is
    required when it holds and must be absent when it does not.
    """

    tensor: str
    dims: tuple[SymLike, ...]
    optional: bool = False
    types: tuple[GGMLType, ...] = (GGMLType.f32,)
    scaled: bool = False
    shared: str | None = None
    required_if: Callable[[Any], Any] | None = None
    doc: str = ""
    name: str = ""
    position: source.Position | None = field(default_factory=lambda: source.of_declaration())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def base(self) -> str:
        """The GGUF name without ``.weight``."""
        return self.tensor.removesuffix(".weight")

    @overload
    def __get__(self, instance: None, owner: type) -> Tensor: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Any: ...
    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return instance.weight(self, None)  # type: ignore[attr-defined]


def tensor(
    name: str, *dims: SymLike, optional: bool = False, types: tuple[GGMLType, ...] | None = None, **kw: Any
) -> Any:
    """A vector or table that ggml adds or multiplies elementwise: F32 unless ``types`` says otherwise."""
    return Tensor(name, dims, optional, types or (GGMLType.f32,), **kw)


def matrix(name: str, *dims: SymLike, optional: bool = False, scaled: bool = True, **kw: Any) -> Any:
    """A matrix that ggml multiplies or looks rows up in: any type. ``scaled``: may have ``.scale`` and
    ``.input_scale`` beside it (NVFP4 checkpoints; the first multiplies the product, the second is never used)."""
    return Tensor(name, dims, optional, ANY_FLOAT, scaled=scaled, **kw)


@dataclass(eq=False)
class KVCache:
    """Keys and values of one layer, one row a token: ``k`` and ``v`` are row widths.

    ``window``: the sliding window of layers for which the layer flag named ``sliding`` is true; those layers live in
    a cache of their own that keeps only what the window can reach. ``rotatable``: whether quantised cache types are
    rotated (Hadamard), in heads of ``head_k`` and ``head_v``.
    """

    k: Sym
    v: Sym
    window: Sym | None = None
    sliding: str | None = None
    rotatable: bool = True
    head_k: Sym | None = None
    head_v: Sym | None = None
    name: str = ""
    position: source.Position | None = field(default_factory=lambda: source.of_declaration())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


def kv_cache(k: Sym, v: Sym, **kw: Any) -> Any:
    return KVCache(k, v, **kw)


@dataclass(eq=False)
class LayerGroup:
    """A run of alike layers: ``layer`` declares what one of them has, ``count`` how many there are, ``first`` the
    number of the first in GGUF names ({il}; {i} counts from 0 inside the group). Every architecture has the group
    ``layers``; heads may have layers of their own behind the backbone's."""

    layer: type
    count: SymLike
    first: SymLike = 0
    name: str = ""
    position: source.Position | None = field(default_factory=lambda: source.here())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else instance.group(self)  # type: ignore[attr-defined]


def layer_group(layer: type, count: SymLike, first: SymLike = 0) -> Any:
    """Iterating over it is a loop over its layers; ``.only`` is the layer of a group of one."""
    return LayerGroup(layer, count, first)


def groups(cls: Any) -> list[LayerGroup]:
    """All groups of layers of an architecture, its main one first."""
    return [main_group(cls), *declared(cls, LayerGroup)]


def main_group(cls: Any) -> LayerGroup:
    """The group ``layers`` of an architecture: ``n_layer`` times its ``layer`` class."""
    group = LayerGroup(cls.layer, cls.hparams.n_layer)
    group.name = "layers"
    return group


def declared(cls: type, kind: type[Any]) -> Iterator[Any]:
    """Declarations of a kind in a class and its bases, in the order written, bases first; later ones replace."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            if isinstance(value, kind):
                found[attribute] = value
            elif attribute in found:
                del found[attribute]
    yield from found.values()
