"""python -m tests.gold DIR..."""

import argparse
import sys

from .replay import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gold",
        description="Replay recorded case folders and compare. Exit status: 0 all passed, 1 a comparison failed, "
        "2 a folder could not be read.",
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="a case folder, or a folder with cases below it")
    return run(parser.parse_args().folders)


if __name__ == "__main__":
    sys.exit(main())
