"""Uploads while processes are killed at every step, and while the origin refuses or stalls: what was acknowledged comes.

They go to a real S3 server through a gate that stops them at the step in question.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lake import Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from tests.mount.test_uploads import INDEX, POLICY, states, write
from tests.servers.gate import Gate, Stop
from tests.servers.seaweedfs import ACCESS_KEY, NEXT_ACCESS_KEY, NEXT_SECRET_KEY, REGION, SeaweedFs, credentials

pytestmark = [*MOUNT, pytest.mark.servers, pytest.mark.slow]
CONFIG = """
policies = ["policy.toml"]
[sites.s3]
kind = "s3"
url = "URL"
endpoint = "ENDPOINT"
region = "REGION"
credentials_file = "{base}/credentials"
[[mounts]]
prefix = "lake"
site = "s3"
writable = true
[cache]
directory = "{base}/cache"
"""
PART = 16 << 20
MARKER = "model.safetensors.index.json"
FILES = {
    "model-1.safetensors": random.Random(5).randbytes(PART + 100_003),
    "model-2.safetensors": random.Random(6).randbytes(300_001),
    MARKER: json.dumps(INDEX).encode(),
}
"""Of one checkpoint, in the order in which they are saved; the first goes in two parts, the others in one request."""
STEPS = {
    "begun": ("begin *model-1.safetensors", True),
    "a part has arrived": ("part 1 *", True),
    "before the last step": ("complete *", False),
    "the file is there": ("complete *", True),
    "before the marker": (f"put *{MARKER}", False),
    "the marker is there": (f"put *{MARKER}", True),
}


@dataclass(frozen=True)
class Saving:
    """A mount that uploads through a gate.

    Attributes:
        acknowledged: digests of what fsync has returned for, by lake path: the manifest that a crash is held against.
    """

    lake: Lake
    gate: Gate
    server: SeaweedFs
    acknowledged: dict[str, str]

    def save(self, directory: str) -> None:
        """Save a checkpoint as a trainer does, and write down what is acknowledged."""
        for name, body in FILES.items():
            path = f"lake/{directory}/{name}"
            write(self.lake.root / path, body, sync=True)
            above = os.open((self.lake.root / path).parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(above)
            os.close(above)
            self.acknowledged[path] = hashlib.sha256(body).hexdigest()

    def at_origin(self, path: str) -> bytes | None:
        """Return what the origin has at a lake path, None where that is nothing."""
        try:
            with self.server.filesystem().open_input_file(f"lake/{self.lake.base.name}/{path.removeprefix('lake/')}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def check_visible(self, directory: str) -> None:
        """A marker that can be seen has all of its files behind it."""
        if self.at_origin(f"lake/{directory}/{MARKER}") is not None:
            for name, body in FILES.items():
                assert self.at_origin(f"lake/{directory}/{name}") == body, name

    def check(self, directory: str = "") -> None:
        """Everything that was acknowledged below a directory is at the origin and on this host."""
        for path, digest in self.acknowledged.items():
            if not path.startswith(f"lake/{directory}"):
                continue
            assert hashlib.sha256(self.at_origin(path) or b"").hexdigest() == digest, path
            assert hashlib.sha256((self.lake.root / path).read_bytes()).hexdigest() == digest, path

    def wait_durable(self, directory: str, step: int) -> None:
        """Wait until the checkpoint is committed at the origin."""
        wait_until(lambda: states(self.lake, self.lake.root / f"lake/{directory}").get(step) == "durable", "the commit", 60)


@contextmanager
def saving(server: SeaweedFs, base: Path, *, more: str = "") -> Iterator[Saving]:
    """Mount, with local durability below `lake` and remote durability below `lake/remote`."""
    (base / "policy.toml").write_text(POLICY)
    (base / "credentials").write_text(credentials())
    with Gate(server.endpoint) as gate:
        config = CONFIG.replace("URL", server.url(base.name)).replace("ENDPOINT", gate.endpoint).replace("REGION", REGION)
        with mounted(config + more, base) as lake:
            yield Saving(lake, gate, server, {})


@pytest.fixture(scope="module")
def trainer(seaweedfs: SeaweedFs) -> Iterator[Saving]:
    """One mount for all tests that leave it standing."""
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made, saving(seaweedfs, Path(made)) as made_:
        yield made_


SAVE = """
import os, sys
with open(sys.argv[1], "wb") as file:
    file.write(sys.stdin.buffer.read())
    file.flush()
    os.fsync(file.fileno())
"""


@dataclass(frozen=True)
class Stalled:
    """A process that saves while the origin says nothing for 40 s.

    A process of its own: who forks while such a file is open waits in the child, which closes it.
    """

    mount: Saving
    stop: Stop
    saver: subprocess.Popen[bytes]


@pytest.fixture(scope="module", autouse=True)
def stalled(seaweedfs: SeaweedFs) -> Iterator[Stalled]:
    """Begun first and looked at last: the other tests run meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="foremount-test-") as made,
        saving(seaweedfs, Path(made)) as mount,
        mount.gate.stop("part 2 *", seconds=40) as stop,
    ):
        (mount.lake.root / "lake/remote").mkdir()
        argv = [sys.executable, "-c", SAVE, str(mount.lake.root / "lake/remote/stalled")]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as saver:
            assert saver.stdin is not None
            saver.stdin.write(FILES["model-1.safetensors"])
            saver.stdin.close()
            yield Stalled(mount, stop, saver)


