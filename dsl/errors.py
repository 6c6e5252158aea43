"""The errors that Draftsmith raises on purpose.

Each class names the stage that found the fault, so that a message can be read without a
traceback. The command line prints ``str(error)`` and exits with 2; nothing here aborts.
"""

from __future__ import annotations


class DraftsmithError(Exception):
    """Base of every error with a message written for the user."""


class GGUFError(DraftsmithError):
    """A file is not a readable GGUF (truncated, malformed, impossible sizes)."""


class MetadataError(DraftsmithError):
    """A GGUF metadata key is missing, of the wrong type or of a value that is not allowed."""


class WeightError(DraftsmithError):
    """A tensor of the GGUF is missing, mis-shaped, of a wrong type, or never read."""


class ShapeError(DraftsmithError):
    """An op was given operands whose shapes or dtypes do not fit (raised while tracing)."""


class GraphError(DraftsmithError):
    """A graph breaks a rule of the language or fails verification after a pass."""


class ContractError(DraftsmithError):
    """A drafter and its target do not fit each other."""


class RequestError(DraftsmithError):
    """What was asked at run time cannot be done (context full, empty prompt, bad option)."""


class BackendError(DraftsmithError):
    """A device is absent, refuses an op, ran out of memory or failed while computing."""


class BuildError(DraftsmithError):
    """Fetching, verifying, configuring or compiling native code failed."""
