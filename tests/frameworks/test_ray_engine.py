"""Operators in actors of a real Ray cluster of one node: the engine, and a node service over it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the [ray] extra is not installed")
pytest.importorskip("PIL", reason="the [media] extra is not installed")

from tests import media
from tests.lake import wait_until
from tests.node import Node, Scheduled, node
from tests.operators import made
from tests.servers.lifecycle import free_port
from vfs.errors import Unavailable
from vfs.samples.engines.protocol import task_of
from vfs.samples.engines.ray import RayEngine
from vfs.samples.model import Form, Reason
from vfs.samples.operators.registry import load_registry
from vfs.samples.sandbox.messages import Settings
from vfs.samples.sandbox.outcome import Made

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
OPERATORS = list(load_registry().operators.values())
IMAGE = load_registry().find("image@1")
PARAMS = '{"crop":{"at":"random","size":[32,32]}}'


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Yield the address of a cluster whose one node has the resource twice."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as scratch:
        words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}", "--num-cpus=1"]
        words += ["--node-ip-address=127.0.0.1", '--resources={"foremount": 2}', "--include-dashboard=false"]
        words += [f"--temp-dir={scratch}", "--disable-usage-stats", "--object-store-memory=100000000"]
        head = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            head.send_signal(signal.SIGTERM)
            head.wait(30)


async def started(address: str) -> RayEngine:
    engine = RayEngine(Settings(idle=False), OPERATORS, 1, address=address, resource="foremount")
    async with asyncio.timeout(60):
        while True:  # the cluster is on its way
            try:
                confinement = await engine.start()
                assert confinement.network and confinement.writes
                return engine
            except Unavailable:
                await asyncio.sleep(0.5)


def task(**changed: Any) -> Any:
    arguments = {"params": PARAMS, "seed": 5, "provenance": "", "size": len(media.jpeg())}
    return task_of(IMAGE.declaration, **{**arguments, **changed})


async def test_actor_makes_the_bytes_of_a_plain_script_and_is_replaced_when_it_is_killed(cluster: str) -> None:
    engine = await started(cluster)
    try:
        here = made("image@1", media.jpeg(), params=PARAMS, seed=5)
        there = await engine.transform(task(), media.jpeg())
        assert isinstance(there, Made)
        assert there.file == here

        (actor,) = engine._actors
        os.kill(await actor.__ray_call__.remote(lambda self: os.getpid()), signal.SIGKILL)
        with pytest.raises(Unavailable, match="lost"):
            await engine.transform(task(), media.jpeg())
        again = await engine.transform(task(), media.jpeg())
        assert isinstance(again, Made)
        assert again.file == here

        aborted = asyncio.ensure_future(engine.transform(task(), media.jpeg()))
        await asyncio.sleep(0)
        aborted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await aborted
        assert isinstance(await engine.transform(task(), media.jpeg()), Made)
    finally:
        await engine.close()


STEPS, SLOTS = 12, 4


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Scheduled:
    found = Scheduled(tmp_path_factory.mktemp("lake"))
    for step in range(STEPS):
        for slot in range(SLOTS):
            found.add(step, 0, slot, media.jpeg(step + slot))
    found.write()
    return found


def with_ray(cluster: str) -> str:
    """Return the part of `[node]` that has two actors of the cluster run the operators."""
    return f'cpu = 0\nidle = false\nengine = "ray"\nray_address = "{cluster}"\nprocesses = 2'


def workers() -> list[int]:
    """Return the processes of actors that run now."""
    said = subprocess.run(["pgrep", "-f", "^ray::Seat"], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in said.split()]


def read(found: Node, schedule: Scheduled, steps: range) -> list[Reason | None]:
    """Read steps as a job does; each sample comes once, transformed as a plain script does it, or raw. Return why raw."""
    reasons = []
    for step in steps:
        found.tell(step - 1)
        group = found.group(step, 0)
        assert sorted(group) == list(range(SLOTS))
        for slot, (envelope, body) in group.items():
            (row,) = (each for each in schedule.rows if (each["step"], each["slot"]) == (step, slot))
            raw = schedule.raw[step, 0, slot]
            is_raw = envelope.form is Form.RAW
            assert body == (raw if is_raw else made("image@1", raw, params=row["params"], seed=row["seed"])), (step, slot)
            reasons.append(envelope.reason)
    return reasons


def test_node_service_over_ray_loses_workers_and_itself_and_no_sample(
    cluster: str, schedule: Scheduled, tmp_path: Path
) -> None:
    with node(tmp_path, schedule.lake, with_ray(cluster)) as found:
        assert read(found, schedule, range(1, 3)) == [None] * 2 * SLOTS
        before = workers()
        assert len(before) == 2
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        after = read(found, schedule, range(3, 6))
        assert set(after) <= {None, Reason.NODE_LOST}
        assert after.count(Reason.NODE_LOST) <= len(before), "each of them had one sample"
        wait_until(lambda: len(set(workers()) - set(before)) == 2, "two other workers")
        assert read(found, schedule, range(6, 8)) == [None] * 2 * SLOTS
        found.tell(8)
        found.process.kill()
        found.process.wait()
    with node(tmp_path, schedule.lake, with_ray(cluster)) as again:
        assert read(again, schedule, range(8, STEPS)) == [None] * (STEPS - 8) * SLOTS
