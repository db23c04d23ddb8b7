"""Samples end to end: a schedule in the lake, a real node service beside it, a real mount, readers that know of neither."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import media
from tests.lake import DISK, Lake, foremount, http_lake, mounted, wait_until
from tests.marks import MOUNT
from tests.node import NO_LOAD, TOKEN, Node, Scheduled, node
from tests.operators import made
from tests.servers.wan_origin import WanOrigin
from vfs.client import form_of, open_sample, provenance_of
from vfs.samples.model import Reason

pytestmark = MOUNT
STEPS, RANKS, SLOTS = 8, 2, 3
SAMPLES = """
[samples]
declarations = ["jobs"]
nodes = ["{node}"]
token_file = "{token}"
"""
LOCAL = """
[samples]
declarations = ["jobs"]
seats = 1
"""


@dataclass
class World:
    """A mount over an origin, a node beside it, and the schedule."""

    lake: Lake
    node: Node
    schedule: Scheduled

    def path(self, step: int, rank: int, slot: int) -> Path:
        """Return the file of a slot."""
        return self.lake.root / f".jobs/run7/step_{step:07d}/rank_{rank:04d}/{slot:06d}.npy"

    def status(self) -> dict[str, Any]:
        """Return what `foremount job status` says of the job."""
        (found,) = self.lake.job_status("run7")
        return found

    def group(self, step: int, rank: int) -> dict[str, Any]:
        """Return what the timeline says of a group, {} where it knows none."""
        said = foremount("job", "timeline", "run7", "--mountpoint", str(self.lake.root), "--json").stdout
        return next((g for g in json.loads(said)["groups"] if (g["step"], g["rank"]) == (step, rank)), {})

    def prepared(self, step: int, rank: int) -> None:
        """Return when all that comes of a group is here."""
        wait_until(lambda: self.group(step, rank).get("prepared_s"), f"step {step} of rank {rank} to be prepared")


def plain(schedule: Scheduled, step: int, rank: int, slot: int) -> bytes:
    """Return what a script makes of a sample's raw bytes with the operator, without any of our processes."""
    (row,) = [row for row in schedule.rows if (row["step"], row["rank"], row["slot"]) == (step, rank, slot)]
    return made(row["operator"], schedule.raw[step, rank, slot], params=row["params"], seed=row["seed"])


def schedule_in(root: Path, document: str = "", *, all_operators: bool = False) -> Scheduled:
    found = Scheduled(root)
    if all_operators:
        found.add(0, 0, SLOTS, media.mp4(), "video@1", params='{"frames":{"uniform":3}}')
        found.add(0, 0, SLOTS + 1, media.wav(), "audio@1", params='{"window":{"at":"random","seconds":0.2}}')
    for step in range(STEPS):
        for rank in range(RANKS):
            for slot in range(SLOTS):
                found.add(step, rank, slot, media.jpeg(10 * step + 5 * rank + slot))
    found.write(document)
    return found


