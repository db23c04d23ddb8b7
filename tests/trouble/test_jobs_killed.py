"""The worker of `.jobs` killed while verifying readers work."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.jobs import JobsLake, jobs_mounted
from tests.lake import wait_until
from tests.marks import MOUNT
from tests.trouble.readers import Readers

pytestmark = MOUNT
KILLS = 8


def fill(lake: JobsLake) -> dict[str, bytes]:
    """Put samples of two ranks, some large, and place one of the two."""
    rng = random.Random(9)
    contents = {}
    for rank in (0, 1):
        directory = f"run7/step_0000001/rank_{rank:04d}"
        for slot in range(30):
            size = 5_000_000 + slot if slot % 10 == 0 else rng.randrange(1, 200_000)
            contents[f"{directory}/{slot:06d}.npy"] = rng.randbytes(size)
    for path, content in contents.items():
        lake.samples.put(path, content)
    lake.samples.place("run7/step_0000001/rank_0000")
    return contents


def primers() -> list[int]:
    """Return the processes that walk for workers of `.jobs`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"vfs.kernel.jobs.primer" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_no_reader_notices_killed_workers_of_jobs() -> None:
    with jobs_mounted() as lake:
        contents = fill(lake)
        with Readers(lake.jobs, contents) as readers:
            for _ in range(KILLS):
                lake.kill("jobs", ready=True)
                readers.wait_rounds()
        readers.check()
        assert lake.state()["jobs"]["restarts"] == KILLS
        assert lake.samples.greeted == KILLS + 1


@pytest.mark.slow
def test_one_killed_worker_of_each_connection_is_not_noticed() -> None:
    with jobs_mounted() as lake:
        contents = fill(lake)
        with Readers(lake.jobs, contents) as readers:
            lake.kill("jobs", ready=True)
            lake.kill("worker", ready=True)
            readers.wait_rounds()
        readers.check()
        assert (lake.root / "plain").read_bytes() == b"plain"


@pytest.mark.slow
def test_worker_killed_while_it_fills_the_page_cache_leaves_no_process_behind_and_its_successor_goes_on() -> None:
    before = primers()
    with jobs_mounted() as lake:
        contents = fill(lake)
        for _ in range(3):
            lake.samples.place("run7/step_0000001/rank_0001")
            lake.kill("jobs", ready=True)
        lake.settle_pushes(2 * 27)  # of each rank, without the three that are larger than is pushed
        for path, content in contents.items():
            assert (lake.jobs / path).read_bytes() == content
        wait_until(lambda: len(set(primers()) - set(before)) == 1, "the primers of dead workers have ended")
    wait_until(lambda: not set(primers()) - set(before), "the last primer has ended")


@pytest.mark.slow
def test_killed_primer_is_replaced_with_the_next_placing() -> None:
    before = primers()
    with jobs_mounted() as lake:
        fill(lake)
        lake.settle_pushes(27)
        for primer in set(primers()) - set(before):
            os.kill(primer, signal.SIGKILL)
        lake.samples.place("run7/step_0000001/rank_0001")  # finds the line broken, and leaves it to readers
        lake.samples.put("run7/by-id/a.npy", b"a" * 5000)
        wait_until(lambda: "the primer is given up" in lake.log("jobs"), "the primer is missed")
        lake.samples.place("run7/by-id")
        lake.settle_pushes(28)
        assert (lake.jobs / "run7/by-id/a.npy").read_bytes() == b"a" * 5000
