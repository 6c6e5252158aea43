"""The command line ``draftsmith``: one module for each command.

Nothing heavy is imported before a command runs, so that ``--help`` is immediate.
"""

from __future__ import annotations

from .app import cli


def main() -> None:
    """The entry point of the ``draftsmith`` script; ends the process with the command's exit code."""
    cli.main(prog_name="draftsmith")


__all__ = ["cli", "main"]
