"""One kit for all tests of the folder: contexts are compiled and built once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .models import Kit


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    made = Kit(tmp_path_factory.mktemp("drafting"))
    yield made
    made.close()
