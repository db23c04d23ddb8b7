"""Requests that a worker died with: the next worker answers what was done, and does what was not."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.worker import Worker, run_worker
from vfs.errors import AlreadyExists, NotFound
from vfs.filesystem.filesystem import FileSystem
from vfs.filesystem.request import begin_request
from vfs.model import Ino

CONFIG = """
[sites.disk]
kind = "local"
path = "{base}/disk"
[[mounts]]
prefix = "/work"
site = "disk"
writable = true
[cache]
directory = "{base}/cache"
"""
RESENT = 1 << 63
OWNER = (os.getuid(), os.getgid())
Step = Callable[[FileSystem, Ino], Awaitable[object]]


class Died(Exception):
    """Stands for a kill: the tree has done it, and nothing after that happens."""


async def make_link(fs: FileSystem, work: Ino) -> None:
    await fs.make_link((await fs.lookup(work, b"old")).ino, work, b"new")


CHANGES: dict[str, tuple[Step, Callable[[Path], bool]]] = {
    "mkdir": (lambda fs, work: fs.make_directory(work, b"new", 0o755, OWNER), lambda disk: (disk / "new").is_dir()),
    "create": (lambda fs, work: fs.make_node(work, b"new", 0o100644, OWNER), lambda disk: (disk / "new").is_file()),
    "symlink": (lambda fs, work: fs.make_symlink(work, b"new", b"x", OWNER), lambda disk: (disk / "new").is_symlink()),
    "link": (
        make_link,
        lambda disk: (disk / "new").exists() and (disk / "new").samefile(disk / "old"),
    ),
    "unlink": (lambda fs, work: fs.remove(work, b"old", directory=False), lambda disk: not (disk / "old").exists()),
    "rmdir": (lambda fs, work: fs.remove(work, b"dir", directory=True), lambda disk: not (disk / "dir").exists()),
    "rename": (
        lambda fs, work: fs.rename(work, b"old", work, b"new", 0),
        lambda disk: (disk / "new").exists() and not (disk / "old").exists(),
    ),
    "rename over": (
        lambda fs, work: fs.rename(work, b"old", work, b"other", 0),
        lambda disk: (disk / "other").read_bytes() == b"old" and not (disk / "old").exists(),
    ),
    "exchange": (
        lambda fs, work: fs.rename(work, b"old", work, b"other", 2),
        lambda disk: ((disk / "old").read_bytes(), (disk / "other").read_bytes()) == (b"other", b"old"),
    ),
}


def prepare(base: Path) -> Path:
    disk = base / "disk"
    (disk / "dir").mkdir(parents=True)
    (disk / "old").write_bytes(b"old")
    (disk / "other").write_bytes(b"other")
    return disk


async def work_of(worker: Worker) -> Ino:
    work = await worker.find("work")
    for name in (b"old", b"other", b"dir"):
        try:
            await worker.filesystem.lookup(work, name)
        except NotFound:
            continue
    return work


def die_after(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    """Let the worker end right after its tree has done anything."""
    tree = worker.filesystem.trees[next(prefix for prefix in worker.filesystem.trees if prefix == "work")]

    def dying(call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def done(*args: object, **named: object) -> None:
            await call(*args, **named)
            raise Died

        return done

    for name in ("make_file", "make_directory", "make_symlink", "make_link", "remove", "rename"):
        monkeypatch.setattr(tree, name, dying(getattr(tree, name)))


@pytest.mark.parametrize("kind", CHANGES)
def test_change_that_was_done_is_answered_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    disk = prepare(tmp_path)
    change, holds = CHANGES[kind]

    async def first(worker: Worker) -> None:
        work = await work_of(worker)
        die_after(monkeypatch, worker)
        begin_request(1234)
        with pytest.raises(Died):
            await change(worker.filesystem, work)

    async def second(worker: Worker) -> None:
        fs = worker.filesystem
        await fs.intents.settle(fs.mounts, fs.trees)
        begin_request(1234 | RESENT)
        await change(fs, await work_of(worker))
        assert holds(disk)
        for name in os.listdir(disk):  # and the kernel's numbers are those of what has the names now
            await fs.attributes((await fs.lookup(await worker.find("work"), os.fsencode(name))).ino)

    run_worker(tmp_path, CONFIG, first)
    run_worker(tmp_path, CONFIG, second, fresh=False)
    assert holds(disk)


@pytest.mark.parametrize("kind", CHANGES)
def test_change_that_was_only_intended_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    disk = prepare(tmp_path)
    change, holds = CHANGES[kind]

    async def first(worker: Worker) -> None:
        work = await work_of(worker)
        tree = worker.filesystem.trees[next(prefix for prefix in worker.filesystem.trees if prefix == "work")]
        for name in ("make_file", "make_directory", "make_symlink", "make_link", "remove", "rename"):

            async def died(*args: object, **named: object) -> None:
                raise Died

            monkeypatch.setattr(tree, name, died)
        begin_request(1234)
        with pytest.raises(Died):
            await change(worker.filesystem, work)
        assert not holds(disk)

    async def second(worker: Worker) -> None:
        fs = worker.filesystem
        await fs.intents.settle(fs.mounts, fs.trees)
        begin_request(1234 | RESENT)
        await change(fs, await work_of(worker))

    run_worker(tmp_path, CONFIG, first)
    run_worker(tmp_path, CONFIG, second, fresh=False)
    assert holds(disk)


def test_two_that_create_one_name_exclusively_do_not_both_succeed(tmp_path: Path) -> None:
    """The first one's request was lost before it was carried out, the other's comes before it is sent again."""
    prepare(tmp_path)

    async def first(worker: Worker) -> None:
        begin_request(1)
        await worker.filesystem.make_directory(await worker.find("work"), b"else", 0o755, OWNER)

    async def second(worker: Worker) -> None:
        fs = worker.filesystem
        await fs.intents.settle(fs.mounts, fs.trees)
        begin_request(3)
        await fs.make_node(await worker.find("work"), b"lock", 0o100644, OWNER)
        begin_request(2 | RESENT)
        with pytest.raises(AlreadyExists):
            await fs.make_node(await worker.find("work"), b"lock", 0o100644, OWNER)

    run_worker(tmp_path, CONFIG, first)
    run_worker(tmp_path, CONFIG, second, fresh=False)
