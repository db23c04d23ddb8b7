"""The HTTP site against servers that fail, lie and change, and against a real nginx."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.servers.nginx import SECRET, Nginx
from tests.servers.places import FolderPlace
from tests.servers.wan_origin import Fault, WanOrigin
from vfs.errors import Denied, ForemountError, NotFound, Stale, Throttled, Unavailable, WrongAnswer
from vfs.model import Entry, Kind, SiteName, SitePath, Version
from vfs.sites.http import SKIP_BYTES_MAX, HttpSite
from vfs.sites.manifest import ManifestSite
from vfs.sites.protocol import Site

NAME = SiteName("lake")
CONTENT = os.urandom(300_000)


@pytest.fixture
async def site(wan_origin: WanOrigin, wan_root: Path) -> AsyncIterator[HttpSite]:
    made = HttpSite(NAME, f"{wan_origin.url}/{wan_root.name}", stall_timeout_s=0.2)
    (wan_root / "file").write_bytes(CONTENT)
    yield made
    await made.close()


async def version_at(site: Site, path: str = "file") -> Version:
    return (await site.stat(SitePath(path))).version


async def read(site: Site, version: Version, offset: int, length: int, path: str = "file") -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(SitePath(path), version, offset, length)])


async def listed(site: Site, path: str = "") -> list[Entry]:
    return [entry async for page in site.list(SitePath(path)) for entry in page]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(Fault("gzip"), WrongAnswer, id="gzip"),
        pytest.param(Fault("length", delta=1), WrongAnswer, id="announces-one-byte-more"),
        pytest.param(Fault("length", delta=-1), WrongAnswer, id="announces-one-byte-less"),
        pytest.param(Fault("extra", delta=1), WrongAnswer, id="sends-one-byte-more"),
        pytest.param(Fault("range", delta=1), WrongAnswer, id="other-range"),
        pytest.param(Fault("etag"), Stale, id="other-etag"),
        pytest.param(Fault("reset"), Unavailable, id="reset-before-the-headers"),
        pytest.param(Fault("reset", after=1000), WrongAnswer, id="reset-in-the-body"),
        pytest.param(Fault("stall"), Unavailable, id="silent-before-the-headers"),
        pytest.param(Fault("stall", after=1000), Unavailable, id="silent-in-the-body"),
        pytest.param(Fault("status", status=404), NotFound, id="404"),
        pytest.param(Fault("status", status=410), NotFound, id="410"),
        pytest.param(Fault("status", status=401), Denied, id="401"),
        pytest.param(Fault("status", status=403), Denied, id="403"),
        pytest.param(Fault("status", status=412), Stale, id="412"),
        pytest.param(Fault("status", status=429), Throttled, id="429"),
        pytest.param(Fault("status", status=500), Unavailable, id="500"),
        pytest.param(Fault("status", status=503), Unavailable, id="503"),
        pytest.param(Fault("status", status=418), WrongAnswer, id="418"),
    ],
)
async def test_a_fault_while_reading_raises_what_it_means(
    site: HttpSite, wan_origin: WanOrigin, fault: Fault, expected: type[ForemountError]
) -> None:
    version = await version_at(site)
    wan_origin.inject(fault)
    got = b""
    with pytest.raises(ForemountError) as raised:
        async for piece in site.read(SitePath("file"), version, 10, 200_000):
            got += piece
    assert type(raised.value) is expected
    assert CONTENT[10:200_010].startswith(got)
    wan_origin.heal()
    assert await read(site, version, 10, 200_000) == CONTENT[10:200_010]


@pytest.mark.parametrize(("offset", "length"), [(0, 300_000), (0, 10), (70_000, 5), (299_990, 10)])
@pytest.mark.parametrize("kind", ["no_range", "no_length"])
async def test_a_server_that_sends_the_whole_or_no_length_is_read_exactly(
    site: HttpSite, wan_origin: WanOrigin, kind: str, offset: int, length: int
) -> None:
    version = await version_at(site)
    wan_origin.inject(Fault(kind))
    assert await read(site, version, offset, length) == CONTENT[offset : offset + length]


async def test_a_server_without_ranges_is_refused_where_too_much_would_be_thrown_away(
    site: HttpSite, wan_origin: WanOrigin, wan_root: Path
) -> None:
    (wan_root / "big").touch()
    os.truncate(wan_root / "big", SKIP_BYTES_MAX + 100)
    version = await version_at(site, "big")
    wan_origin.inject(Fault("no_range"))
    assert await read(site, version, SKIP_BYTES_MAX, 10, "big") == bytes(10)
    with pytest.raises(WrongAnswer, match="does not serve ranges"):
        await read(site, version, SKIP_BYTES_MAX + 1, 10, "big")


@pytest.mark.parametrize("kind", ["no_range", "no_length"])
async def test_a_replaced_file_raises_stale_even_if_conditions_and_ranges_are_ignored(
    site: HttpSite, wan_origin: WanOrigin, wan_root: Path, kind: str
) -> None:
    version = await version_at(site)
    (wan_root / "file").write_bytes(os.urandom(len(CONTENT)))
    wan_origin.inject(Fault(kind))
    with pytest.raises(Stale):
        await read(site, version, 0, 10)


async def test_a_file_cut_short_raises_stale_for_a_range_past_its_end(site: HttpSite, wan_root: Path) -> None:
    version = await version_at(site)
    os.truncate(wan_root / "file", 100)
    with pytest.raises(Stale):
        await read(site, version, 1000, 10)


async def test_a_server_that_is_down_raises_unavailable_and_never_not_found() -> None:
    site = HttpSite(NAME, "http://127.0.0.1:9/lake")
    for call in (site.stat(SitePath("file")), listed(site), read(site, Version(10), 0, 10)):
        with pytest.raises(Unavailable):
            await call
    await site.close()


async def test_head_that_is_not_allowed_is_replaced_by_a_get_of_one_byte(
    site: HttpSite, wan_origin: WanOrigin, wan_root: Path
) -> None:
    (wan_root / "empty").touch()
    (wan_root / "sub").mkdir()
    expected = [await site.stat(SitePath(path)) for path in ("file", "empty", "sub", "")]
    wan_origin.inject(Fault("no_head"))
    wan_origin.reset_stats()
    assert [await site.stat(SitePath(path)) for path in ("file", "empty", "sub", "")] == expected
    assert wan_origin.stats()["bytes"] == 1


async def test_stat_of_a_file_whose_length_is_not_told_raises_wrong_answer(site: HttpSite, wan_origin: WanOrigin) -> None:
    wan_origin.inject(Fault("gzip"))
    with pytest.raises(WrongAnswer):
        await site.stat(SitePath("file"))


async def test_a_listing_in_json_costs_one_request_for_all_files(
    site: HttpSite, wan_origin: WanOrigin, wan_root: Path
) -> None:
    for index in range(200):
        (wan_root / f"f{index}").touch()
    wan_origin.reset_stats()
    assert len(await listed(site)) == 201
    assert wan_origin.stats()["requests"] == 1


async def test_a_range_costs_one_request_and_its_own_bytes(site: HttpSite, wan_origin: WanOrigin) -> None:
    version = await version_at(site)
    wan_origin.reset_stats()
    await read(site, version, 1000, 5000)
    stats = wan_origin.stats()
    assert (stats["requests"], stats["bytes"]) == (1, 5000)


async def test_connections_are_used_again(site: HttpSite, wan_origin: WanOrigin) -> None:
    version = await version_at(site)
    for offset in range(20):
        await read(site, version, offset, 1000)
    assert wan_origin.stats()["connections"] == 1


async def test_unfinished_listings_do_not_keep_reads_from_a_connection(wan_origin: WanOrigin, wan_root: Path) -> None:
    site = HttpSite(NAME, f"{wan_origin.url}/{wan_root.name}", connections=1)
    (wan_root / "file").write_bytes(CONTENT)
    async with contextlib.AsyncExitStack() as open_listings:
        for _ in range(4):
            pages = await open_listings.enter_async_context(contextlib.aclosing(site.list(SitePath(""))))
            await anext(pages)
        assert await read(site, await version_at(site), 0, 10) == CONTENT[:10]
    await site.close()


async def test_a_listing_that_breaks_off_raises_and_is_not_just_short(
    serve: Callable[..., Awaitable[str]],
) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        return web.Response(text='[{"name": "a", "type": "directory"},', content_type="application/json")

    site = HttpSite(NAME, await serve(cut))
    with pytest.raises(WrongAnswer):
        await listed(site)
    await site.close()


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param("not json", "application/json", id="no-json"),
        pytest.param('{"error": 1}', "application/json", id="no-array"),
        pytest.param('[{"name": 1, "type": "file"}]', "application/json", id="wrong-types"),
        pytest.param('[{"name": "a", "type": "file"}]', "application/json", id="no-size"),
        pytest.param("a b c", "text/plain", id="plain-text"),
    ],
)
async def test_what_is_no_listing_raises_wrong_answer(
    serve: Callable[..., Awaitable[str]], body: str, content_type: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type=content_type)

    site = HttpSite(NAME, await serve(answer))
    with pytest.raises(WrongAnswer):
        await listed(site)
    await site.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Start a server whose handler answers every request; return its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        socket = web.TCPSite(runner, "127.0.0.1", 0)
        await socket.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_names_that_posix_cannot_carry_are_left_out_with_one_warning(
    serve: Callable[..., Awaitable[str]], caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a/b", "..", "", "x" * 256, "good", "bad\\u0000"]
    rows = ", ".join(f'{{"name": "{name}", "type": "directory"}}' for name in names)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            body=b"[" + rows.encode() + b', {"name": "\xff", "type": "directory"}]', content_type="application/json"
        )

    site = HttpSite(NAME, await serve(answer))
    with caplog.at_level(logging.WARNING):
        assert [entry.name for entry in await listed(site)] == ["good"]
    assert len(caplog.records) == 1
    await site.close()


async def test_rows_without_etag_take_it_out_of_stat_so_that_both_agree(serve: Callable[..., Awaitable[str]]) -> None:
    date = "Mon, 02 Nov 2026 10:00:00 GMT"

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/":
            return web.json_response([{"name": "file", "type": "file", "size": 3, "mtime": date}])
        return web.Response(body=b"abc", headers={"ETag": '"content-hash"', "Last-Modified": date})

    site = HttpSite(NAME, await serve(answer))
    (entry,) = await listed(site)
    assert await site.stat(SitePath("file")) == entry
    assert entry.version.etag == ""
    await site.close()


async def test_redirects_are_followed_and_other_hosts_do_not_see_the_credentials(
    serve: Callable[..., Awaitable[str]], tmp_path: Path
) -> None:
    seen: list[tuple[str, str | None]] = []

    async def store(request: web.Request) -> web.Response:
        seen.append(("store", request.headers.get("X-Secret")))
        return web.Response(body=b"abc")

    elsewhere = await serve(store)

    async def front(request: web.Request) -> web.Response:
        seen.append(("front", request.headers.get("X-Secret")))
        raise web.HTTPFound(f"{elsewhere}/blob")

    headers = tmp_path / "headers"
    headers.write_text("X-Secret: hush\n")
    site = HttpSite(NAME, await serve(front), headers_file=str(headers))
    assert (await version_at(site)).size == 3
    assert seen == [("front", "hush"), ("store", None)]
    await site.close()


@pytest.mark.parametrize("location", ["/file", "gopher://x/", "http://[broken"])
async def test_redirects_that_lead_nowhere_raise_wrong_answer(serve: Callable[..., Awaitable[str]], location: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    site = HttpSite(NAME, await serve(answer))
    with pytest.raises(WrongAnswer):
        await site.stat(SitePath("file"))
    await site.close()


async def test_a_file_that_became_a_directory_is_not_found_by_a_read(site: HttpSite, wan_root: Path) -> None:
    version = await version_at(site)
    (wan_root / "file").unlink()
    (wan_root / "file").mkdir()
    with pytest.raises(NotFound):
        await read(site, version, 0, 10)


async def test_a_file_that_vanished_after_it_was_linked_is_left_out(
    wan_origin: WanOrigin, wan_root: Path, site: HttpSite
) -> None:
    (wan_root / "gone").touch()
    wan_origin.shape(listing="html")
    wan_origin.inject(Fault("status", path="*/gone", status=404))
    assert [entry.name for entry in await listed(site)] == ["file"]


async def test_an_html_listing_fails_as_a_whole_when_a_file_cannot_be_asked(wan_origin: WanOrigin, site: HttpSite) -> None:
    wan_origin.shape(listing="html")
    wan_origin.inject(Fault("status", path="*/file", status=503))
    with pytest.raises(Unavailable):
        await listed(site)


async def test_a_large_html_listing_gives_its_first_page_before_all_files_were_asked(
    wan_origin: WanOrigin, wan_root: Path, site: HttpSite
) -> None:
    for index in range(1000):
        (wan_root / f"f{index}").touch()
    wan_origin.shape(listing="html")
    wan_origin.reset_stats()
    async with contextlib.aclosing(site.list(SitePath(""))) as pages:
        await anext(pages)
        assert wan_origin.stats()["requests"] < 400


@pytest.mark.servers
async def test_credentials_are_read_again_when_they_are_rejected(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / tmp_path.name).mkdir()
    (nginx.root / tmp_path.name / "file").write_bytes(CONTENT)
    headers = tmp_path / "headers"
    headers.write_text(f"# rotated daily\n\nX-Secret: {SECRET}\n")
    site = HttpSite(NAME, f"{nginx.url}/secret/{tmp_path.name}", headers_file=str(headers))
    version = await version_at(site)
    headers.write_text("X-Secret: expired key\n")
    assert await read(site, version, 0, 10) == CONTENT[:10]  # nobody rejected the old one
    await site.close()
    site = HttpSite(NAME, f"{nginx.url}/secret/{tmp_path.name}", headers_file=str(headers))
    with pytest.raises(Denied) as raised:
        await site.stat(SitePath("file"))
    assert "expired key" not in str(raised.value) + repr(site)
    headers.write_text(f"X-Secret: {SECRET}\n")
    found = await asyncio.gather(*(read(site, version, offset, 10) for offset in range(20)))
    assert found == [CONTENT[offset : offset + 10] for offset in range(20)]
    await site.close()


async def test_a_missing_headers_file_is_denied_with_its_path(tmp_path: Path) -> None:
    site = HttpSite(NAME, "http://127.0.0.1:9/", headers_file=str(tmp_path / "none"))
    with pytest.raises(Denied, match="none can't be read"):
        await site.stat(SitePath("file"))


async def test_passwords_and_signatures_in_the_url_stay_out_of_repr_and_errors() -> None:
    site = HttpSite(NAME, "http://me:hunter2@127.0.0.1:9/lake?signature=hush")
    with pytest.raises(Unavailable) as raised:
        await site.stat(SitePath("file"))
    shown = repr(site) + str(raised.value)
    assert "hunter2" not in shown
    assert "hush" not in shown
    await site.close()


@pytest.mark.servers
async def test_nginx_says_the_same_in_json_and_html(nginx: Nginx, tmp_path: Path) -> None:
    root = nginx.root / tmp_path.name
    root.mkdir()
    json_site, html_site = (HttpSite(NAME, f"{nginx.url}/{kind}/{tmp_path.name}") for kind in ("json", "html"))
    place = FolderPlace(json_site, root)
    for name in ("a", "b c", "sub/d"):
        place.put(name, b"x")
    in_json, in_html = await listed(json_site), await listed(html_site)
    assert sorted(entry.name for entry in in_json) == ["a", "b c", "sub"]
    assert {entry.name: entry for entry in in_json} == {entry.name: entry for entry in in_html}
    await json_site.close()
    await html_site.close()


@pytest.mark.servers
async def test_a_rewrite_within_the_second_becomes_another_version_once_the_second_has_passed(
    nginx: Nginx, tmp_path: Path
) -> None:
    root = nginx.root / tmp_path.name
    root.mkdir()
    site = HttpSite(NAME, f"{nginx.url}/json/{tmp_path.name}")
    now_s = int(time.time())
    (root / "file").write_bytes(b"old")
    os.utime(root / "file", (now_s + 60, now_s + 60))
    new = await version_at(site)
    (root / "file").write_bytes(b"new")
    os.utime(root / "file", (now_s - 60, now_s - 60))
    settled = await version_at(site)
    assert (new.generation, settled.generation) == (1, 0)
    assert [entry.version for entry in await listed(site)] == [settled]
    await site.close()


@pytest.fixture
async def manifest(wan_origin: WanOrigin, wan_root: Path) -> AsyncIterator[ManifestSite]:
    made = ManifestSite(HttpSite(NAME, f"{wan_origin.url}/{wan_root.name}"), "list/manifest.json")
    (wan_root / "list").mkdir()
    (wan_root / "list/manifest.json").write_text(json.dumps([{"path": "a/file", "size": 3}]))
    (wan_root / "a").mkdir()
    (wan_root / "a/file").write_bytes(b"abc")
    yield made
    await made.close()


async def test_an_unchanged_manifest_is_not_sent_again(manifest: ManifestSite, wan_origin: WanOrigin, wan_root: Path) -> None:
    os.utime(wan_root / "list/manifest.json", (1e9, 1e9))
    await manifest.stat(SitePath("a/file"))
    wan_origin.reset_stats()
    assert (await manifest.stat(SitePath("a"))).kind is Kind.DIRECTORY
    assert wan_origin.stats()["bytes"] == 0


async def test_a_missing_manifest_makes_the_site_unavailable_and_no_object_not_found(
    manifest: ManifestSite, wan_root: Path
) -> None:
    (wan_root / "list/manifest.json").unlink()
    with pytest.raises(Unavailable, match="manifest is missing"):
        await manifest.stat(SitePath("a/file"))


async def test_a_broken_manifest_raises_and_the_next_good_one_is_used(manifest: ManifestSite, wan_root: Path) -> None:
    good = (wan_root / "list/manifest.json").read_text()
    for broken in (good[:-1], '[{"size": 3}]', '[{"path": "a", "size": -1}]', "{}"):
        (wan_root / "list/manifest.json").write_text(broken)
        with pytest.raises(WrongAnswer):
            await manifest.stat(SitePath("a/file"))
    (wan_root / "list/manifest.json").write_text(good)
    assert (await manifest.stat(SitePath("a/file"))).version.size == 3


async def test_a_file_that_is_not_what_the_manifest_says_raises_stale(manifest: ManifestSite, wan_root: Path) -> None:
    version = await version_at(manifest, "a/file")
    (wan_root / "a/file").write_bytes(b"abcd")
    with pytest.raises(Stale):
        await read(manifest, version, 0, 3, "a/file")
