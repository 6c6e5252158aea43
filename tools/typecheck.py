"""Run mypy --strict on the package.

The import package ``draftsmith`` is made of several top-level folders (pyproject's package-dir); mypy finds modules
by path, so it is shown a folder of links with the layout that an installation has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FARM = ROOT / ".typecheck"


def link_packages() -> Path:
    """``.typecheck/draftsmith`` with every package where an import finds it."""
    layout: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for package, folder in sorted(layout.items()):
        target = FARM / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        wanted = {p.name for p in (ROOT / folder).iterdir() if p.suffix in (".py", ".typed")}
        for stale in target.iterdir():
            if stale.is_symlink() and stale.name not in wanted:
                stale.unlink()
        for name in wanted:
            link = target / name
            if not link.is_symlink():
                link.symlink_to(os.path.relpath(ROOT / folder / name, target))
    return FARM / "draftsmith"


def main() -> int:
    package = link_packages()
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(package)]
    return subprocess.run([*command, *sys.argv[1:]], cwd=FARM, env={**os.environ, "MYPYPATH": str(FARM)}).returncode


if __name__ == "__main__":
    sys.exit(main())