@pytest.mark.parametrize(
    ("process", "at"),
    [*(("agent", at) for at in STEPS), ("worker", "a part has arrived"), ("worker", "the marker is there")],
)
def test_a_checkpoint_is_whole_or_not_there_though_a_process_is_killed(trainer: Saving, process: str, at: str) -> None:
    number = 100 * (process == "worker") + list(STEPS).index(at)
    run, (step, answered) = f"{process}-{number}", STEPS[at]
    with trainer.gate.stop(step, answered=answered) as stop:
        trainer.save(f"{run}/checkpoint-{number}")
        assert stop.reached.wait(30)
        trainer.check_visible(f"{run}/checkpoint-{number}")
        assert states(trainer.lake, trainer.lake.root / f"lake/{run}")[number] != "durable"
        trainer.lake.kill(process, ready=True)
    trainer.wait_durable(run, number)
    trainer.check(run)
    if at in ("a part has arrived", "before the last step", "the file is there"):
        first = [name for name in trainer.gate.passed if name.startswith("part 1 ") and f"/{run}/" in name]
        assert len(first) == 1, "a part that had arrived is not sent again"


def test_what_only_the_journal_has_is_uploaded_by_the_next_agent(trainer: Saving) -> None:
    (trainer.lake.root / "lake/journal/checkpoint-300").mkdir(parents=True)  # before: the origin is asked
    os.kill(trainer.lake.pid("agent"), signal.SIGSTOP)
    try:
        trainer.save("journal/checkpoint-300")
        assert not [name for name in trainer.gate.passed if "/journal/" in name]
    finally:
        trainer.lake.kill("agent", ready=True)
    trainer.wait_durable("journal", 300)
    trainer.check()


def test_the_next_mount_goes_on_where_the_whole_mount_was_killed(seaweedfs: SeaweedFs, tmp_path: Path) -> None:
    step, answered = STEPS["a part has arrived"]
    with saving(seaweedfs, tmp_path) as first:
        first.save("run/checkpoint-1")
        first.wait_durable("run", 1)
        with first.gate.stop(step, answered=answered) as stop:
            first.save("run/checkpoint-2")
            assert stop.reached.wait(30)
            os.kill(first.lake.pid("keeper"), signal.SIGKILL)
            first.check_visible("run/checkpoint-2")
            for name, body in FILES.items():
                assert first.at_origin(f"lake/run/checkpoint-1/{name}") == body, "the previous checkpoint is untouched"
            foremount("umount", str(first.lake.root), "--force", check=False)
    with saving(seaweedfs, tmp_path) as second:
        second.acknowledged.update(first.acknowledged)
        second.wait_durable("run", 2)
        second.check()
        assert states(second.lake, second.lake.root / "lake/run") == {1: "durable", 2: "durable"}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(507, "InsufficientStorage", errno.ENOSPC), (403, "AccessDenied", errno.EACCES)],
    ids=["is full", "refuses"],
)
def test_fsync_says_that_the_origin(trainer: Saving, status: int, code: str, error: int) -> None:
    """And the file comes by itself when the origin takes it again."""
    path = f"lake/remote/{code}"
    with trainer.gate.refuse(f"put *{code}", status, code):
        with pytest.raises(OSError) as caught:
            write(trainer.lake.root / path, FILES["model-2.safetensors"], sync=True)
        assert caught.value.errno == error
        assert trainer.at_origin(path) is None
        (trouble,) = trainer.lake.status()["agent_says"]["uploads"]["troubles"]
        assert trouble["path"] == path
    wait_until(lambda: trainer.at_origin(path) == FILES["model-2.safetensors"], "the upload")


def test_keys_that_were_rotated_are_read_again_without_an_error(trainer: Saving) -> None:
    with trainer.gate.refuse("*", 403, "ExpiredToken", signed_by=ACCESS_KEY):
        (trainer.lake.base / "credentials").write_text(credentials(NEXT_ACCESS_KEY, NEXT_SECRET_KEY))
        write(trainer.lake.root / "lake/remote/rotated", FILES["model-2.safetensors"], sync=True)
    assert trainer.at_origin("lake/remote/rotated") == FILES["model-2.safetensors"]


def test_an_origin_that_stalls_for_forty_seconds_in_an_upload_is_waited_for(stalled: Stalled) -> None:
    assert stalled.stop.reached.wait(30)
    assert stalled.saver.wait() == 0, stalled.saver.stderr.read() if stalled.saver.stderr else ""
    assert stalled.mount.at_origin("lake/remote/stalled") == FILES["model-1.safetensors"]
    assert stalled.mount.lake.status()["agent_says"]["uploads"]["uploaded"].get("failures", 0) == 0
