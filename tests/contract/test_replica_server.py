"""Replica servers as the sites that they are to everybody else: `vfs/foresight/replicaserver.py`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vfs import config, httpservice
from vfs.errors import Denied, DirectoryNotEmpty, InvalidConfig, NoSpace, NotFound, Stale, Unavailable
from vfs.extents.layout import BLOCK, data_path
from vfs.foresight import bearing, replicaserver
from vfs.foresight.replicaserver import ReplicaServer, Tokens, serving
from vfs.httpservice import Rates
from vfs.model import SiteName, SitePath
from vfs.sites.http import HttpSite
from vfs.sites.httpwriter import HttpWriter
from vfs.sites.writing import Upload
from vfs.units import Bytes

NODE = SiteName("node")
BODY = random.Random(9).randbytes(5 * BLOCK + 333)
PATH = SitePath("copies/r1/deep/model 1.bin")


class Node:
    """A server with what reads and writes it."""

    def __init__(self, base: Path, server: ReplicaServer, address: str, site: HttpSite) -> None:
        self.base, self.server, self.address, self.site = base, server, address, site
        self.writer = HttpWriter(site, "put")

    async def put(self, path: str, body: bytes) -> Upload:
        upload = await self.writer.begin(SitePath(path), len(body), "token")
        receipt = await self.writer.send(upload, 0, Whole(body))
        await self.writer.finish(upload, {0: receipt})
        return upload

    async def read(self, path: str, offset: int, length: int) -> bytes:
        version = (await self.site.stat(SitePath(path))).version
        return b"".join([bytes(piece) async for piece in self.site.read(SitePath(path), version, offset, length)])


class Whole:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 100_000):
            yield self._body[start : start + 100_000]


@contextlib.asynccontextmanager
async def node(base: Path, *, size: int = 64 << 20, token: str = "w-token", rate: int = 0) -> AsyncIterator[Node]:
    tokens, headers = base / "tokens", base / f"headers-{token}"
    tokens.write_text("# who may what\nread r-token\nwrite w-token\n")
    tokens.chmod(0o600)
    headers.write_text(f"Authorization: Bearer {token}\n")
    settings = config.ReplicaServer(
        address="127.0.0.1:0", directory=str(base / "node"), tokens=str(tokens), size=Bytes(size), rate=Bytes(rate)
    )
    async with serving(settings, Rates("replica server", 300)) as (server, address):
        site = HttpSite(NODE, f"http://{address}/", headers_file=str(headers))
        try:
            yield Node(base, server, address, site)
        finally:
            await site.close()


async def test_what_was_put_is_listed_statted_and_read_by_range(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        await found.put("copies/r1/empty", b"")
        pages = [entry async for page in found.site.list(SitePath("copies/r1")) for entry in page]
        assert sorted((entry.name, entry.kind, entry.version.size) for entry in pages) == [
            ("deep", "directory", 0),
            ("empty", "file", 0),
        ]
        version = (await found.site.stat(PATH)).version
        assert version.size == len(BODY)
        (listed,) = [entry async for page in found.site.list(SitePath("copies/r1/deep")) for entry in page]
        assert listed.version == version
        for offset, length in ((0, len(BODY)), (BLOCK - 1, 2), (len(BODY) - 1, 1), (3 * BLOCK, BLOCK)):
            assert await found.read(PATH, offset, length) == BODY[offset : offset + length]


async def test_another_version_is_never_served_for_the_one_before(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        before = (await found.site.stat(PATH)).version
        await found.put(PATH, BODY[::-1])
        with pytest.raises(Stale):
            async for _ in found.site.read(PATH, before, 0, 10):
                pass
        assert await found.read(PATH, 0, len(BODY)) == BODY[::-1]


async def test_copies_survive_a_restart_and_what_was_cut_off_does_not(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        host, port = found.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT /half HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer w-token\r\nContent-Length: {len(BODY)}\r\n\r\n"
        writer.write(head.encode() + BODY[: 2 * BLOCK])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        with pytest.raises(NotFound):
            await found.site.stat(SitePath("half"))
        version = (await found.site.stat(PATH)).version
    async with node(tmp_path) as found:
        assert (await found.site.stat(PATH)).version == version
        assert await found.read(PATH, 0, len(BODY)) == BODY
        assert found.server.facts()["objects"] == 1


async def test_a_block_that_rots_is_not_served_and_its_copy_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        key = found.server._names[PATH][0]
        with open(data_path(found.server._store.root, key), "r+b") as file:
            file.seek(2 * BLOCK + 5)
            file.write(bytes([BODY[2 * BLOCK + 5] ^ 1]))
        assert await found.read(PATH, 0, BLOCK) == BODY[:BLOCK]
        with pytest.raises(Unavailable):
            await found.read(PATH, 0, len(BODY))
        with pytest.raises(NotFound):
            await found.site.stat(PATH)
        assert found.server.counters.broken == 1


async def test_a_server_that_is_full_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with node(tmp_path, size=8 << 20) as found:
        await found.put("one", bytes(5 << 20))
        with pytest.raises(NoSpace):
            await found.put("two", bytes(6 << 20))
        assert await found.read("one", 0, 10) == bytes(10)
        with pytest.raises(NotFound):
            await found.site.stat(SitePath("two"))
        await found.writer.remove(SitePath("one"))
        await found.put("two", bytes(6 << 20))


async def test_removed_copies_are_gone_and_their_directories_with_them(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        with pytest.raises(DirectoryNotEmpty):
            await found.writer.remove(SitePath("copies/r1"), directory=True)
        await found.writer.remove(PATH)
        await found.writer.remove(PATH)
        await found.writer.remove(SitePath("copies/r1"), directory=True)
        assert found.server.facts()["objects"] == 0


@pytest.mark.parametrize("token", ["r-token", "none"])
async def test_who_has_not_the_token_may_not_write_or_not_even_read(tmp_path: Path, token: str) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        headers = tmp_path / "other"
        headers.write_text(f"Authorization: Bearer {token}\n")
        site = HttpSite(NODE, f"http://{found.address}/", headers_file=str(headers))
        try:
            with pytest.raises(Denied):
                await HttpWriter(site, "put").send(Upload(PATH, 3, 3, "t"), 0, Whole(b"abc"))
            if token == "none":
                with pytest.raises(Denied):
                    await site.stat(PATH)
            else:
                assert (await site.stat(PATH)).version.size == len(BODY)
        finally:
            await site.close()


async def test_new_tokens_hold_at_once_and_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        (tmp_path / "tokens").write_text("write another-token\n")
        os.utime(tmp_path / "tokens", (1, 1))
        with pytest.raises(Denied):
            await found.put(PATH, BODY)
        (tmp_path / "tokens").chmod(0o644)
        with pytest.raises(InvalidConfig, match="may be read by others"):
            Tokens(str(tmp_path / "tokens"))


async def test_all_answers_share_the_rate(tmp_path: Path) -> None:
    async with node(tmp_path, rate=4 * len(BODY)) as found:
        await found.put(PATH, BODY)
        begun = asyncio.get_running_loop().time()
        bodies = await asyncio.gather(*(found.read(PATH, 0, len(BODY)) for _ in range(2)))
        taken_s = asyncio.get_running_loop().time() - begun
        assert bodies == [BODY, BODY]
        assert taken_s > 0.19, "the second waits for what of the first did not pass at once: 0.25 s less 0.05 s"


@pytest.mark.slow
async def test_a_server_measures_how_many_readers_a_copy_bears_and_says_so(tmp_path: Path) -> None:
    async with node(tmp_path, rate=1 << 20) as found:
        assert bearing.read(await found.site.readers_borne()) is None
        await found.put(PATH, BODY)
        for count in (1, 8):
            for _ in range(3):
                await asyncio.gather(*(found.read(PATH, 0, 3 * BLOCK) for _ in range(count)))
        measured = bearing.read(await found.site.readers_borne())
        assert measured is not None
        assert measured.is_limit
        assert 1 <= measured.readers < 8, "eight share what one alone may have"
        assert found.server.facts()["bears"] == bearing.written(measured)


async def test_a_file_is_asked_about_without_its_bytes(tmp_path: Path) -> None:
    async with node(tmp_path) as found:
        await found.put(PATH, BODY)
        assert (await found.site.stat(PATH)).version.size == len(BODY)
        assert (await found.site.stat(SitePath("copies/r1"))).kind == "directory"
        with pytest.raises(NotFound):
            await found.site.stat(SitePath("copies/r"))
        await found.writer.remove(PATH)
        with pytest.raises(NotFound):
            await found.site.stat(SitePath("copies/r1"))
        assert found.server.counters.reads == 0


async def test_who_takes_nothing_or_brings_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(tmp_path) as found:
        await found.put("large", bytes(32 << 20))
        monkeypatch.setattr(httpservice, "SLOW_S", 0.1)
        monkeypatch.setattr(replicaserver, "SILENT_S", 0.1)
        host, port = found.address.split(":")
        head = "{} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer w-token\r\n"
        taken, asking = await asyncio.open_connection(host, int(port))
        asking.write(head.format("GET /large").encode() + b"\r\n")
        said, bringing = await asyncio.open_connection(host, int(port))
        bringing.write(head.format("PUT /half").encode() + b"Content-Length: 1000\r\n\r\nhalf")
        assert (await said.readline()).startswith(b"HTTP/1.1 400")
        async with asyncio.timeout(30):
            while found.server.counters.readers or not found.server.counters.reads:
                await asyncio.sleep(0.01)
        count = 0
        with contextlib.suppress(ConnectionError):
            while piece := await taken.read(1 << 20):
                count += len(piece)
        assert count < 32 << 20
        for writer in (asking, bringing):
            writer.close()


async def test_readers_beyond_those_that_a_server_bears_are_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicaserver, "TRANSFERS_MAX", 1)
    async with node(tmp_path) as found:
        await found.put("large", bytes(32 << 20))
        version = (await found.site.stat(SitePath("large"))).version
        first = found.site.read(SitePath("large"), version, 0, version.size)
        await anext(first)
        with pytest.raises(Unavailable, match="503"):
            await found.read("large", 0, 10)
        async for _ in first:
            pass
        assert await found.read("large", 0, 10) == bytes(10)
