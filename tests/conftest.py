"""Real servers, one of each per run. A server that this machine can't run skips its tests with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.wan_origin import WanOrigin
from tests.servers.wan_origin import wan_origin as start_wan_origin


@pytest.fixture(scope="session")
def wan_origin_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WanOrigin]:
    """The one origin of this run; use `wan_origin`, which hands it out in a known state."""
    with start_wan_origin(tmp_path_factory.mktemp("wan"), rtt_ms=0, mbit=0) as origin:
        yield origin


@pytest.fixture
def wan_origin(wan_origin_server: WanOrigin) -> Iterator[WanOrigin]:
    """The origin without round-trip time, cap, faults or counts; put files below a directory of your own in its root."""
    wan_origin_server.heal()
    wan_origin_server.shape(rtt_ms=0, mbit=0, listing="json")
    wan_origin_server.reset_stats()
    yield wan_origin_server
    wan_origin_server.heal()


@pytest.fixture
def wan_root(wan_origin: WanOrigin, tmp_path: Path) -> Path:
    """A directory of this test's own in the origin's root; its URL is `wan_origin.url + "/" + wan_root.name`."""
    root = wan_origin.root / tmp_path.name
    root.mkdir()
    return root
