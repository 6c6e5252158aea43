"""One line per comparison, and the count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from draftsmith.dsl.errors import DraftsmithError

from .cases import CaseError


@dataclass
class Report:
    """Counts and prints. ``case`` is the case being replayed."""

    write: Callable[[str], object] = print
    passed: int = 0
    failed: int = 0
    case: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, ok: bool, figure: str, tolerance: str) -> bool:
        """A comparison with its figure and the tolerance it was held to."""
        line = f"{self.case}: {what}: {figure} (tolerance {tolerance})"
        self.write(f"{'ok  ' if ok else 'FAIL'} {line}")
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.failures.append(line)
        return ok

    def equal(self, what: str, found: object, recorded: object) -> bool:
        """A comparison of decisions, where nothing but equality will do."""
        same = found == recorded
        return self.add(what, same, "equal" if same else f"found {found}, recorded {recorded}", "exact")

    def note(self, text: str) -> None:
        """A line that is not a comparison."""
        self.write(f"     {self.case}: {text}")

    def error(self, what: str, problem: str) -> None:
        """A comparison that could not be made."""
        line = f"{self.case}: {what}: {problem}"
        self.write(f"FAIL {line}")
        self.failed += 1
        self.failures.append(line)

    @contextmanager
    def section(self, what: str) -> Iterator[None]:
        """Comparisons that fail together when what they need raises."""
        try:
            yield
        except CaseError:
            raise
        except DraftsmithError as e:
            self.error(what, f"{type(e).__name__}: {e}".splitlines()[0])
        except Exception as e:  # a fault of the engine must not end the replay of the other cases
            self.error(what, f"{type(e).__name__}: {e}")
