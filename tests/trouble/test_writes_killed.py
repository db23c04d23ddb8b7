"""Writers while the worker, the agent and the keeper are killed: nothing that was acknowledged is lost or done twice."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lake import FSYNC_IS_LOCAL, Lake, foremount, mounted, wait_until, why_no_mount
from tests.servers.wan_origin import WanOrigin

pytestmark = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_mount()), reason=why_no_mount()),
]
CONFIG = """
policies = ["policy.toml"]
[sites.disk]
kind = "local"
path = "{base}/disk"
[sites.origin]
kind = "http"
url = "URL"
writes = "put"
[[mounts]]
prefix = "/local"
site = "disk"
writable = true
[[mounts]]
prefix = "/staged"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
"""
KILLS = 12
TURNS = 60
"""Between kills: half a second or so. A worker that dies sooner is started later and later."""
SAVER = r"""
import hashlib, json, os, sys
root, log, seed = sys.argv[1], open(sys.argv[2], "a", buffering=1), int(sys.argv[3])
import random
chance = random.Random(seed)
index = 0
while True:
    name, content = f"{seed}-{index}", chance.randbytes(chance.randrange(1, 200_000))
    with open(f"{root}/{name}.tmp", "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{root}/{name}.tmp", f"{root}/{name}")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    log.write(json.dumps([name, hashlib.sha256(content).hexdigest()]) + "\n")
    index += 1
"""
"""Saves as frameworks do and writes down what was acknowledged."""


@contextmanager
def lake(base: Path, origin: WanOrigin, *options: str) -> Iterator[Lake]:
    (base / "disk").mkdir(exist_ok=True)
    (base / "policy.toml").write_text(FSYNC_IS_LOCAL)
    (origin.root / "killed").mkdir(exist_ok=True)
    with mounted(CONFIG.replace("URL", f"{origin.url}/killed"), base, *options) as mount:
        yield mount


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        yield Path(made)


def kill(lake: Lake, process: str) -> None:
    """Kill a process of the mount and wait for the next one."""
    pid = lake.pid(process)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: lake.pid(process) != pid, f"another {process}")


class Changing:
    """Threads that make and remove names until the block ends; each call must have the one right answer.

    Attributes:
        turns: done so far, by thread.
    """

    def __init__(self, root: Path, threads: int) -> None:
        self.turns = [0] * threads
        self.trouble: list[str] = []
        self._root = root
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[index]) for index in range(threads)]

    def __enter__(self) -> Changing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def wait_turns(self, count: int) -> None:
        """Wait for so many turns of all threads together, or for trouble."""
        goal = sum(self.turns) + count
        wait_until(lambda: sum(self.turns) >= goal or self.trouble, f"{count} turns")

    def _run(self, index: int) -> None:
        root = self._root / str(index)
        try:
            root.mkdir()
            while not self._ended.is_set():
                os.mkdir(root / "d")
                os.close(os.open(root / "d/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.rename(root / "d/f", root / "d/g")
                os.symlink("g", root / "d/s")
                os.rename(root / "d", root / "e")
                os.unlink(root / "e/g")
                os.unlink(root / "e/s")
                os.rmdir(root / "e")
                self.turns[index] += 1
        except OSError as exc:
            self.trouble.append(f"{root.name}, turn {self.turns[index]}: {exc}")


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["local", "staged"])
def test_changes_of_names_are_made_once_however_often_the_worker_is_killed(
    scratch: Path, wan_origin: WanOrigin, prefix: str
) -> None:
    with lake(scratch, wan_origin) as mount:
        with Changing(mount.root / prefix, 3) as clients:
            for _ in range(KILLS):
                clients.wait_turns(TURNS)
                kill(mount, "worker")
        assert not clients.trouble
        assert [os.listdir(mount.root / prefix / str(index)) for index in range(3)] == [[], [], []]


@pytest.mark.slow
def test_one_of_many_that_create_a_name_exclusively_succeeds_however_often_the_worker_is_killed(
    scratch: Path, wan_origin: WanOrigin
) -> None:
    won: list[int] = []
    ended = threading.Event()

    def contend(root: Path) -> None:
        for index in range(100_000):
            if ended.is_set():
                return
            try:
                os.close(os.open(root / str(index), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            won.append(index)

    with lake(scratch, wan_origin) as mount:
        (mount.root / "staged/locks").mkdir()
        clients = [threading.Thread(target=contend, args=[mount.root / "staged/locks"]) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for _ in range(5):
                goal = len(won) + 200
                wait_until(lambda goal=goal: len(won) >= goal, "200 more names")
                kill(mount, "worker")
        finally:
            ended.set()
            for client in clients:
                client.join(60)
        assert sorted(won) == list(range(len(won)))
        assert len(os.listdir(mount.root / "staged/locks")) == len(won)


def acknowledged(log: Path) -> dict[str, str]:
    """Return digests by name, of whole lines: the last one may be cut off."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("\n"))


