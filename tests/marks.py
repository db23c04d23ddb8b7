"""Marks that many files of tests have in common."""

from __future__ import annotations

import pytest

from tests.lake import why_no_mount

MOUNT = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_mount()), reason=why_no_mount()),
]
"""Of tests with a real mount of root's."""
