"""The notification that lets a name expire, and when it is sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vfs.kernel.expire import can_expire, concerns_names, expire, message
from vfs.policy.diff import Change


def test_message_is_what_the_kernel_reads() -> None:
    header = (38).to_bytes(4, "little") + (3).to_bytes(4, "little") + bytes(8)
    assert message(7, b"train") == header + (7).to_bytes(8, "little") + bytes([5, 0, 0, 0, 1, 0, 0, 0]) + b"train\0"


@pytest.mark.parametrize(
    ("release", "can"),
    [("6.18.44-x", True), ("6.2", True), ("6.1.0-13-amd64", False), ("5.17.1", False), ("10.0", True), ("odd", False)],
)
def test_names_expire_since_linux_6_2(release: str, can: bool) -> None:
    assert can_expire(release) is can


@pytest.mark.parametrize(
    ("change", "concerned"),
    [
        (Change("changed", "a", "r", "set.staleness"), True),
        (Change("changed", "a", "r", "set.listing_ttl"), True),
        (Change("changed", "a", "r", "set.deadline"), False),
        (Change("changed", "a", "r", "match.path"), True),
        (Change("added", "a", "r"), True),
        (Change("removed", "a"), True),
        (Change("moved", "a", "r"), True),
    ],
    ids=str,
)
def test_changes_that_can_shorten_belief_concern_names(change: Change, concerned: bool) -> None:
    assert concerns_names([change]) is concerned


def test_connection_that_has_ended_ends_the_sending(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "closed", os.O_CREAT | os.O_RDONLY)
    try:
        assert expire(fd, [(1, b"a"), (1, b"b")]) == 0
    finally:
        os.close(fd)
