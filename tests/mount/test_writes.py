"""Writing to a remote origin through a real mount: POSIX as savers use it, over a staging area that nothing empties.

The origin takes no uploads here: what is written stays staged, and everything below is about that. Uploads: test_uploads.py.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake import STAGED, Lake, mounted, wait_until
from tests.marks import MOUNT
from tests.mount import test_local as local
from tests.servers.wan_origin import WanOrigin
from vfs.namespace.journal import JournalReader
from vfs.namespace.staged import Staged, StagedKind

pytestmark = MOUNT
CONFIG = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "put"
[[mounts]]
prefix = "/work"
site = "origin"
writable = true
[[mounts]]
prefix = "/read-only"
site = "origin"
[cache]
directory = "{base}/cache"
[limits]
listing_ttl = "1h"
"""
POLICY = """
format = 1
[[rules]]
name = "writes"
match = { access = "write" }
set = { write_durability = "DURABILITY" }
"""
BIG = random.Random(7).randbytes(3_000_001)
refused = local.refused


def config(base: Path, url: str, *, durability: str = "local", more: str = "") -> str:
    """Return a configuration, with its policy document written to `base`."""
    (base / "policy.toml").write_text(POLICY.replace("DURABILITY", durability))
    return CONFIG.replace("URL", url) + more


@pytest.fixture(scope="module", params=["passthrough", "page cache"])
def lake(request: pytest.FixtureRequest, wan_origin_server: WanOrigin) -> Iterator[Lake]:
    options = [] if request.param == "passthrough" else ["--no-passthrough"]
    origin = wan_origin_server.root / f"writes-{request.param_index}"
    for name in ("present", "present/inner", "shown/deep", "whole"):
        (origin / name).mkdir(parents=True)
    for name in ("present/a", "present/b", "present/inner/c", "shown/deep/x", "whole/1", "whole/2"):
        (origin / name).write_bytes(name.encode())
    (origin / "present/big").write_bytes(BIG)
    (origin / "present/huge").write_bytes(b"")
    os.truncate(origin / "present/huge", 65 << 20)
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        os.chmod(made, 0o755)  # other users are to get as far as the mount
        base = Path(made)
        with mounted(config(base, f"{wan_origin_server.url}/{origin.name}"), base, *options) as lake:
            yield lake


