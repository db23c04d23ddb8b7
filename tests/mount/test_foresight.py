"""Two sites, two mounts, one controller: a checkpoint that is saved at one is there at the other before it is asked for.

The controller's clock is an hour ahead of those of the mounts: that must make no difference.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lake import FSYNC_IS_LOCAL, Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.private import private
from tests.servers.lifecycle import free_port, running
from tests.servers.nginx import Nginx
from tests.servers.skewed import environ
from vfs.errors import ForemountError
from vfs.sites.httpanswers import RACY_S
from vfs.training import Training

pytestmark = [*MOUNT, pytest.mark.servers, pytest.mark.slow]
SITES = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "webdav"
[sites.eval]
kind = "local"
path = "EVAL"
copies = "copies"
[[mounts]]
prefix = "/"
site = "origin"
writable = WRITABLE
[cache]
directory = "{base}/cache"
[foresight]
tokens = "TOKENS"
"""
POLICY = (
    FSYNC_IS_LOCAL
    + """
[[rules]]
name = "ask-once"
match = {}
set = { hedge = "off" }
[[rules]]
name = "as-it-is-read"
match = { path = "**/step_0005000/**" }
set = { prefetch = "off" }
"""
)
CHANCE = random.Random(7)
FILES = {"__0_0.distcp": CHANCE.randbytes(3_000_017), "__1_0.distcp": CHANCE.randbytes(700_001)} | {
    f"small_{index}.bin": CHANCE.randbytes(1000 + index) for index in range(20)
}


@dataclass(frozen=True)
class World:
    """What the tests of this file share: a mount where training writes, and one at the site of the evaluations."""

    training: Lake
    evaluation: Lake
    copies: Path
    nginx: Nginx
    told: Training

    def state(self) -> dict[str, Any]:
        try:
            return self.told.ask("/v1/state")
        except ForemountError:
            return {"replicas": [], "leader": ""}

    def phases(self) -> list[str]:
        return [replica["phase"] for replica in self.state()["replicas"]]

    def reaches(self, *phases: str) -> None:
        """Wait until the copies are in these phases."""
        try:
            wait_until(lambda: self.phases() == list(phases), f"copies that are {phases or 'gone'}")
        except AssertionError as exc:
            log = (self.copies.parent / "controller.log").read_text()[-3000:]
            raise AssertionError(f"{exc}; {self.state()}; {self.training.log('agent')[-2000:]}; {log}") from exc

    def gets(self, path: str) -> int:
        """Return how many requests for files of a directory the origin has had; those for names are others."""
        files = re.compile(rf"GET /dav/foresight/{path}/[^ ]*[^/ ] HTTP")
        return len(files.findall(self.nginx.log.read_text()))


@pytest.fixture(scope="module")
def world(nginx: Nginx) -> Iterator[World]:
    (nginx.root / "foresight").mkdir()
    with contextlib.ExitStack() as stack:
        bases = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foremount-test-"))) for _ in range(3)]
        copies, port = bases[2] / "eval", free_port()
        copies.mkdir()
        tokens = private(bases[2] / "tokens")
        sites = (
            SITES.replace("URL", f"{nginx.url}/dav/foresight/").replace("EVAL", str(copies)).replace("TOKENS", str(tokens))
        )
        for base in bases:
            (base / "policy.toml").write_text(POLICY)
        config = bases[2] / "controller.toml"
        own = sites.replace("WRITABLE", "false").replace("{base}", str(bases[2]))
        config.write_text(own + f'address = "127.0.0.1:{port}"\nstore = "{bases[2]}/store"\n')
        argv = [sys.executable, "-m", "vfs.cli", "controller", "--config", str(config)]
        stack.enter_context(running(argv, bases[2] / "controller.log", env=environ(bases[2] / "clock", 3600)))
        url = f"http://127.0.0.1:{port}"
        asks = f'controllers = ["{url}"]\n'
        training = stack.enter_context(mounted(sites.replace("WRITABLE", "true") + asks, bases[0]))
        evaluation = stack.enter_context(mounted(sites.replace("WRITABLE", "false") + asks, bases[1]))
        yield World(training, evaluation, copies, nginx, Training("run7", [url], tokens=str(tokens)))


def save(world: World, step: int) -> str:
    """Write a checkpoint through the mount of the training site, its marker last; return its lake path."""
    path = f"ckpt/run7/step_{step:07}"
    directory = world.training.root / path
    directory.mkdir(parents=True)
    for name, body in FILES.items():
        (directory / name).write_bytes(body)
    wait_until(lambda: world.state()["replicas"], "a copy that is begun before the commit")
    (directory / "_SUCCESS").write_bytes(b"")
    return path


