"""Names and paths that others choose: none leads to another place, whoever states it and in whatever answer.

What is pure is tested where it lives: links of a page (`test_sites_listings.py`), manifests (`test_sites_manifest.py`),
indices and markers of checkpoints (`test_checkpoints_formats.py`, `test_checkpoints_commit.py`), schedules and job
documents (`test_feeds.py`, `test_samples_commands.py`), places of samples (`test_samples_tree.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from aiohttp import web

from tests.contract.test_replica_server import node
from vfs.errors import WrongAnswer
from vfs.model import SiteName, SitePath
from vfs.sites.http import HttpSite
from vfs.sites.protocol import Site
from vfs.sites.s3 import S3Site
from vfs.sites.webhdfs import WebHdfsSite

NAME = SiteName("outside")
BAD = ["..", ".", "a/b", "../up", "/etc/passwd", "nul\0name", "x" * 256, "..\0"]
LONG_AGO = "2026-01-02T03:04:05.000Z"


def nginx(names: list[str]) -> web.Response:
    return web.json_response([{"name": name, "type": "directory"} for name in names])


def page(names: list[str]) -> web.Response:
    rows = "".join(f'<a href="{quote(name)}/">x</a>\n' for name in names)
    return web.Response(text=f"<html><body>{rows}</body></html>", content_type="text/html")


def namenode(names: list[str]) -> web.Response:
    rows = [
        {"pathSuffix": name, "type": "FILE", "length": 1, "modificationTime": 1, "permission": "644", "fileId": row + 1}
        for row, name in enumerate(names)
    ]
    return web.json_response(
        {"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": rows}}, "remainingEntries": 0}}
    )


def bucket(names: list[str]) -> web.Response:
    """XML has no NUL: such a key could not be listed at all."""
    rows = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>1</Size><LastModified>{LONG_AGO}</LastModified>"
        f'<ETag>"e"</ETag></Contents><CommonPrefixes><Prefix>{escape(name)}/</Prefix></CommonPrefixes>'
        for name in names
        if "\0" not in name
    )
    text = f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>'
    return web.Response(text=text, content_type="application/xml")


SITES: dict[str, tuple[Callable[[list[str]], web.Response], Callable[[str], Site]]] = {
    "JSON of nginx": (nginx, lambda url: HttpSite(NAME, f"{url}/root")),
    "a page of links": (page, lambda url: HttpSite(NAME, f"{url}/root")),
    "WebHDFS": (namenode, lambda url: WebHdfsSite(NAME, url)),
}


@pytest.fixture
async def origin() -> AsyncIterator[tuple[str, list[web.Response]]]:
    """Yield the URL of a server, and the list whose only element it answers everything with."""
    answers: list[web.Response] = []

    async def answer(request: web.Request) -> web.Response:
        made = answers[0]
        return web.Response(body=made.body, content_type=made.content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", answers
    await runner.cleanup()


@pytest.mark.parametrize("kind", SITES)
async def test_listing_shows_no_name_that_leads_elsewhere(origin: tuple[str, list[web.Response]], kind: str) -> None:
    url, answers = origin
    answer, build = SITES[kind]
    answers.append(answer([*BAD, "good"]))
    site = build(url)
    try:
        shown = {entry.name async for entries in site.list(SitePath("")) for entry in entries}
    finally:
        await site.close()
    assert shown == {"good"}


async def test_directory_of_a_bucket_with_a_key_that_is_no_path_is_refused_whole(
    origin: tuple[str, list[web.Response]],
) -> None:
    """Its client lists none of it: no name, so none that leads elsewhere, and the reason is said."""
    url, answers = origin
    site = S3Site(NAME, "s3://bucket", endpoint=url, region="x", anonymous=True)
    try:
        for bad in ("..", ".", "a//b", "../up"):
            answers[:] = [bucket([bad, "good"])]
            with pytest.raises(WrongAnswer, match="a key that is no path"):
                async for _ in site.list(SitePath("")):
                    pass
        answers[:] = [bucket(["x" * 256, "good"])]
        assert {entry.name async for entries in site.list(SitePath("")) for entry in entries} == {"good"}
    finally:
        await site.close()


@pytest.mark.parametrize(
    "target",
    ["/../up", "/a/../../up", "/a/%2e%2e/%2e%2e/up", "/%2fetc/up", "/a//up", "/./up", "/nul%00", "/" + "x" * 256],
)
async def test_replica_server_takes_no_name_that_leads_elsewhere(tmp_path: Path, target: str) -> None:
    async with node(tmp_path) as found:
        before = sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
        assert await ask(found.address, "PUT", target, b"x") == 400
        assert await ask(found.address, "GET", "/../tokens") == 404
        assert await ask(found.address, "GET", "/%2e%2e/tokens") == 404
        assert found.server.facts()["objects"] == 0
        assert sorted(str(path) for path in tmp_path.rglob("*") if path.is_file()) == before


async def ask(address: str, method: str, target: str, body: bytes = b"") -> int:
    """Return the status of a request whose target no client library has tidied up."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = f"Host: {address}\r\nAuthorization: Bearer w-token\r\nContent-Length: {len(body)}"
    head = f"{method} {target} HTTP/1.1\r\n{said}\r\n\r\n"
    writer.write(head.encode() + body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status
