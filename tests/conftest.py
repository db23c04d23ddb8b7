"""Real servers, one of each per run. A server that this machine can't run skips its tests with the reason."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers import Missing
from tests.servers.etcd import EtcdServer
from tests.servers.etcd import etcd as start_etcd
from tests.servers.hdfs import Hdfs
from tests.servers.hdfs import hdfs as start_hdfs
from tests.servers.nginx import Nginx
from tests.servers.nginx import nginx as start_nginx
from tests.servers.seaweedfs import SeaweedFs
from tests.servers.seaweedfs import seaweedfs as start_seaweedfs
from tests.servers.wan_origin import WanOrigin
from tests.servers.wan_origin import wan_origin as start_wan_origin

T = TypeVar("T")

# Else every run rewrites the assertions of all tests again, and every command that a test starts compiles its modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_LONGEST_FIRST = ("trouble", "mount", "frameworks", "contract", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the directories that take longest: where two processes share the files, neither is left with a long one."""
    items.sort(key=lambda item: _LONGEST_FIRST.index(item.path.parent.name))


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


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """The one nginx of this run; put files below a directory of your own in its root."""
    with or_skip(start_nginx(tmp_path_factory.mktemp("nginx"), tmp_path_factory.mktemp("www"))) as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    """The one S3 server of this run; put objects below a prefix of your own in its bucket."""
    with or_skip(start_seaweedfs(tmp_path_factory.mktemp("seaweedfs"))) as server:
        yield server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """The one etcd of this run; use a prefix of your own."""
    with or_skip(start_etcd(tmp_path_factory.mktemp("etcd"))) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """The one HDFS of this run; put files below a directory of your own."""
    with or_skip(start_hdfs(tmp_path_factory.mktemp("hdfs"))) as server:
        yield server


@contextlib.contextmanager
def or_skip(server: AbstractContextManager[T]) -> Iterator[T]:
    """Run the server, or skip the test where this machine can't."""
    with contextlib.ExitStack() as started:
        try:
            running = started.enter_context(server)
        except Missing as missing:
            pytest.skip(str(missing))
        yield running
