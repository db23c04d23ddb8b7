"""What every site has to do, over every implementation: the real servers, and the fakes that stand in for them elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.servers.hdfs import Hdfs
from tests.servers.nginx import Nginx
from tests.servers.places import FolderPlace, HdfsPlace, MemoryPlace, Place, S3Place
from tests.servers.seaweedfs import SeaweedFs, credentials
from tests.servers.wan_origin import WanOrigin
from vfs.errors import NotADirectory, NotFound, Stale
from vfs.model import Entry, Kind, SiteName, SitePath, Version
from vfs.sites.arrow import ArrowSite
from vfs.sites.faults import FaultySite
from vfs.sites.http import HttpSite
from vfs.sites.local import LocalSite
from vfs.sites.manifest import ManifestSite
from vfs.sites.memory import MemorySite
from vfs.sites.protocol import Site
from vfs.sites.webhdfs import WebHdfsSite

NAME = SiteName("lake")
Make = Callable[[pytest.FixtureRequest, Path], Place]


def in_memory(request: pytest.FixtureRequest, own: Path) -> Place:
    return MemoryPlace(MemorySite(NAME))


def behind_faults(request: pytest.FixtureRequest, own: Path) -> Place:
    inner = MemorySite(NAME)
    return MemoryPlace(inner, FaultySite(inner))


def on_disk(request: pytest.FixtureRequest, own: Path) -> Place:
    return FolderPlace(LocalSite(NAME, str(own)), own)


def arrow_on_disk(request: pytest.FixtureRequest, own: Path) -> Place:
    return FolderPlace(ArrowSite(NAME, own.as_uri()), own)


def at_the_wan_origin(listing: str, request: pytest.FixtureRequest, own: Path) -> Place:
    origin: WanOrigin = request.getfixturevalue("wan_origin")
    origin.shape(listing=listing)
    root = origin.root / own.name
    root.mkdir()
    return FolderPlace(HttpSite(NAME, f"{origin.url}/{own.name}"), root)


def at_nginx(listing: str, request: pytest.FixtureRequest, own: Path) -> Place:
    server: Nginx = request.getfixturevalue("nginx")
    root = server.root / own.name
    root.mkdir()
    return FolderPlace(HttpSite(NAME, f"{server.url}/{listing}/{own.name}/"), root)


def with_manifest(request: pytest.FixtureRequest, own: Path) -> Place:
    server: Nginx = request.getfixturevalue("nginx")
    root = server.root / own.name
    root.mkdir()
    site = ManifestSite(HttpSite(NAME, f"{server.url}/plain/{own.name}"), "manifest.json")
    return FolderPlace(site, root, manifest="manifest.json")


def in_hdfs(request: pytest.FixtureRequest, own: Path) -> Place:
    server: Hdfs = request.getfixturevalue("hdfs")
    return HdfsPlace(WebHdfsSite(NAME, server.url, root=f"/{own.name}", user=server.user), server, f"/{own.name}")


def in_s3(request: pytest.FixtureRequest, own: Path) -> Place:
    server: SeaweedFs = request.getfixturevalue("seaweedfs")
    keys = own / "credentials"
    keys.write_text(credentials())
    return S3Place(server.site(NAME, own.name, keys), server, own.name)


REAL = pytest.mark.servers


@pytest.fixture(
    params=[
        pytest.param(in_memory, id="memory"),
        pytest.param(behind_faults, id="faults"),
        pytest.param(on_disk, id="local"),
        pytest.param(arrow_on_disk, id="arrow-file"),
        pytest.param(functools.partial(at_the_wan_origin, "json"), id="http-origin-json"),
        pytest.param(functools.partial(at_the_wan_origin, "html"), id="http-origin-html"),
        pytest.param(functools.partial(at_nginx, "json"), id="http-nginx-json", marks=REAL),
        pytest.param(functools.partial(at_nginx, "html"), id="http-nginx-html", marks=REAL),
        pytest.param(with_manifest, id="http-manifest", marks=REAL),
        pytest.param(in_hdfs, id="webhdfs", marks=REAL),
        pytest.param(in_s3, id="s3", marks=REAL),
    ]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    make: Make = request.param
    made = make(request, tmp_path)
    yield made
    await made.site.close()


def pattern(size: int) -> bytes:
    """Return bytes in which no two ranges are alike."""
    return hashlib.shake_128(b"pattern").digest(size)


async def listed(site: Site, path: str) -> list[Entry]:
    return [entry async for page in site.list(SitePath(path)) for entry in page]


async def names_in(site: Site, path: str) -> list[str]:
    return sorted(entry.name for entry in await listed(site, path))


async def read(site: Site, path: str, version: Version, offset: int, length: int) -> bytes:
    return b"".join([bytes(piece) async for piece in site.read(SitePath(path), version, offset, length)])


async def version_at(site: Site, path: str) -> Version:
    return (await site.stat(SitePath(path))).version


async def test_the_root_is_a_directory_without_a_name(place: Place) -> None:
    place.put("a/file", b"x")
    root = await place.site.stat(SitePath(""))
    assert (root.name, root.kind, root.version.size) == ("", Kind.DIRECTORY, 0)


async def test_an_empty_file_has_size_zero_in_stat_and_list(place: Place) -> None:
    place.put("a/empty", b"")
    assert await version_at(place.site, "a/empty") == (await listed(place.site, "a"))[0].version
    assert (await version_at(place.site, "a/empty")).size == 0


SIZE = 3 * (1 << 20) + 17


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        pytest.param(0, SIZE, id="all"),
        pytest.param(0, 1, id="first-byte"),
        pytest.param(SIZE - 1, 1, id="last-byte"),
        pytest.param(1, 65_536, id="unaligned"),
        pytest.param(65_535, 2, id="across-a-boundary"),
        pytest.param(SIZE - 70_001, 70_001, id="up-to-the-end"),
    ],
)
async def test_a_range_is_read_exactly(place: Place, offset: int, length: int) -> None:
    content = pattern(SIZE)
    place.put("model.bin", content)
    version = await version_at(place.site, "model.bin")
    assert version.size == SIZE
    assert await read(place.site, "model.bin", version, offset, length) == content[offset : offset + length]


async def test_a_file_of_one_byte_is_read(place: Place) -> None:
    place.put("one", b"1")
    assert await read(place.site, "one", await version_at(place.site, "one"), 0, 1) == b"1"


async def test_deep_directories_are_walked(place: Place) -> None:
    deep = "/".join(f"level{depth}" for depth in range(12))
    place.put(f"{deep}/leaf", b"leaf")
    assert (await place.site.stat(SitePath("level0/level1"))).kind is Kind.DIRECTORY
    assert await names_in(place.site, "level0/level1") == ["level2"]
    assert await read(place.site, f"{deep}/leaf", await version_at(place.site, f"{deep}/leaf"), 0, 4) == b"leaf"


@pytest.mark.parametrize(
    "name",
    ["a b", "100%", "%41", "é", "日本", "a#b", "a?b=c", "a&b", "a+b", "(a)", "'a'", "a,b;c", "@a=", "~a", "a%2Fb", "<a>"],
)
async def test_odd_names_are_listed_and_read_as_they_are(place: Place, name: str) -> None:
    place.put(f"odd/{name}/{name}", name.encode())
    assert await names_in(place.site, "odd") == [name]
    assert await names_in(place.site, f"odd/{name}") == [name]
    path = f"odd/{name}/{name}"
    assert await read(place.site, path, await version_at(place.site, path), 0, len(name.encode())) == name.encode()


async def test_stat_of_nothing_raises_not_found(place: Place) -> None:
    place.put("a/file", b"x")
    for path in ("a/missing", "missing/below", "a/file/below", "a/fil", "a/file2"):
        with pytest.raises(NotFound):
            await place.site.stat(SitePath(path))


async def test_listing_nothing_raises_not_found(place: Place) -> None:
    place.put("a/file", b"x")
    with pytest.raises(NotFound):
        await listed(place.site, "a/missing")


async def test_listing_a_file_raises_not_a_directory(place: Place) -> None:
    place.put("a/file", b"x")
    with pytest.raises(NotADirectory):
        await listed(place.site, "a/file")


async def test_listed_attributes_are_those_of_stat(place: Place) -> None:
    place.put("a/one", b"1")
    place.put("a/three", b"333")
    place.put("a/sub/file", b"x")
    for entry in await listed(place.site, "a"):
        assert await place.site.stat(SitePath(f"a/{entry.name}")) == entry


async def test_neighbours_with_a_common_beginning_are_listed_once_each(place: Place) -> None:
    for path in ("a/file", "a-b/file", "a.txt", "a0", "ab/c/d", "ab/c/e"):
        place.put(path, b"x")
    shown = [name for name in await names_in(place.site, "") if name.startswith("a")]
    assert shown == ["a", "a-b", "a.txt", "a0", "ab"]
    assert await names_in(place.site, "ab") == ["c"]


@pytest.mark.slow
async def test_a_large_directory_is_listed_in_pages_that_hold_each_name_once(place: Place) -> None:
    names = [f"sample-{index:05}" for index in range(place.many)]
    place.fill("many", names)
    pages = [[entry.name for entry in page] async for page in place.site.list(SitePath("many"))]
    assert max(len(page) for page in pages) <= 1000
    assert sorted(name for page in pages for name in page) == names


@pytest.mark.parametrize("fresh", [pytest.param(b"new content", id="same-size"), pytest.param(b"new", id="shorter")])
async def test_read_after_a_replacement_raises_stale_and_yields_nothing(place: Place, fresh: bytes) -> None:
    place.put("a/file", b"old content")
    version = await version_at(place.site, "a/file")
    place.put("a/file", fresh)
    pieces = place.site.read(SitePath("a/file"), version, 0, 11)
    with pytest.raises(Stale):
        await anext(pieces)
    now = await version_at(place.site, "a/file")
    assert now != version
    assert await read(place.site, "a/file", now, 0, len(fresh)) == fresh


async def test_read_of_a_deleted_file_raises_not_found(place: Place) -> None:
    place.put("a/file", b"old")
    place.put("a/other", b"stays")
    version = await version_at(place.site, "a/file")
    place.delete("a/file")
    with pytest.raises(NotFound):
        await read(place.site, "a/file", version, 0, 3)


async def test_reads_that_are_given_up_leave_the_site_usable(place: Place) -> None:
    content = pattern(SIZE)
    place.put("file", content)
    version = await version_at(place.site, "file")
    for _ in range(35):  # more than there are connections or threads
        async with contextlib.aclosing(place.site.read(SitePath("file"), version, 0, SIZE)) as pieces:
            await anext(pieces)
    assert await read(place.site, "file", version, 0, SIZE) == content


async def test_a_cancelled_read_leaves_the_site_usable(place: Place) -> None:
    content = pattern(SIZE)
    place.put("file", content)
    version = await version_at(place.site, "file")
    for _ in range(5):
        reading = asyncio.create_task(read(place.site, "file", version, 0, SIZE))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await read(place.site, "file", version, 0, SIZE) == content


async def test_many_reads_at_once_do_not_mix(place: Place) -> None:
    content = pattern(SIZE)
    place.put("file", content)
    version = await version_at(place.site, "file")
    offsets = range(0, SIZE - 50_000, SIZE // 48)
    found = await asyncio.gather(*(read(place.site, "file", version, offset, 50_000) for offset in offsets))
    assert found == [content[offset : offset + 50_000] for offset in offsets]


async def test_repr_names_the_site(place: Place) -> None:
    assert "lake" in repr(place.site)
