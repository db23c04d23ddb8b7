"""How often and how much each of our HTTP services may be asked, with real ones over TLS: an agent with its admin API, a
controller and a replica server, and a node. Each test asks from an address of its own, and has its own buckets there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.certificates import Authority
from tests.node import TOKEN
from tests.services import SECRET
from tests.services import services as running
from vfs.foresight.signing import signed
from vfs.samples import nodewire
from vfs.tls import Client

LIMITS = "[limits]\nrequests = 5\n"


def bearing(token: str) -> Callable[[str, str, bytes], dict[str, str]]:
    return lambda method, path, body: {"Authorization": f"Bearer {token}"}


def signing(method: str, path: str, body: bytes) -> dict[str, str]:
    return signed({"tester": SECRET.encode()}, method, path, body)


KNOWN = {
    "admin API": ("/v1/jobs", bearing(SECRET)),
    "controller": ("/v1/board", signing),
    "node": (nodewire.STATUS, bearing(TOKEN)),
    "replica server": ("/", bearing("w-token")),
}
each_service = pytest.mark.parametrize("service", KNOWN)
TRIES = 3000
"""More than a burst, and more than what a slow host is given back meanwhile."""


class Services:
    """The servers, by name with their address."""

    def __init__(self, base: Path) -> None:
        self.addresses: dict[str, str] = {}
        ours = Authority(base, "ours")
        ours.issue("server")
        self.files = ours.issue("client")

    @contextlib.asynccontextmanager
    async def caller(self, service: str, address: str) -> AsyncIterator[Caller]:
        connector = aiohttp.TCPConnector(local_addr=(address, 0), ssl=Client(self.files, "test").context())
        async with aiohttp.ClientSession(f"https://{self.addresses[service]}", connector=connector) as session:
            yield Caller(session, *KNOWN[service])


class Caller:
    """Somebody at one address who asks one service."""

    def __init__(
        self, session: aiohttp.ClientSession, path: str, headers: Callable[[str, str, bytes], dict[str, str]]
    ) -> None:
        self._session = session
        self._path = path
        self._headers = headers

    async def ask(
        self, path: str = "", body: bytes = b"", *, method: str = "GET", known: bool = True
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        path = path or self._path
        headers = self._headers(method, path, body) if known else {}
        if body:
            headers["Content-Type"] = "application/json"
        async with self._session.request(method, path, headers=headers, data=body or None) as answer:
            return answer, await answer.read()

    async def status(self, path: str = "", body: bytes = b"", *, method: str = "GET", known: bool = True) -> int:
        return (await self.ask(path, body, method=method, known=known))[0].status

    async def until_refused(self, *, known: bool) -> tuple[aiohttp.ClientResponse, bytes]:
        """Ask until it has been too often; return that answer."""
        for _ in range(TRIES):
            answer, body = await self.ask(known=known)
            if answer.status == 429:
                return answer, body
            assert answer.status in ((200,) if known else (401, 403))
        raise AssertionError("was never refused")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    found = Services(base := tmp_path_factory.mktemp("limits"))
    with running(base, LIMITS) as found.addresses:
        yield found


@each_service
async def test_caller_that_asks_too_often_is_refused_and_the_one_at_another_address_is_not(
    services: Services, service: str
) -> None:
    async with services.caller(service, "127.0.0.2") as caller, services.caller(service, "127.0.0.3") as other:
        answer, body = await caller.until_refused(known=True)
        assert int(answer.headers["Retry-After"]) >= 1
        assert json.loads(body)["error"] == {
            "kind": "Throttled",
            "subject": service,
            "reason": "is asked too often",
            "hint": "come again later",
        }
        assert await other.status() == 200


@each_service
async def test_strangers_are_refused_sooner_and_whoever_is_known_at_their_address_is_not(
    services: Services, service: str
) -> None:
    async with services.caller(service, "127.0.0.4") as caller:
        answer, _ = await caller.until_refused(known=False)
        assert int(answer.headers["Retry-After"]) >= 1
        assert await caller.status() == 200


@pytest.mark.parametrize(
    ("service", "method", "path", "size", "status"),
    [
        ("admin API", "POST", "/v1/evict", 1 << 20, 400),  # it is read, and is not what is expected
        ("admin API", "POST", "/v1/evict", (1 << 20) + 1, 413),
        ("controller", "POST", "/v1/reads", 1 << 20, 400),
        ("controller", "POST", "/v1/reads", (1 << 20) + 1, 413),
        ("controller", "POST", "/v1/events", 8 << 20, 200),
        ("controller", "POST", "/v1/events", (64 << 20) + 1, 413),
        ("node", "PUT", "/v1/jobs/run7", 2 << 20, 400),
        ("node", "PUT", "/v1/jobs/run7", (2 << 20) + 1, 413),
    ],
)
async def test_body_may_be_so_large(
    services: Services, service: str, method: str, path: str, size: int, status: int
) -> None:  # fmt: skip
    async with services.caller(service, "127.0.0.5") as caller:
        assert await caller.status(path, b"[" + b" " * (size - 2) + b"]", method=method) == status


async def test_events_that_are_not_signed_are_not_believed_however_large(services: Services) -> None:
    async with services.caller("controller", "127.0.0.6") as caller:
        caller._headers = lambda method, path, body: signing(method, path, b"something else")
        assert await caller.status("/v1/events", b"[" + b" " * (4 << 20) + b"]", method="POST") == 403


async def test_files_of_replica_servers_pass_where_listings_are_refused(services: Services) -> None:
    async with services.caller("replica server", "127.0.0.7") as caller:
        assert await caller.status("/copies/a.bin", b"x" * 100_000, method="PUT") == 201
        await caller.until_refused(known=True)
        for _ in range(30):
            assert (await caller.ask("/copies/a.bin"))[1] == b"x" * 100_000
            assert await caller.status("/copies/a.bin", method="HEAD") == 200
            assert await caller.status("/copies/none.bin") == 404


async def test_groups_of_nodes_pass_where_facts_are_refused(services: Services) -> None:
    async with services.caller("node", "127.0.0.8") as caller:
        await caller.until_refused(known=True)
        for _ in range(30):
            assert await caller.status(nodewire.GROUP.format(job="none", step=0, rank=0)) == 404
