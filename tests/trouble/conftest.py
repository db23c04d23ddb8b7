"""What tests of trouble have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory of this test's own, gone at its end."""
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        yield Path(made)
