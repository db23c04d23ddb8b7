"""Writers while the worker, the agent and the keeper are killed: nothing that was acknowledged is lost or done twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.lake import foremount, wait_until
from tests.marks import MOUNT
from tests.servers.nginx import Nginx
from tests.servers.wan_origin import WanOrigin
from tests.trouble.writers import SAVER, Changing, acknowledged, check, lake

pytestmark = MOUNT
KILLS = 12
TURNS = 60
"""Between kills: half a second or so. A worker that dies sooner is started later and later."""


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["put", "webdav"])
def test_names_that_change_while_they_are_uploaded_do_not_come_back(scratch: Path, nginx: Nginx, writes: str) -> None:
    """And nothing of them stays at the origin."""
    with lake(scratch, nginx, writes=writes) as mount:
        (mount.root / "staged" / writes).mkdir()
        with Changing(mount.root / "staged" / writes, 2, pause_s=0.03) as clients:
            clients.wait_turns(TURNS // 3)
        assert clients.trouble == []
        at_origin = nginx.root / "killed" / writes
        wait_until(lambda: not list(at_origin.glob("*/*")), "nothing to be left at the origin")


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["local", "staged"])
def test_changes_of_names_are_made_once_however_often_the_worker_is_killed(
    scratch: Path, wan_origin: WanOrigin, prefix: str
) -> None:
    with lake(scratch, wan_origin) as mount:
        with Changing(mount.root / prefix, 3) as clients:
            for _ in range(KILLS):
                clients.wait_turns(TURNS)
                mount.kill("worker")
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
                mount.kill("worker")
        finally:
            ended.set()
            for client in clients:
                client.join(60)
        assert sorted(won) == list(range(len(won)))
        assert len(os.listdir(mount.root / "staged/locks")) == len(won)


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
                    [sys.executable, "-c", SAVER, root, log, str(10 * round_ + index), "0"], stderr=subprocess.DEVNULL
                )
                for index in range(2)
            ]
            try:
                for _ in range(4):
                    progress = len(acknowledged(log))
                    mount.kill(chance.choice(["worker", "agent", "worker"]))
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


@pytest.mark.slow
def test_file_that_is_open_while_the_worker_is_killed_is_closed_by_the_next_one(scratch: Path, wan_origin: WanOrigin) -> None:
    """And one that was unlinked while open goes on until then."""
    with lake(scratch, wan_origin) as mount:
        root = mount.root / "staged"
        with open(root / "f", "wb", buffering=0) as file, open(root / "nameless", "w+b", buffering=0) as nameless:
            file.write(b"before")
            nameless.write(b"here")
            os.unlink(root / "nameless")
            mount.kill("worker")
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
