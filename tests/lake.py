"""A real mount for tests and benchmarks: started and ended by the command line, as a user does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfs.cli.client import AdminClient
from vfs.rundir import RunDir, run_dir, settle

WAIT_S = 30.0
DISK = """
[sites.disk]
kind = "local"
path = "{base}/disk"
[[mounts]]
prefix = "/"
site = "disk"
writable = true
[cache]
directory = "{base}/cache"
"""
"""A directory of this host, shown whole and writable."""
STAGED = """
policies = ["policy.toml"]
[sites.origin]
kind = "http"
url = "URL"
writes = "put"
[[mounts]]
prefix = "/"
site = "origin"
writable = true
[cache]
directory = "{base}/cache"
"""
"""An origin that is written through the staging area; `policy.toml` stands beside the configuration."""
FSYNC_IS_LOCAL = """
format = 1
[[rules]]
name = "local"
match = { access = "write" }
set = { write_durability = "local" }
"""
_HTTP = """
[sites.origin]
kind = "http"
url = "{url}"
[[mounts]]
prefix = "/"
site = "origin"
[cache]
directory = "{cache}"
size = "{size}"
[limits]
origin_deadline = "{deadline}"
listing_ttl = "{ttl}"
"""


def why_no_mount() -> str:
    """Return why this machine can't mount as root, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    if not os.path.exists("/dev/fuse"):
        return "needs /dev/fuse"
    return ""


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Return what `holds` returned once it is true; polls, and fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.01)
    return found


def http_lake(url: str, *, cache: str = "{base}/cache", size: str = "1GiB", deadline: str = "20s", ttl: str = "60s") -> str:
    """Return the configuration of a mount that shows one HTTP origin."""
    return _HTTP.format(url=url, cache=cache, size=size, deadline=deadline, ttl=ttl)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def anonymous_bytes(pid: int) -> int:
    """Return the bytes of memory that a process holds apart from files; 0 where it has ended and is not collected yet."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)


@dataclass(frozen=True)
class Lake:
    """A mount that is up.

    Attributes:
        root: the mount point.
        base: scratch directory that holds configuration and cache.
    """

    root: Path
    base: Path
    config: Path

    @property
    def run_dir(self) -> RunDir:
        """Return where its processes keep their state."""
        return run_dir(settle(str(self.root)))

    def state(self) -> dict[str, Any]:
        """Return the keeper's state file."""
        found: dict[str, Any] = json.loads(Path(self.run_dir.state).read_text())
        return found

    def pid(self, process: str) -> int:
        """Return the pid of "keeper", "worker", "agent" or "jobs", waiting for one that is being restarted."""
        if process == "keeper":
            return int(self.state()["pid"])
        return int(wait_until(lambda: self.state()[process]["pid"], f"a running {process}"))

    def kill(self, process: str, *, ready: bool = False) -> None:
        """Kill a child of the keeper and wait until the keeper has another one; with `ready`, until that one serves."""
        pid = self.pid(process)
        os.kill(pid, signal.SIGKILL)

        def is_another() -> bool:
            now = self.state()[process]
            return now["pid"] not in (0, pid) and (now["ready"] or not ready)

        wait_until(is_another, f"another {process}")

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `foremount` command and return what it said."""
        return foremount(*words, check=check)

    def status(self) -> dict[str, Any]:
        """Return `foremount status --json` of this mount."""
        said: dict[str, Any] = json.loads(foremount("status", str(self.root), "--json", check=False).stdout)
        return said

    def room(self, name: str) -> dict[str, Any]:
        """Return what a room of the agent says of itself."""
        found: dict[str, Any] = AdminClient(self.run_dir.admin_socket, 10.0).get("/v1/rooms")["rooms"][name]
        return found

    def job_status(self, *names: str) -> list[dict[str, Any]]:
        """Return what `foremount job status` says of these jobs, of all without names."""
        words = ("job", "status", *names, "--mountpoint", str(self.root), "--json")
        found: list[dict[str, Any]] = json.loads(self.command(*words).stdout)["jobs"]
        return found

    def requests(self, kind: str) -> float:
        """Return how many requests of a kind ("read", "lookup", …) the worker has had up to this call."""
        return self.requests_by_kind().get(kind, 0)

    def requests_by_kind(self) -> dict[str, float]:
        """Return how many requests of each kind the worker has had up to this call."""

        def counters() -> dict[str, float]:
            found: dict[str, float] = self.status()["agent_says"]["worker"]["counters"]
            return found

        before = counters().get("statfs", 0)
        os.statvfs(self.root)
        return dict(wait_until(lambda: (found := counters()).get("statfs", 0) > before and found, "counters of the worker"))

    def log(self, process: str) -> str:
        """Return the log of a process so far."""
        path = Path(self.run_dir.log(process))
        return path.read_text() if path.exists() else ""


def foremount(*words: str, check: bool = True, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run the command line; with `check`, a status other than 0 is an assertion error with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "vfs.cli", *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert not check or done.returncode == 0, f"foremount {' '.join(words)}: {done.stdout}{done.stderr}"
    return done


@contextmanager
def mounted(config: str, base: Path | None = None, *options: str) -> Iterator[Lake]:
    """Mount what `config` describes and unmount at the end.

    Args:
        config: TOML; `{base}` stands for the scratch directory.
        base: made and removed here where None.
        options: of `foremount mount`.
    """
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made:
        base = Path(made) if base is None else base
        root, file = base / "mnt", base / "foremount.toml"
        root.mkdir(exist_ok=True)
        file.write_text(config.replace("{base}", str(base)))
        foremount("mount", str(file), str(root), *options)
        lake = Lake(root, base, file)
        try:
            yield lake
        finally:
            foremount("umount", str(root), check=False)
            if os.path.ismount(root):
                foremount("umount", str(root), "--force")
