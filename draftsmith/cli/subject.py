"""What ``emit`` and ``show`` are asked about: an architecture by name, or one fitted to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from draftsmith.dsl.errors import RequestError

if TYPE_CHECKING:
    from draftsmith.dsl.bind import BoundModel, Options
    from draftsmith.dsl.ir import Graph


def describe(
    subject: str,
    target: str | None,
    options: Options,
    observe: Callable[[str, BoundModel, Graph], None] | None = None,
) -> tuple[BoundModel, dict[str, Graph]]:
    """The model and its graphs. ``target``: for a drafter, what it is paired with (name or file, too). ``observe``
    sees each graph as traced and after each pass."""
    from draftsmith.model import trace_all

    lender = None if target is None else _bind(target, options, None)
    model = _bind(subject, options, lender)
    if lender is not None and model.cls.contract is None:
        raise RequestError(f"{subject}: {model.name} is not a drafter, so it has no use for --target")
    seen = None if observe is None else lambda stage, graph: observe(stage, model, graph)
    return model, trace_all(model, observe=seen)


def _bind(subject: str, options: Options, target: BoundModel | None) -> BoundModel:
    from draftsmith import registry
    from draftsmith.canonical import canonical_model
    from draftsmith.dsl.bind import bind
    from draftsmith.gguf_file import GGUFFile

    if _is_file(subject, registry.architectures()):
        file = GGUFFile.open(subject)
        return bind(registry.for_file(file), file, options, target)
    return canonical_model(registry.by_name(subject), options, target)


def _is_file(subject: str, known: object) -> bool:
    assert isinstance(known, dict)
    if subject in known or subject.endswith(".py"):
        return False
    return subject.endswith(".gguf") or os.sep in subject or os.path.exists(subject)
