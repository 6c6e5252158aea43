"""From options to a session, with a progress display on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import failure
from .options import SessionSettings, is_verbose

if TYPE_CHECKING:
    from draftsmith.sampling import SamplingOptions
    from draftsmith.session import Session

Progress = Callable[[int, int], None]


def load_architectures(paths: tuple[str, ...]) -> None:
    """Make the architectures of the user's own files known."""
    if paths:
        from draftsmith import registry

        for path in paths:
            registry.load_file(Path(path))


def open_session(
    settings: SessionSettings, quiet: bool = False, sampling: SamplingOptions | None = None
) -> Session:
    """Load what was asked for. Says on standard error what was asked for and cannot be had in full."""
    settings.check()
    from draftsmith.session import Session, default_pair

    load_architectures(settings.arch)
    own_target, own_draft = default_pair()
    target = own_target if settings.model is None else settings.model
    draft = (own_draft if settings.draft is None else settings.draft) if settings.has_drafter else None
    _validate(target, draft)
    options = settings.cache.chosen()
    if settings.n_ubatch is not None:
        options["n_ubatch"] = settings.n_ubatch
    choose_log_level()
    devices = settings.devices() + _rpc_devices(settings)
    with loading_display(not quiet) as progress:
        session = Session(
            target,
            draft,
            threads=settings.threads,
            devices=devices,
            n_max=settings.n_max,
            n_min=settings.n_min or 0,
            p_min=settings.p_min or 0.0,
            sampling=sampling,
            use_mmap=not settings.no_mmap,
            progress=progress,
            n_ctx=settings.n_ctx,
            **options,
        )
    most = session.pairing.max_draft if session.pairing is not None else 0
    if not quiet and (settings.n_max or 0) > most:
        failure.note(f"--n-max {settings.n_max}: a block of this drafter gives {most}, so that is used")
    return session


def _validate(target: str | os.PathLike[str], draft: str | os.PathLike[str] | None) -> None:
    """Find what is wrong with the files before ggml is needed, which may have to be built first."""
    from draftsmith import registry
    from draftsmith.dsl.bind import BoundModel, bind
    from draftsmith.dsl.errors import ContractError
    from draftsmith.gguf_file import GGUFFile
    from draftsmith.pairing import agree

    def fitted(path: str | os.PathLike[str], lender: BoundModel | None = None) -> BoundModel:
        file = GGUFFile.open(path)
        return bind(registry.for_file(file), file, target=lender)

    bound = fitted(target)
    if draft is not None:
        agree(bound, fitted(draft, bound))
    elif bound.cls.contract is not None:
        raise ContractError(f"{target}: {bound.name} is a drafter; give it a target (--model TARGET --draft FILE)")


def choose_log_level() -> None:
    """ggml's own log for ``--verbose``; otherwise nothing, because errors carry what ggml said."""
    from draftsmith.codegen.native import set_log_level

    set_log_level(3 if is_verbose() else 0)


def _rpc_devices(settings: SessionSettings) -> tuple[str, ...]:
    """Make RPC servers known; their devices, unless ``--device`` chooses."""
    if not settings.rpc:
        return ()
    from draftsmith.codegen.native import add_rpc_server
    from draftsmith.ggml import devices, ensure

    install = ensure()
    before = {device.name for device in devices(install)}
    for endpoint in settings.rpc:
        add_rpc_server(endpoint)
    found = tuple(device.name for device in devices(install) if device.name not in before)
    return () if settings.device else found


@contextmanager
def loading_display(wanted: bool) -> Iterator[Progress | None]:
    """A progress display that vanishes when the models are loaded; nothing unless standard error is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars)


class _Bar:
    """One row for each model that is loaded."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._done = 0
        self._task: Any = None
        self._count = 0

    def __call__(self, done: int, total: int) -> None:
        if self._task is None or done < self._done:
            self._count += 1
            self._task = self._bars.add_task("loading the target" if self._count == 1 else "loading the drafter")
        self._done = done
        self._bars.update(self._task, completed=done, total=total)
