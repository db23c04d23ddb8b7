"""Records opens, reads and closes while somebody asks for it: one packed record for each, sent in batches.

Costs one look at an attribute while nothing is recorded, and some 3 us for a read while it is: one twentieth of the cheapest
read that comes to us at all. Memory: one batch here, and at most `BACKLOG_MAX` messages that the agent has not taken; beyond,
events are counted and not kept.

Task: `run`, which sends what is left over every 50 ms.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import trio

from vfs import wire
from vfs.clock import Clock
from vfs.filesystem.agent import AgentClient, asked
from vfs.filesystem.filesystem import FileSystem, Opened
from vfs.filesystem.tree import Buffer
from vfs.model import Ino, LakePath, Version
from vfs.traces.records import RECORD, How

log = logging.getLogger(__name__)
BATCH_RECORDS = 1024
"""41 KiB in one message."""
BACKLOG_MAX = 64
"""Messages, 2.6 MiB. What prediction and counters send are among them."""
FILES_KNOWN_MAX = 50_000
"""Files that the other end was told of and need not be told again."""
_SEND_S = 0.05


class Recorder:
    """Records what goes through `read`, `open` and `release`.

    Args:
        caller: returns thread and uid of the request that is being started; None: they can't be told.

    Attributes:
        recording: whether it was asked to.

    Invariant: every file that `_records` names is in `_files` or was sent before.
    """

    def __init__(
        self, filesystem: FileSystem, agent: AgentClient, caller: Callable[[], tuple[int, int]] | None, clock: Clock
    ) -> None:
        self.recording = False
        self._filesystem = filesystem
        self._push = filesystem.push
        self._agent = agent
        self._caller = caller or (lambda: (0, 0))
        self._clock = clock
        self._wall_ns = 0
        self._records = bytearray()
        self._files: list[tuple[int, LakePath, Version]] = []
        self._known: set[Ino] = set()
        self._lost = 0
        self._wake = trio.Event()

    def told(self, told: wire.Answer) -> None:
        """The agent wants it to begin or to end."""
        if not isinstance(told, wire.Tracing):
            return
        if told.on:
            log.info("recording what is opened and read")
            self._known.clear()
            self._wall_ns = self._clock.wall_ns() - self._now_ns()
            self._wake.set()
        elif self.recording:
            self._send(last=True)
        self._switch(on=told.on)

    def _switch(self, *, on: bool) -> None:
        """Nothing is pushed into the page cache meanwhile: of what lies there, nobody says that it is read."""
        self.recording = on
        self._filesystem.push = None if on else self._push

    async def open(self, ino: Ino, flags: int) -> Opened:
        """Open a file and record it."""
        (caller, _), began_ns = self._caller(), self._now_ns()
        opened = await self._filesystem.open(ino, flags)
        self._note(How.PASSTHROUGH if opened.backing else How.OPENED, ino, 0, 0, caller, began_ns)
        return opened

    async def read(self, ino: Ino, offset: int, length: int) -> Buffer:
        """Read from a file and record it."""
        (caller, _), began_ns = self._caller(), self._now_ns()
        asked.set(False)
        how = How.FAILED
        try:
            found = await self._filesystem.read(ino, offset, length)
            how, length = How.FETCHED if asked.get() else How.HIT, len(found)
        finally:
            self._note(how, ino, offset, length, caller, began_ns)
        return found

    def release(self, ino: Ino) -> None:
        """Record that a handle went, if it was the last one."""
        if not self._filesystem.inodes.get(ino).opens:
            self._note(How.CLOSED, ino, 0, 0, 0, self._now_ns())

    async def run(self) -> None:
        """Send what is recorded, for as long as the worker lives."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self.recording:
                await trio.sleep(_SEND_S)
                if not self._agent.connected:
                    self._switch(on=False)  # nobody is recording any more; the next agent says so if somebody is
                elif self.recording and (self._records or self._lost):
                    self._send()

    def _now_ns(self) -> int:
        return int(self._clock.monotonic_s() * 1e9)

    def _note(self, how: How, ino: Ino, offset: int, length: int, caller: int, began_ns: int) -> None:
        if not self.recording:
            return  # switched off meanwhile
        if ino not in self._known:
            if len(self._known) >= FILES_KNOWN_MAX:
                self._known.clear()
            self._known.add(ino)
            path, version = self._filesystem.described(ino)
            self._files.append((ino, LakePath(path.encode("utf-8", "backslashreplace").decode()), version))
        wait_ns = self._now_ns() - began_ns
        self._records += RECORD.pack(self._wall_ns + began_ns, wait_ns, ino, offset, length, caller, how)
        if len(self._records) >= BATCH_RECORDS * RECORD.size:
            self._send()

    def _send(self, *, last: bool = False) -> None:
        records, self._records = bytes(self._records), bytearray()
        files, self._files = self._files, []
        if self._agent.backlog > BACKLOG_MAX and not last:
            self._lost += len(records) // RECORD.size
            self._known.clear()
            return
        lost, self._lost = self._lost, 0
        self._agent.tell_nowait(wire.Traced(os.getpid(), files, records, lost, last))