@pytest.fixture(scope="module")
def world(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = wan_origin_server.root / "samples"
    root.mkdir()
    schedule = schedule_in(root)
    base = tmp_path_factory.mktemp("node")
    (base / "token").write_text(TOKEN)
    with node(base, root) as service:
        config = http_lake(f"{wan_origin_server.url}/samples") + SAMPLES.format(node=service.url, token=base / "token")
        with mounted(config) as lake:
            yield World(lake, service, schedule)


def test_samples_that_are_ready_are_what_a_plain_script_makes(world: World) -> None:
    world.lake.command("job", "tell", "run7", "--step", "0", "--ranks", "0-1", "--mountpoint", str(world.lake.root))
    for step in range(2):
        for rank in range(RANKS):
            world.prepared(step, rank)
            for slot in range(SLOTS):
                path = world.path(step, rank, slot)
                assert form_of(path) == "transformed", provenance_of(path)
                assert path.read_bytes() == plain(world.schedule, step, rank, slot)
                assert np.load(path).shape == (3, 32, 32)
                assert provenance_of(path)["operator"] == "image@1"
    said = world.status()
    assert (said["ready"], said["raw"], said["hit_ratio"]) == (2 * RANKS * SLOTS, {}, 1.0)


def test_the_raw_twin_is_the_raw_bytes_and_by_id_is_the_same_sample(world: World) -> None:
    raw = world.lake.root / ".jobs/run7/.raw/step_0000001/rank_0001/000002.bin"
    assert raw.read_bytes() == world.schedule.raw[1, 1, 2]
    assert form_of(raw) == "raw"
    names = os.listdir(world.lake.root / ".jobs/run7/by-id")
    assert "s1-1-2.npy" in names
    by_id = world.lake.root / ".jobs/run7/by-id/s1-1-2.npy"
    assert by_id.read_bytes() == world.path(1, 1, 2).read_bytes()


def test_a_node_that_is_killed_in_a_step_costs_raw_samples_and_none_twice(world: World, tmp_path: Path) -> None:
    """Readers run through the steps; the node dies under them. Each slot is read once, as one of its two forms."""
    seen: dict[tuple[int, int, int], tuple[str, bytes]] = {}
    barrier = threading.Barrier(RANKS)
    failures: list[BaseException] = []

    def reader(rank: int) -> None:
        try:
            for step in range(2, STEPS):
                barrier.wait(30)
                if step == 4 and rank == 0:
                    os.kill(world.node.process.pid, signal.SIGKILL)
                    world.node.process.wait()
                for slot in range(SLOTS):
                    with open_sample(world.path(step, rank, slot)) as file:
                        form = form_of(file.fileno())
                        assert (step, rank, slot) not in seen
                        seen[step, rank, slot] = form, file.read()
        except BaseException as exc:
            failures.append(exc)
            barrier.abort()

    threads = [threading.Thread(target=reader, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(seen) == {place for place in world.schedule.raw if place[0] >= 2}
    for place, (form, body) in seen.items():
        expected = plain(world.schedule, *place) if form == "transformed" else world.schedule.raw[place]
        assert body == expected, place
    assert {form for (step, _, _), (form, _) in seen.items() if step == STEPS - 1} == {"raw"}
    last = world.path(STEPS - 1, 0, 0)
    assert provenance_of(last)["why_raw"] in (Reason.NODE_LOST, Reason.LATE)
    assert np.load(open_sample(last, local=lambda raw: plain(world.schedule, STEPS - 1, 0, 0))).shape == (3, 32, 32)
    picture = tmp_path / "timeline.png"
    world.lake.command("job", "timeline", "run7", "--png", str(picture), "--mountpoint", str(world.lake.root))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sum(len(files) for _, _, files in os.walk(world.lake.root / ".jobs/run7")) >= 2 * len(world.schedule.raw)
    said = world.status()
    assert said["ready"] + sum(said["raw"].values()) >= len(world.schedule.raw)


@pytest.mark.slow
def test_with_wait_fallback_a_reader_waits_for_its_sample_and_at_the_deadline_gets_raw_bytes(tmp_path: Path) -> None:
    """Nobody tells of progress: who looks a sample up has it begun. One of the two nodes has no room for any output."""
    lake = tmp_path / "lake"
    lake.mkdir()
    schedule = schedule_in(lake, 'fallback = "wait"\ndeadline = "60s"\nahead = 1', all_operators=True)
    hopeless = Scheduled(lake, job="run8")
    hopeless.add(0, 0, 0, media.jpeg(99))
    hopeless.write('fallback = "wait"\ndeadline = "400ms"\nahead = 1')
    (tmp_path / "token").write_text(TOKEN)
    bases = tmp_path / "enough", tmp_path / "none"
    for base in bases:
        base.mkdir()
    with node(bases[0], lake) as enough, node(bases[1], lake, f'{NO_LOAD}\nqueue = "1KiB"') as none:
        for name, service in (("run7", enough), ("run8", none)):
            document = lake / "jobs" / f"{name}.toml"
            document.write_text(f'nodes = ["{service.url}"]\n{document.read_text()}')
        (tmp_path / "mount").mkdir()
        with mounted(
            DISK.replace("{base}/disk", str(lake)) + SAMPLES.format(node=enough.url, token=tmp_path / "token"),
            tmp_path / "mount",
        ) as up:
            directory = up.root / ".jobs/run7/step_0000000/rank_0000"
            for slot in range(SLOTS + 2):
                path = directory / f"{slot:06d}.npy"
                assert np.load(path).dtype == np.float32
                assert path.read_bytes() == plain(schedule, 0, 0, slot)
            raw = up.root / ".jobs/run8/step_0000000/rank_0000/000000.npy"
            assert raw.read_bytes() == hopeless.raw[0, 0, 0]
            assert provenance_of(raw)["why_raw"] in (Reason.QUEUE, Reason.LATE)
            run7, run8 = up.job_status()
            assert (run7["ready"], run7["raw"]) == (SLOTS + 2, {})
            assert run8["ready"] == 0
            assert run8["waited_s"] >= 0.4, "not before its deadline"
            assert run7["nodes"][enough.url]["transformed"] >= SLOTS + 2
            said = up.command("job", "status", "--mountpoint", str(up.root)).stdout
            assert "ABORTED" in said and enough.url in said


@pytest.mark.slow
def test_with_local_fallback_an_unmodified_load_always_works(wan_origin_server: WanOrigin, tmp_path: Path) -> None:
    root = wan_origin_server.root / "samples-local"
    root.mkdir()
    schedule = schedule_in(root, 'fallback = "local"\ndeadline = "60s"\nahead = 1', all_operators=True)
    broken = Scheduled(root, schedule.rows, schedule.raw)
    broken.add(0, 0, SLOTS + 2, b"no picture at all")
    broken.write('fallback = "local"\ndeadline = "60s"\nahead = 1')
    with mounted(http_lake(f"{wan_origin_server.url}/samples-local") + LOCAL, tmp_path) as lake:
        directory = lake.root / ".jobs/run7/step_0000000/rank_0000"
        for slot in range(SLOTS + 2):
            path = directory / f"{slot:06d}.npy"
            assert np.load(path).dtype == np.float32
            assert path.read_bytes() == plain(schedule, 0, 0, slot)
        raw = directory / f"{SLOTS + 2:06d}.npy"
        assert raw.read_bytes() == b"no picture at all"
        assert provenance_of(raw)["why_raw"] == Reason.FAILED
        said = lake.job_status()[0]
        assert (said["ready"], said["raw"]) == (SLOTS + 2, {"failed": 1})
        assert said["cpu_s"] > 0


def test_a_job_that_cannot_be_used_is_refused_with_its_row(world: World, tmp_path: Path) -> None:
    document = tmp_path / "other.toml"
    document.write_text('[feed]\nkind = "arrow"\npath = "/jobs/steps-run7"\n')
    done = foremount("job", "start", str(document), "--mountpoint", str(world.lake.root), check=False)
    assert done.returncode != 0
    assert "jobs/steps-run7/step_0000000.parquet: row 0: is of job 'run7', not of 'other'" in done.stderr
