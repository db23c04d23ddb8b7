"""Copies that a store makes by itself when it is told their number, as HDFS does: more for a crowd, and the old number after.

Whole files only: a store knows no ranges. The name, the version and the bytes stay what they are; readers are spread by the
store itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from vfs.checkpoints.manifest import ManifestFile
from vfs.errors import NotFound, Stale
from vfs.foresight.model import FileCopy, ReplicaRecord
from vfs.model import SitePath
from vfs.sites.writing import Multiplies

log = logging.getLogger(__name__)
LOOK_S = 0.5
PATIENCE_S = 30.0
"""Without another copy, after which there won't be more: there may be fewer DataNodes than copies were asked for."""
FILES_AT_ONCE = 16


async def multiply(
    site: Multiplies, replica: ReplicaRecord, files: Sequence[ManifestFile], done: Callable[[FileCopy], Awaitable[None]]
) -> None:
    """Have the site keep `replica.count` copies of each file, and report each when it does, or does what it can."""
    turns = asyncio.Semaphore(FILES_AT_ONCE)

    async def one(file: ManifestFile) -> None:
        async with turns:
            before = await site.replication(file.at)
            if before < replica.count:
                await site.set_replication(file.at, replica.count)
            held = await _grown(site, file.at, replica.count)
            log.info("%s has %d copies of %s, %d were asked for", replica.site, held, file.at, replica.count)
            await done(
                FileCopy(
                    path=file.path,
                    size=file.size,
                    digest=file.digest,
                    origin_at=file.at,
                    origin=file.version,
                    at=file.at,
                    version=file.version,
                    count_before=min(before, replica.count),
                )
            )

    await asyncio.gather(*map(one, files))


async def reduce(site: Multiplies, replica: ReplicaRecord, copies: Sequence[FileCopy]) -> None:
    """Go back to the numbers of before. A number that somebody else has set since stays, and so does one without a record."""
    for copy in copies:
        try:
            now = await site.replication(copy.at)
            if copy.count_before and now == replica.count:
                await site.set_replication(copy.at, copy.count_before)
        except (NotFound, Stale):
            continue


async def _grown(site: Multiplies, path: SitePath, count: int) -> int:
    """Return how many copies there are once there are `count`, or no more come."""
    loop = asyncio.get_running_loop()
    held, since_s = -1, loop.time()
    while True:
        found = await site.copies_held(path)
        if found > held:
            held, since_s = found, loop.time()
        if held >= count or loop.time() - since_s >= PATIENCE_S:
            return held
        await asyncio.sleep(LOOK_S)