def check(root: Path, log: Path) -> int:
    """Compare what is there with what was acknowledged; return how much that is."""
    expected = acknowledged(log)
    for name, digest in expected.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, name
    return len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--no-passthrough"]], ids=["passthrough", "page cache"])
def test_what_was_acknowledged_is_there_after_every_process_was_killed(
    scratch: Path, wan_origin: WanOrigin, options: list[str]
) -> None:
    chance = random.Random(11)
    log = scratch / "acknowledged"
    with lake(scratch, wan_origin, *options) as mount:
        (mount.root / "staged/run").mkdir()
    for round_ in range(3):
        with lake(scratch, wan_origin, *options) as mount:
            root = mount.root / "staged/run"
            check(root, log)
            before = len(acknowledged(log))
            savers = [
                subprocess.Popen(
                    [sys.executable, "-c", SAVER, root, log, str(10 * round_ + index)], stderr=subprocess.DEVNULL
                )
                for index in range(2)
            ]
            try:
                for _ in range(4):
                    progress = len(acknowledged(log))
                    kill(mount, chance.choice(["worker", "agent", "worker"]))
                    wait_until(lambda least=progress: len(acknowledged(log)) > least + 2, "more that is acknowledged")
                keeper = mount.pid("keeper")
                os.kill(keeper, signal.SIGKILL)
                for saver in savers:
                    saver.wait(30)  # ENOTCONN ends them
            finally:
                for saver in savers:
                    saver.kill()
                    saver.wait()
            assert len(acknowledged(log)) > before
            foremount("umount", str(mount.root), "--force", check=False)
    with lake(scratch, wan_origin, *options) as mount:
        assert check(mount.root / "staged/run", log) > 20
        assert not [name for name in os.listdir(mount.root / "staged/run") if name.endswith("z")]


def test_file_that_is_open_while_the_worker_is_killed_is_closed_by_the_next_one(scratch: Path, wan_origin: WanOrigin) -> None:
    """And one that was unlinked while open goes on until then."""
    with lake(scratch, wan_origin) as mount:
        root = mount.root / "staged"
        with open(root / "f", "wb", buffering=0) as file, open(root / "nameless", "w+b", buffering=0) as nameless:
            file.write(b"before")
            nameless.write(b"here")
            os.unlink(root / "nameless")
            kill(mount, "worker")
            file.write(b", after")
            nameless.write(b" still")
            assert os.pread(nameless.fileno(), 100, 0) == b"here still"
            assert os.fstat(nameless.fileno()).st_size == 10
            os.fsync(file.fileno())
            assert os.fstat(file.fileno()).st_size == 13
        wait_until(lambda: written(root / "f"), "the next worker to notice the close")
        assert (root / "f").read_bytes() == b"before, after"
        assert os.listdir(root) == ["f"]


def written(path: Path) -> bool:
    """Return whether nobody writes the file any more, as far as the mount knows."""
    return "user.foremount.written" in attributes(path)


def attributes(path: Path) -> dict[str, bytes]:
    found = {}
    for name in ("user.foremount.written", "user.foremount.durable_here"):
        try:
            found[name] = os.getxattr(path, name)
        except OSError:
            continue
    return found
