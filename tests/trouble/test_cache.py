"""What goes wrong below the cache: broken bytes, full disks, too small a cap, other daemons and other versions."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lake import Lake, foremount, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import Fault, WanOrigin
from tests.trouble.cachefiles import cached_files, flip, lake_over

pytestmark = MOUNT
BIG = random.Random(7).randbytes(24 << 20)
SMALL = random.Random(8).randbytes(3 << 20)
MIB = 1 << 20
IN_FLIGHT = MIB
"""What an object that goes and the blocks that take its place may hold between two system calls."""


def forget_pages(path: Path) -> None:
    """Have the kernel drop what it holds of a file of the mount."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetches_of(lake: Lake) -> dict[str, float]:
    found: dict[str, float] = lake.status()["agent_says"]["stores"]["cache"]
    return found


@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="passthrough", marks=pytest.mark.slow), pytest.param(("--no-passthrough",), id="page cache")],
)
def test_flipped_byte_in_a_partly_cached_file_is_fetched_again_and_counted(
    wan_origin: WanOrigin, wan_root: Path, options: tuple[str, ...]
) -> None:
    """D61"""
    (wan_root / "big").write_bytes(BIG)
    with lake_over(wan_origin, wan_root, *options) as lake, open(lake.root / "big", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 100_000, 0) == BIG[:100_000]
        data, _ = cached_files(lake, "big")
        flip(data, 70_000)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file.fileno(), 4096, 66_000) == BIG[66_000:70_096]
        assert fetches_of(lake)["blocks_broken"] == 1
        assert (lake.root / "big").read_bytes() == BIG


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--no-passthrough",)], ids=["passthrough", "page cache"])
def test_flipped_byte_in_a_complete_file_is_never_served(
    wan_origin: WanOrigin, wan_root: Path, options: tuple[str, ...]
) -> None:
    """D61"""
    (wan_root / "f").write_bytes(SMALL)
    with lake_over(wan_origin, wan_root, *options) as lake:
        lake.command("fetch", str(lake.root))
        data, _ = cached_files(lake, "f")
        flip(data, 1_000_000)
        assert (lake.root / "f").read_bytes() == SMALL
        assert fetches_of(lake)["blocks_broken"] == 1


@pytest.mark.slow
def test_flipped_byte_is_an_error_and_not_a_wrong_byte_while_the_origin_is_away(
    wan_origin: WanOrigin, wan_root: Path
) -> None:
    """D61, D52"""
    (wan_root / "f").write_bytes(SMALL)
    with lake_over(wan_origin, wan_root, deadline="2s") as lake:
        lake.command("fetch", str(lake.root))
        data, _ = cached_files(lake, "f")
        flip(data, 1_000_000)
        wan_origin.inject(Fault(kind="status"))
        with open(lake.root / "f", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 4096, 0) == SMALL[:4096]
            with pytest.raises(OSError, match="Input/output"):
                os.pread(file.fileno(), 4096, 1_000_000)
        wan_origin.heal()
        assert (lake.root / "f").read_bytes() == SMALL


def delete_both(data: Path, sums: Path) -> None:
    data.unlink()
    sums.unlink()


def damages() -> list[tuple[str, Callable[[Path, Path], None]]]:
    return [
        ("data cut short", lambda data, sums: os.truncate(data, 1000)),
        ("digests cut short", lambda data, sums: os.truncate(sums, 4100)),
        ("digests emptied", lambda data, sums: os.truncate(sums, 0)),
        ("header overwritten", lambda data, sums: flip(sums, 3)),
        ("data deleted", lambda data, sums: data.unlink()),
        ("both deleted", delete_both),
    ]


@pytest.mark.parametrize("name", ["complete", pytest.param("partial", marks=pytest.mark.slow)])
def test_damaged_cache_files_are_made_anew(wan_origin: WanOrigin, wan_root: Path, name: str) -> None:
    """D61"""
    content = SMALL if name == "complete" else BIG
    cases = damages()
    for index, _ in enumerate(cases):
        (wan_root / f"f{index}").write_bytes(content)
    with lake_over(wan_origin, wan_root, "--no-passthrough") as lake:
        for index, (what, damage) in enumerate(cases):
            path = lake.root / f"f{index}"
            with open(path, "rb", buffering=0) as file:
                length = len(content) if name == "complete" else 100_000
                assert os.pread(file.fileno(), length, 0) == content[:length]
                damage(*cached_files(lake, f"f{index}"))
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(file.fileno(), 100_000, 50_000) == content[50_000:150_000], what
            forget_pages(path)
            assert path.read_bytes() == content, what
        assert lake.state()["worker"]["restarts"] == lake.state()["agent"]["restarts"] == 0


