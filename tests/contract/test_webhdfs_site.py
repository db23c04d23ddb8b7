"""WebHDFS beyond the common contract: a real HDFS where it can, a stand-in where that one is too old or has no security."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.servers.hdfs import Hdfs
from vfs.errors import Denied, ForemountError, NotADirectory, NotFound, Stale, Unavailable, WrongAnswer
from vfs.model import Entry, SiteName, SitePath, Version
from vfs.sites.protocol import Site
from vfs.sites.webhdfs import WebHdfsSite

NAME = SiteName("hdfs")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def read(site: Site, path: str, version: Version, offset: int, length: int) -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(SitePath(path), version, offset, length)])


async def listed(site: Site, path: str = "") -> list[Entry]:
    return [entry async for page in site.list(SitePath(path)) for entry in page]


@pytest.fixture
async def site(hdfs: Hdfs, tmp_path: Path) -> AsyncIterator[WebHdfsSite]:
    made = WebHdfsSite(NAME, hdfs.url, root=f"/{tmp_path.name}", user=hdfs.user)
    hdfs.mkdir(f"/{tmp_path.name}")
    yield made
    await made.close()


@pytest.mark.servers
async def test_a_file_of_several_blocks_is_read_across_their_border(hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path) -> None:
    block = 16 << 20
    content = bytes(block - 3) + b"border" + bytes(100)
    hdfs.put(f"/{tmp_path.name}/file", content)
    version = (await site.stat(SitePath("file"))).version
    assert version.size == block + 103
    assert await read(site, "file", version, block - 5, 10) == content[block - 5 : block + 5]


@pytest.mark.servers
async def test_a_file_renamed_over_with_equal_size_and_time_raises_stale(
    hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path
) -> None:
    for name, content in (("file", b"old"), ("fresh", b"new")):
        hdfs.put(f"/{tmp_path.name}/{name}", content)
        hdfs.set_mtime_ms(f"/{tmp_path.name}/{name}", 1_700_000_000_000)
    version = (await site.stat(SitePath("file"))).version
    hdfs.delete(f"/{tmp_path.name}/file")
    hdfs.rename(f"/{tmp_path.name}/fresh", f"/{tmp_path.name}/file")
    with pytest.raises(Stale):
        await read(site, "file", version, 0, 3)
    assert await read(site, "file", (await site.stat(SitePath("file"))).version, 0, 3) == b"new"


@pytest.mark.servers
async def test_a_range_past_the_end_of_a_shorter_file_raises_stale(hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path) -> None:
    hdfs.put(f"/{tmp_path.name}/file", bytes(1000))
    version = (await site.stat(SitePath("file"))).version
    hdfs.put(f"/{tmp_path.name}/file", bytes(10))
    with pytest.raises(Stale):
        await read(site, "file", version, 500, 10)


@pytest.mark.servers
async def test_names_that_the_data_node_would_decode_once_more_bring_their_own_bytes(
    hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path
) -> None:
    hdfs.put(f"/{tmp_path.name}/A", b"wrong")
    hdfs.put(f"/{tmp_path.name}/%41", b"right")
    version = (await site.stat(SitePath("%41"))).version
    assert await read(site, "%41", version, 0, 5) == b"right"


@pytest.mark.servers
async def test_a_user_without_permission_is_denied(hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path) -> None:
    hdfs.put(f"/{tmp_path.name}/private/file", b"secret")
    version = (await site.stat(SitePath("private/file"))).version
    hdfs.chmod(f"/{tmp_path.name}/private", "700")
    stranger = WebHdfsSite(NAME, hdfs.url, root=f"/{tmp_path.name}", user="stranger")
    for call in (
        stranger.stat(SitePath("private/file")),
        read(stranger, "private/file", version, 0, 6),
        listed(stranger, "private"),
    ):
        with pytest.raises(Denied):
            await call
    await stranger.close()


@pytest.mark.servers
async def test_permission_bits_are_reported(hdfs: Hdfs, site: WebHdfsSite, tmp_path: Path) -> None:
    hdfs.put(f"/{tmp_path.name}/file", b"x")
    hdfs.chmod(f"/{tmp_path.name}/file", "640")
    assert (await site.stat(SitePath("file"))).mode == 0o640


async def test_a_name_node_that_is_down_raises_unavailable() -> None:
    site = WebHdfsSite(NAME, "http://127.0.0.1:9", user="me")
    for call in (site.stat(SitePath("file")), listed(site), read(site, "file", Version(10), 0, 10)):
        with pytest.raises(Unavailable):
            await call
    await site.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Start a stand-in whose handler answers every request; return its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def status_of(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "pathSuffix": name, "type": "FILE", "length": 3, "modificationTime": 1_700_000_000_123, "permission": "644",
        "fileId": 16_400,
    } | changed  # fmt: skip


def exception(status: int, name: str) -> web.Response:
    failure = {"exception": name, "javaClassName": f"org.apache.hadoop.{name}", "message": "token hush is bad"}
    return web.json_response({"RemoteException": failure}, status=status)


async def test_a_listing_in_batches_is_followed_to_its_end(serve: Callable[[Handler], Awaitable[str]]) -> None:
    names = [f"f{index}" for index in range(5)]
    asked = []

    async def name_node(request: web.Request) -> web.Response:
        asked.append((request.query["op"], request.query["startAfter"]))
        after = names.index(request.query["startAfter"]) + 1 if request.query["startAfter"] else 0
        page = [status_of(name) for name in names[after : after + 2]]
        listing = {"partialListing": {"FileStatuses": {"FileStatus": page}}, "remainingEntries": max(0, 3 - after)}
        return web.json_response({"DirectoryListing": listing})

    site = WebHdfsSite(NAME, await serve(name_node))
    assert [entry.name for entry in await listed(site)] == names
    assert asked == [("LISTSTATUS_BATCH", ""), ("LISTSTATUS_BATCH", "f1"), ("LISTSTATUS_BATCH", "f3")]
    await site.close()


async def test_a_server_without_batches_is_asked_for_them_once(serve: Callable[[Handler], Awaitable[str]]) -> None:
    asked = []

    async def name_node(request: web.Request) -> web.Response:
        asked.append(request.query["op"])
        if request.query["op"] != "LISTSTATUS":
            return exception(400, "IllegalArgumentException")
        return web.json_response({"FileStatuses": {"FileStatus": [status_of("a"), status_of("b")]}})

    site = WebHdfsSite(NAME, await serve(name_node))
    for _ in range(2):
        assert [entry.name for entry in await listed(site)] == ["a", "b"]
    assert asked == ["LISTSTATUS_BATCH", "LISTSTATUS", "LISTSTATUS"]
    await site.close()


async def test_a_batched_listing_of_a_file_raises_not_a_directory(serve: Callable[[Handler], Awaitable[str]]) -> None:
    async def name_node(request: web.Request) -> web.Response:
        listing = {"partialListing": {"FileStatuses": {"FileStatus": [status_of("")]}}, "remainingEntries": 0}
        return web.json_response({"DirectoryListing": listing})

    site = WebHdfsSite(NAME, await serve(name_node))
    with pytest.raises(NotADirectory):
        await listed(site, "file")
    await site.close()


async def test_a_rejected_token_is_read_again_and_shown_to_nobody(
    serve: Callable[[Handler], Awaitable[str]], tmp_path: Path
) -> None:
    good = "fresh"

    async def name_node(request: web.Request) -> web.Response:
        if request.query.get("delegation") != good:
            return exception(403, "InvalidToken")
        return web.json_response({"FileStatus": status_of("")})

    token = tmp_path / "token"
    token.write_text("hush\n")
    site = WebHdfsSite(NAME, await serve(name_node), token_file=str(token))
    with pytest.raises(Denied) as raised:
        await site.stat(SitePath("file"))
    assert "hush" not in str(raised.value) + repr(site)
    token.write_text("fresh\n")
    assert (await site.stat(SitePath("file"))).version == Version(3, 1_700_000_000_123_000_000, "16400")
    token.write_text("newer\n")
    good = "newer"
    assert (await site.stat(SitePath("file"))).name == "file"
    await site.close()


@pytest.mark.parametrize(
    ("status", "name", "expected"),
    [
        (404, "FileNotFoundException", NotFound),
        (403, "AccessControlException", Denied),
        (401, "SecurityException", Denied),
        (403, "StandbyException", Unavailable),
        (403, "RetriableException", Unavailable),
        (403, "SafeModeException", Unavailable),
        (500, "NeverHeardOf", Unavailable),
        (400, "NeverHeardOf", WrongAnswer),
    ],
)
async def test_a_remote_exception_is_told_by_its_class(
    serve: Callable[[Handler], Awaitable[str]], status: int, name: str, expected: type[ForemountError]
) -> None:
    async def name_node(request: web.Request) -> web.Response:
        return exception(status, name)

    site = WebHdfsSite(NAME, await serve(name_node))
    with pytest.raises(ForemountError) as raised:
        await site.stat(SitePath("file"))
    assert type(raised.value) is expected
    assert "hush" not in str(raised.value)
    await site.close()


async def test_a_404_of_something_that_is_no_webhdfs_does_not_say_that_the_file_is_gone(
    serve: Callable[[Handler], Awaitable[str]],
) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(status=404, text="nginx")

    site = WebHdfsSite(NAME, await serve(other))
    with pytest.raises(WrongAnswer):
        await site.stat(SitePath("file"))
    await site.close()


@pytest.mark.parametrize("body", [b"ab", b"abcd", b""], ids=["short", "long", "empty"])
async def test_a_body_of_another_length_raises_wrong_answer(serve: Callable[[Handler], Awaitable[str]], body: bytes) -> None:
    async def node(request: web.Request) -> web.StreamResponse:
        if request.query["op"] == "GETFILESTATUS":
            return web.json_response({"FileStatus": status_of("")})
        if not request.path.startswith("/data"):
            raise web.HTTPTemporaryRedirect(f"/data{request.path_qs}")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(body)
        return response

    url = await serve(node)

    async def name_node(request: web.Request) -> web.StreamResponse:
        if request.query["op"] == "OPEN":
            raise web.HTTPTemporaryRedirect(f"{url}/data{request.path_qs}")
        return await node(request)

    site = WebHdfsSite(NAME, await serve(name_node))
    version = (await site.stat(SitePath("file"))).version
    with pytest.raises(WrongAnswer):
        await read(site, "file", version, 0, 3)
    await site.close()


@pytest.mark.parametrize("body", [b"{}", b"not json", b'{"FileStatus": {"type": "FILE"}}'])
async def test_what_is_no_status_raises_wrong_answer(serve: Callable[[Handler], Awaitable[str]], body: bytes) -> None:
    async def name_node(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    site = WebHdfsSite(NAME, await serve(name_node))
    with pytest.raises(WrongAnswer):
        await site.stat(SitePath("file"))
    await site.close()
