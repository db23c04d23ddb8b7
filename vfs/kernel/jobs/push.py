"""Fills the kernel's tables for what is placed, and empties them of what is dropped: one task, in the order it is told.

To place: the directory's own name expires, and is not believed until the first reader comes by and asks for it, which tells
how far its rank is; the primer walks the directory, so that the kernel has names and inodes; a thread pushes the contents
into their pages. To drop: the directory's name is taken from the kernel with all below it. Files that are open stay what they
are.

Cost: 10 us for each name of a listing and 12 us for 16 KiB (2 cores, kernel 6.18, 2026-11-30).
"""

from __future__ import annotations

import json
import logging
import math
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
from vfs.samples import tree
from vfs.samples.wire import Dropped, Node, Placed

log = logging.getLogger(__name__)
_WALK_S = 10.0
"""For one directory: a primer that takes longer waits for something that does not come, and is given up."""


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
    """Carries out what the agent tells.

    Args:
        size_max: of contents that are pushed.

    Attributes:
        counts: what was done so far, for `status`.
    """

    def __init__(self, fuse_fd: int, files: SampleFiles, primer: Primer, *, size_max: int) -> None:
        self._fuse_fd = fuse_fd
        self._files = files
        self._primer = primer
        self._size_max = size_max
        self._can_expire = can_expire(os.uname().release)
        self._told_in, self._told = trio.open_memory_channel[Placed | Dropped](math.inf)  # as much as the agent holds files
        self.counts: Counter[str] = Counter()

    def tell(self, told: object) -> None:
        """Take in what the agent tells. Names stand for what is placed from now on."""
        if isinstance(told, Placed):
            self._files.placed.place(told)
            self._told_in.send_nowait(told)
        elif isinstance(told, Dropped):
            self._told_in.send_nowait(told)

    async def run(self) -> None:
        """Work for as long as the worker lives."""
        async for told in self._told:
            if isinstance(told, Dropped):
                await self._drop(told)
            elif self._files.placed.has(told.directory):
                await self._place(told)

    async def _place(self, told: Placed) -> None:
        is_rank = isinstance(tree.parse(told.directory), tree.RankPlace)
        place = self._files.known(told.directory) if is_rank and self._can_expire else None
        if place is not None:
            await trio.to_thread.run_sync(expire, self._fuse_fd, [place], abandon_on_cancel=True)
        await self._primer.walk(told.directory)
        known = [(ino, node) for ino, node in self._files.placed_inodes(told.directory) if node.size <= self._size_max]
        # Abandoned at the end: a page may be locked by a reader who waits for us.
        pushed = await trio.to_thread.run_sync(self._push, known, abandon_on_cancel=True)
        self.counts["pushed"] += pushed
        self.counts["pushed_bytes"] += sum(node.size for _, node in known[:pushed])

    async def _drop(self, told: Dropped) -> None:
        names = [self._files.known(directory) for directory in self._files.placed.drop(told)]
        gone = [name for name in names if name is not None]
        self.counts["dropped"] += await trio.to_thread.run_sync(drop, self._fuse_fd, gone, abandon_on_cancel=True)

    def _push(self, known: Iterable[tuple[Ino, Node]]) -> int:
        """Put contents into the page cache, in a thread; return how many. What can't be is read when it is asked for."""
        count = 0
        for ino, node in known:
            try:
                with open(node.file, "rb", buffering=0) as file:
                    content = file.read(node.size + 1)
                if len(content) == node.size:
                    os.writev(self._fuse_fd, [header(ino, 0, len(content)), content])
                    count += 1
            except OSError as exc:  # forgotten or dropped meanwhile
                log.debug("%s is not pushed: %s", node.path, exc)
        return count
