"""The file system over an HTTP origin, without a kernel, with a real agent process."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.servers.wan_origin import Fault, WanOrigin
from tests.worker import Agent, RecordingPassthrough, Worker, agent, run_worker
from vfs import config, wire
from vfs.clock import SystemClock
from vfs.errors import DeadlineExceeded, NotFound, ReadOnly, Stale, Unavailable
from vfs.filesystem.agent import AgentClient
from vfs.filesystem.expected import Expected
from vfs.filesystem.openfiles import IDLE_S
from vfs.filesystem.reads import ReadReports
from vfs.filesystem.remote import OpenObjects, RemoteTree
from vfs.model import Entry, Kind, LakePath, Version
from vfs.namespace.catalog import CatalogWriter, Known
from vfs.namespace.mounts import build_mount_table
from vfs.policy.inforce import InForce, open_store

CONFIG = """
[sites.origin]
kind = "http"
url = "URL"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{base}/cache"
size = "256MiB"
[limits]
listing_ttl = "TTL"
origin_deadline = "3s"
"""
BIG = random.Random(9).randbytes(3_000_001)


@pytest.fixture
def text(wan_origin: WanOrigin, wan_root: Path) -> str:
    (wan_root / "d").mkdir()
    for index in range(700):
        (wan_root / f"d/{index:03d}").write_bytes(b"%d" % index)
    (wan_root / "big").write_bytes(BIG)
    (wan_root / "empty").write_bytes(b"")
    return CONFIG.replace("URL", f"{wan_origin.url}/{wan_root.name}").replace("TTL", "60s")


@pytest.fixture
def running(tmp_path: Path, text: str) -> Iterator[Agent]:
    with agent(tmp_path, text) as started:
        yield started


def test_content_is_that_of_the_origin(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        assert await worker.content("big") == BIG
        assert await worker.content("empty") == b""
        assert await worker.content("d/007") == b"7"
        assert (await worker.filesystem.lookup(1, b"big")).node.version.size == len(BIG)
        with pytest.raises(NotFound):
            await worker.find("d/nothing")

    run_worker(running.base, text, body)


def test_listing_is_complete_in_pages_and_carries_sizes(running: Agent, text: str, wan_origin: WanOrigin) -> None:
    async def body(worker: Worker) -> None:
        ino = await worker.find("d")
        wan_origin.reset_stats()
        assert sorted(await worker.names("d")) == [f"{index:03d}" for index in range(700)]
        requests = wan_origin.stats()["requests"]
        assert requests <= 1
        for index in range(700):
            found = await worker.filesystem.lookup(ino, b"%03d" % index)
            assert found.node.version.size == len(str(index))
        assert wan_origin.stats()["requests"] == requests

    run_worker(running.base, text, body)


def test_next_worker_goes_on_in_the_same_listing(running: Agent, text: str) -> None:
    state = []

    async def begins(worker: Worker) -> None:
        ino = await worker.find("d")
        await worker.filesystem.open_directory(ino)
        page = await worker.filesystem.read_directory(ino, 0)
        state.extend([ino, page[9].position, [child.name for child in page[:10]]])

    async def goes_on(worker: Worker) -> None:
        ino, position, names = state
        while page := await worker.filesystem.read_directory(ino, position):
            names += [child.name for child in page]
            position = page[-1].position
        assert sorted(names) == [b"%03d" % index for index in range(700)]

    run_worker(running.base, text, begins)
    run_worker(running.base, text, goes_on, fresh=False)


def test_complete_file_is_given_to_the_kernel_at_its_next_open(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        assert await worker.content("big") == BIG
        ino = await worker.find("big")
        with trio.fail_after(20):
            while not (opened := await fs.open(ino, os.O_RDONLY)).backing:  # sealed by a task of the agent
                fs.release(ino)
                await trio.sleep(0.05)
        (path,) = set(worker.passthrough.registered.values())
        assert path.endswith(".data")
        assert Path(path).read_bytes() == BIG
        assert opened.keep_cache
        fs.release(ino)
        worker.clock.advance(IDLE_S + 1)
        fs.files.close_idle()
        assert worker.passthrough.released == [1]

    run_worker(running.base, text, body)


def test_small_file_is_opened_again_without_a_file_or_a_message(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("d/007")
        opened = await fs.open(ino, os.O_RDONLY)
        assert bytes(await fs.read(ino, 0, 10)) == b"7"
        fs.release(ino)
        running.kill()
        descriptors = os.listdir("/proc/self/fd")
        for _ in range(3):
            assert await fs.open(ino, os.O_RDONLY) == opened
            fs.release(ino)
        assert os.listdir("/proc/self/fd") == descriptors
        assert opened.keep_cache
        assert worker.passthrough.registered == {}
        await fs.open(ino, os.O_RDONLY)
        assert bytes(await fs.read(ino, 0, 10)) == b"7"  # the kernel dropped its pages: the cache has them
        await trio.to_thread.run_sync(running.start)

    run_worker(running.base, text, body)


def test_first_read_of_a_small_file_is_no_trouble(
    running: Agent, text: str, wan_origin: WanOrigin, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    async def body(worker: Worker) -> None:
        ino = await worker.find("d/009")
        await worker.names("d")
        wan_origin.reset_stats()
        await worker.filesystem.open(ino, os.O_RDONLY)
        assert wan_origin.stats()["requests"] == 0
        assert bytes(await worker.filesystem.read(ino, 0, 10)) == b"9"
        assert wan_origin.stats()["by_path"][f"/{wan_origin_path(text)}/d/009"]["gets"] == 1

    run_worker(running.base, text, body)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def wan_origin_path(text: str) -> str:
    return text.split('url = "')[1].split('"')[0].rpartition("/")[2]


def test_forgotten_small_file_leaves_nothing_behind(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("d/008")
        await fs.open(ino, os.O_RDONLY)
        fs.release(ino)
        fs.forget([(ino, 1)])
        assert fs.files.get(ino) is None
        with pytest.raises(Stale):
            await fs.attributes(ino)

    run_worker(running.base, text, body)


def test_files_that_only_wait_for_another_open_are_bounded(
    running: Agent, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("vfs.filesystem.openfiles.RESTING_MAX", 5)

    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        inos = [await worker.find(f"d/{index:03d}") for index in range(8)]
        for ino in inos:
            await fs.open(ino, os.O_RDONLY)
            fs.release(ino)
        assert [fs.files.get(ino) is not None for ino in inos] == [False] * 3 + [True] * 5

    run_worker(running.base, text, body)


def test_held_file_is_read_on_by_the_next_worker(running: Agent, text: str) -> None:
    inos = []

    async def opens(worker: Worker) -> None:
        inos.append(await worker.find("big"))
        await worker.filesystem.open(inos[0], os.O_RDONLY)

    async def reads(worker: Worker) -> None:
        assert await worker.read(inos[0]) == BIG

    run_worker(running.base, text, opens, passthrough=RecordingPassthrough(enabled=False))
    run_worker(running.base, text, reads, fresh=False)


def test_reads_go_on_with_the_next_agent(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        await worker.filesystem.open(ino, os.O_RDONLY)
        assert bytes(await worker.filesystem.read(ino, 0, 1000)) == BIG[:1000]
        running.kill()
        await trio.to_thread.run_sync(running.start)
        assert await worker.read(ino) == BIG

    run_worker(running.base, text, body)


def test_cached_bytes_and_known_names_need_no_agent(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        await worker.filesystem.open(ino, os.O_RDONLY)
        assert await worker.read(ino) == BIG
        names = await worker.names("d")
        running.kill()
        assert await worker.read(ino) == BIG
        assert await worker.names("d") == names
        assert (await worker.filesystem.lookup(1, b"big")).ino == ino
        await trio.to_thread.run_sync(running.start)

    run_worker(running.base, text, body)


@pytest.mark.slow
def test_unreachable_origin_is_an_error_and_not_an_empty_file(running: Agent, text: str, wan_origin: WanOrigin) -> None:
    """D52"""

    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        await worker.filesystem.open(ino, os.O_RDONLY)
        wan_origin.inject(Fault(kind="status"))
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await worker.filesystem.read(ino, 0, 1000)
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await worker.find("never/seen")
        wan_origin.heal()
        while True:  # the rest before the next attempt may be longer than this deadline
            with contextlib.suppress(DeadlineExceeded):
                assert await worker.read(ino) == BIG
                return

    run_worker(running.base, text, body, deadline_s=3.0)


@pytest.mark.slow
def test_hanging_origin_ends_at_the_deadline_and_other_files_go_on(running: Agent, text: str, wan_origin: WanOrigin) -> None:
    async def body(worker: Worker) -> None:
        ino, other = await worker.find("big"), await worker.find("d/001")
        await worker.filesystem.open(ino, os.O_RDONLY)
        await worker.filesystem.open(other, os.O_RDONLY)
        wan_origin.inject(Fault(kind="stall", path="*/big", after=0))

        async def fails() -> None:
            with pytest.raises((Unavailable, DeadlineExceeded)):
                await worker.filesystem.read(ino, 0, 1000)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails)
                assert await worker.read(other) == b"1"

    run_worker(running.base, text, body, deadline_s=3.0)


def test_version_that_moved_on_is_stale_for_the_open_file_and_new_for_the_next_lookup(
    tmp_path: Path, text: str, wan_origin: WanOrigin, wan_root: Path
) -> None:
    """D49"""
    brief = text.replace("60s", "1ms")

    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        old = await worker.find("big")
        await fs.open(old, os.O_RDONLY)
        assert bytes(await fs.read(old, 0, 10)) == BIG[:10]
        (wan_root / "big.new").write_bytes(BIG[::-1])
        os.replace(wan_root / "big.new", wan_root / "big")
        with trio.fail_after(20):
            while (new := await worker.find("big")) == old:
                await trio.sleep(0.01)
        with pytest.raises(Stale):
            await worker.read(old)
        await fs.open(new, os.O_RDONLY)
        assert await worker.read(new) == BIG[::-1]
        assert (await fs.attributes(old)).node.version.size == len(BIG)

    with agent(tmp_path, brief):
        run_worker(tmp_path, brief, body)


def test_remote_files_are_not_written(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        for flags in (os.O_WRONLY, os.O_RDWR):
            with pytest.raises(ReadOnly):
                await worker.filesystem.open(ino, flags)

    run_worker(running.base, text, body)


def test_name_that_is_no_utf8_costs_the_origin_nothing(running: Agent, text: str, wan_origin: WanOrigin) -> None:
    async def body(worker: Worker) -> None:
        wan_origin.reset_stats()
        with pytest.raises(NotFound):
            await worker.filesystem.lookup(1, b"\xff")
        assert wan_origin.stats()["requests"] == 0

    run_worker(running.base, text, body)


def test_readers_of_one_object_with_two_descriptors_at_most_do_not_disturb_each_other(running: Agent, text: str) -> None:
    async def body(worker: Worker) -> None:
        inos = [await worker.find(f"d/{index:03d}") for index in range(100)]  # the test's worker keeps 16 objects open
        for ino in inos:
            await worker.filesystem.open(ino, os.O_RDONLY)

        async def check(index: int) -> None:
            for _ in range(3):
                assert await worker.read(inos[index]) == b"%d" % index

        async with trio.open_nursery() as nursery:
            for index in range(100):
                nursery.start_soon(check, index)

    run_worker(running.base, text, body, passthrough=RecordingPassthrough(enabled=False))


def test_directory_that_is_listed_anew_while_read_is_never_shorter_than_it_was(
    tmp_path: Path, text: str, wan_origin: WanOrigin, wan_root: Path
) -> None:
    brief = text.replace("60s", "1ms")

    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("d")
        await fs.open_directory(ino)
        page = await fs.read_directory(ino, 0)
        names = [child.name for child in page]
        assert len(names) < 700
        for _ in range(3):  # twice replaced: the generation of our position is gone
            await fs.open_directory(ino)
            await fs.read_directory(ino, 0)
            with trio.fail_after(10):
                while len(await worker.names("d")) < 700:
                    await trio.sleep(0.01)
        with pytest.raises(Stale):
            position = page[-1].position
            while more := await fs.read_directory(ino, position):
                names += [child.name for child in more]
                position = more[-1].position
            assert len(names) == 700  # or it got all of them after all
            raise Stale("d")

    with agent(tmp_path, brief):
        run_worker(tmp_path, brief, body)


def test_range_with_many_broken_blocks_is_repaired_within_one_read(running: Agent, text: str) -> None:
    """D61"""

    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        await worker.filesystem.open(ino, os.O_RDONLY)
        assert await worker.read(ino) == BIG
        (data,) = [path for path in (running.base / "cache").rglob("*.data") if path.stat().st_size == len(BIG)]
        with open(data, "r+b") as file:
            file.write(bytes(1 << 20))
        assert bytes(await worker.filesystem.read(ino, 0, 1 << 20)) == BIG[: 1 << 20]

    run_worker(running.base, text, body, passthrough=RecordingPassthrough(enabled=False))


def test_held_file_whose_object_is_deleted_is_stale_and_not_absent(running: Agent, text: str, wan_root: Path) -> None:
    async def body(worker: Worker) -> None:
        ino = await worker.find("big")
        await worker.filesystem.open(ino, os.O_RDONLY)
        (wan_root / "big").unlink()
        with pytest.raises(Stale):
            await worker.filesystem.read(ino, 0, 1000)

    run_worker(running.base, text, body)


def test_names_that_are_looked_up_while_their_directory_is_being_listed_are_all_found(tmp_path: Path, text: str) -> None:
    brief = text.replace("60s", "50ms")

    async def body(worker: Worker) -> None:
        ino = await worker.find("d")

        async def look_up(index: int) -> None:
            for step in range(60):
                await worker.filesystem.lookup(ino, b"%03d" % ((index * 37 + step * 101) % 700))

        async with trio.open_nursery() as nursery:
            for index in range(16):
                nursery.start_soon(look_up, index)

    with agent(tmp_path, brief):
        run_worker(tmp_path, brief, body)


class BusyCatalog(CatalogWriter):
    """A catalog in which a listing is completed right after a name was looked for."""

    def known(self, path: LakePath) -> Known | None:
        found = super().known(path)
        listing = self.begin_listing(LakePath("d"), time.time_ns())
        self.complete_listing(LakePath("d"), self.extend_listing(LakePath("d"), listing, [ENTRY], time.time_ns()))
        return found


class SilentAgent(AgentClient):
    """An agent that does not answer."""

    async def call(self, call: wire.Call, expected: Any, subject: str, deadline_s: float | None = None) -> Any:
        raise DeadlineExceeded(subject)


ENTRY = Entry("f", Kind.FILE, Version(5))


def test_name_is_not_absent_because_its_listing_was_completed_while_we_looked(tmp_path: Path) -> None:
    catalog = BusyCatalog(str(tmp_path / "catalog.lmdb"))
    client = SilentAgent("", lambda: wire.Hello(0, passthrough=False, why_not=""), deadline_s=1)
    (tmp_path / "foremount.toml").write_text(CONFIG.replace("TTL", "60s").replace("URL", "http://127.0.0.1:9"))
    loaded = config.load(tmp_path / "foremount.toml")
    (point,) = build_mount_table(loaded).points
    tree = RemoteTree(
        point, agent=client, catalog=catalog, cache_root="", objects=OpenObjects(1), reports=ReadReports(client),
        expected=Expected(), clock=SystemClock(),
        policy=InForce(open_store(loaded, str(tmp_path / "foremount.toml"))), owner=(0, 0),
    )  # fmt: skip
    with pytest.raises(DeadlineExceeded):  # asked, and not taken for absent
        trio.run(tree.lookup, LakePath("d/f"))
    catalog.close()
