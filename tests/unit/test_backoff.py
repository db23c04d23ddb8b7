"""Waits between attempts."""

from __future__ import annotations

import pytest

from vfs.backoff import doubled_s


@pytest.mark.parametrize(
    ("attempts", "expected_s"),
    [
        pytest.param(1, 0.5, id="first"),
        pytest.param(2, 1.0, id="second"),
        pytest.param(4, 4.0, id="fourth"),
        pytest.param(5, 6.0, id="bounded"),
        pytest.param(100_000, 6.0, id="after a long outage"),
    ],
)
def test_wait_doubles_up_to_its_bound(attempts: int, expected_s: float) -> None:
    assert doubled_s(0.5, 6.0, attempts) == expected_s
