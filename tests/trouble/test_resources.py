"""What a mount takes from its host and gives back: memory after a burst, forgotten names, and a disk that is slow."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb
import pytest

from tests.lake import Lake, anonymous_bytes, http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin
from tests.trouble.cachefiles import disk_image

pytestmark = MOUNT
MIB = 1 << 20
THROTTLE = Path("/sys/fs/cgroup/blkio")


def lake_over(origin: WanOrigin, root: Path, cache: str = "{base}/cache") -> str:
    """Return the configuration of a mount that shows this directory of the origin."""
    return http_lake(f"{origin.url}/{root.name}", cache=cache)


def resident(lake: Lake) -> int:
    """Return the bytes that the three processes hold apart from files."""
    held = [anonymous_bytes(lake.pid(process)) for process in ("keeper", "worker", "agent")]
    assert all(held)
    return sum(held)


def read_at_once(lake: Lake, expected: dict[str, bytes]) -> list[str]:
    """Read every file in a thread of its own; return what went wrong."""
    wrong: list[str] = []

    def read(name: str) -> None:
        try:
            if (lake.root / name).read_bytes() != expected[name]:
                wrong.append(f"{name}: wrong bytes")
        except OSError as exc:
            wrong.append(f"{name}: {exc}")

    threads = [threading.Thread(target=read, args=(name,)) for name in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@contextmanager
def slow_disk(operations_s: int) -> Iterator[Path]:
    """A file system on a device that does so few operations in a second from `slow` on; skips where there is none."""
    if not (THROTTLE / "blkio.throttle.write_iops_device").exists():
        pytest.skip("no block device can be throttled here")
    with disk_image(512 * MIB) as (disk, _), ExitStack() as stack:
        number = os.stat(disk).st_dev

        def throttle(operations_s: int) -> None:
            for kind in ("read", "write"):
                limit = THROTTLE / f"blkio.throttle.{kind}_iops_device"
                limit.write_text(f"{os.major(number)}:{os.minor(number)} {operations_s}")

        stack.callback(throttle, 0)
        throttle(operations_s)
        yield disk


@pytest.mark.slow
def test_cache_disk_that_takes_a_second_for_each_operation_stops_nobody(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D06"""
    files = {f"f{index}": random.Random(index).randbytes(3 * MIB) for index in range(8)}
    for name, content in files.items():
        (wan_root / name).write_bytes(content)
    with slow_disk(1) as disk, mounted(lake_over(wan_origin, wan_root, cache=str(disk / "cache"))) as lake:
        pids = {process: lake.pid(process) for process in ("worker", "agent")}
        assert read_at_once(lake, files) == []
        assert read_at_once(lake, files) == []
        assert {process: lake.pid(process) for process in pids} == pids


@pytest.mark.slow
def test_memory_of_a_burst_is_given_back(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D21"""
    files = {f"f{index}": random.Random(index).randbytes(16 * MIB) for index in range(24)}
    for name, content in files.items():
        (wan_root / name).write_bytes(content)
    with mounted(lake_over(wan_origin, wan_root)) as lake:
        names = list(files)
        assert read_at_once(lake, {name: files[name] for name in names[:2]}) == []  # imports and pools are there from now on
        before = resident(lake)
        assert read_at_once(lake, files) == []
        wait_until(lambda: resident(lake) < before + 48 * MIB, "the memory of the burst")


@pytest.mark.slow
def test_names_that_the_kernel_has_forgotten_leave_the_table(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D23"""
    for directory in range(20):
        (wan_root / str(directory)).mkdir()
        for index in range(200):
            (wan_root / str(directory) / str(index)).write_bytes(b"x")
    with mounted(lake_over(wan_origin, wan_root)) as lake, open(lake.root / "0/0", "rb") as held:
        found = subprocess.run(["find", str(lake.root), "-size", "+0"], capture_output=True, text=True, check=True)
        assert len(found.stdout.splitlines()) >= 4000
        assert known_inodes(lake) > 4000
        Path("/proc/sys/vm/drop_caches").write_text("2")
        wait_until(lambda: known_inodes(lake) < 100, "what the kernel forgets")
        assert held.read() == b"x"


def known_inodes(lake: Lake) -> int:
    """Return how many inodes the worker keeps for the kernel."""
    with lmdb.open(lake.run_dir.inodes, readonly=True, lock=False, max_dbs=8) as table, table.begin() as read:
        return int(read.stat(table.open_db(b"rows", read, create=False))["entries"])
