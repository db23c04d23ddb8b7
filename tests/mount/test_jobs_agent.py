"""`.jobs` with every real part: a schedule in the lake, the agent that reads it, both workers, programs that read samples."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lake import DISK, Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.schedules import BATCH, STEPS, WORLD, Schedule, arrow, webdataset
from tests.trouble.readers import Readers

pytestmark = MOUNT
SAMPLES = '[samples]\ndeclarations = ["jobs"]\n'


@contextmanager
def lake_with(name: str, base: Path, kind: Any = arrow, more: str = "ahead = 1\n") -> Iterator[tuple[Lake, Schedule]]:
    """Mount a lake that holds a schedule and the document of a job of this name."""
    (base / "disk" / "jobs").mkdir(parents=True)
    schedule: Schedule = kind(base / "disk")
    (base / "disk" / "jobs" / f"{name}.toml").write_text(more + schedule.text)
    with mounted(DISK + SAMPLES, base) as lake:
        yield lake, schedule


def status_of(lake: Lake, job: str) -> dict[str, Any]:
    """Return what `foremount job status` says of a job."""
    (found,) = lake.job_status(job)
    return found


def step_of(lake: Lake, step: int) -> Path:
    return lake.root / ".jobs" / "run" / f"step_{step:07d}"


@pytest.mark.slow
def test_ranks_read_their_schedule_as_plain_files_and_only_reading_makes_progress(tmp_path: Path) -> None:
    with lake_with("run", tmp_path) as (lake, schedule):
        assert sorted(os.listdir(lake.root / ".jobs" / "run"))[:2] == [".raw", "by-id"]
        for step in range(STEPS):
            for rank in range(WORLD):
                directory = step_of(lake, step) / f"rank_{rank:04d}"
                names = sorted(os.listdir(directory))
                assert len(names) == BATCH
                for slot, name in enumerate(names):
                    assert (directory / name).read_bytes() == schedule.slots[step, rank, slot], (step, rank, slot)
            if step == 1:  # what is prepared is the next step, and that does not bring the one behind it
                wait_until(lambda: status_of(lake, "run")["prepared_groups"] >= 3 * WORLD, "the next step is prepared")
                said = status_of(lake, "run")
                assert (said["step"], said["prepared_groups"]) == (1, 3 * WORLD)
        twin = lake.root / ".jobs" / "run" / ".raw" / "step_0000002" / "rank_0001"
        assert [(twin / name).read_bytes() for name in sorted(os.listdir(twin))] == [
            schedule.slots[2, 1, slot] for slot in range(BATCH)
        ]


@pytest.mark.slow
def test_tree_of_a_step_is_copied_byte_by_byte_and_by_name(tmp_path: Path) -> None:
    with lake_with("run", tmp_path, webdataset) as (lake, schedule):
        shutil.copytree(step_of(lake, 1), tmp_path / "copy")
        copied = [path.read_bytes() for path in sorted((tmp_path / "copy").rglob("*")) if path.is_file()]
        assert copied == [schedule.slots[1, rank, slot] for rank in range(WORLD) for slot in range(BATCH)]
        by_id = lake.root / ".jobs" / "run" / "by-id"
        assert (by_id / sorted(os.listdir(by_id))[0]).read_bytes() in schedule.slots.values()


@pytest.mark.slow
def test_agent_and_worker_of_jobs_may_die_at_any_step(tmp_path: Path) -> None:
    with lake_with("run", tmp_path) as (lake, schedule):
        for step in range(STEPS):
            for process in ("agent", "jobs") if step else ():
                lake.kill(process)
            for rank in range(WORLD):
                directory = step_of(lake, step) / f"rank_{rank:04d}"
                found = [(directory / name).read_bytes() for name in sorted(os.listdir(directory))]
                assert found == [schedule.slots[step, rank, slot] for slot in range(BATCH)]


@pytest.mark.slow
def test_upgrade_takes_samples_along_and_no_reader_notices(tmp_path: Path) -> None:
    with lake_with("run", tmp_path) as (lake, schedule):
        raw = lake.root / ".jobs" / "run" / ".raw"
        contents = {}
        for (step, rank, slot), content in schedule.slots.items():
            directory = f"step_{step:07d}/rank_{rank:04d}"
            contents[f"{directory}/{sorted(os.listdir(raw / directory))[slot]}"] = content
        before = {process: lake.pid(process) for process in ("worker", "agent", "jobs")}
        with Readers(raw, contents) as readers:
            lake.command("upgrade", str(lake.root))
            readers.wait_rounds()
        readers.check()
        assert all(lake.pid(process) != pid for process, pid in before.items())


@pytest.mark.slow
def test_lake_without_samples_has_no_second_mount_and_no_process_more(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with mounted(DISK, tmp_path) as lake:
        assert ".jobs" not in os.listdir(lake.root)
        assert lake.state()["jobs"] is None
        assert lake.state()["jobs_connection"] == 0
        assert "jobs" not in json.loads(foremount("status", str(lake.root), "--json").stdout)["processes"]
