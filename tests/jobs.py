"""`.jobs` on a real mount over a server that speaks `vfs/samples/wire.py` and holds real files: the agent's end for tests.

The keeper, the fs worker and the worker of `.jobs` are the real ones. In the agent's place stands a process that only
beats, and this server listens on the agent's socket, in a thread of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lake import DISK, Lake, foremount, wait_until
from vfs import rundir
from vfs.cli.hostchecks import reads_without_open
from vfs.cli.mount import start_keeper
from vfs.errors import NotFound, to_failure
from vfs.frames import Failed, FrameBuffer, Request
from vfs.keeper.service import Options
from vfs.model import Kind, split
from vfs.rundir import RunDir, settle
from vfs.samples import wire
from vfs.samples.model import Form

STAND_IN = [sys.executable, "-P", str(Path(__file__).parent / "mount" / "stand_in.py")]
CONFIG = DISK + '[samples]\npush = "4MiB"\n'
MTIME_NS = 1_700_000_000_000_000_000


def why_with_open() -> str:
    """Return why files of `.jobs` are opened by requests on this machine, or "" where the extension spares them."""
    return "" if reads_without_open() else "the passthrough extension is missing or old: install again with libfuse3-dev"


@dataclass
class Samples:
    """The agent's end: what is in the tree, and what was asked.

    Attributes:
        entries: by directory and name.
        calls: every call, in order, but counters.
        counters: the latest.
        greeted: workers that connected so far.
        expected: samples that tests have had pushed so far.
    """

    directory: Path
    entries: dict[str, dict[str, wire.Node]] = field(default_factory=lambda: {"": {}})
    calls: list[wire.Call] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    greeted: int = 0
    expected: int = 0
    placed: dict[str, None] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, path: str, content: bytes, form: Form = Form.TRANSFORMED, *, here: bool = True) -> wire.Node:
        """Let a path have this content from now on.

        Args:
            here: the answers name its file; else only `Content` does.
        """
        key = hashlib.sha256(f"{path}\0{form}\0".encode() + content).hexdigest()[:32]
        file = self.directory / key
        file.write_bytes(content)
        provenance = json.dumps({"form": form, "digest": key})
        node = wire.Node(path, Kind.FILE, key, len(content), MTIME_NS, form, provenance, str(file) if here else "")
        with self._lock:
            self._enter(node)
        return node

    def _enter(self, node: wire.Node) -> None:
        """Add a node, and the directories that lead to it."""
        parent, name = split(node.path)
        if parent not in self.entries:
            self.entries[parent] = {}
            self._enter(wire.Node(parent, Kind.DIRECTORY, mtime_ns=MTIME_NS))
        self.entries[parent][name] = node

    def remove(self, job: str) -> None:
        """Let a job be there no more."""
        with self._lock:
            del self.entries[""][job]
            for directory in [other for other in self.entries if other.split("/")[0] == job]:
                del self.entries[directory]

    def place(self, directory: str) -> None:
        """Tell that all samples of a directory are ready."""
        self.placed[directory] = None
        self._tell(wire.Placed(directory, self._children(directory) or []))

    def drop(self, directory: str) -> None:
        """Tell that a directory's step has been read, and remove its files."""
        self.placed.pop(directory, None)
        self._tell(wire.Dropped([directory]))

    def asked(self, kind: type) -> list[Any]:
        """Return the calls of a kind so far."""
        return [call for call in self.calls if isinstance(call, kind)]

    def _tell(self, told: wire.Answer) -> None:
        def write() -> None:
            for writer in self._writers:
                writer.write(wire.DIALECT.response(0, told))

        self._loop.call_soon_threadsafe(write)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer()
        self._writers.add(writer)
        try:
            while received := await reader.read(1 << 16):
                for body in frames.feed(received):
                    self._answer(wire.DIALECT.decode_request(body), writer)
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, request: Request[wire.Call], writer: asyncio.StreamWriter) -> None:
        if isinstance(request.call, wire.Counters):
            self.counters = request.call.values
            return
        self.calls.append(request.call)
        match request.call:
            case wire.Greet():
                self.greeted += 1
                for directory in self.placed:
                    self.place(directory)
                return
            case wire.Look(path):
                answer: wire.Answer = wire.Seen(self._look(path))
            case wire.Children(path):
                answer = wire.Nodes(self._children(path))
            case wire.Content(path, key):
                file = self.directory / key
                answer = wire.At(str(file)) if file.exists() else Failed(to_failure(NotFound(path)))
            case _:
                return
        writer.write(wire.DIALECT.response(request.id, answer))

    def _look(self, path: str) -> wire.Node | None:
        with self._lock:
            if not path:
                return wire.Node("", Kind.DIRECTORY, mtime_ns=MTIME_NS)
            parent, name = split(path)
            return self.entries.get(parent, {}).get(name)

    def _children(self, path: str) -> list[wire.Node] | None:
        with self._lock:
            found = self.entries.get(path)
            return None if found is None else list(found.values())

    @contextmanager
    def listening(self, socket_path: str) -> Iterator[None]:
        """Serve in a thread until the block ends."""
        ended = asyncio.Event()

        async def serve() -> None:
            server = await asyncio.start_unix_server(self._accept, socket_path)
            ready.set()
            await ended.wait()
            server.close()
            for writer in list(self._writers):
                writer.close()

        ready = threading.Event()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        assert ready.wait(20)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(ended.set)
            thread.join(20)


