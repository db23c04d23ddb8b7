"""Fills the kernel's tables for what is placed, and empties them of what is dropped: one task.

To place: the directory's own name expires, and is not believed until the first reader comes by and asks for it, which tells
how far its rank is; the primer walks the directory, so that the kernel has names and inodes; a thread pushes the contents
into their pages. To drop: the directory's name is taken from the kernel with all below it. Files that are open stay what they
are.

Cost: 10 us for each name of a listing and 12 us for 16 KiB (2 cores, kernel 6.18, 2026-11-30).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import trio

from vfs.filesystem.samples import SampleFiles
from vfs.keeper.code import child_environ
from vfs.kernel.expire import can_expire, drop, expire
from vfs.kernel.push import header
from vfs.model import Ino
from vfs.samples.wire import Dropped, Node, Placed

log = logging.getLogger(__name__)
PRIMER = "vfs.kernel.jobs.primer"
_WALK_S = 10.0
"""For one directory: a primer that takes longer waits for something that does not come, and is given up."""


_PIECE_BYTES = 1 << 20
"""Of a content, at a time: whole pages, and what is held of it."""
_TOLD_S = 10.0
"""A new agent tells what is in its directory of samples at once; a schedule may have to be opened for it."""


class Primer:
    """The process that walks, started when it is first needed and after it was given up."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._line: trio.SocketStream | None = None

    @property
    def pid(self) -> int:
        """Return its process, 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def walk(self, directory: str) -> None:
        """Have the kernel know what is placed in a directory. Where that fails readers ask themselves."""
        try:
            with trio.fail_after(_WALK_S):
                line = self._line or self._start()
                await line.send_all(json.dumps(directory).encode() + b"\n")
                if not await line.receive_some(1):
                    raise trio.BrokenResourceError
        except (trio.TooSlowError, trio.BrokenResourceError, OSError) as exc:
            log.warning("the primer is given up over %s: %r", directory, exc)
            self.end()

    def _start(self) -> trio.SocketStream:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-P",
                "-m",
                "vfs.kernel.jobs.primer",
                "--fd",
                str(theirs.fileno()),
                "--root",
                self._root,
            ]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=child_environ()
            )  # fmt: skip
        self._line = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        return self._line

    def end(self) -> None:
        """Kill it without waiting: it may hang in the kernel for as long as we don't answer."""
        if self._process is not None:
            self._process.kill()
        if self._line is not None:
            self._line.socket.close()
        self._process = self._line = None


class Pusher:
    """Carries out what the agent tells. Samples that come one by one are pushed together with those that came meanwhile.

    Args:
        size_max: of contents that are pushed.

    Attributes:
        counts: what was done so far, for `status`.

    Invariant: what is in `_pending` is placed.
    """

    def __init__(self, fuse_fd: int, files: SampleFiles, primer: Primer, *, size_max: int) -> None:
        self._fuse_fd = fuse_fd
        self._files = files
        self._primer = primer
        self._size_max = size_max
        self._can_expire = can_expire(os.uname().release)
        self._pending: dict[str, list[Node]] = {}
        self._gone: list[str] = []
        self._news = trio.Event()
        self._renewed_s = 0.0
        self.counts: Counter[str] = Counter()

    def tell(self, told: object) -> None:
        """Take in what the agent tells. Names stand for what is placed from now on."""
        if isinstance(told, Placed):
            self._files.placed.place(told)
            self._pending.setdefault(told.directory, []).extend(told.nodes)
        elif isinstance(told, Dropped):
            for directory in told.directories:
                self._pending.pop(directory, None)
            self._gone += self._files.placed.drop(told)
        self._news.set()

    def renew(self) -> None:
        """Another agent is there, which tells anew what is placed. What it does not tell of in time is dropped."""
        self._files.placed.renew()
        self._renewed_s = trio.current_time()

    def drop_untold(self) -> None:
        """Called once a second."""
        if self._renewed_s + _TOLD_S < trio.current_time() and (untold := self._files.placed.untold):
            log.info("%s directories of the agent before are dropped", len(untold))
            self.tell(Dropped(untold))

    async def run(self) -> None:
        """Work for as long as the worker lives. What is gone goes first: it may be placed anew behind."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._gone or self._pending:
                if self._gone:
                    gone, self._gone = self._gone, []
                    await self._drop(gone)
                else:
                    directory = next(iter(self._pending))
                    await self._place(directory, self._pending.pop(directory))

    async def _place(self, directory: str, nodes: list[Node]) -> None:
        if self._files.placed.is_waiting(directory) and self._can_expire and (name := self._files.known(directory)):
            # Abandoned at the end, as all of these: it may wait for a directory, or a page, whose holder waits for us.
            await trio.to_thread.run_sync(expire, self._fuse_fd, [name], abandon_on_cancel=True)
        await self._primer.walk(directory)
        known = self._files.known_inodes([node for node in nodes if node.size <= self._size_max])
        pushed = await trio.to_thread.run_sync(self._push, known, abandon_on_cancel=True)
        self.counts["pushed"] += len(pushed)
        self.counts["pushed_bytes"] += sum(pushed)

    async def _drop(self, directories: list[str]) -> None:
        names = [name for directory in directories if (name := self._files.known(directory)) is not None]
        self.counts["dropped"] += await trio.to_thread.run_sync(drop, self._fuse_fd, names, abandon_on_cancel=True)

    def _push(self, known: Iterable[tuple[Ino, Node]]) -> list[int]:
        """Put contents into the page cache, in a thread; return the size of each. What can't be is read when asked for."""
        pushed = []
        for ino, node in known:
            try:
                with open(node.file, "rb", buffering=0) as file:
                    if os.fstat(file.fileno()).st_size != node.size:
                        continue
                    for offset in range(0, node.size, _PIECE_BYTES):
                        piece = os.pread(file.fileno(), _PIECE_BYTES, offset)
                        os.writev(self._fuse_fd, [header(ino, offset, len(piece)), piece])
                pushed.append(node.size)
            except OSError as exc:  # forgotten or dropped meanwhile
                log.debug("%s is not pushed: %s", node.path, exc)
        return pushed
