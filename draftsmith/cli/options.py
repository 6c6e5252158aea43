"""Options that commands share, as decorators, and the values they give.

Names follow llama.cpp where it has the option too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from draftsmith.dsl.dtypes import GGMLType

F = TypeVar("F", bound=Callable[..., Any])

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""The names of ``draftsmith.context.KV_TYPES``, here because importing that takes a third of a second."""


_MODEL, _DRAFT, _RUN, _CONTEXT = "Models", "Drafting", "Devices", "Context"
PROMPT, SAMPLING, OUTPUT = "Prompt and length", "Sampling", "Output"
_HEADINGS = [PROMPT, SAMPLING, _MODEL, _DRAFT, _CONTEXT, _RUN, OUTPUT, "Options"]


class GroupedOption(click.Option):
    """An option that knows under which heading ``--help`` lists it."""

    def __init__(self, *args: Any, group: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        # click puts a default that is described and not a value in parentheses
        return record and (record[0], re.sub(r"\[default: \((.*?)\)", r"[default: \1", record[1]))


class GroupedCommand(click.Command):
    """Lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for heading in sorted(groups, key=_HEADINGS.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _probability(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """click.FloatRange lets nan pass."""
    if value is not None and not 0 <= value <= 1:
        raise click.BadParameter(f"{value:g} is not a number from 0 to 1", ctx, param)
    return value


@dataclass(frozen=True)
class CacheSettings:
    """Options that decide which graph is built: attention and cache types, by name; None: not asked for."""

    kv_type: str | None
    type_k: str | None
    type_v: str | None
    flash_attn: str | None

    def chosen(self) -> dict[str, Any]:
        """The fields of ``ContextOptions`` (and of the graph's ``Options``) that were asked for."""
        if self.kv_type and (self.type_k or self.type_v):
            raise click.UsageError("--kv-type sets both cache types; give it, or --ctk and --ctv")
        found: dict[str, Any] = {}
        for name, kind in (("type_k", self.type_k or self.kv_type), ("type_v", self.type_v or self.kv_type)):
            if kind:
                found[name] = _ggml_type(kind)
        if self.flash_attn:
            found["flash_attn"] = self.flash_attn == "on"
        return found


@dataclass(frozen=True)
class SessionSettings:
    """Everything that is asked for when models are loaded; None: not asked for."""

    model: str | None
    draft: str | None
    no_draft: bool
    arch: tuple[str, ...]
    no_mmap: bool
    threads: int
    device: tuple[str, ...]
    rpc: tuple[str, ...]
    n_ctx: int
    n_ubatch: int | None
    n_max: int | None
    n_min: int | None
    p_min: float | None
    cache: CacheSettings

    @property
    def has_drafter(self) -> bool:
        """Whether a drafter takes part: the given one, or that of the embedded pair."""
        return self.draft is not None or (self.model is None and not self.no_draft)

    def check(self) -> None:
        """UsageError for options that exclude one another or would have no effect."""
        if self.draft is not None and self.no_draft:
            raise click.UsageError("--draft and --no-draft exclude one another")
        if not self.has_drafter:
            for name, value in (("--n-max", self.n_max), ("--n-min", self.n_min), ("--p-min", self.p_min)):
                if value is not None:
                    why = "--no-draft is given" if self.no_draft else "no --draft is given"
                    raise click.UsageError(f"{name} is for a drafter, but {why}")
        if self.n_max is not None and self.n_min is not None and self.n_min > self.n_max:
            raise click.UsageError(f"--n-min {self.n_min} is more than --n-max {self.n_max}")
        if self.devices() == () and self.device and self.rpc:
            raise click.UsageError("--device none and --rpc exclude one another")

    def devices(self) -> tuple[str, ...]:
        """The device names asked for, in order of preference; empty: the CPU alone."""
        names = [name.strip() for text in self.device for name in text.split(",")]
        if "" in names:
            raise click.UsageError("--device: an empty name (draftsmith devices lists those there are)")
        if "none" in names:
            if len(names) > 1:
                raise click.UsageError("--device none means the CPU alone; it cannot be combined with other devices")
            return ()
        return tuple(names)


_CACHE_OPTIONS = (
    click.option("--kv-type", type=click.Choice(KV_TYPES), cls=GroupedOption, group=_CONTEXT,
                 show_default="f16", help="Type of the K and V caches."),
    click.option("--ctk", "-ctk", "type_k", type=click.Choice(KV_TYPES), cls=GroupedOption, group=_CONTEXT,
                 metavar="TYPE", help="Type of the K cache alone."),
    click.option("--ctv", "-ctv", "type_v", type=click.Choice(KV_TYPES), cls=GroupedOption, group=_CONTEXT,
                 metavar="TYPE", help="Type of the V cache alone."),
    click.option("-fa", "--flash-attn", type=click.Choice(["on", "off"]), cls=GroupedOption, group=_CONTEXT,
                 show_default="on", help="Attention as one fused op."),
)  # fmt: skip

_SESSION_OPTIONS = (
    click.option("-m", "--model", metavar="FILE", cls=GroupedOption, group=_MODEL,
                 show_default="the embedded pair of target and drafter", help="The target, a GGUF file."),
    click.option("-md", "--draft", metavar="FILE", cls=GroupedOption, group=_MODEL, help="The drafter, a GGUF file."),
    click.option("--no-draft", is_flag=True, cls=GroupedOption, group=_MODEL, help="Run the target alone."),
    click.option("--arch", multiple=True, metavar="FILE.py", cls=GroupedOption, group=_MODEL,
                 help="A Python file with architectures of your own; may be repeated."),
    click.option("--no-mmap", is_flag=True, cls=GroupedOption, group=_MODEL,
                 help="Read the weights into memory instead of mapping the files."),
    click.option("--n-max", "--draft-max", "n_max", type=click.IntRange(min=0), metavar="N", cls=GroupedOption,
                 group=_DRAFT, show_default="what the drafter's block gives", help="Most tokens drafted a round."),
    click.option("--n-min", "--draft-min", "n_min", type=click.IntRange(min=0), metavar="N", cls=GroupedOption,
                 group=_DRAFT, show_default="0", help="Drop drafts that are shorter."),
    click.option("--p-min", "--draft-p-min", "p_min", type=float, metavar="P", callback=_probability,
                 cls=GroupedOption, group=_DRAFT, show_default="0",
                 help="End a draft before a token that the drafter finds less likely."),
    click.option("-t", "--threads", type=click.IntRange(min=0), default=0, metavar="N", cls=GroupedOption, group=_RUN,
                 show_default="one for each physical core", help="Threads of the CPU."),
    click.option("-dev", "--device", multiple=True, metavar="NAME,...", cls=GroupedOption, group=_RUN,
                 help="Devices in order of preference, as `draftsmith devices` names them; `none`: the CPU alone.",
                 show_default="those of --rpc, else none"),
    click.option("--rpc", multiple=True, metavar="HOST:PORT", cls=GroupedOption, group=_RUN,
                 help="Use a ggml RPC server; may be repeated."),
    click.option("-c", "--ctx", "--ctx-size", "n_ctx", type=click.IntRange(min=0), default=0, metavar="N",
                 cls=GroupedOption, group=_CONTEXT, show_default="what the target was trained for",
                 help="Tokens of context."),
    click.option("-ub", "--batch", "--ubatch-size", "n_ubatch", type=click.IntRange(min=1), metavar="N",
                 cls=GroupedOption, group=_CONTEXT, show_default="512", help="Most tokens computed at once."),
)  # fmt: skip


def cache_options(command: F) -> F:
    """Adds ``--kv-type``, ``--ctk``, ``--ctv``, ``--flash-attn`` as one argument ``cache: CacheSettings``."""
    return _collected(command, CacheSettings, "cache", _CACHE_OPTIONS)


def session_options(command: F) -> F:
    """Adds all options about models, drafting, devices and context as one argument ``settings: SessionSettings``."""
    return cache_options(_collected(command, SessionSettings, "settings", _SESSION_OPTIONS))


def verbose_option(command: F) -> F:
    """Adds ``-v`` to a command as well as before it."""

    def remember(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.ensure_object(dict)["verbose"] = True

    text = "Show ggml's log and where everything lies."
    return click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=remember, help=text)(command)


def is_verbose() -> bool:
    """Whether ``-v`` was given, before or behind the command."""
    return bool(click.get_current_context().ensure_object(dict).get("verbose"))


def _collected(command: F, kind: type[Any], name: str, options: tuple[Callable[[Any], Any], ...]) -> F:
    names = [field.name for field in fields(kind)]

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs[name] = kind(**{n: kwargs.pop(n) for n in names})
        return command(*args, **kwargs)

    decorated: Any = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    result: F = decorated
    return result


def _ggml_type(name: str) -> GGMLType:
    from draftsmith.dsl.dtypes import GGMLType

    return GGMLType[name]
