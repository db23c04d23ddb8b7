"""Tells the agent what is being read, in batches, so that it can fetch what comes next.

Pages that the kernel has are read without us and not told. A batch goes out when it is full, when a read has to wait for the
agent anyway, or after two milliseconds: a message for each 4 KiB read would cost as much as answering it.
"""

from __future__ import annotations

import trio

from vfs import wire
from vfs.filesystem.agent import AgentClient
from vfs.model import ObjectKey

_BATCH_READS = 64
_BATCH_S = 0.002


class ReadReports:
    """Collects reads by object.

    Invariant: `_pending` holds fewer than 64 reads of an object and is empty while `_wake` is not set.
    """

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent
        self._pending: dict[ObjectKey, list[tuple[int, int]]] = {}
        self._wake = trio.Event()

    def note(self, key: ObjectKey, offset: int, length: int) -> None:
        """Remember a read for the next batch."""
        reads = self._pending.setdefault(key, [])
        reads.append((offset, length))
        if len(reads) >= _BATCH_READS:
            self.send(key)
        else:
            self._wake.set()

    def send(self, key: ObjectKey) -> None:
        """Send what is pending for an object now."""
        reads = self._pending.pop(key, None)
        if reads:
            self._agent.tell_nowait(wire.Reads(key, reads))

    async def run(self) -> None:
        """Send what is pending every two milliseconds, for as long as there is something."""
        while True:
            await self._wake.wait()
            await trio.sleep(_BATCH_S)
            for key in list(self._pending):
                self.send(key)
            self._wake = trio.Event()
