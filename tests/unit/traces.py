"""Traces for tests, written and read by the real code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vfs.config import Limits, Mount
from vfs.extents.layout import Identity
from vfs.model import LakePath, SiteName, SitePath, Version
from vfs.policy.loader import expand, read
from vfs.traces.parquet import Trace, TraceWriter, load
from vfs.traces.recording import Line, PolicyText, Said, Setting
from vfs.traces.records import RECORD, How
from vfs.units import Bytes

FILE = "data/file"
Event = tuple[int, int, How, str, int, int, int]
"""(at_ms, wait_ms, how, path, offset, length, thread)."""


def identity(path: str, size: int) -> Identity:
    """Return an object of the site that traces are of."""
    return Identity(SiteName("origin"), SitePath(path), Version(size))


def setting(policies: Sequence[str] = ()) -> Setting:
    """Return a host with one remote mount; policies are sources."""
    return Setting(
        version="0",
        host="h",
        sites=[SiteName("origin"), SiteName("here")],
        local_sites=[SiteName("here")],
        mounts=[Mount("/", "origin"), Mount("/local", "here")],
        cache_size=Bytes(1 << 30),
        limits=Limits(),
        policies=[PolicyText(text.source, text.shipped, text.text) for text in read(expand(policies))],
    )


def write(path: Path, events: Sequence[Event], *, size: int, line: Line | None = None, **said: int) -> Trace:
    """Write a trace file and return what `load` makes of it. All files have `size` bytes."""
    names = sorted({event[3] for event in events})
    records = b"".join(
        RECORD.pack(at * 10**6, wait * 10**6, names.index(name), offset, length, thread, how)
        for at, wait, how, name, offset, length, thread in events
    )
    files = [(number, LakePath(name), Version(size)) for number, name in enumerate(names)]
    lines = {SiteName("origin"): line or Line(0.1, 100e6, 8)}
    with TraceWriter(str(path)) as writer:
        writer.add(Said(setting=setting()))
        writer.add(Said(worker=1, files=files, records=records))
        writer.add(Said(lines=lines, done=True, **said))
        writer.close()
    return load(str(path))


def sequential(path: str, size: int, *, thread: int = 7, step: int = 1 << 17) -> list[Event]:
    """Return a run of reads from begin to end, each a millisecond after the one before, all answered by the cache."""
    reads: list[Event] = [(0, 0, How.OPENED, path, 0, 0, thread)]
    for index, offset in enumerate(range(0, size, step)):
        reads.append((1 + 2 * index, 1, How.HIT, path, offset, min(step, size - offset), thread))
    return [*reads, (reads[-1][0] + 2, 0, How.CLOSED, path, 0, 0, 0)]