@dataclass(frozen=True)
class JobsLake(Lake):
    """A mount with samples.

    Attributes:
        samples: the agent's end.
    """

    samples: Samples

    @property
    def jobs(self) -> Path:
        """Return `.jobs`."""
        return self.root / ".jobs"

    def settle_pushes(self, count: int) -> None:
        """Wait until so many samples have been pushed since the worker was started, and it is idle again."""
        wait_until(lambda: self.samples.counters.get("pushed", 0) >= count, f"{count} pushed samples")

    def count(self, work: Callable[[], object]) -> dict[str, float]:
        """Return the requests of the kernel to the worker of `.jobs` during `work`, by kind."""
        before = self._counters()
        work()
        after = self._counters()
        return {kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)}

    def _counters(self) -> dict[str, float]:
        mark = self.samples.counters.get("statfs", 0)
        os.statvfs(self.jobs)
        wait_until(lambda: self.samples.counters.get("statfs", 0) > mark, "counters of the worker of .jobs")
        return {kind: count for kind, count in self.samples.counters.items() if kind != "statfs"}


@contextmanager
def jobs_mounted() -> Iterator[JobsLake]:
    """Mount a lake with samples; unmount at the end."""
    with tempfile.TemporaryDirectory(prefix="foremount-test-") as made, contextlib.ExitStack() as stack:
        base = Path(settle(made))
        for name in ("mnt", "disk", "files"):
            (base / name).mkdir()
        (base / "foremount.toml").write_text(CONFIG.replace("{base}", str(base)))
        (base / "disk" / "plain").write_bytes(b"plain")
        directory: RunDir = rundir.run_dir(str(base / "mnt"))
        rundir.create(directory)
        samples = Samples(base / "files")
        stack.enter_context(samples.listening(directory.jobs_socket))
        options = Options(
            mountpoint=str(base / "mnt"),
            config=str(base / "foremount.toml"),
            run_dir=directory.path,
            read_ahead_kb=64,
            samples=True,
            samples_read_ahead_kb=4096,
            commands={"agent": STAND_IN},
        )
        start_keeper(directory, options, 60.0)
        stack.callback(end_mount, base / "mnt")
        yield JobsLake(base / "mnt", base, base / "foremount.toml", samples)


def end_mount(root: Path) -> None:
    """Unmount, by force if need be."""
    if foremount("umount", str(root), check=False).returncode:
        foremount("umount", str(root), "--force", check=False)
