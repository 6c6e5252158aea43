"""``python -m draftsmith``."""

from draftsmith.cli import main

main()
