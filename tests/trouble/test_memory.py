"""Sixty-four readers of large files while the daemon may use 512 MiB."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lake import anonymous_bytes, http_lake, mounted
from tests.marks import MOUNT
from tests.servers.wan_origin import WanOrigin

pytestmark = [*MOUNT, pytest.mark.slow]
LIMIT = 512 << 20
READERS = 64
FILE_BYTES = 1 << 30
READING_S = 30.0


@dataclass(frozen=True)
class Group:
    """A memory control group, of either version."""

    path: Path
    limit_file: str
    events_file: str

    def add(self, pid: int) -> None:
        """Let a process be counted here from now on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for memory."""
        lines = (self.path / self.events_file).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def memory_group(limit: int) -> Iterator[Group]:
    """Make a group with this limit; skips where the machine has none to give."""
    places = [
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
        (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
    ]
    for parent, limit_file, events_file in places:
        path = parent / f"foremount-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / limit_file).write_text(str(limit))
        except OSError:
            path.rmdir()
            continue
        try:
            yield Group(path, limit_file, events_file)
        finally:
            path.rmdir()
        return
    pytest.skip("no memory control group can be made here")


def test_many_readers_of_large_files_stay_within_the_memory_limit(wan_origin: WanOrigin, wan_root: Path) -> None:
    """D01: readers become slower, nothing dies."""
    chance = random.Random(15)
    marks = {}
    for index in range(READERS):
        with open(wan_root / str(index), "wb") as file:
            os.truncate(file.fileno(), FILE_BYTES)
            for offset in range(0, FILE_BYTES, 16 << 20):
                marks[index, offset] = chance.randbytes(64)
                os.pwrite(file.fileno(), marks[index, offset], offset)
    wrong: list[str] = []
    counts = [0] * READERS
    end = threading.Event()

    def read(index: int, root: Path) -> None:
        try:
            with open(root / str(index), "rb", buffering=0) as file:
                offset = 0
                while not end.is_set() and offset < FILE_BYTES:
                    piece = os.pread(file.fileno(), 1 << 20, offset)
                    mark = marks.get((index, offset))
                    if len(piece) != 1 << 20 or (mark is not None and piece[:64] != mark) or any(piece[-64:]):
                        wrong.append(f"{index} at {offset}")
                    offset += len(piece)
                    counts[index] += 1
        except OSError as exc:
            wrong.append(f"{index}: {exc}")

    text = http_lake(f"{wan_origin.url}/{wan_root.name}", size="512MiB")
    with memory_group(LIMIT) as group, mounted(text) as lake:
        pids = {process: lake.pid(process) for process in ("keeper", "worker", "agent")}
        for pid in pids.values():
            group.add(pid)
        threads = [threading.Thread(target=read, args=(index, lake.root)) for index in range(READERS)]
        for thread in threads:
            thread.start()
        peak, deadline = 0, time.monotonic() + READING_S
        while time.monotonic() < deadline:
            peak = max(peak, sum(map(anonymous_bytes, pids.values())))
            time.sleep(0.05)  # samples, not a wait for anything
        end.set()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert min(counts) > 0, counts
        assert {process: lake.pid(process) for process in pids} == pids
        assert group.kills() == 0
        assert peak < LIMIT
