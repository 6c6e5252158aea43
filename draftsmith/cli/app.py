"""The group of all commands, and what happens when one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from . import failure

COMMANDS = {
    "generate": ("draftsmith.cli.generate:generate", "Continue a prompt, with or without a drafter."),
    "demo": ("draftsmith.cli.demo:demo", "Run the embedded target and drafter and show what the drafter gains."),
    "list": ("draftsmith.cli.list_architectures:list_command", "List the architectures and what they need."),
    "inspect": ("draftsmith.cli.inspect_gguf:inspect", "Show what is in a GGUF file and what does not fit."),
    "emit": ("draftsmith.cli.emit:emit", "Write the C++ that is generated for an architecture."),
    "show": ("draftsmith.cli.show:show", "Print the graphs of an architecture as text."),
    "check": ("draftsmith.cli.check:check", "Compare native results with NumPy, node by node."),
    "bench": ("draftsmith.cli.bench:bench", "Time prefill, decode and the steps of a draft round."),
    "devices": ("draftsmith.ggml.cli:devices_command", "List the devices that ggml can compute on."),
    "ggml": ("draftsmith.ggml.cli:ggml_group", "Build, inspect or remove the ggml that everything here runs on."),
}
"""Where each command is, and its line in ``--help`` (the first one of its own help), in the order of that list."""


class App(click.Group):
    """Imports a command when it is called; ends every failure in one clear line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the process; with ``standalone_mode=False`` return or raise instead."""

        def run() -> Any:
            return super(App, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run()
        sys.exit(failure.guarded(run))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import draftsmith

        click.echo(f"draftsmith {draftsmith.__version__}")
        ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("-v", "--verbose", is_flag=True, help="Show ggml's log and where everything lies.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Speculative-decoding drafters and the models they serve: Python in, readable C++ on ggml out.

    An architecture is one Python file. Draftsmith turns it into C++ that builds the graph on ggml, compiles that
    once, and runs it. `draftsmith demo` needs no file and shows all of it.
    """
    ctx.obj = {"verbose": verbose}
