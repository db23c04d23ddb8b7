"""The fs worker's rooms without a kernel, over a real agent process: for tests that call the file system themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from vfs import config, wire
from vfs.clock import FakeClock, SystemClock
from vfs.extents.layout import store_root
from vfs.filesystem.agent import AgentClient
from vfs.filesystem.expected import Expected
from vfs.filesystem.filesystem import FileSystem
from vfs.filesystem.local import LocalTree
from vfs.filesystem.openfiles import OpenFiles
from vfs.filesystem.reads import ReadReports
from vfs.filesystem.remote import OpenObjects, RemoteTree
from vfs.filesystem.tree import Tree
from vfs.keeper.code import child_environ
from vfs.model import Ino, LakePath
from vfs.namespace.catalog import Catalog
from vfs.namespace.inodes import ROOT, InodeTable
from vfs.namespace.mounts import build_mount_table
from vfs.policy.inforce import InForce, open_store
from vfs.rundir import RunDir


@dataclass
class RecordingPassthrough:
    """Takes files as the kernel does, and remembers which it has."""

    enabled: bool = True
    registered: dict[int, str] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)

    def register(self, fd: int) -> int:
        """Return the next number for the file behind `fd`."""
        backing = len(self.registered) + 1
        self.registered[backing] = os.readlink(f"/proc/self/fd/{fd}")
        return backing

    def release(self, backing: int) -> None:
        """Take a number back."""
        assert backing in self.registered
        assert backing not in self.released
        self.released.append(backing)


class Agent:
    """An agent process that can be killed and started again.

    Attributes:
        process: the one that runs, or ran last.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start a process and wait until it serves."""
        reading, writing = os.pipe()
        words = [sys.executable, "-P", "-m", "vfs.agent", "--status-fd", str(writing), "--parent-pid", str(os.getpid())]
        words += ["--run-dir", str(self.base), "--config", str(self.base / "foremount.toml")]
        self.process = subprocess.Popen(words, pass_fds=[writing], env=child_environ())
        os.close(writing)
        with open(reading, "rb") as said:
            assert said.readline().startswith(b"ready"), (self.base / "agent.log").read_text()

    def kill(self) -> None:
        """Kill the process and collect it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def agent(base: Path, text: str) -> Iterator[Agent]:
    """Run an agent with this configuration; `{base}` stands for its directory."""
    base.mkdir(exist_ok=True)
    (base / "foremount.toml").write_text(text.replace("{base}", str(base)))
    running = Agent(base)
    running.start()
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(20)


@dataclass
class Worker:
    """The rooms of one worker.

    Attributes:
        clock: of idle files; the file system's own is real.
    """

    filesystem: FileSystem
    passthrough: RecordingPassthrough
    client: AgentClient
    clock: FakeClock

    async def find(self, path: str) -> Ino:
        """Return the inode of a lake path, as the kernel walks it."""
        ino = ROOT
        for name in path.split("/") if path else []:
            ino = (await self.filesystem.lookup(ino, os.fsencode(name))).ino
        return ino

    async def content(self, path: str) -> bytes:
        """Return a file's bytes by open, read and release."""
        ino = await self.find(path)
        await self.filesystem.open(ino, os.O_RDONLY)
        try:
            return await self.read(ino)
        finally:
            self.filesystem.release(ino)

    async def read(self, ino: Ino, size: int = 64 << 20) -> bytes:
        """Return the bytes of an open file, by requests as large as the kernel's."""
        pieces, offset = [], 0
        while piece := bytes(await self.filesystem.read(ino, offset, min(1 << 20, size - offset))):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    async def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        ino = await self.find(path)
        await self.filesystem.open_directory(ino)
        found, position = [], 0
        while children := await self.filesystem.read_directory(ino, position):
            found += [os.fsdecode(child.name) for child in children]
            position = children[-1].position
        self.filesystem.release_directory(ino)
        return found


def run_worker(
    base: Path,
    text: str,
    body: Callable[[Worker], Awaitable[None]],
    *,
    fresh: bool = True,
    passthrough: RecordingPassthrough | None = None,
    deadline_s: float = 20.0,
) -> None:
    """Run `body` on trio with the rooms of a worker; not `fresh`: of one that follows another."""
    base.mkdir(exist_ok=True)
    file = base / "foremount.toml"
    file.write_text(text.replace("{base}", str(base)))
    loaded, rundir = config.load(file), RunDir(str(base))
    os.makedirs(rundir.public, exist_ok=True)

    async def main() -> None:
        client = AgentClient(
            rundir.agent_socket, lambda: wire.Hello(os.getpid(), passthrough=False, why_not="test"), deadline_s=deadline_s
        )
        mounts, policy = build_mount_table(loaded, rundir.public), InForce(open_store(loaded, str(file)))
        catalog = Catalog(os.path.join(store_root(loaded.cache.directory), "catalog.lmdb"))
        inodes, given, clock = InodeTable(rundir.inodes, fresh=fresh), passthrough or RecordingPassthrough(), FakeClock()
        reports = ReadReports(client)
        trees: dict[LakePath, Tree] = {}
        for point in mounts.points:
            trees[point.prefix] = (
                LocalTree(point, policy)
                if point.local_root is not None
                else RemoteTree(
                    point, agent=client, catalog=catalog, cache_root=store_root(loaded.cache.directory),
                    objects=OpenObjects(16), reports=reports, expected=Expected(), clock=SystemClock(), policy=policy,
                    owner=(0, 0),
                )
            )  # fmt: skip
        files = OpenFiles(inodes, given, clock, open_max=100)
        filesystem = FileSystem(mounts, trees, inodes, files, (0, 0), 0)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                nursery.start_soon(reports.run)
                await body(Worker(filesystem, given, client, clock))
                nursery.cancel_scope.cancel()
        finally:
            filesystem.close()
            catalog.close()
            inodes.close()

    trio.run(main)
