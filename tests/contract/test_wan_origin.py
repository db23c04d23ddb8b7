"""The origin that tests and benchmarks measure against charges what it says."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.servers.wan_origin import Fault, WanOrigin
from vfs.model import SiteName, SitePath
from vfs.sites.http import HttpSite


async def test_a_round_trip_is_charged_for_each_request_and_one_more_for_a_connection(
    wan_origin: WanOrigin, wan_root: Path
) -> None:
    (wan_root / "file").write_bytes(b"x" * 100)
    wan_origin.shape(rtt_ms=50)
    site = HttpSite(SiteName("far"), f"{wan_origin.url}/{wan_root.name}")
    waits = []
    for _ in range(6):
        begun = time.monotonic()
        await site.stat(SitePath("file"))
        waits.append(time.monotonic() - begun)
    await site.close()
    assert waits[0] >= 0.1
    assert 0.05 <= min(waits[1:]) < 0.1


async def test_the_cap_is_shared_by_all_bytes(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "file").write_bytes(bytes(1_000_000))
    wan_origin.shape(mbit=40)
    begun = time.monotonic()
    with urllib.request.urlopen(f"{wan_origin.url}/{wan_root.name}/file") as answer:
        assert len(answer.read()) == 1_000_000
    assert time.monotonic() - begun >= 0.19


def test_requests_and_bytes_are_counted_by_path(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "file").write_bytes(b"0123456789")
    ranged = urllib.request.Request(f"{wan_origin.url}/{wan_root.name}/file", headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(ranged) as answer:
        assert (answer.status, answer.read()) == (206, b"234")
        assert answer.headers["Content-Range"] == "bytes 2-4/10"
    stats = wan_origin.stats()
    assert (stats["requests"], stats["bytes"]) == (1, 3)
    assert stats["by_path"][f"/{wan_root.name}/file"] == {"requests": 1, "bytes": 3, "heads": 0, "gets": 1}


def test_a_fault_strikes_as_often_as_it_may(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "file").write_bytes(b"x")
    wan_origin.inject(Fault("status", status=503, times=2))
    statuses = []
    for _ in range(3):
        try:
            with urllib.request.urlopen(f"{wan_origin.url}/{wan_root.name}/file") as answer:
                statuses.append(answer.status)
        except urllib.error.HTTPError as refused:
            statuses.append(refused.code)
    assert statuses == [503, 503, 200]


@pytest.mark.parametrize("path", ["..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd"])
def test_nothing_outside_the_root_is_served(wan_origin: WanOrigin, path: str) -> None:
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{wan_origin.url}/{path}")
