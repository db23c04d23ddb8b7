"""`foremount report` of a mount that does well, and of one whose processes all hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake import Lake, foremount, mounted, wait_until
from tests.marks import MOUNT
from vfs.keeper import procfs

pytestmark = MOUNT
CONFIG = """
[sites.here]
kind = "local"
path = "{base}/here"
[sites.far]
kind = "http"
url = "http://somebody:hunter2@127.0.0.1:1/data"
[[mounts]]
prefix = "/"
site = "here"
[[mounts]]
prefix = "/far"
site = "far"
[cache]
directory = "{base}/cache"
size = "1GiB"
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    base = tmp_path_factory.mktemp("report")
    (base / "here").mkdir()
    (base / "here/file").write_bytes(b"here")
    with mounted(CONFIG, base) as lake:
        yield lake


def parts_of(lake: Lake, path: Path) -> dict[str, str]:
    """Return the parts of a report of this mount; of what is the mount's own, without its directory."""
    said = json.loads(foremount("report", str(lake.root), "-o", str(path), "--json", timeout_s=60).stdout)
    own = Path(lake.run_dir.path).name + "/"
    with tarfile.open(path) as archive:
        names = [member.name.partition("/")[2] for member in archive]
        assert names == said["parts"]
        texts = [archive.extractfile(member).read().decode() for member in archive.getmembers()]  # type: ignore[union-attr]
    return dict(zip([name.removeprefix(own) for name in names], texts, strict=True))


def test_report_holds_what_is_needed_and_no_secret(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    parts = parts_of(lake, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(parts["status.json"])["verdict"] == "serving"
    assert 'kind = "http"' in parts["foremount.toml"]
    assert "serving" in parts["worker.log"]
    for program, loop in (("worker", "trio"), ("agent", "asyncio")):
        assert "most recent call first" in parts[f"stacks/{program}.python.txt"]
        assert loop in parts[f"stacks/{program}.python.txt"]
    assert str(lake.pid("keeper")) in parts["stacks/keeper.threads.txt"]
    assert str(lake.state()["connection"]) in parts["kernel/proc/self/mountinfo"]
    assert parts["fuse/waiting"] == "0\n"
    assert "hunter2" not in "".join(parts.values())


def test_report_of_processes_that_are_all_stopped_is_written_and_says_so(lake: Lake, tmp_path: Path) -> None:
    with stopped(lake), subprocess.Popen([sys.executable, "-c", f"open({str(lake.root / 'file')!r})"]) as caller:
        waits_in_the_kernel(caller.pid)
        parts = parts_of(lake, tmp_path / "report.tar.gz")
        os.kill(lake.pid("worker"), signal.SIGCONT)
        assert caller.wait(20) == 0
    status = json.loads(parts["status.json"])
    assert {process["state"] for process in status["processes"].values()} == {"stopped"}
    for program in ("keeper", "worker", "agent"):
        assert "State:\tT (stopped)" in parts[f"stacks/{program}.status.txt"]
        assert f"--- thread {lake.pid(program)}\n" in parts[f"stacks/{program}.threads.txt"]
    assert "can't write its stacks" in parts["stacks/worker.python.txt"]
    assert int(parts["fuse/waiting"]) >= 1
    assert (lake.root / "file").read_bytes() == b"here"  # and it goes on


@contextlib.contextmanager
def stopped(lake: Lake) -> Iterator[None]:
    """Hold all three processes still while the block runs."""
    pids = [lake.pid(program) for program in ("keeper", "agent", "worker")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: (facts := procfs.look(pid)) and facts.state == "T", "a stopped process")
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def waits_in_the_kernel(pid: int) -> None:
    """Return once a process waits for the mount's answer."""
    wait_until(lambda: "fuse" in Path(f"/proc/{pid}/stack").read_text(), "a call that waits")


def test_report_without_a_mount_is_about_the_host(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    environment = os.environ | {"HOME": str(tmp_path)}
    words = [sys.executable, "-m", "vfs.cli", "report", str(tmp_path / "nothing"), "-o", str(path), "--json"]
    said = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout)
    assert {"versions.txt", "uname.txt", "host.json"} <= set(said["parts"])
    assert any(name.endswith("status.json") for name in said["parts"])
