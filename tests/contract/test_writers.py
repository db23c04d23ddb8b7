"""What everything that writes has to do, over every implementation: the real servers, and the fakes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.hdfs import Hdfs
from tests.servers.nginx import Nginx
from tests.servers.seaweedfs import SeaweedFs, credentials
from vfs.errors import Corrupt, Denied, DirectoryNotEmpty, NotFound, Unavailable, Unsupported
from vfs.model import Entry, Kind, SiteName, SitePath, Version
from vfs.sites.faults import Cut
from vfs.sites.faultywriter import FaultyWriter, Lost
from vfs.sites.http import HttpSite
from vfs.sites.httpwriter import HttpWriter
from vfs.sites.local import LocalSite
from vfs.sites.localwriter import LocalWriter
from vfs.sites.memory import MemorySite
from vfs.sites.memorywriter import MemoryWriter
from vfs.sites.protocol import Site
from vfs.sites.s3writer import S3Writer
from vfs.sites.webhdfs import WebHdfsSite
from vfs.sites.webhdfswriter import WebHdfsWriter
from vfs.sites.writing import HIDDEN_PREFIX, SiteWriter, Upload

NAME = SiteName("lake")
FINAL = SitePath("run7/step_12/model.bin")
PART = 1 << 20
"""The smallest block that the HDFS here takes."""
S3_PART = 5 << 20
"""The smallest part that S3 takes before the last."""
PIECE = 256 << 10
REAL = pytest.mark.servers


@dataclass(frozen=True)
class Target:
    """A writer and the site that reads the same place.

    Attributes:
        part: bytes of a part where it sends several.
        size: of an object of three parts.
    """

    site: Site
    writer: SiteWriter
    part: int = PART

    @property
    def size(self) -> int:
        return 2 * self.part + 4711


@dataclass(frozen=True)
class Bytes:
    """A body in memory, in small pieces.

    Attributes:
        fails_after: bytes after which reading it fails, as a staging disk does or a process that is killed; -1: never.
    """

    content: bytes
    fails_after: int = -1

    @property
    def length(self) -> int:
        return len(self.content)

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), PIECE):
            if 0 <= self.fails_after <= start:
                raise Unavailable("staging", "can't be read")
            yield self.content[start : start + (PIECE)]


def in_memory(request: pytest.FixtureRequest, own: Path) -> Target:
    site = MemorySite(NAME)
    return Target(site, MemoryWriter(site, part_bytes=PART))


def behind_faults(request: pytest.FixtureRequest, own: Path) -> Target:
    inner = in_memory(request, own)
    return Target(inner.site, FaultyWriter(inner.writer))


def on_disk(request: pytest.FixtureRequest, own: Path) -> Target:
    return Target(LocalSite(NAME, str(own)), LocalWriter(NAME, str(own), part_bytes=PART))


def by_webdav(request: pytest.FixtureRequest, own: Path) -> Target:
    return at_nginx(request, own, "webdav")


def by_put(request: pytest.FixtureRequest, own: Path) -> Target:
    return at_nginx(request, own, "put")


def at_nginx(request: pytest.FixtureRequest, own: Path, way: str) -> Target:
    server: Nginx = request.getfixturevalue("nginx")
    (server.root / own.name).mkdir()
    site = HttpSite(NAME, f"{server.url}/dav/{own.name}/")
    return Target(site, HttpWriter(site, way))  # type: ignore[arg-type]


def in_hdfs(request: pytest.FixtureRequest, own: Path) -> Target:
    server: Hdfs = request.getfixturevalue("hdfs")
    server.mkdir(f"/{own.name}")
    site = WebHdfsSite(NAME, server.url, root=f"/{own.name}", user=server.user)
    return Target(site, WebHdfsWriter(site, block_bytes=PART))


def in_s3(request: pytest.FixtureRequest, own: Path) -> Target:
    server: SeaweedFs = request.getfixturevalue("seaweedfs")
    keys = own / "credentials"
    keys.write_text(credentials())
    site = server.site(NAME, own.name, keys)
    at = {"endpoint": server.endpoint, "credentials_file": str(keys)}
    return Target(site, S3Writer(site, server.url(own.name), part_bytes=S3_PART, **at), S3_PART)


@pytest.fixture(
    params=[
        pytest.param(in_memory, id="memory"),
        pytest.param(behind_faults, id="faults"),
        pytest.param(on_disk, id="local"),
        pytest.param(by_webdav, id="webdav", marks=REAL),
        pytest.param(by_put, id="http-put", marks=REAL),
        pytest.param(in_hdfs, id="webhdfs", marks=REAL),
        pytest.param(in_s3, id="s3", marks=REAL),
    ]
)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    make: Callable[[pytest.FixtureRequest, Path], Target] = request.param
    made = make(request, tmp_path)
    yield made
    await made.writer.close()
    await made.site.close()


def pattern(size: int, seed: bytes = b"pattern") -> bytes:
    """Return bytes in which no two ranges are alike."""
    return hashlib.shake_128(seed).digest(size)


def part_of(upload: Upload, index: int, content: bytes) -> Bytes:
    offset, length = upload.span(index)
    return Bytes(content[offset : offset + length])


async def send_all(target: Target, upload: Upload, content: bytes) -> dict[int, str]:
    """Send every part, all at once, the last one first."""
    order = list(reversed(range(upload.count)))
    sent = await asyncio.gather(*(target.writer.send(upload, index, part_of(upload, index, content)) for index in order))
    return dict(zip(order, sent, strict=True))


async def put(target: Target, path: SitePath, content: bytes, token: str) -> Version:
    upload = await target.writer.begin(path, len(content), token)
    return await target.writer.finish(upload, await send_all(target, upload, content))


async def content_of(target: Target, path: SitePath) -> bytes:
    version = (await target.site.stat(path)).version
    if not version.size:
        return b""
    return b"".join([bytes(piece) async for piece in target.site.read(path, version, 0, version.size)])


async def listed(target: Target, path: str) -> list[Entry]:
    return sorted([entry async for page in target.site.list(SitePath(path)) for entry in page], key=lambda entry: entry.name)


async def is_there(target: Target, path: SitePath) -> bool:
    try:
        await target.site.stat(path)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize(("parts", "more"), [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (2, 4711)])
async def test_what_was_sent_is_read_back(target: Target, parts: int, more: int) -> None:
    size = parts * target.part + more
    content = pattern(size)
    version = await put(target, FINAL, content, "a1")
    assert version.size == size
    assert await content_of(target, FINAL) == content
    assert [entry.name for entry in await listed(target, "run7/step_12")] == ["model.bin"]


async def test_the_version_that_finish_returns_is_the_one_that_stat_states(target: Target) -> None:
    version = await put(target, FINAL, pattern(100), "a1")
    stated = (await target.site.stat(FINAL)).version
    assert (stated.size, stated.mtime_ns, stated.etag) == (version.size, version.mtime_ns, version.etag)


async def test_nothing_is_visible_before_all_parts_are_there_and_finished(target: Target) -> None:
    content = pattern(target.size)
    upload = await target.writer.begin(FINAL, target.size, "a1")
    for index in range(upload.count - 1):
        await target.writer.send(upload, index, part_of(upload, index, content))
    assert not await is_there(target, FINAL)
    if await is_there(target, SitePath("run7/step_12")):
        assert await listed(target, "run7/step_12") == []


async def test_an_old_object_is_whole_until_the_new_one_is(target: Target) -> None:
    old, new = pattern(target.size, b"old"), pattern(target.size, b"new")
    await put(target, FINAL, old, "a1")
    upload = await target.writer.begin(FINAL, target.size, "a2")
    for index in range(upload.count - 1):
        await target.writer.send(upload, index, part_of(upload, index, new))
    assert await content_of(target, FINAL) == old
    last = part_of(upload, upload.count - 1, new)
    with pytest.raises(Unavailable):
        await target.writer.send(upload, upload.count - 1, Bytes(last.content, fails_after=0))
    assert await content_of(target, FINAL) == old
    await target.writer.finish(upload, await send_all(target, upload, new))
    assert await content_of(target, FINAL) == new


async def test_a_part_that_broke_off_is_sent_again(target: Target) -> None:
    content = pattern(target.size)
    upload = await target.writer.begin(FINAL, target.size, "a1")
    with pytest.raises(Unavailable):
        await target.writer.send(upload, 0, Bytes(part_of(upload, 0, content).content, fails_after=2 * PIECE))
    assert not await is_there(target, FINAL)
    await target.writer.finish(upload, await send_all(target, upload, content))
    assert await content_of(target, FINAL) == content


async def test_a_cancelled_part_is_sent_again(target: Target) -> None:
    content = pattern(target.size)
    upload = await target.writer.begin(FINAL, target.size, "a1")
    body = part_of(upload, 0, content)
    begun, gate = asyncio.Event(), asyncio.Event()

    class Waiting:
        length = body.length

        async def pieces(self) -> AsyncIterator[bytes]:
            yield body.content[:PIECE]
            begun.set()
            await gate.wait()

    sending = asyncio.create_task(target.writer.send(upload, 0, Waiting()))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await target.writer.finish(upload, await send_all(target, upload, content))
    assert await content_of(target, FINAL) == content


async def test_parts_that_arrived_are_known_after_a_restart(target: Target) -> None:
    content = pattern(target.size)
    upload = await target.writer.begin(FINAL, target.size, "a1")
    if upload.count == 1 or isinstance(target.writer, LocalWriter):
        pytest.skip("it has one part, or its parts can't be told apart")
    receipt = await target.writer.send(upload, 1, part_of(upload, 1, content))
    known = await target.writer.received(upload)
    assert known == {1: receipt}
    receipts = {
        index: await target.writer.send(upload, index, part_of(upload, index, content), known.get(index, ""))
        for index in range(upload.count)
    }
    assert receipts[1] == receipt
    await target.writer.finish(upload, receipts)
    assert await content_of(target, FINAL) == content


async def test_finishing_again_after_a_lost_answer_returns_the_same_version(target: Target) -> None:
    content = pattern(target.size)
    upload = await target.writer.begin(FINAL, target.size, "a1")
    receipts = await send_all(target, upload, content)
    version = await target.writer.finish(upload, receipts)
    again = await target.writer.finish(upload, receipts)
    assert (again.size, again.mtime_ns, again.etag) == (version.size, version.mtime_ns, version.etag)
    assert await content_of(target, FINAL) == content


async def test_an_abandoned_upload_leaves_nothing(target: Target) -> None:
    content = pattern(target.size)
    await put(target, SitePath("run7/step_12/other"), b"other", "a0")
    upload = await target.writer.begin(FINAL, target.size, "a1")
    if upload.count > 1:
        await target.writer.send(upload, 0, part_of(upload, 0, content))
    await target.writer.abandon(upload)
    await target.writer.abandon(upload)
    assert [entry.name for entry in await listed(target, "run7/step_12")] == ["other"]
    assert not await is_there(target, upload.hidden)


async def test_an_upload_that_is_abandoned_when_all_has_arrived_leaves_nothing(target: Target) -> None:
    content = pattern(target.size)
    await put(target, SitePath("run7/step_13/other"), b"other", "b0")
    last = SitePath("run7/step_13/last")
    upload = await target.writer.begin(last, target.size, "b1")
    receipts = await send_all(target, upload, content)
    await target.writer.abandon(upload, receipts)
    assert [entry.name for entry in await listed(target, "run7/step_13")] == ["other"]


async def test_a_small_upload_that_is_abandoned_takes_nothing_else_with_it(target: Target) -> None:
    """Also where the store shows it with its last byte."""
    one, two = SitePath("run7/step_14/one"), SitePath("run7/step_14/two")
    for path in (one, two):
        upload = await target.writer.begin(path, 5, "b1")
        receipts = await send_all(target, upload, b"small")
        await put(target, two, b"of somebody else", "b2")
        await target.writer.abandon(upload, receipts)
    assert [entry.name for entry in await listed(target, "run7/step_14")] == ["two"]


async def test_an_object_takes_the_place_of_the_one_before(target: Target) -> None:
    await put(target, FINAL, pattern(target.size), "a1")
    await put(target, FINAL, b"short", "a2")
    assert await content_of(target, FINAL) == b"short"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "100%", "%41", "é", "日本", "a#b", "a?b=c", "a&b", "a+b", "'a'", "a,b;c", "a%2Fb"])
async def test_odd_names_are_written_as_they_are(target: Target, name: str) -> None:
    path = SitePath(f"odd/{name}/{name}")
    content = pattern(target.part + 1)
    await put(target, path, content, "a1")
    assert [entry.name for entry in await listed(target, f"odd/{name}")] == [name]
    assert await content_of(target, path) == content


async def test_a_removed_object_is_gone_and_removing_it_again_is_no_failure(target: Target) -> None:
    await put(target, FINAL, b"x", "a1")
    await put(target, SitePath("run7/other"), b"x", "a2")
    await target.writer.remove(FINAL)
    assert not await is_there(target, FINAL)
    await target.writer.remove(FINAL)


async def test_a_directory_that_holds_something_is_not_removed(target: Target) -> None:
    await put(target, FINAL, b"x", "a1")
    with pytest.raises(DirectoryNotEmpty):
        await target.writer.remove(SitePath("run7/step_12"), directory=True)
    assert await content_of(target, FINAL) == b"x"


async def test_a_made_directory_is_removed(target: Target) -> None:
    path = SitePath("run7/deep/empty")
    await target.writer.make_directory(path)
    await target.writer.make_directory(path)
    await target.writer.remove(path, directory=True)
    assert not await is_there(target, path)


async def test_a_rename_is_one_step_or_refused(target: Target) -> None:
    await put(target, SitePath("run7/tmp/a"), b"new", "a1")
    await put(target, SitePath("run7/done/a"), b"old", "a2")
    try:
        await target.writer.rename(SitePath("run7/tmp/a"), SitePath("run7/done/a"))
    except Unsupported:
        assert await content_of(target, SitePath("run7/done/a")) == b"old"
        return
    assert await content_of(target, SitePath("run7/done/a")) == b"new"
    assert not await is_there(target, SitePath("run7/tmp/a"))


async def test_listings_do_not_show_what_is_on_its_way(target: Target) -> None:
    upload = await target.writer.begin(SitePath("top.bin"), target.size, "a1")
    if upload.count > 1:
        await target.writer.send(upload, 0, Bytes(pattern(target.part)))
    await put(target, SitePath("other"), b"x", "a2")
    assert not [entry.name for entry in await listed(target, "") if entry.name.startswith(HIDDEN_PREFIX)]
    assert (await target.site.stat(SitePath("other"))).kind is Kind.FILE


async def test_an_upload_whose_answer_was_lost_is_finished_by_asking_again() -> None:
    inner = MemorySite(NAME)
    writer = FaultyWriter(MemoryWriter(inner, part_bytes=PART))
    target = Target(inner, writer)
    writer.inject("finish", Lost(Cut(0)))
    upload = await writer.begin(FINAL, target.size, "a1")
    receipts = await send_all(target, upload, pattern(target.size))
    with pytest.raises(Unavailable):
        await writer.finish(upload, receipts)
    await writer.finish(upload, receipts)
    assert await content_of(target, FINAL) == pattern(target.size)


async def test_parts_that_were_damaged_on_the_way_are_not_published() -> None:
    inner = MemorySite(NAME)
    target = Target(inner, MemoryWriter(inner, part_bytes=PART))
    upload = await target.writer.begin(FINAL, target.size, "a1")
    receipts = await send_all(target, upload, pattern(target.size))
    await target.writer.send(upload, 0, Bytes(pattern(PART, b"other")))
    with pytest.raises(Corrupt):
        await target.writer.finish(upload, receipts)
    assert not await is_there(target, FINAL)


@pytest.mark.servers
async def test_s3_keys_that_the_store_rejects_are_read_again_from_their_file(seaweedfs: SeaweedFs, tmp_path: Path) -> None:
    keys = tmp_path / "credentials"
    keys.write_text(credentials())
    site = seaweedfs.site(NAME, tmp_path.name, keys)
    writer = S3Writer(
        site,
        seaweedfs.url(tmp_path.name),
        endpoint=seaweedfs.endpoint,
        credentials_file=str(keys),
        part_bytes=S3_PART,
    )
    target = Target(site, writer, S3_PART)
    content = pattern(target.size)
    keys.write_text(credentials(secret_key="expired"))
    upload_path = SitePath("rotated")
    with pytest.raises(Denied):
        await writer.begin(upload_path, target.size, "a1")
    keys.write_text(credentials())
    upload = await writer.begin(upload_path, target.size, "a1")
    await writer.finish(upload, await send_all(target, upload, content))
    assert await content_of(target, upload_path) == content
    await writer.close()
    await site.close()
