"""What happens, told to those who listen: a bounded memory of events and a bounded queue for each listener.

Runs on the agent's loop; owns no task. Telling never waits: a listener that does not keep up loses the oldest and is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from vfs.admin.records import Event
from vfs.clock import Clock

KEPT = 256
_QUEUE = KEPT + 64


class Listener:
    """One stream.

    Attributes:
        missed: events that it lost since it was last asked.
    """

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUE)
        self.missed = 0

    def put(self, event: Event) -> None:
        """Hand it an event."""
        if self.queue.full():
            self.queue.get_nowait()
            self.missed += 1
        self.queue.put_nowait(event)


class Events:
    """The events of this agent; their numbers begin anew with each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 1
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._listeners: set[Listener] = set()

    def tell(self, kind: str, data: Any) -> None:
        """Tell all listeners. Second-by-second sums are not kept for later ones: `/v1/stats` has them."""
        event = Event(self._next, self._clock.wall_ns() / 1e9, kind, data)
        self._next += 1
        if kind != "stats":
            self._kept.append(event)
        for listener in self._listeners:
            listener.put(event)

    @contextlib.contextmanager
    def listening(self, since: int) -> Iterator[Listener]:
        """Yield a listener that gets all events of the block, after those kept ones that are later than `since`; -1: none."""
        listener = Listener()
        for event in self._kept:
            if 0 <= since < event.id:
                listener.put(event)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    @property
    def listeners(self) -> int:
        """Return how many listen."""
        return len(self._listeners)
