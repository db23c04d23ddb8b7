"""What stands past the mount at any time: symlinks that lead out of a local site's root."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.lake import DISK
from tests.worker import Worker, run_worker
from vfs.errors import NotADirectory, Stale
from vfs.filesystem import beneath
from vfs.filesystem.filesystem import FileSystem
from vfs.filesystem.tree import Changes
from vfs.model import Ino

ME = (os.geteuid(), os.getegid())


@pytest.fixture(params=["openat2", "one component after the other"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.6 answer ENOSYS, as any does for a number that is no system call's."""
    if request.param != "openat2":
        monkeypatch.setattr(beneath, "_OPENAT2", 9999)


@pytest.fixture
def outside(tmp_path: Path, way: None) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "f").write_bytes(b"secret")
    os.setxattr(path / "f", "user.secret", b"x")
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    (path / "d/e").mkdir(parents=True)
    (path / "d/f").write_bytes(b"shown")
    (path / "other").write_bytes(b"")
    return path


def swap(disk: Path, outside: Path) -> None:
    """Put a symlink to a directory that is not shown in the place of one that is."""
    (disk / "d").rename(disk.parent / "moved")
    (disk / "d").symlink_to(outside)


Call = Callable[[FileSystem, Ino, Ino], Awaitable[object]]
CALLS: dict[str, Call] = {
    "lookup": lambda fs, d, f: fs.lookup(d, b"f"),
    "open": lambda fs, d, f: fs.open(f, os.O_RDONLY),
    "open for writing": lambda fs, d, f: fs.open(f, os.O_RDWR),
    "list": lambda fs, d, f: fs.open_directory(d),
    "create": lambda fs, d, f: fs.make_node(d, b"new", 0o100644, ME),
    "mkdir": lambda fs, d, f: fs.make_directory(d, b"new", 0o755, ME),
    "symlink": lambda fs, d, f: fs.make_symlink(d, b"new", b"f", ME),
    "unlink": lambda fs, d, f: fs.remove(d, b"f", directory=False),
    "rename from": lambda fs, d, f: fs.rename(d, b"f", Ino(1), b"got", 0),
    "rename to": lambda fs, d, f: fs.rename(Ino(1), b"other", d, b"f", 0),
    "exchange": lambda fs, d, f: fs.rename(Ino(1), b"other", d, b"f", 2),
    "link": lambda fs, d, f: fs.make_link(f, Ino(1), b"hard"),
    "chmod": lambda fs, d, f: fs.change(f, Changes(mode=0o777)),
    "truncate": lambda fs, d, f: fs.change(f, Changes(size=0)),
    "getxattr": lambda fs, d, f: fs.get_xattr(f, b"user.secret"),
    "setxattr": lambda fs, d, f: fs.set_xattr(f, b"user.secret", b"y"),
    "fsync": lambda fs, d, f: fs.sync_directory(d),
}


def test_no_call_goes_through_a_directory_that_was_swapped_for_a_symlink(tmp_path: Path, disk: Path, outside: Path) -> None:
    async def body(worker: Worker) -> None:
        d, f = await worker.find("d"), await worker.find("d/f")
        swap(disk, outside)
        for name, call in CALLS.items():
            with pytest.raises((Stale, NotADirectory)):
                await call(worker.filesystem, d, f)
            found = {each.name: each.read_bytes() for each in outside.iterdir()}
            assert (found, os.getxattr(outside / "f", "user.secret")) == ({"f": b"secret"}, b"x"), name
            assert sorted(each.name for each in disk.iterdir()) == ["d", "other"], name

    run_worker(tmp_path, DISK, body)


def test_file_that_was_swapped_for_a_symlink_is_neither_opened_nor_changed(tmp_path: Path, disk: Path, outside: Path) -> None:
    async def body(worker: Worker) -> None:
        f = await worker.find("d/f")
        (disk / "link").symlink_to(outside / "f")
        (disk / "link").rename(disk / "d/f")
        with pytest.raises(Stale):
            await worker.filesystem.open(f, os.O_RDONLY)
        with pytest.raises(Stale):
            await worker.filesystem.change(f, Changes(size=0))
        assert (outside / "f").read_bytes() == b"secret"

    run_worker(tmp_path, DISK, body)


def test_file_that_was_swapped_for_a_fifo_does_not_hang_the_worker(tmp_path: Path, disk: Path) -> None:
    async def body(worker: Worker) -> None:
        f = await worker.find("d/f")
        (disk / "d/f").unlink()
        os.mkfifo(disk / "d/f")
        with pytest.raises(Stale):
            await worker.filesystem.open(f, os.O_RDONLY)

    run_worker(tmp_path, DISK.replace("writable = true", ""), body)


def test_times_and_mode_of_a_symlink_are_never_those_of_its_target(tmp_path: Path, disk: Path, outside: Path) -> None:
    async def body(worker: Worker) -> None:
        (disk / "l").symlink_to(outside / "f")
        before = (outside / "f").stat()
        await worker.filesystem.change(await worker.find("l"), Changes(mtime_ns=7, uid=ME[0]))
        assert (disk / "l").lstat().st_mtime_ns == 7
        assert (outside / "f").stat().st_mtime_ns == before.st_mtime_ns

    run_worker(tmp_path, DISK, body)


@pytest.mark.parametrize("path", ["..", "d/../../outside/f", "/etc/passwd"])
def test_path_that_leads_above_the_root_is_refused(disk: Path, outside: Path, path: str) -> None:
    with pytest.raises(OSError) as caught:
        os.close(beneath.open_beneath(str(disk), path, os.O_PATH))
    assert caught.value.errno in (errno.EXDEV, errno.ENOENT, errno.ELOOP)


def test_root_may_be_a_symlink_itself(tmp_path: Path, disk: Path, way: None) -> None:
    (tmp_path / "link").symlink_to(disk)
    fd = beneath.open_beneath(str(tmp_path / "link"), "d/f", os.O_RDONLY)
    assert os.read(fd, 100) == b"shown"
    os.close(fd)
