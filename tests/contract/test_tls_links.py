"""Each line between our processes over TLS, mutual, with real ones: an agent with its admin API, a replica server and a
controller, and a node; the clients are those that the product has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.certificates import Authority
from tests.node import TOKEN
from tests.private import private
from tests.services import SECRET, services
from vfs.errors import ForemountError, Unavailable
from vfs.foresight.controller.remote import Remote
from vfs.model import SiteName, SitePath
from vfs.samples.nodeclient import NodeClient
from vfs.sites.http import HttpSite
from vfs.tls import NO_FILES, Client, Files
from vfs.training import Training


class Links:
    """The servers, and the authority that all believe.

    Attributes:
        addresses: "127.0.0.1:port" by server.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.ours = Authority(base, "ours")
        self.theirs = Authority(base, "theirs")
        self.addresses: dict[str, str] = {}
        self.good()

    def good(self) -> None:
        """Give the servers a certificate of the authority that all believe."""
        self.ours.issue("server")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    base = tmp_path_factory.mktemp("tls")
    links = Links(base)
    private(base / "headers", "Authorization: Bearer w-token\n")
    private(base / "token", TOKEN)
    with services(base) as links.addresses:
        yield links


@pytest.fixture
def links(started: Links) -> Iterator[Links]:
    yield started
    started.good()


Ask = Callable[[Links, str, Files], Awaitable[object]]


async def ask_admin(links: Links, url: str, files: Files) -> None:
    context = Client(files, "test").context() if url.startswith("https") else None
    request = Request(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {SECRET}"})

    def ask() -> int:
        try:
            with urlopen(request, timeout=10, context=context) as answer:
                return int(answer.status)
        except OSError as exc:
            raise Unavailable(url, str(exc)) from exc

    assert await asyncio.to_thread(ask) == 200


async def ask_replica_server(links: Links, url: str, files: Files) -> None:
    site = HttpSite(SiteName("node"), url, headers_file=str(links.base / "headers"), files=files)
    try:
        assert [page async for page in site.list(SitePath(""))] == []
    finally:
        await site.close()


async def ask_controller(links: Links, url: str, files: Files) -> None:
    remote = Remote([url], {"tester": SECRET.encode()}, files)
    try:
        assert await remote.tell([]) == 0
    finally:
        await remote.close()


async def ask_for_training(links: Links, url: str, files: Files) -> None:
    told = Training("run7", [url], tokens=str(links.base / "secrets"), files=files, timeout_s=10)
    assert "leader" in await asyncio.to_thread(told.ask, "/v1/state")


async def ask_node(links: Links, url: str, files: Files) -> None:
    client = NodeClient(str(links.base / "token"), files)
    try:
        await client.forget(url, "run7")
    finally:
        await client.close()


async def ask_node_for_facts(links: Links, url: str, files: Files) -> None:
    client = NodeClient(str(links.base / "token"), files)
    try:
        assert "jobs" in await client.status(url)
    finally:
        await client.close()


LINKS: dict[str, tuple[str, Ask]] = {
    "people to admin API": ("admin API", ask_admin),
    "agent to replica server": ("replica server", ask_replica_server),
    "agent to controller": ("controller", ask_controller),
    "training to controller": ("controller", ask_for_training),
    "agent to node": ("node", ask_node),
    "agent to node for its facts": ("node", ask_node_for_facts),
}
each_link = pytest.mark.parametrize("link", LINKS)


async def ask(links: Links, link: str, files: Files, *, host: str = "127.0.0.1", scheme: str = "https") -> None:
    server, asking = LINKS[link]
    port = links.addresses[server].rpartition(":")[2]
    await asking(links, f"{scheme}://{host}:{port}", files)


@each_link
async def test_who_shows_a_certificate_of_the_authority_is_answered(links: Links, link: str) -> None:
    await ask(links, link, links.ours.issue("client"))


REFUSED: dict[str, tuple[Callable[[Links], Files], str]] = {
    "no certificate": (lambda links: Files(authority=links.ours.issue("client").authority), "CERTIFICATE_REQUIRED"),
    "another authority's": (lambda links: links.theirs.issue("client", believes=links.ours), "UNKNOWN_CA"),
    "expired": (lambda links: links.ours.issue("client", old=True), "CERTIFICATE_EXPIRED"),
    "believes another": (lambda links: links.ours.issue("client", believes=links.theirs), "CERTIFICATE_VERIFY_FAILED"),
    "believes the system": (lambda links: NO_FILES, "CERTIFICATE_VERIFY_FAILED"),
}


@each_link
@pytest.mark.parametrize("who", REFUSED)
async def test_who_is_not_of_the_authority_or_does_not_believe_it_gets_no_answer(links: Links, link: str, who: str) -> None:
    files, said = REFUSED[who]
    with pytest.raises(ForemountError, match=said):
        await ask(links, link, files(links))


@each_link
async def test_server_of_another_name_is_not_believed(links: Links, link: str) -> None:
    with pytest.raises(ForemountError, match=r"Hostname|IP address|hostname"):
        await ask(links, link, links.ours.issue("client"), host="localhost")


@each_link
async def test_request_without_tls_gets_no_answer(links: Links, link: str) -> None:
    with pytest.raises(ForemountError):
        await ask(links, link, links.ours.issue("client"), scheme="http")


@each_link
async def test_files_that_are_replaced_hold_for_the_next_connection(links: Links, link: str) -> None:
    client = links.ours.issue("client")
    await ask(links, link, client)
    links.ours.issue("server", old=True)
    with pytest.raises(ForemountError, match="certificate has expired"):
        await ask(links, link, client)
    links.ours.issue("server", believes=links.theirs)
    with pytest.raises(ForemountError, match="UNKNOWN_CA"):
        await ask(links, link, client)
    await ask(links, link, links.theirs.issue("client", believes=links.ours))
    Path(links.base / "server.key").write_text("no key")
    await ask(links, link, client)  # the ones before stay in force
