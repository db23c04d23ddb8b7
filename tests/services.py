"""All our HTTP services as real ones over TLS: an agent with its admin API, a replica server and a controller, and a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.certificates import LISTENING
from tests.node import NO_LOAD, node
from tests.private import private
from tests.worker import agent

SECRET = "0123456789abcdef0123"
"""Of "tester", who may operate the admin API and signs what the controller is told; the replica server knows w-token."""
_TLS = 'certificate = "{base}/server.pem"\nkey = "{base}/server.key"\nauthority = "{base}/server.authority"\n'
_CONFIG = """
[sites.here]
kind = "local"
path = "{base}"
[[mounts]]
prefix = "/"
site = "here"
[cache]
directory = "{base}/cache"
"""
_SAID = {
    "admin API": r"admin API on https://(\S+)",
    "replica server": r"replica server on (\S+),",
    "controller": r"the controller answers at (\S+)",
}


@contextmanager
def services(base: Path, limits: str = "") -> Iterator[dict[str, str]]:
    """Run them; yields "127.0.0.1:port" by service.

    Args:
        base: an empty directory that has the certificate "server" of an `Authority`.
        limits: a table for the configurations of all of them.
    """
    private(base / "admin.tokens", f"operate tester {SECRET}\n")
    private(base / "replica.tokens", "write w-token\n")
    private(base / "secrets", f"tester {SECRET}\n")
    (base / "lake").mkdir()
    config, own = _CONFIG + limits + LISTENING.replace("TLS", _TLS), _TLS.format(base=base) + limits
    with agent(base, config), node(base, base / "lake", f"{NO_LOAD}\n{own}") as nodes:
        text = (base / "agent.log").read_text()
        found = {name: re.search(pattern, text) for name, pattern in _SAID.items()}
        assert all(found.values()), text
        yield {name: said[1] for name, said in found.items() if said} | {"node": nodes.url.removeprefix("https://")}