@pytest.mark.slow
def test_verify_drops_a_broken_block_and_the_next_read_is_right(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "f").write_bytes(SMALL)
    with lake_over(wan_origin, wan_root) as lake:
        lake.command("fetch", str(lake.root))
        data, _ = cached_files(lake, "f")
        flip(data, 10)
        said = lake.command("verify", str(lake.root), check=False)
        assert "1" in said.stdout
        assert fetches_of(lake)["blocks_broken"] == 1
        assert (lake.root / "f").read_bytes() == SMALL


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(kind="status"), id="answers 503"),
        pytest.param(Fault(kind="reset"), id="resets connections", marks=pytest.mark.slow),
        pytest.param(Fault(kind="stall"), id="hangs", marks=pytest.mark.slow),
    ],
)
def test_unreachable_origin_serves_what_is_here_and_fails_the_rest_at_the_deadline(
    wan_origin: WanOrigin, wan_root: Path, fault: Fault
) -> None:
    """D52"""
    (wan_root / "d").mkdir()
    for name in ("complete", "partial", "remote"):
        (wan_root / "d" / name).write_bytes(BIG)
    with lake_over(wan_origin, wan_root, deadline="2s", ttl="1ms") as lake:  # nothing known is young enough
        lake.command("fetch", str(lake.root / "d/complete"))
        with open(lake.root / "d/partial", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 65_536, 0) == BIG[:65_536]
        assert sorted(os.listdir(lake.root / "d")) == ["complete", "partial", "remote"]
        wan_origin.inject(fault)
        assert sorted(os.listdir(lake.root / "d")) == ["complete", "partial", "remote"]
        assert (lake.root / "d/complete").read_bytes() == BIG
        assert (lake.root / "d/remote").stat().st_size == len(BIG)
        with open(lake.root / "d/partial", "rb", buffering=0) as file:
            assert os.pread(file.fileno(), 65_536, 0) == BIG[:65_536]
            with pytest.raises(OSError, match="Input/output"):
                os.pread(file.fileno(), 65_536, 20 << 20)
        with pytest.raises(OSError, match="Input/output"):
            (lake.root / "d/remote").read_bytes()
        wan_origin.heal()
        wait_until(lambda: reads(lake.root / "d/remote") == BIG, "the origin's return")


def reads(path: Path) -> bytes | None:
    """Return the content, None where reading it fails."""
    try:
        return path.read_bytes()
    except OSError as exc:
        assert exc.errno == errno.EIO
        return None


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    with tempfile.TemporaryDirectory(prefix="foremount-disk-") as made, ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "foremount-test", made], check=True)
        stack.callback(subprocess.run, ["umount", made], check=True)
        yield Path(made)


