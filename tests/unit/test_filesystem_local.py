"""The file system over local directories, without a kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.worker import RecordingPassthrough, Worker, run_worker
from vfs.errors import (
    AlreadyExists,
    CrossesMounts,
    Denied,
    DirectoryNotEmpty,
    IsADirectory,
    NotADirectory,
    NotFound,
    ReadOnly,
    Stale,
    Unsupported,
)
from vfs.filesystem.openfiles import IDLE_S
from vfs.filesystem.tree import Changes
from vfs.model import Ino, Kind
from vfs.namespace.inodes import ROOT

CONFIG = """
[sites.disk]
kind = "local"
path = "{base}/disk"
[[mounts]]
prefix = "/"
site = "disk"
[[mounts]]
prefix = "/work"
site = "disk"
root = "work"
writable = true
[cache]
directory = "{base}/cache"
"""
ME = (os.geteuid(), os.getegid())


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    (path / "work").mkdir(parents=True)
    (path / "d").mkdir()
    (path / "f").write_bytes(b"content")
    (path / "d/g").write_bytes(b"inner")
    (path / "l").symlink_to("d/g")
    return path


def test_lookup_gives_attributes_and_one_number_per_object(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        first, again = await fs.lookup(ROOT, b"f"), await fs.lookup(ROOT, b"f")
        assert first.ino == again.ino
        assert first.node.kind is Kind.FILE
        assert first.node.version.size == 7
        assert fs.inodes.get(first.ino).row.lookups == 2
        with pytest.raises(NotFound):
            await fs.lookup(ROOT, b"nothing")
        assert await fs.readlink(await worker.find("l")) == b"d/g"

    run_worker(tmp_path, CONFIG, body)


def test_content_is_read_by_offset(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        assert await worker.content("f") == b"content"
        assert await worker.content("d/g") == b"inner"
        ino = await worker.find("f")
        await worker.filesystem.open(ino, os.O_RDONLY)
        assert bytes(await worker.filesystem.read(ino, 3, 2)) == b"te"
        assert bytes(await worker.filesystem.read(ino, 7, 10)) == b""

    run_worker(tmp_path, CONFIG, body, passthrough=RecordingPassthrough(enabled=False))


def test_directory_lists_what_is_there_and_what_is_mounted(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        assert sorted(await worker.names("")) == [".foremount", "d", "f", "l", "work"]
        assert await worker.names("d") == ["g"]
        with pytest.raises(NotADirectory):
            await worker.filesystem.open_directory(await worker.find("f"))

    run_worker(tmp_path, CONFIG, body)


def test_directory_with_mounts_inside_is_streamed(tmp_path: Path, disk: Path) -> None:
    for index in range(2000):
        (disk / f"{index:04d}").touch()

    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        await fs.open_directory(ROOT)
        first = await fs.read_directory(ROOT, 0)
        assert len(first) < 2000
        seen, position = [child.name for child in first], first[-1].position
        fs.release_directory(ROOT)  # as after a restart: the position alone goes on
        while page := await fs.read_directory(ROOT, position):
            seen += [child.name for child in page]
            position = page[-1].position
        assert len(seen) == len(set(seen)) == 2005

    run_worker(tmp_path, CONFIG, body)


def test_stream_goes_on_after_each_single_entry(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, seen, position = worker.filesystem, list[bytes](), 0
        await fs.open_directory(ROOT)
        while page := await fs.read_directory(ROOT, position):  # the kernel's buffer takes one entry at a time
            seen.append(page[0].name)
            position = page[0].position
        assert sorted(seen) == [b".foremount", b"d", b"f", b"l", b"work"]

    run_worker(tmp_path, CONFIG, body)


def test_file_rewritten_in_place_is_another_inode_on_a_read_only_mount(tmp_path: Path, disk: Path) -> None:
    """D51"""

    async def body(worker: Worker) -> None:
        old = await worker.find("f")
        (disk / "f").write_bytes(b"changed")
        os.utime(disk / "f", ns=(1, 1))
        assert await worker.find("f") != old
        with pytest.raises(Stale):
            await worker.filesystem.open(old, os.O_RDONLY)

    run_worker(tmp_path, CONFIG, body)


def test_replaced_file_is_another_inode_and_the_old_one_keeps_its_attributes(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        old = await worker.find("f")
        (disk / "new").write_bytes(b"longer than before")
        os.replace(disk / "new", disk / "f")
        assert await worker.find("f") != old
        kept = await worker.filesystem.attributes(old)
        assert (kept.node.version.size, kept.ttl_s) == (7, 0.0)

    run_worker(tmp_path, CONFIG, body)


def test_number_that_nobody_was_told_is_stale(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        for call in (worker.filesystem.attributes, worker.filesystem.read_directory):
            with pytest.raises(Stale):
                await (call(Ino(4711), 0) if call == worker.filesystem.read_directory else call(Ino(4711)))  # type: ignore[call-arg, arg-type]

    run_worker(tmp_path, CONFIG, body)


def test_kernel_reads_alone_with_one_backing_file_for_all_handles(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("f")
        opened = [await fs.open(ino, os.O_RDONLY) for _ in range(3)]
        assert {handle.backing for handle in opened} == {1}
        assert worker.passthrough.registered == {1: str(disk / "f")}
        for _ in opened:
            fs.release(ino)
        assert worker.passthrough.released == []
        worker.clock.advance(IDLE_S + 1)
        fs.files.close_idle()
        assert worker.passthrough.released == [1]

    run_worker(tmp_path, CONFIG, body)


def test_open_file_is_not_closed_by_being_forgotten_or_idle(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("f")
        await fs.open(ino, os.O_RDONLY)
        worker.clock.advance(IDLE_S + 1)
        fs.files.close_idle()
        fs.forget([(ino, 1)])
        assert worker.passthrough.released == []

    run_worker(tmp_path, CONFIG, body)


def test_forgotten_file_gives_its_backing_id_back(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("f")
        await fs.open(ino, os.O_RDONLY)
        fs.release(ino)
        fs.forget([(ino, 1)])
        assert worker.passthrough.released == [1]
        with pytest.raises(Stale):
            await fs.attributes(ino)

    run_worker(tmp_path, CONFIG, body)


def test_next_worker_uses_the_backing_id_that_the_kernel_has(tmp_path: Path, disk: Path) -> None:
    inos: list[Ino] = []

    async def opens(worker: Worker) -> None:
        inos.append(await worker.find("f"))
        assert (await worker.filesystem.open(inos[0], os.O_RDONLY)).backing == 1

    async def follows(worker: Worker) -> None:
        fs, ino = worker.filesystem, inos[0]
        assert await worker.find("f") == ino
        assert (await fs.open(ino, os.O_RDONLY)).backing == 1
        fs.release(ino)
        fs.release(ino)  # the handle of the worker before
        worker.clock.advance(IDLE_S + 1)
        fs.files.close_idle()
        assert worker.passthrough.registered == {}
        assert worker.passthrough.released == []

    run_worker(tmp_path, CONFIG, opens)
    run_worker(tmp_path, CONFIG, follows, fresh=False)


def test_next_worker_leaves_handles_in_page_cache_mode(tmp_path: Path, disk: Path) -> None:
    inos: list[Ino] = []

    async def opens(worker: Worker) -> None:
        inos.append(await worker.find("f"))
        assert (await worker.filesystem.open(inos[0], os.O_RDONLY)).backing == 0

    async def follows(worker: Worker) -> None:
        assert await worker.read(inos[0]) == b"content"
        assert (await worker.filesystem.open(inos[0], os.O_RDONLY)).backing == 0

    run_worker(tmp_path, CONFIG, opens, passthrough=RecordingPassthrough(enabled=False))
    run_worker(tmp_path, CONFIG, follows, fresh=False)


def test_read_only_mount_refuses_writing_and_changing(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, ino = worker.filesystem, await worker.find("f")
        with pytest.raises(ReadOnly):
            await fs.open(ino, os.O_RDWR)
        with pytest.raises(ReadOnly):
            await fs.make_node(ROOT, b"x", 0o100644, ME)
        with pytest.raises(ReadOnly):
            await fs.remove(ROOT, b"f", directory=False)
        with pytest.raises(ReadOnly):
            await fs.change(ino, Changes(mode=0o600))

    run_worker(tmp_path, CONFIG, body)


def test_directories_are_not_opened_as_files(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        with pytest.raises(IsADirectory):
            await worker.filesystem.open(await worker.find("d"), os.O_RDONLY)

    run_worker(tmp_path, CONFIG, body)


def test_writable_mount_makes_writes_renames_and_removes(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, work = worker.filesystem, await worker.find("work")
        made = await fs.make_node(work, b"new", 0o100640, ME)
        await fs.open(made.ino, os.O_RDWR)
        assert await fs.write(made.ino, 3, b"abc") == 3
        await fs.sync(made.ino)
        assert (disk / "work/new").read_bytes() == b"\0\0\0abc"
        with pytest.raises(AlreadyExists):
            await fs.make_node(work, b"new", 0o100640, ME)
        directory = await fs.make_directory(work, b"dir", 0o750, ME)
        await fs.rename(work, b"new", directory.ino, b"renamed", 0)
        assert await worker.find("work/dir/renamed") == made.ino
        with pytest.raises(DirectoryNotEmpty):
            await fs.remove(work, b"dir", directory=True)
        await fs.sync_directory(directory.ino)
        await fs.rename(work, b"dir", work, b"moved", 0)
        assert await worker.find("work/moved/renamed") == made.ino
        await fs.remove(directory.ino, b"renamed", directory=False)
        await fs.remove(work, b"moved", directory=True)
        assert os.listdir(disk / "work") == []

    run_worker(tmp_path, CONFIG, body)


def test_unlinked_open_file_has_its_own_size_and_takes_changes(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, work = worker.filesystem, await worker.find("work")
        ino = (await fs.make_node(work, b"f", 0o100644, ME)).ino
        await fs.open(ino, os.O_RDWR)
        await fs.remove(work, b"f", directory=False)
        await fs.make_node(work, b"f", 0o100644, ME)
        await fs.write(ino, 0, b"12345")
        assert (await fs.attributes(ino)).node.version.size == 5
        assert (await fs.change(ino, Changes(size=2))).node.version.size == 2
        assert (disk / "work/f").read_bytes() == b""

    run_worker(tmp_path, CONFIG, body)


def test_change_of_a_replaced_file_does_not_hit_its_successor(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs, work = worker.filesystem, await worker.find("work")
        old = (await fs.make_node(work, b"f", 0o100644, ME)).ino
        (disk / "successor").write_bytes(b"precious")
        os.replace(disk / "successor", disk / "work/f")
        with pytest.raises(Stale):
            await fs.change(old, Changes(size=0))
        assert (disk / "work/f").read_bytes() == b"precious"

    run_worker(tmp_path, CONFIG, body)


def test_names_do_not_cross_mounts(tmp_path: Path, disk: Path) -> None:
    text = CONFIG + '[[mounts]]\nprefix = "/other"\nsite = "disk"\nroot = "d"\nwritable = true\n'

    async def body(worker: Worker) -> None:
        fs, work, other = worker.filesystem, await worker.find("work"), await worker.find("other")
        ino = (await fs.make_node(work, b"f", 0o100644, ME)).ino
        with pytest.raises(CrossesMounts):
            await fs.rename(work, b"f", other, b"f", 0)
        with pytest.raises(CrossesMounts):
            await fs.make_link(ino, other, b"f")

    run_worker(tmp_path, text, body)


def test_mount_points_themselves_stay(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        with pytest.raises((Denied, ReadOnly)):
            await fs.remove(ROOT, b"work", directory=True)
        with pytest.raises((Denied, ReadOnly)):
            await fs.change(ROOT, Changes(mode=0o700))

    run_worker(tmp_path, CONFIG, body)


def test_special_files_are_not_made(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        with pytest.raises(Unsupported):
            await worker.filesystem.make_node(await worker.find("work"), b"fifo", 0o010644, ME)

    run_worker(tmp_path, CONFIG, body)


def test_root_has_the_attributes_of_its_directory(tmp_path: Path, disk: Path) -> None:
    os.chmod(disk, 0o1777)

    async def body(worker: Worker) -> None:
        assert (await worker.filesystem.attributes(ROOT)).node.mode == 0o041777

    run_worker(tmp_path, CONFIG, body)


def test_too_many_directory_streams_are_closed_and_go_on(tmp_path: Path, disk: Path) -> None:
    for index in range(20):
        (disk / f"dir{index}").mkdir()
        (disk / f"dir{index}/x").touch()

    async def body(worker: Worker) -> None:
        fs = worker.filesystem
        fs.open_max = 5
        inos = [await worker.find(f"dir{index}") for index in range(20)]
        for ino in inos:
            await fs.open_directory(ino)
        assert len(fs.directories) == 5
        for ino in inos:
            assert [child.name for child in await fs.read_directory(ino, 0)] == [b"x"]

    run_worker(tmp_path, CONFIG, body)
