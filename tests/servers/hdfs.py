"""A real HDFS with WebHDFS. The jars are fetched once into the user's cache directory; the file system is new each time.

Java 11 or 17 and 700 MB of memory are needed. Ready after some 6 s.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.lifecycle import Missing, program, running, wait_ready

SCRIPT = Path(__file__).with_name("hdfs.sh")
START_S = 90
INSTALL_S = 300
PORTS = 24


@dataclass(frozen=True, slots=True)
class Hdfs:
    """A running HDFS; methods act as its superuser."""

    port: int
    user: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, content: bytes) -> None:
        """Write a file in place of the one before."""
        if "%" in path:
            # DataNodes of this Hadoop decode paths twice; the NameNode does not
            self.put("/upload", content)
            self.mkdir(path.rpartition("/")[0])
            self.delete(path)
            self.rename("/upload", path)
            return
        status, _, location = self._call("PUT", self.port, self._target(path, "CREATE", overwrite="true"))
        assert status == 307, status
        to = urllib.parse.urlsplit(location)
        status, body, _ = self._call("PUT", to.port or 0, f"{to.path}?{to.query}", content)
        assert status == 201, body

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it."""
        self._act("PUT", path, "MKDIRS")

    def delete(self, path: str) -> None:
        """Remove a file or a tree."""
        self._act("DELETE", path, "DELETE", recursive="true")

    def rename(self, path: str, to: str) -> None:
        """Rename; the target must not be there."""
        self._act("PUT", path, "RENAME", destination=to)

    def chmod(self, path: str, permission: str) -> None:
        """Set the permission bits, in octal."""
        self._act("PUT", path, "SETPERMISSION", permission=permission)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set the modification time."""
        self._act("PUT", path, "SETTIMES", modificationtime=str(mtime_ms))

    def _act(self, method: str, path: str, operation: str, **parameters: str) -> Any:
        status, body, _ = self._call(method, self.port, self._target(path, operation, **parameters))
        assert status == 200, body
        return json.loads(body) if body else None

    def _target(self, path: str, operation: str, **parameters: str) -> str:
        query = urllib.parse.urlencode({"op": operation, "user.name": self.user} | parameters)
        return f"/webhdfs/v1{urllib.parse.quote(path)}?{query}"

    def _call(self, method: str, port: int, target: str, body: bytes | None = None) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, target, body)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Location", "")


@contextlib.contextmanager
def hdfs(directory: Path, *, datanodes: int = 1) -> Iterator[Hdfs]:
    """Run an HDFS whose files and logs lie in `directory`.

    Raises:
        Missing: no Java, or the jars can't be fetched.
    """
    program("java", "install a Java 17 runtime (Debian: openjdk-17-jre-headless)")
    home = install()
    port = _free_ports(PORTS)
    base = [str(SCRIPT)], [str(home), str(directory), str(port)]
    with (directory / "format.log").open("wb") as log:
        subprocess.run([*base[0], "format", *base[1]], check=True, stdout=log, stderr=log, timeout=START_S)
    with contextlib.ExitStack() as daemons:
        log_path = directory / "namenode.log"
        namenode = daemons.enter_context(running([*base[0], "namenode", *base[1]], log_path))
        for index in range(1, datanodes + 1):
            daemons.enter_context(running([*base[0], "datanode", *base[1], str(index)], directory / f"datanode-{index}.log"))
        wait_ready(namenode, lambda: _live_datanodes(port) >= datanodes, log_path, START_S)
        yield Hdfs(port, getpass.getuser())


def install() -> Path:
    """Return where the jars lie, after fetching them if they are not there; one process at a time.

    Raises:
        Missing: they can't be fetched.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foremount-tests"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / "hdfs-2.7.4"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "lib").exists():
            program("apt-get", "HDFS's web libraries come from Debian or Ubuntu packages")
            environment = os.environ | {"PYTHON": sys.executable}
            done = subprocess.run(
                [SCRIPT, "install", home], capture_output=True, text=True, env=environment, timeout=INSTALL_S, check=False
            )
            if done.returncode:
                raise Missing(f"HDFS can't be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return home


def _live_datanodes(port: int) -> int:
    """Return how many DataNodes have reported to the NameNode; 0 as long as it does not serve."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        connection.request("GET", "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
        state = json.loads(connection.getresponse().read())["beans"][0]
        return int(state["NumLiveDataNodes"]) if state["FSState"] == "Operational" else 0
    return 0


def _free_ports(count: int) -> int:
    """Return the first of `count` neighbouring loopback ports that are free now."""
    for first in range(21000, 29000, count):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise Missing(f"no {count} neighbouring ports are free")
