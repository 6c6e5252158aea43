"""Draftsmith: model architectures written in Python, run as C++ on ggml.

>>> from draftsmith import Session
>>> session = Session("target.gguf", draft="draft.gguf")          # doctest: +SKIP
>>> print(session.complete("def main", n_predict=64))             # doctest: +SKIP

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftsmith.codegen.native import Backends
    from draftsmith.dsl.dtypes import GGMLType
    from draftsmith.dsl.errors import (
        BackendError,
        BuildError,
        ContractError,
        DraftsmithError,
        GGUFError,
        GraphError,
        MetadataError,
        RequestError,
        ShapeError,
        WeightError,
    )

    from .batch import Batch
    from .context import Context, ContextOptions
    from .gguf_file import GGUFFile
    from .model import Model
    from .pairing import Pairing, pair
    from .session import Report, Session, default_pair
    from .speculative import Speculator, Statistics, Timing
    from .tokenizer import Tokenizer, load_tokenizer

    __version__: str

__all__ = [
    "BackendError",
    "Backends",
    "Batch",
    "BuildError",
    "Context",
    "ContextOptions",
    "ContractError",
    "DraftsmithError",
    "GGMLType",
    "GGUFError",
    "GGUFFile",
    "GraphError",
    "MetadataError",
    "Model",
    "Pairing",
    "Report",
    "RequestError",
    "Session",
    "ShapeError",
    "Speculator",
    "Statistics",
    "Timing",
    "Tokenizer",
    "WeightError",
    "default_pair",
    "load_tokenizer",
    "pair",
]

_HOMES = {
    "draftsmith.batch": "Batch",
    "draftsmith.codegen.native": "Backends",
    "draftsmith.context": "Context ContextOptions",
    "draftsmith.dsl.dtypes": "GGMLType",
    "draftsmith.dsl.errors": (
        "BackendError BuildError ContractError DraftsmithError GGUFError GraphError MetadataError RequestError "
        "ShapeError WeightError"
    ),
    "draftsmith.gguf_file": "GGUFFile",
    "draftsmith.model": "Model",
    "draftsmith.pairing": "Pairing pair",
    "draftsmith.session": "Report Session default_pair",
    "draftsmith.speculative": "Speculator Statistics Timing",
    "draftsmith.tokenizer": "Tokenizer load_tokenizer",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("draftsmith")
    except PackageNotFoundError:
        return "0+unknown"
