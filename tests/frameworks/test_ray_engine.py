"""Operators in actors of a real Ray cluster of one node, which this test starts and ends."""

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
from tests.operators import made
from tests.servers.lifecycle import free_port
from vfs.errors import Unavailable
from vfs.samples.engines.protocol import task_of
from vfs.samples.engines.ray import RayEngine
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