def test_same_path_is_read_from_the_copy_that_was_made_while_it_was_saved(world: World) -> None:
    world.told.evaluation_scheduled("mmlu", 1000, "eval")
    path = save(world, 1000)
    world.reaches("published")
    wait_until(lambda: offered(world.evaluation) == offered(world.training) == 1, "every mount to hear of it")
    before = world.gets(path)
    later = "small_19.bin"
    for name, body in FILES.items():
        if name != later:
            assert (world.evaluation.root / path / name).read_bytes() == body
    assert world.gets(path) <= before + 1, "the origin was asked for one range, as a control"
    world.told.evaluation_started("mmlu", 1000, "eval")
    world.told.evaluation_result("mmlu", 1000, "eval")
    world.reaches()
    assert not [each for each in world.copies.rglob("*") if each.is_file()]
    asked = world.nginx.requests("GET", f"{path}/{later}")
    assert (world.evaluation.root / path / later).read_bytes() == FILES[later]
    assert world.nginx.requests("GET", f"{path}/{later}") == asked + 1, "without the copy it is read from the origin"
    wait_until(lambda: world.told.ask("/v1/ledger")["entries"][0]["bytes_served"], "the mount to tell what it has read")
    (entry,) = world.told.ask("/v1/ledger")["entries"]
    assert entry["outcome"] == "hit"
    size = sum(len(body) for name, body in FILES.items() if name != later)
    assert (entry["bytes_served"], entry["bytes_used"]) == (size, size)
    assert (entry["bytes_prepared"], entry["fallbacks"]) == (size + len(FILES[later]), 0)
    assert entry["cpu_s"] > 0
    assert entry["made_ns"] < entry["committed_ns"] < entry["ready_ns"] < entry["started_ns"] < entry["result_ns"]


def test_cancelled_evaluation_leaves_no_copy_behind(world: World) -> None:
    world.told.evaluation_scheduled("mmlu", 2000, "eval")
    save(world, 2000)
    world.told.evaluation_cancelled("mmlu", 2000, "eval")
    world.reaches()
    assert not [each for each in world.copies.rglob("*") if each.is_file()]


def test_mechanism_that_is_switched_off_copies_nothing_and_reads_go_on(world: World) -> None:
    asked = ["--controller", world.told._controllers[0], "--tokens", str(world.copies.parent / "tokens")]
    foremount("copies", "--off", "checkpoints", *asked)
    world.told.evaluation_scheduled("mmlu", 3000, "eval")
    path = "ckpt/run7/step_0003000"
    (world.training.root / path).mkdir(parents=True)
    (world.training.root / path / "a.bin").write_bytes(FILES["__1_0.distcp"])
    (world.training.root / path / "_SUCCESS").write_bytes(b"")
    reader = world.evaluation.root / path / "a.bin"
    wait_until(lambda: (world.nginx.root / "foresight" / path / "_SUCCESS").exists(), "the commit")
    assert reader.read_bytes() == FILES["__1_0.distcp"]
    wait_until(lambda: world.phases() == ["expiring"] or world.phases() == [], "no copy")
    said = foremount("copies", *asked).stdout
    assert "switched off: checkpoints" in said
    world.told.evaluation_cancelled("mmlu", 3000, "eval")
    foremount("copies", "--on", "checkpoints", *asked)
    world.reaches()


def test_file_that_was_open_before_its_copy_came_is_read_on_from_the_copy(world: World) -> None:
    path, name = "ckpt/run7/step_0005000", "__0_0.distcp"
    world.told.evaluation_scheduled("mmlu", 5000, "eval")
    (world.training.root / path).mkdir(parents=True)
    (world.training.root / path / name).write_bytes(FILES[name])
    stored = world.nginx.root / "foresight" / path / name
    wait_until(lambda: stored.exists() and stored.stat().st_mtime + RACY_S + 1 < time.time(), "a file that keeps its version")
    with (world.evaluation.root / path / name).open("rb", buffering=0) as early:
        assert early.read(4096) == FILES[name][:4096]
        (world.training.root / path / "_SUCCESS").write_bytes(b"")
        world.reaches("published")
        wait_until(lambda: offered(world.evaluation) == 1, "the mount to hear of it")
        before = world.gets(path)
        early.seek(1 << 20)
        assert early.readall() == FILES[name][1 << 20 :]
        open_there = Path(f"/proc/{world.evaluation.pid('worker')}/fd").iterdir()
        assert [each for each in map(os.path.realpath, open_there) if each.startswith(str(world.copies))]
        assert world.gets(path) <= before + 1, "the origin was asked for one range, as a control"
    world.told.evaluation_cancelled("mmlu", 5000, "eval")
    world.reaches()


def test_hint_for_a_crowd_multiplies_the_hot_bytes_alone_until_it_is_taken_back(world: World) -> None:
    path, name, hot = "ckpt/run7/step_0004000", "__0_0.distcp", 131_072
    (world.training.root / path).mkdir(parents=True)
    (world.training.root / path / name).write_bytes(FILES[name])
    (world.training.root / path / "_SUCCESS").write_bytes(b"")
    wait_until(lambda: (world.nginx.root / "foresight" / path / "_SUCCESS").exists(), "the commit")
    asked = ["--controller", world.told._controllers[0], "--tokens", str(world.copies.parent / "tokens")]
    ranges = f'ranges=[["{path}/{name}", {hot}, {hot}, 64]]'
    foremount("event", "run7", "hot_files", f"path={path}", "site=eval", ranges, "ttl_s=600", *asked)
    world.reaches("published")
    copied = [each.read_bytes() for each in world.copies.rglob("*") if each.is_file()]
    assert copied == [FILES[name][hot : 2 * hot]]
    wait_until(lambda: offered(world.evaluation) == 1, "the mount to hear of it")
    assert (world.evaluation.root / path / name).read_bytes() == FILES[name]
    (hint,) = world.state()["hints"]
    foremount("copies", "--cancel", hint["id"], *asked)
    world.reaches()
    assert not [each for each in world.copies.rglob("*") if each.is_file()]


def offered(lake: Lake) -> int:
    """Return how many copies a mount has been offered."""
    return int(lake.room("foresight")["copies_offered"])