def read_all(lake: Lake, expected: dict[str, bytes], readers: int) -> None:
    """Read every file by several threads, each in an order of its own."""
    wrong: list[str] = []

    def read(seed: int) -> None:
        names = list(expected)
        random.Random(seed).shuffle(names)
        for name in names:
            try:
                if (lake.root / name).read_bytes() != expected[name]:
                    wrong.append(f"{name}: wrong bytes")
            except OSError as exc:
                wrong.append(f"{name}: {exc}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def disk_use(disk: Path) -> int:
    """Return the bytes that a file system holds in one look: files that are counted one by one change meanwhile."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("readers", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_cap_is_never_exceeded_while_three_times_as_much_is_read(wan_origin: WanOrigin, wan_root: Path, readers: int) -> None:
    """D78"""
    files = {f"f{index}": random.Random(index).randbytes(6 * MIB) for index in range(16)}
    for name, content in files.items():
        (wan_root / name).write_bytes(content)
    cap = 32 * MIB
    with small_disk("256m") as disk, lake_over(wan_origin, wan_root, cache=str(disk / "cache"), size="32MiB") as lake:
        seen = [0]
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.append(disk_use(disk))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            read_all(lake, files, readers)
        finally:
            done.set()
            watcher.join()
        catalog = sum(file.stat().st_blocks * 512 for file in disk.rglob("*.mdb"))
        assert 0 < max(seen) - catalog <= cap + IN_FLIGHT
        assert fetches_of(lake)["used"] <= cap


@pytest.mark.slow
def test_full_cache_disk_is_bypassed(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D78: ENOSPC"""
    files = {f"f{index}": random.Random(index).randbytes(6 * MIB) for index in range(16)}
    for name, content in files.items():
        (wan_root / name).write_bytes(content)
    with small_disk("40m") as disk, lake_over(wan_origin, wan_root, cache=str(disk / "cache")) as lake:
        read_all(lake, files, 4)
        read_all(lake, files, 2)
        assert lake.state()["worker"]["restarts"] == lake.state()["agent"]["restarts"] == 0


def test_cache_directory_inside_the_mount_point_is_refused(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D15"""
    with (
        pytest.raises(AssertionError, match="lies inside the mount point"),
        lake_over(wan_origin, wan_root, cache="{base}/mnt/cache"),
    ):
        pass


@pytest.mark.slow
def test_second_daemon_on_one_cache_directory_is_refused(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D82"""
    (wan_root / "f").write_bytes(b"content")
    with lake_over(wan_origin, wan_root) as lake:
        other = lake.base / "other"
        other.mkdir()
        said = foremount("mount", str(lake.config), str(other), check=False)
        assert said.returncode != 0
        assert "in use by process" in said.stdout + said.stderr
        assert not os.path.ismount(other)
        assert (lake.root / "f").read_bytes() == b"content"


def test_cache_of_an_older_format_is_discarded_with_one_line(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D81"""
    (wan_root / "f").write_bytes(b"content")
    with tempfile.TemporaryDirectory(prefix="foremount-cache-") as cache:
        old = Path(cache) / "v0/objects/aa"
        old.mkdir(parents=True)
        (old / "aa.data").write_bytes(b"old")
        with lake_over(wan_origin, wan_root, cache=cache) as lake:
            wait_until(lambda: not (Path(cache) / "v0").exists(), "the end of the old cache")
            assert (lake.root / "f").read_bytes() == b"content"
            assert lake.log("agent").count("discarding the cache of another version") == 1


@pytest.mark.slow
def test_three_hundred_files_are_read_with_256_descriptors(wan_origin: WanOrigin, wan_root: Path) -> None:
    """ulimit -n 256"""
    for index in range(300):
        (wan_root / str(index)).write_bytes(b"%d" % index * 1000)
    with ExitStack() as stack:
        lake = stack.enter_context(lake_over(wan_origin, wan_root, "--no-passthrough"))
        for process in ("worker", "agent"):  # they have raised their soft limits to the hard one: start them anew below it
            resource.prlimit(lake.pid("keeper"), resource.RLIMIT_NOFILE, (256, 256))
            lake.kill(process, ready=True)
        assert resource.prlimit(lake.pid("worker"), resource.RLIMIT_NOFILE) == (256, 256)
        files = [stack.enter_context(open(lake.root / str(index), "rb", buffering=0)) for index in range(300)]
        for _ in range(2):
            for index, file in enumerate(files):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(file.fileno(), 10_000, 0) == b"%d" % index * 1000
        assert len(os.listdir(f"/proc/{lake.pid('worker')}/fd")) < 256
        assert lake.state()["worker"]["restarts"] == lake.state()["agent"]["restarts"] == 1


def test_request_that_a_killed_worker_had_taken_is_answered_by_the_next_one(wan_origin: WanOrigin, wan_root: Path) -> None:
    (wan_root / "f").write_bytes(SMALL)
    with lake_over(wan_origin, wan_root, deadline="30s") as lake:
        os.stat(lake.root / "f")
        wan_origin.inject(Fault(kind="stall", path="*/f", after=100))
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append((lake.root / "f").read_bytes()))
        reader.start()
        wait_until(lambda: wan_origin.stats()["by_path"].get(f"/{wan_root.name}/f", {}).get("gets"), "the request")
        lake.kill("worker")
        wan_origin.heal()
        reader.join(30)
        assert got == [SMALL]
