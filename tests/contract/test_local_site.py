"""The local site beyond the common contract: links, odd files, changes under a reader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.places import FolderPlace
from vfs.errors import Denied, NotADirectory, NotFound, Stale, Unavailable
from vfs.model import Kind, SiteName, SitePath
from vfs.sites.local import PIECE_BYTES, LocalSite


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[LocalSite]:
    (tmp_path / "root").mkdir()
    made = LocalSite(SiteName("disk"), str(tmp_path / "root"))
    yield made
    await made.close()


@pytest.fixture
def root(tmp_path: Path, site: LocalSite) -> Path:
    return tmp_path / "root"


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def names_in(site: LocalSite, path: str = "") -> list[str]:
    return sorted([entry.name async for page in site.list(SitePath(path)) for entry in page])


async def test_a_symlink_is_reported_with_its_target_and_never_followed(site: LocalSite, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    (root / "link").symlink_to("../secret")
    entry = await site.stat(SitePath("link"))
    assert (entry.kind, entry.target, entry.version.size) == (Kind.SYMLINK, "../secret", 9)
    with pytest.raises(NotFound):
        async for _ in site.read(SitePath("link"), entry.version, 0, 7):
            pass


async def test_no_path_leads_through_a_linked_directory(site: LocalSite, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    (root / "link").symlink_to("../outside")
    with pytest.raises(NotFound):
        await site.stat(SitePath("link/file"))
    with pytest.raises(NotADirectory):
        await names_in(site, "link")


async def test_a_broken_link_is_listed(site: LocalSite, root: Path) -> None:
    (root / "link").symlink_to("nowhere")
    assert await names_in(site) == ["link"]


async def test_fifos_and_sockets_are_left_out_and_do_not_hang_a_read(site: LocalSite, root: Path) -> None:
    (root / "file").write_text("x")
    version = (await site.stat(SitePath("file"))).version
    (root / "file").unlink()
    os.mkfifo(root / "file")
    assert await names_in(site) == []
    with pytest.raises(NotFound):
        await site.stat(SitePath("file"))
    with pytest.raises(NotFound):
        await anext(site.read(SitePath("file"), version, 0, 1))


async def test_a_name_that_is_no_utf8_is_left_out_with_a_warning(
    site: LocalSite, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "good").touch()
    for name in (b"bad\xff", b"bad\xfe"):
        os.close(os.open(os.fsencode(root) + b"/" + name, os.O_CREAT))
    with caplog.at_level(logging.WARNING):
        assert await names_in(site) == ["good"]
    assert len(caplog.records) == 1


async def test_a_file_renamed_over_with_equal_size_and_time_raises_stale(site: LocalSite, root: Path) -> None:
    place = FolderPlace(site, root)
    place.put("file", b"old")
    version = (await site.stat(SitePath("file"))).version
    place.rename_over("file", b"new")
    with pytest.raises(Stale):
        await anext(site.read(SitePath("file"), version, 0, 3))
    assert (await site.stat(SitePath("file"))).version != version


async def test_a_write_in_the_middle_of_a_read_raises_stale_before_the_next_piece(site: LocalSite, root: Path) -> None:
    (root / "file").write_bytes(bytes(2 * PIECE_BYTES))
    version = (await site.stat(SitePath("file"))).version
    async with contextlib.aclosing(site.read(SitePath("file"), version, 0, 2 * PIECE_BYTES)) as pieces:
        assert len(await anext(pieces)) == PIECE_BYTES
        with (root / "file").open("r+b") as writer:
            writer.seek(PIECE_BYTES)
            writer.write(b"changed")
        with pytest.raises(Stale):
            await anext(pieces)


async def test_a_file_deleted_in_the_middle_of_a_read_is_read_to_its_end(site: LocalSite, root: Path) -> None:
    (root / "file").write_bytes(bytes(2 * PIECE_BYTES))
    version = (await site.stat(SitePath("file"))).version
    async with contextlib.aclosing(site.read(SitePath("file"), version, 0, 2 * PIECE_BYTES)) as pieces:
        await anext(pieces)
        (root / "file").unlink()
        assert len(await anext(pieces)) == PIECE_BYTES


async def test_a_missing_root_makes_the_site_unavailable_and_nothing_not_found(site: LocalSite, root: Path) -> None:
    root.rmdir()
    for path in ("", "file", "a/b"):
        with pytest.raises(Unavailable, match="is it mounted"):
            await site.stat(SitePath(path))


async def test_calls_that_are_given_up_or_cancelled_leave_no_descriptor_open(site: LocalSite, root: Path) -> None:
    (root / "file").write_bytes(bytes(3 * PIECE_BYTES))
    for index in range(20):
        (root / f"file{index}").touch()
    version = (await site.stat(SitePath("file"))).version
    before = open_descriptors()

    async def use() -> None:
        await names_in(site)
        async for _ in site.read(SitePath("file"), version, 0, 3 * PIECE_BYTES):
            pass

    for turns in range(40):
        using = asyncio.create_task(use())
        for _ in range(turns % 10):
            await asyncio.sleep(0)
        using.cancel()
        await asyncio.wait([using])
    async with contextlib.aclosing(site.read(SitePath("file"), version, 0, 3 * PIECE_BYTES)) as pieces:
        await anext(pieces)
    for _ in range(16):  # every thread of the pool has finished what it was doing before
        await site.stat(SitePath("file"))
    async with asyncio.timeout(10):
        while open_descriptors() > before:
            await site.stat(SitePath("file"))
    assert open_descriptors() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_without_read_permission_is_denied(site: LocalSite, root: Path) -> None:
    (root / "file").write_text("x")
    (root / "file").chmod(0)
    entry = await site.stat(SitePath("file"))
    with pytest.raises(Denied):
        await anext(site.read(SitePath("file"), entry.version, 0, 1))


async def test_permission_bits_are_reported(site: LocalSite, root: Path) -> None:
    (root / "file").touch()
    (root / "file").chmod(0o640)
    assert (await site.stat(SitePath("file"))).mode == 0o640