@pytest.fixture
def work(lake: Lake, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own on the writable mount."""
    path = lake.root / "work" / f"{abs(hash(request.node.nodeid)):x}"
    path.mkdir()
    return path


@pytest.fixture
def present(lake: Lake, request: pytest.FixtureRequest) -> Path:
    """The directory that the origin has."""
    return lake.root / "work/present"


def staged(lake: Lake, path: Path) -> Staged | None:
    """Return what the journal says of a path of the mount now."""
    reader = JournalReader(str(lake.base / "cache/staging"))
    reader.poll()
    name = str(path.relative_to(lake.root))
    found = [node for node in reader.nodes if reader.nodes.path(node) == name]
    reader.close()
    return found[-1] if found else None


class TestPosix(local.TestWriting):
    """All that holds on a local directory holds on a staged one, but for what is said here."""

    def test_symlinks_and_hard_links_can_be_made(self, work: Path) -> None:
        (work / "f").write_bytes(b"shared")
        os.symlink("f", work / "soft")
        assert (work / "soft").read_bytes() == b"shared"
        assert os.readlink(work / "soft") == "f"
        assert refused(os.link, work / "f", work / "hard") == errno.EOPNOTSUPP

    def test_deleted_file_gives_its_space_back(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(local.BLOB)
        node = staged(lake, work / "f")
        assert node is not None
        content = lake.base / f"cache/staging/content/{node.content:x}"
        assert content.stat().st_size == len(local.BLOB)
        os.unlink(work / "f")
        wait_until(lambda: not content.exists(), "the staging file to go")

    def test_change_on_the_disk_is_seen_through_the_mount(self, lake: Lake, work: Path) -> None:
        pytest.skip("staging files are nobody else's")

    def test_move_to_another_mount_is_told_as_such(self, lake: Lake, work: Path) -> None:
        (work / "f").write_bytes(b"x")
        assert refused(os.rename, work / "f", lake.root / "read-only/f") in (errno.EXDEV, errno.EROFS)

    def test_other_users_are_held_to_the_modes(self, lake: Lake, work: Path) -> None:
        super().test_other_users_are_held_to_the_modes(lake, work)

    def test_extended_attributes_of_users_are_kept(self, work: Path) -> None:
        (work / "f").write_bytes(b"x")
        for path in (work / "f", work):
            os.setxattr(path, "user.step", b"17")
            os.setxattr(path, "user.empty", b"")
            assert os.getxattr(path, "user.step") == b"17"
            assert sorted(os.listxattr(path)) == ["user.empty", "user.step"]
            os.removexattr(path, "user.step")
            assert refused(os.getxattr, path, "user.step") == errno.ENODATA
            assert refused(os.removexattr, path, "user.step") == errno.ENODATA
            assert refused(os.setxattr, path, "trusted.x", b"1") == errno.EOPNOTSUPP

    def test_r_plus_b_writes_anywhere_in_a_file_that_was_closed(self, work: Path) -> None:
        (work / "f").write_bytes(BIG)
        with open(work / "f", "r+b") as file:
            file.seek(1_500_000)
            file.write(b"middle")
            file.seek(4_000_000)
            file.write(b"end")
        expected = bytearray(BIG) + bytes(4_000_000 - len(BIG)) + b"end"
        expected[1_500_000:1_500_006] = b"middle"
        assert (work / "f").read_bytes() == expected

    def test_mapping_goes_on_writing_after_its_descriptor_is_closed(self, lake: Lake, work: Path) -> None:
        """The kernel says who can write: the last close of a descriptor is not the end of a mapping."""
        if "page cache" in os.environ.get("PYTEST_CURRENT_TEST", ""):
            pytest.skip("shared writable mappings flush through the worker there: each write is seen")
        file = os.open(work / "f", os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, 8192)
        with mmap.mmap(file, 8192) as mapped:
            os.close(file)
            mapped[:5] = b"first"
            os.stat(work / "f")
            for _ in range(100):  # turns of the worker, not time: each of these is one
                os.stat(work)
            assert (staged(lake, work / "f") or pytest.fail("no node")).writing
            mapped[4096:4100] = b"last"
        wait_until(lambda: not (staged(lake, work / "f") or pytest.fail("no node")).writing, "the file to be closed")
        assert (work / "f").read_bytes()[:5] + (work / "f").read_bytes()[4096:4100] == b"firstlast"

    def test_posix_locks_exclude_each_other(self, work: Path) -> None:
        (work / "lock").write_bytes(b"")
        code = "import fcntl,sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        with open(work / "lock", "r+b") as held:
            fcntl.lockf(held, fcntl.LOCK_EX)
            failed = subprocess.run([sys.executable, "-c", code, work / "lock"], capture_output=True, check=False)
            assert b"BlockingIOError" in failed.stderr
        assert subprocess.run([sys.executable, "-c", code, work / "lock"], check=False).returncode == 0

    def test_node_of_a_closed_file_says_what_it_holds(self, lake: Lake, work: Path) -> None:
        with open(work / "f", "wb") as file:
            file.write(BIG)
            file.flush()
            assert (staged(lake, work / "f") or pytest.fail("no node")).writing
        node = wait_until(lambda: (found := staged(lake, work / "f")) and not found.writing and found, "the close")
        assert (node.size, node.mtime_ns) == (len(BIG), (work / "f").stat().st_mtime_ns)
        assert node.written_ns > 0
        assert os.getxattr(work / "f", "user.foremount.written").startswith(b"20")
        assert refused(os.getxattr, work / "f", "user.foremount.durable_here") == errno.ENODATA
        file_fd = os.open(work / "f", os.O_RDONLY)
        os.fsync(file_fd)
        os.close(file_fd)
        assert os.getxattr(work / "f", "user.foremount.durable_here").startswith(b"20")
        assert refused(os.getxattr, work / "f", "user.foremount.durable_at_origin") == errno.ENODATA

    def test_directories_can_be_synced(self, work: Path) -> None:
        """D76"""
        (work / "f").write_bytes(b"x")
        directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)


class TestOverTheOrigin:
    """Names and bytes of the origin below what is staged."""

    def test_listing_merges_staged_names_with_the_origins(self, lake: Lake) -> None:
        """D59"""
        shown = lake.root / "work/shown"
        (shown / "new").write_bytes(b"n")
        (shown / "deep/y").write_bytes(b"y")
        assert sorted(os.listdir(shown)) == ["deep", "new"]
        assert sorted(os.listdir(shown / "deep")) == ["x", "y"]
        assert refused(os.rmdir, shown / "deep") == errno.ENOTEMPTY
        os.unlink(shown / "deep/x")
        assert refused(os.rmdir, shown / "deep") == errno.ENOTEMPTY
        os.unlink(shown / "deep/y")
        os.rmdir(shown / "deep")
        assert os.listdir(shown) == ["new"]
        (shown / "deep").mkdir()
        assert os.listdir(shown / "deep") == []
        assert refused(os.stat, shown / "deep/x") == errno.ENOENT

    def test_overwritten_object_is_another_inode_and_its_readers_keep_the_old_one(self, present: Path) -> None:
        before = (present / "a").stat().st_ino
        with open(present / "a", "rb") as held, open(present / "a", "wb") as file:
            file.write(b"anew")
            file.flush()
            assert held.read() == b"present/a"
            assert (present / "a").read_bytes() == b"anew"
        assert (present / "a").stat().st_ino != before
        assert (present / "a").read_bytes() == b"anew"

    def test_object_that_is_renamed_over_is_kept_for_its_readers(self, present: Path) -> None:
        (present / "tmp").write_bytes(b"successor")
        with open(present / "b", "rb") as held:
            os.rename(present / "tmp", present / "b")
            assert held.read() == b"present/b"
        assert (present / "b").read_bytes() == b"successor"
        assert "tmp" not in os.listdir(present)

    def test_small_object_is_changed_in_place_from_a_copy(self, present: Path) -> None:
        with open(present / "big", "r+b") as file:
            file.seek(1_000_000)
            file.write(b"changed")
        expected = bytearray(BIG)
        expected[1_000_000:1_000_007] = b"changed"
        assert (present / "big").read_bytes() == expected

    def test_large_object_is_not_changed_in_place(self, present: Path) -> None:
        assert refused(open, present / "huge", "r+b") == errno.EOPNOTSUPP
        assert refused(os.rename, present / "huge", present / "moved") == errno.EXDEV
        assert (present / "huge").stat().st_size == 65 << 20
        (present / "huge").write_bytes(b"but overwritten")
        assert (present / "huge").read_bytes() == b"but overwritten"

    def test_object_of_the_origin_is_truncated_and_renamed_from_a_copy(self, present: Path) -> None:
        os.truncate(present / "inner/c", 7)
        assert (present / "inner/c").read_bytes() == b"present"
        os.rename(present / "inner/c", present / "inner/d")
        assert os.listdir(present / "inner") == ["d"]
        assert (present / "inner/d").read_bytes() == b"present"

    def test_attributes_of_the_origins_objects_are_not_kept(self, lake: Lake) -> None:
        whole = lake.root / "work/whole"
        assert refused(os.chmod, whole / "1", 0o600) == errno.EOPNOTSUPP
        os.chmod(whole, 0o700)
        assert stat.S_IMODE(whole.stat().st_mode) == 0o700
        assert sorted(os.listdir(whole)) == ["1", "2"]

    def test_directory_of_the_origin_is_copied_by_who_moves_it(self, lake: Lake) -> None:
        whole = lake.root / "work/whole"
        assert refused(os.rename, whole, lake.root / "work/elsewhere") == errno.EXDEV
        subprocess.run(["mv", whole, lake.root / "work/elsewhere"], check=True)
        assert (lake.root / "work/elsewhere/2").read_bytes() == b"whole/2"
        assert refused(os.stat, whole) == errno.ENOENT

    def test_read_only_prefix_refuses_every_change(self, lake: Lake) -> None:
        root = lake.root / "read-only"
        assert refused(os.mkdir, root / "d") == errno.EROFS
        assert refused(open, root / "new", "xb") == errno.EROFS
        assert refused(open, root / "present/a", "r+b") == errno.EROFS
        assert refused(os.unlink, root / "present/a") == errno.EROFS
        assert refused(os.rename, root / "present/a", root / "present/z") == errno.EROFS
        assert refused(os.setxattr, root / "present/a", "user.x", b"") == errno.EROFS
        assert refused(os.chmod, root / "present/a", 0o777) == errno.EROFS

    def test_names_that_no_origin_can_hold_are_refused(self, work: Path) -> None:
        assert refused(open, os.fsencode(work) + b"/\xff", "xb") == errno.EOPNOTSUPP
        assert refused(os.mkdir, os.fsencode(work) + b"/\xff") == errno.EOPNOTSUPP

    def test_saving_into_a_new_directory_does_not_ask_the_origin_for_each_name(
        self, lake: Lake, wan_origin_server: WanOrigin
    ) -> None:
        directory = lake.root / "work/asked-once"
        directory.mkdir()
        for index in range(50):
            (directory / f"{index}.tmp").write_bytes(b"x")
            os.rename(directory / f"{index}.tmp", directory / f"{index}.bin")
        assert len(os.listdir(directory)) == 50
        asked = {
            path: counts["requests"]
            for path, counts in wan_origin_server.stats()["by_path"].items()
            if "/asked-once" in path and not path.endswith(".bin")  # for those uploads ask
        }
        assert sum(asked.values()) <= 5, asked

    def test_kind_of_a_node_is_what_was_made(self, lake: Lake, work: Path) -> None:
        (work / "d").mkdir()
        (work / "f").write_bytes(b"")
        os.symlink("f", work / "s")
        kinds = {name: (staged(lake, work / name) or pytest.fail(name)).kind for name in ("d", "f", "s")}
        assert kinds == {"d": StagedKind.DIRECTORY, "f": StagedKind.FILE, "s": StagedKind.SYMLINK}


FULL = (
    STAGED
    + """[staging]
directory = "{base}/staging"
size = "1MiB"
[limits]
origin_deadline = "2s"
"""
)


@pytest.mark.slow
def test_full_staging_area_refuses_new_files_until_there_is_room(wan_origin: WanOrigin, tmp_path: Path) -> None:
    """Nothing is uploaded here: what makes room is that something is removed."""
    (wan_origin.root / "full").mkdir()
    config(tmp_path, "")
    with mounted(FULL.replace("URL", f"{wan_origin.url}/full"), tmp_path) as lake:
        (lake.root / "large").write_bytes(BIG)
        wait_until(lambda: refused(lambda: (lake.root / "new").write_bytes(b"")) == errno.ENOSPC, "the area to be full")
        with open(lake.root / "large", "rb") as held:
            assert held.read() == BIG
        os.unlink(lake.root / "large")
        wait_until(lambda: refused(lambda: (lake.root / "new").write_bytes(b"x")) is None, "room")
        assert (lake.root / "new").read_bytes() == b"x"


@pytest.mark.slow
def test_full_disk_below_the_staging_area_is_told_to_who_writes(wan_origin: WanOrigin, tmp_path: Path) -> None:
    (wan_origin.root / "disk").mkdir()
    config(tmp_path, "")
    (tmp_path / "staging").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path / "staging"], check=True)
    try:
        with mounted(FULL.replace("URL", f"{wan_origin.url}/disk").replace("1MiB", "1GiB"), tmp_path) as lake:
            (lake.root / "kept").write_bytes(b"before")
            assert refused(lambda: (lake.root / "large").write_bytes(BIG + BIG)) == errno.ENOSPC
            assert (lake.root / "kept").read_bytes() == b"before"
            os.unlink(lake.root / "large")
            wait_until(lambda: refused(lambda: (lake.root / "after").write_bytes(BIG)) is None, "room")
            assert (lake.root / "after").read_bytes() == BIG
    finally:
        subprocess.run(["umount", "-l", tmp_path / "staging"], check=True)
