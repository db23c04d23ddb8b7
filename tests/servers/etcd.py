"""A real etcd of one member. Ready after some 0.3 s."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.lifecycle import free_ports, program, running, wait_ready

START_S = 20


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """A running member."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Return what the configuration's `store` says."""
        return f"etcd://127.0.0.1:{self.port}"


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[EtcdServer]:
    """Run etcd with its data and log in `directory`.

    Raises:
        Missing: it is not installed.
    """
    binary = program("etcd", "apt-get install etcd-server")
    client, peer = free_ports(2)
    address, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    argv = [binary, f"--data-dir={directory / 'data'}", f"--listen-client-urls={address}", "--name=tests"]
    argv += [f"--advertise-client-urls={address}", f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"]
    argv += [f"--initial-cluster=tests={peers}"]
    log = directory / "etcd.log"
    with running(argv, log, cwd=directory) as child:
        server = EtcdServer(client)
        wait_ready(child, lambda: _is_healthy(server), log, START_S)
        yield server


def _is_healthy(server: EtcdServer) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.endpoint}/health", timeout=1) as answer:
        return bool(json.loads(answer.read())["health"] == "true")
    return False
