"""Local directories through a real mount: POSIX as frameworks use it, on a read-only and on a writable mount."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake import Lake, mounted, wait_until
from tests.marks import MOUNT

pytestmark = MOUNT
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
[[mounts]]
prefix = "/deep/er/nested"
site = "disk"
root = "other"
[cache]
directory = "{base}/cache"
"""
BLOB = random.Random(1).randbytes(3_000_001)
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        os.chmod(made, 0o755)  # other users are to get as far as the mount
        options = [] if request.param == "passthrough" else ["--no-passthrough"]
        with mounted(CONFIG, fill(Path(made)), *options) as lake:
            yield lake


def fill(base: Path) -> Path:
    """Make the directories that the mount shows; return `base`."""
    disk = base / "disk"
    for name in ("work", "other", "many"):
        (disk / name).mkdir(parents=True)
    os.chmod(disk / "work", 0o1777)
    (disk / "blob").write_bytes(BLOB)
    (disk / "empty").write_bytes(b"")
    (disk / "other/inner").write_bytes(b"inner")
    (disk / "link").symlink_to("other/inner")
    return base


@pytest.fixture
def work(lake: Lake, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own on the writable mount."""
    path = lake.root / "work" / f"{abs(hash(request.node.nodeid)):x}"
    path.mkdir()
    return path


def behind(lake: Lake, path: Path) -> Path:
    """Return where a path of the mount lies on the disk; staged files have no such place (test_writes.py), but the mount."""
    disk = lake.base / "disk"
    return disk / path.relative_to(lake.root) if disk.exists() else path


def refused(call: object, *args: object) -> int | None:
    """Return the errno with which a call fails."""
    try:
        call(*args)  # type: ignore[operator]
    except OSError as exc:
        return exc.errno
    return None


class TestReading:
    def test_bytes_size_and_times_are_those_of_the_disk(self, lake: Lake) -> None:
        assert (lake.root / "blob").read_bytes() == BLOB
        here, there = (lake.root / "blob").stat(), (lake.base / "disk/blob").stat()
        assert (here.st_size, here.st_mtime_ns, here.st_mode) == (there.st_size, there.st_mtime_ns, there.st_mode)

    def test_kernel_reads_without_the_worker_exactly_in_passthrough(self, lake: Lake) -> None:
        before = lake.requests("read")
        assert (lake.root / "other/inner").read_bytes() == b"inner"
        assert lake.requests("read") - before == (0 if lake.status()["passthrough"] else 1)

    def test_random_reads_give_the_right_bytes(self, lake: Lake) -> None:
        chance = random.Random(2)
        with open(lake.root / "blob", "rb", buffering=0) as file:
            for _ in range(300):
                offset, length = chance.randrange(len(BLOB) + 10), chance.randrange(1, 200_000)
                assert os.pread(file.fileno(), length, offset) == BLOB[offset : offset + length]

    @pytest.mark.parametrize("access", [mmap.MAP_SHARED, mmap.MAP_PRIVATE], ids=["shared", "private"])
    def test_file_can_be_mapped(self, lake: Lake, access: int) -> None:
        """D31"""
        with open(lake.root / "blob", "rb") as file, mmap.mmap(file.fileno(), 0, access, mmap.PROT_READ) as mapped:
            assert mapped[:] == BLOB

    def test_empty_file_is_empty(self, lake: Lake) -> None:
        assert (lake.root / "empty").read_bytes() == b""

    def test_direct_io_reads_to_an_unaligned_end(self, lake: Lake) -> None:
        """D47"""
        fd = os.open(lake.root / "blob", os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 4 << 20) as buffer:
                count = os.preadv(fd, [buffer], 0)
                assert buffer[:count] == BLOB[:count]
                start = len(BLOB) // 4096 * 4096
                assert os.preadv(fd, [memoryview(buffer)[:8192]], start) == len(BLOB) - start
                assert buffer[: len(BLOB) - start] == BLOB[start:]
        finally:
            os.close(fd)

    def test_symlinks_are_followed(self, lake: Lake) -> None:
        assert os.readlink(lake.root / "link") == "other/inner"
        assert (lake.root / "link").read_bytes() == b"inner"
        assert (lake.root / "link").lstat().st_size == len("other/inner")

    def test_directory_that_is_swapped_for_a_symlink_leads_nowhere_past_the_root(self, lake: Lake) -> None:
        """Who stands in the directory gets ESTALE; a path through the symlink is its reader's own, in the mount."""
        disk, outside = lake.base / "disk/other", lake.base / "outside"
        (disk / "shown").mkdir()
        (disk / "shown/secret").write_bytes(b"shown")
        outside.mkdir(exist_ok=True)
        (outside / "secret").write_bytes(b"secret")
        stood_in = os.open(lake.root / "other/shown", os.O_PATH | os.O_DIRECTORY)
        try:
            (disk / "shown").rename(disk / "moved")
            (disk / "shown").symlink_to(outside)
            for name in ("secret", "nothing"):
                with pytest.raises(OSError) as caught:
                    os.open(name, os.O_RDONLY, dir_fd=stood_in)
                assert caught.value.errno == errno.ESTALE
            wait_until(lambda: os.path.islink(lake.root / "other/shown"), "the name's time to live")
            assert os.readlink(lake.root / "other/shown") == str(outside)
        finally:
            os.close(stood_in)
            (disk / "shown").unlink()
            shutil.rmtree(disk / "moved")

    def test_what_is_not_there_is_not_found(self, lake: Lake) -> None:
        assert refused(os.stat, lake.root / "nothing") == errno.ENOENT
        assert refused(os.stat, lake.root / "blob/below") == errno.ENOTDIR
        assert refused(os.listdir, lake.root / "blob") == errno.ENOTDIR

    def test_read_only_mount_refuses_every_change(self, lake: Lake) -> None:
        root = lake.root
        assert refused(os.open, root / "blob", os.O_RDWR) == errno.EROFS
        assert refused(os.open, root / "new", os.O_CREAT | os.O_WRONLY) == errno.EROFS
        assert refused(os.truncate, root / "blob", 0) == errno.EROFS
        assert refused(os.unlink, root / "blob") == errno.EROFS
        assert refused(os.mkdir, root / "newdir") == errno.EROFS
        assert refused(os.rename, root / "blob", root / "bulb") == errno.EROFS
        assert refused(os.chmod, root / "blob", 0o600) == errno.EROFS
        assert refused(os.utime, root / "blob") == errno.EROFS
        assert refused(os.symlink, "x", root / "sym") == errno.EROFS
        assert refused(os.link, root / "blob", root / "hard") == errno.EROFS
        assert (lake.base / "disk/blob").read_bytes() == BLOB

    def test_nested_mounts_are_where_the_table_says(self, lake: Lake) -> None:
        assert sorted(os.listdir(lake.root)) == [".foremount", "blob", "deep", "empty", "link", "many", "other", "work"]
        assert os.listdir(lake.root / "deep") == ["er"]
        assert os.listdir(lake.root / "deep/er") == ["nested"]
        assert (lake.root / "deep/er/nested/inner").read_bytes() == b"inner"
        assert refused(os.mkdir, lake.root / "deep/new") in (errno.EROFS, errno.EACCES)

    def test_status_is_a_file_of_the_mount(self, lake: Lake) -> None:
        import json

        said = json.loads((lake.root / ".foremount/status.json").read_bytes())
        assert [mount["prefix"] for mount in said["mounts"]][-1] == "/"
        assert refused(os.open, lake.root / ".foremount/x", os.O_CREAT | os.O_WRONLY) == errno.EROFS

    def test_statfs_tells_of_the_disk(self, lake: Lake) -> None:
        assert os.statvfs(lake.root).f_blocks == os.statvfs(lake.base / "disk").f_blocks

    def test_extended_attributes_of_a_read_only_mount_are_none(self, lake: Lake) -> None:
        assert os.listxattr(lake.root / "blob") == []
        assert refused(os.getxattr, lake.root / "blob", "user.x") == errno.ENODATA
        assert refused(os.setxattr, lake.root / "blob", "user.x", b"1") == errno.EROFS

    def test_names_of_any_bytes_are_listed_and_opened(self, lake: Lake) -> None:
        directory = os.fsencode(lake.base / "disk/bytes")
        os.makedirs(directory, exist_ok=True)
        names = {bytes([byte]) for byte in range(1, 256) if byte not in b"./"} | {b"x" * 255, b"a\nb", " ü漢".encode()}
        for name in names:
            Path(os.fsdecode(directory + b"/" + name)).write_bytes(name)
        here = os.fsencode(lake.root / "bytes")
        assert set(os.listdir(here)) == names
        for name in names:
            assert Path(os.fsdecode(here + b"/" + name)).read_bytes() == name

    def test_long_directory_is_listed_completely_with_its_attributes(self, lake: Lake) -> None:
        expected = {}
        for index in range(5000):
            path = lake.base / "disk/many" / f"file-{index:05d}"
            path.write_bytes(b"x" * (index % 7))
            expected[path.name] = index % 7
        with os.scandir(lake.root / "many") as entries:
            assert {entry.name: entry.stat().st_size for entry in entries} == expected

    @pytest.mark.slow
    def test_listing_attributes_cost_no_lookup_per_name(self, lake: Lake) -> None:
        for index in range(300):
            (lake.base / "disk/other" / f"f{index}").write_bytes(b"")
        before = lake.requests("lookup")
        with os.scandir(lake.root / "other") as entries:
            assert len([entry.stat() for entry in entries]) == 301
        assert lake.requests("lookup") - before <= 3

    def test_file_that_was_rewritten_in_place_is_another_inode(self, lake: Lake) -> None:
        """D51"""
        there, here = lake.base / "disk/rewritten", lake.root / "rewritten"
        there.write_bytes(b"one")
        first = here.stat().st_ino
        assert here.read_bytes() == b"one"
        there.write_bytes(b"two")
        wait_until(lambda: here.stat().st_ino != first, "another inode", 5)
        assert here.read_bytes() == b"two"

    def test_held_file_that_was_replaced_keeps_its_bytes(self, lake: Lake) -> None:
        """D50"""
        there, here = lake.base / "disk/replaced", lake.root / "replaced"
        there.write_bytes(b"one" * 10_000)
        with open(here, "rb") as held, mmap.mmap(held.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            before = hashlib.sha256(mapped).digest()
            (lake.base / "disk/successor").write_bytes(b"two" * 10_000)
            os.replace(lake.base / "disk/successor", there)
            wait_until(lambda: here.read_bytes() == b"two" * 10_000, "the new content", 5)
            assert hashlib.sha256(mapped).digest() == before
            assert held.read() == b"one" * 10_000
            assert os.fstat(held.fileno()).st_size == 30_000

    def test_programs_run_from_the_mount(self, lake: Lake) -> None:
        program = lake.base / "disk/work/program"
        program.write_bytes(Path("/bin/true").read_bytes())
        program.chmod(0o755)
        assert subprocess.run([lake.root / "work/program"], check=False).returncode == 0

    def test_running_program_on_a_writable_mount_can_be_read(self, lake: Lake) -> None:
        program = lake.base / "disk/work/sleeper"
        program.write_bytes(Path("/bin/sleep").read_bytes())
        program.chmod(0o755)
        with subprocess.Popen([program, "60"]) as running:
            try:
                assert (lake.root / "work/sleeper").read_bytes() == Path("/bin/sleep").read_bytes()
            finally:
                running.kill()


class TestWriting:
    def test_new_file_has_the_bytes_that_were_written(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(BLOB)
        assert (work / "f").read_bytes() == BLOB
        assert behind(lake, work / "f").read_bytes() == BLOB
        assert (work / "f").stat().st_size == len(BLOB)

    def test_exclusive_creation_is_refused_for_a_name_that_is_taken(self, work: Path) -> None:
        """D68"""
        os.close(os.open(work / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
        assert stat.S_IMODE((work / "f").stat().st_mode) == 0o640
        assert refused(os.open, work / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EEXIST

    def test_umask_applies(self, work: Path) -> None:
        before = os.umask(0o027)
        try:
            os.close(os.open(work / "f", os.O_CREAT | os.O_RDWR, 0o666))
            os.mkdir(work / "d", 0o777)
        finally:
            os.umask(before)
        assert stat.S_IMODE((work / "f").stat().st_mode) == 0o640
        assert stat.S_IMODE((work / "d").stat().st_mode) == 0o750

    def test_truncating_open_empties_the_file(self, work: Path) -> None:
        (work / "f").write_bytes(b"long content")
        (work / "f").write_bytes(b"short")
        assert (work / "f").read_bytes() == b"short"

    def test_saved_by_temporary_file_and_rename_over(self, lake: Lake, work: Path) -> None:
        """D68: O_EXCL, ftruncate up front, chmod, fsync, rename over, fsync of the directory."""
        for content in (BLOB, BLOB[::-1]):
            with open(work / ".tmp", "xb") as file:
                os.ftruncate(file.fileno(), len(content))
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(work / ".tmp", work / "model.safetensors")
            directory = os.open(work, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
            assert (work / "model.safetensors").read_bytes() == content
            assert os.listdir(work) == ["model.safetensors"]
        assert behind(lake, work / "model.safetensors").read_bytes() == BLOB[::-1]

    def test_reopening_right_after_closing_works_every_time(self, work: Path) -> None:
        """D72"""
        for index in range(200):
            (work / "f").write_bytes(b"%d" % index)
            assert (work / "f").read_bytes() == b"%d" % index

    def test_ftruncate_shortens_and_lengthens(self, work: Path) -> None:
        with open(work / "f", "w+b", buffering=0) as file:
            file.write(b"0123456789")
            os.ftruncate(file.fileno(), 4)
            assert os.fstat(file.fileno()).st_size == 4
            os.ftruncate(file.fileno(), 8)
            assert os.fstat(file.fileno()).st_size == 8
            assert os.pread(file.fileno(), 100, 0) == b"0123\0\0\0\0"

    def test_appending_goes_to_the_end_from_several_handles(self, work: Path) -> None:
        with open(work / "f", "ab", buffering=0) as one, open(work / "f", "ab", buffering=0) as two:
            for index in range(50):
                (one, two)[index % 2].write(b"%02d," % index)
        assert (work / "f").read_bytes() == b"".join(b"%02d," % index for index in range(50))

    def test_many_small_appends_are_all_there(self, work: Path) -> None:
        """D73"""
        with open(work / "events", "ab") as file:
            for index in range(500):
                file.write(b"%06d\n" % index)
                file.flush()
        assert (work / "events").read_bytes() == b"".join(b"%06d\n" % index for index in range(500))

    def test_unlinked_file_lives_on_while_open(self, lake: Lake, work: Path) -> None:
        with open(work / "f", "w+b", buffering=0) as file:
            file.write(b"before")
            os.unlink(work / "f")
            assert refused(os.stat, work / "f") == errno.ENOENT
            file.write(b" after")
            assert os.pread(file.fileno(), 100, 0) == b"before after"
            assert os.fstat(file.fileno()).st_size == 12
            os.ftruncate(file.fileno(), 3)
            assert os.fstat(file.fileno()).st_size == 3
            (work / "f").write_bytes(b"successor")
            os.fchmod(file.fileno(), 0o600)
            assert os.pread(file.fileno(), 100, 0) == b"bef"
        assert (work / "f").read_bytes() == b"successor"
        assert stat.S_IMODE(behind(lake, work / "f").stat().st_mode) == 0o644

    def test_file_that_was_renamed_over_lives_on_while_open(self, work: Path) -> None:
        (work / "a").write_bytes(b"new")
        with open(work / "b", "w+b", buffering=0) as old:
            old.write(b"old")
            os.rename(work / "a", work / "b")
            assert os.pread(old.fileno(), 10, 0) == b"old"
            os.ftruncate(old.fileno(), 1)
        assert (work / "b").read_bytes() == b"new"

    def test_deleted_file_gives_its_space_back(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(BLOB)
        (work / "f").read_bytes()
        os.unlink(work / "f")
        worker = f"/proc/{lake.pid('worker')}/fd"
        held = [os.readlink(f"{worker}/{fd}") for fd in os.listdir(worker)]
        assert not [link for link in held if link.endswith("/f (deleted)")]

    def test_directory_with_files_is_renamed_at_once(self, work: Path) -> None:
        """D71"""
        (work / "tmp/inner").mkdir(parents=True)
        for index in range(50):
            (work / "tmp/inner" / str(index)).write_bytes(b"%d" % index)
        with open(work / "tmp/inner/7", "rb") as held:
            os.rename(work / "tmp", work / "final")
            assert held.read() == b"7"
        assert (work / "final/inner/49").read_bytes() == b"49"
        assert refused(os.stat, work / "tmp") == errno.ENOENT
        assert len(os.listdir(work / "final/inner")) == 50

    def test_directory_that_is_not_empty_stays(self, work: Path) -> None:
        """D59"""
        (work / "d").mkdir()
        (work / "d/f").write_bytes(b"")
        assert refused(os.rmdir, work / "d") == errno.ENOTEMPTY
        os.unlink(work / "d/f")
        os.rmdir(work / "d")
        assert refused(os.stat, work / "d") == errno.ENOENT

    def test_names_are_exchanged_in_one_step(self, work: Path) -> None:
        (work / "1").write_bytes(b"one")
        (work / "2").write_bytes(b"two")
        with open(work / "1", "rb") as held:
            assert libc.renameat2(-100, os.fsencode(work / "1"), -100, os.fsencode(work / "2"), 2) == 0
            assert held.read() == b"one"
        assert ((work / "1").read_bytes(), (work / "2").read_bytes()) == (b"two", b"one")

    def test_rename_that_may_not_replace_is_refused(self, work: Path) -> None:
        (work / "1").write_bytes(b"one")
        (work / "2").write_bytes(b"two")
        assert libc.renameat2(-100, os.fsencode(work / "1"), -100, os.fsencode(work / "2"), 1) == -1
        assert ctypes.get_errno() == errno.EEXIST
        assert (work / "1").read_bytes() == b"one"

    def test_symlinks_and_hard_links_can_be_made(self, work: Path) -> None:
        (work / "f").write_bytes(b"shared")
        os.symlink("f", work / "soft")
        os.link(work / "f", work / "hard")
        assert (work / "soft").read_bytes() == (work / "hard").read_bytes() == b"shared"
        assert (work / "f").stat().st_nlink == 2
        os.unlink(work / "f")
        assert (work / "hard").read_bytes() == b"shared"

    def test_mode_owner_and_times_can_be_set_and_show_at_once(self, work: Path) -> None:
        """D65"""
        (work / "f").write_bytes(b"x")
        os.chmod(work / "f", 0o604)
        os.chown(work / "f", 1234, 2345)
        os.utime(work / "f", ns=(1_000_000_001, 2_000_000_002))
        found = (work / "f").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns) == (
            0o604,
            1234,
            2345,
            2_000_000_002,
        )

    def test_group_of_a_setgid_directory_is_inherited(self, work: Path) -> None:
        (work / "team").mkdir()
        os.chown(work / "team", 0, 4321)
        os.chmod(work / "team", 0o2777)
        (work / "team/f").write_bytes(b"")
        (work / "team/d").mkdir()
        assert (work / "team/f").stat().st_gid == 4321
        assert (work / "team/d").stat().st_gid == 4321
        assert (work / "team/d").stat().st_mode & stat.S_ISGID

    def test_move_to_another_mount_is_told_as_such(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(b"x")
        assert refused(os.rename, work / "f", lake.root / "f") in (errno.EXDEV, errno.EROFS)
        assert refused(os.link, lake.root / "blob", work / "hard") == errno.EXDEV

    def test_locks_exclude_each_other(self, work: Path) -> None:
        (work / "lock").write_bytes(b"")
        code = "import fcntl,sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        with open(work / "lock", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            failed = subprocess.run([sys.executable, "-c", code, work / "lock"], capture_output=True, check=False)
            assert b"BlockingIOError" in failed.stderr
        assert subprocess.run([sys.executable, "-c", code, work / "lock"], check=False).returncode == 0

    def test_fallocate_is_answered(self, work: Path) -> None:
        with open(work / "f", "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, 10_000)  # glibc writes zeros where a file system can't
            assert os.fstat(file.fileno()).st_size == 10_000

    def test_shared_map_writes_reach_the_file(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(bytes(10_000))
        with open(work / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[5000:5005] = b"hello"
            mapped.flush()
        assert (work / "f").read_bytes()[5000:5005] == b"hello"
        assert behind(lake, work / "f").read_bytes()[5000:5005] == b"hello"

    def test_private_map_writes_stay_private(self, work: Path) -> None:
        (work / "f").write_bytes(bytes(10_000))
        with open(work / "f", "r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
            mapped[:5] = b"hello"
        assert (work / "f").read_bytes() == bytes(10_000)

    def test_writers_and_readers_of_one_file_see_each_other(self, work: Path) -> None:
        with open(work / "f", "w+b", buffering=0) as writer, open(work / "f", "rb", buffering=0) as reader:
            for index in range(100):
                writer.write(b"%04d" % index)
                assert os.pread(reader.fileno(), 4, index * 4) == b"%04d" % index

    def test_change_on_the_disk_is_seen_through_the_mount(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(b"one")
        assert (work / "f").read_bytes() == b"one"
        behind(lake, work / "f").write_bytes(b"other content")
        wait_until(lambda: (work / "f").read_bytes() == b"other content", "the new content", 5)

    def test_extended_attributes_of_users_are_the_disks(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(b"x")
        os.setxattr(work / "f", "user.step", b"17")
        assert os.getxattr(behind(lake, work / "f"), "user.step") == b"17"
        assert os.listxattr(work / "f") == ["user.step"]
        os.removexattr(work / "f", "user.step")
        assert refused(os.getxattr, work / "f", "user.step") == errno.ENODATA
        assert refused(os.setxattr, work / "f", "trusted.x", b"1") == errno.EOPNOTSUPP

    def test_special_files_are_refused(self, work: Path) -> None:
        assert refused(os.mkfifo, work / "fifo") == errno.EOPNOTSUPP

    def test_other_users_are_held_to_the_modes(self, lake: Lake, work: Path) -> None:
        """D84"""
        (work / "secret").write_bytes(b"s")
        os.chmod(work / "secret", 0o600)
        (work / "open").write_bytes(b"o")
        os.chmod(work / "open", 0o644)
        os.chmod(work, 0o755)
        code = (
            "import os, sys\n"
            "os.chdir(sys.argv[1])\n"
            "for call in (lambda: open('secret'), lambda: open('open', 'w'), lambda: open('new', 'x')):\n"
            "    try: call(); print('done')\n"
            "    except OSError as exc: print(exc.errno)\n"
            "print(open('open').read())\n"
        )
        said = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env", "python3", "-c", code, work],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said.stdout.split() == ["13", "13", "13", "o"], said.stderr

    def test_files_of_other_users_belong_to_them(self, lake: Lake, work: Path) -> None:
        os.chmod(work, 0o1777)
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-c"]
        subprocess.run([*words, f"cd {work} && echo hi > mine && mkdir dir && ln -s x sym"], check=True)
        for name in ("mine", "dir", "sym"):
            assert (work / name).lstat().st_uid == 65534
            assert behind(lake, work / name).lstat().st_uid == 65534
