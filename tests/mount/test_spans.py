"""Slow operations of a mount that is up, as a collector gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'foremount[otel]'")

from tests.servers.collector import collector

pytestmark = MOUNT


@pytest.mark.slow
def test_read_that_waits_for_its_origin_comes_to_the_collector(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "file").write_bytes(b"x" * 300_000)
    with collector() as receiver:
        config = http_lake(f"{wan_origin.url}/{wan_root.name}") + f'[admin]\ntraces = "{receiver.url}"\n'
        with mounted(config) as lake:
            wan_origin.shape(rtt_ms=300)
            assert len((lake.root / "file").read_bytes()) == 300_000
            waited = wait_until(lambda: [span for span in receiver.spans() if span.name == "read"], "the span of the read")
    assert {each.key for each in waited[0].attributes} >= {"file.path", "foremount.waited.latency"}
