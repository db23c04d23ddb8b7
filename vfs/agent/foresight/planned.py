"""What a job's start will make hot, read from what the checkpoint's files say of themselves.

Flow: the plan stands with the job, the files with the checkpoint; where their tensors lie is read from their headers, or from
the `.metadata` beside them, at the origin and in the budget of its line. `vfs/foresight/hot.py` decides.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from vfs.agent.foresight.copying import Read
from vfs.checkpoints import dcp
from vfs.checkpoints.layout import Layout, Needs, advance
from vfs.checkpoints.manifest import ManifestFile
from vfs.checkpoints.recognise import described_by, recognise
from vfs.errors import ForemountError
from vfs.extents.fair import Flow, Priority
from vfs.extents.layout import Identity
from vfs.foresight import keys
from vfs.foresight.hot import hot_ranges
from vfs.foresight.jobs import JobState
from vfs.foresight.model import Hint, HotRange
from vfs.foresight.stores.protocol import Store
from vfs.foresight.stores.records import record_at, records_below
from vfs.model import SiteName

log = logging.getLogger(__name__)
T = TypeVar("T")
HEADERS_AT_ONCE = 16


async def hot_of(hint: Hint, store: Store, origin: SiteName, read: Read, *, bears: int, copies: int) -> tuple[HotRange, ...]:
    """Return what is hot by the plan of the hint's job; nothing where the plan or the checkpoint is not known.

    Args:
        bears, copies: as in `hot_ranges`, of the origin.
    """
    job = await record_at(store, keys.job_key(hint.job), JobState)
    if job is None or job.submitted is None:
        return ()
    tensors = job.submitted.tensors
    files = await records_below(store, keys.files_prefix(hint.path), ManifestFile)
    layouts = await _layouts(files, origin, read) if tensors else {}
    return tuple(hot_ranges(hint.path, hint.world_size, tensors, files, layouts, bears=bears, copies=copies))


async def _layouts(files: Mapping[str, ManifestFile], origin: SiteName, read: Read) -> dict[str, Layout]:
    """Return where tensors lie, of the files that say it; those that don't are read as a whole by whoever wants them."""
    turns = asyncio.Semaphore(HEADERS_AT_ONCE)

    async def of(name: str, parser: Needs[T]) -> T | None:
        file = files[name]
        async with turns:
            try:
                return await _parsed(Identity(origin, file.at, file.version), parser, read)
            except ForemountError as exc:
                log.info("where the tensors of %s lie is not known: %s", file.at, exc)
                return None

    described = sorted({above for name in files if (above := described_by(name)) in files and above is not None})
    beside = await asyncio.gather(*(of(name, dcp.layouts(files[name].size)) for name in described))
    layouts: dict[str, Layout] = {}
    for name, shards in zip(described, beside, strict=True):
        directory = name[: -len(dcp.METADATA)]
        for shard, layout in (shards or {}).items():
            if (file := files.get(directory + shard)) is not None and layout.size <= file.size:
                layouts[directory + shard] = dataclasses.replace(layout, size=file.size)
    parsers = {name: parser for name, file in files.items() if (parser := recognise(name, file.size)) is not None}
    parsed: Sequence[Layout | None] = await asyncio.gather(*(of(name, parser) for name, parser in parsers.items()))
    return layouts | {name: layout for name, layout in zip(parsers, parsed, strict=True) if layout is not None}


async def _parsed(source: Identity, parser: Needs[T], read: Read) -> T:
    """Return what a parser makes of an object. Parsing may take seconds, and runs in a thread."""
    need, found = await asyncio.to_thread(advance, parser, None)
    while need is not None:
        body = bytearray()
        async for piece in read(source, *need, Priority.PREDICTIVE, flow=Flow(f"layout {source.path}")):
            body += piece
        need, found = await asyncio.to_thread(advance, parser, bytes(body))
    assert found is not None
    return found
