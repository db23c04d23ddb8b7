"""The line in front of servers that benchmarks measure against: `tests/servers/far_line.py`."""

from __future__ import annotations

import random
import time
import urllib.request
from pathlib import Path

from tests.servers.far_line import far_line
from tests.servers.wan_origin import WanOrigin


def test_bytes_pass_unchanged_and_pay_round_trips_and_bandwidth(wan_origin: WanOrigin, wan_root: Path) -> None:
    content = random.Random(3).randbytes(2_000_000)
    (wan_root / "file").write_bytes(content)
    with far_line(wan_origin.port, rtt_ms=50, mbit=80) as line:
        begun = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{line.port}/{wan_root.name}/file") as answer:
            assert answer.read() == content
        taken_s = time.monotonic() - begun
        assert line.sent_bytes >= len(content)
    assert taken_s >= 0.1 + 2_000_000 / 10e6  # two round trips, and the bytes at 10 MB/s: never less
