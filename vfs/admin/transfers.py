"""What is being fetched, as the API shows it."""

from __future__ import annotations

from collections.abc import Iterable

from vfs.admin.records import Transfer
from vfs.extents.jobs import FetchedObject
from vfs.extents.layout import BLOCK
from vfs.usage import Cause


def transfers_of(objects: Iterable[FetchedObject]) -> list[Transfer]:
    """Return each fetch that goes on, those with readers first."""
    found = []
    for fetched in objects:
        for job in fetched.jobs:
            offset, end = job.first * BLOCK, min(job.stop * BLOCK, fetched.size)
            found.append(
                Transfer(
                    fetched.identity.site,
                    fetched.identity.path,
                    offset,
                    end - offset,
                    max(0, min(job.done * BLOCK, end) - offset),
                    job.priority.name.lower(),
                    job.phases[-1][1] if job.phases else Cause.QUEUE,
                    job.waiting,
                )
            )
    return sorted(found, key=lambda transfer: (-transfer.readers, transfer.site, transfer.path, transfer.offset))
