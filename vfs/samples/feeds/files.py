"""Files that a feed needs, and the small ones of JSON that it reads whole."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from vfs.errors import InvalidFeed
from vfs.model import Entry, Kind, LakePath
from vfs.samples.feeds.protocol import Lake

SaidT = TypeVar("SaidT", bound=msgspec.Struct)


async def file_entry(lake: Lake, path: LakePath) -> Entry:
    """Return the entry of a file that a feed needs.

    Raises:
        InvalidFeed: it is not there.
    """
    entry = await lake.stat(path)
    if entry is None or entry.kind is not Kind.FILE:
        raise InvalidFeed(path, "is missing")
    return entry


async def json_file(lake: Lake, path: LakePath, entry: Entry, kind: type[SaidT], *, bytes_max: int, refusal: str) -> SaidT:
    """Return what a file of JSON says.

    Args:
        refusal: what the error says of a file that is none of this kind.
    Raises:
        InvalidFeed: it is none, or larger than `bytes_max`.
    """
    if entry.version.size > bytes_max:
        raise InvalidFeed(path, f"has {entry.version.size} bytes")
    try:
        return msgspec.json.decode(await lake.read(path, entry.version, 0, entry.version.size), type=kind)
    except msgspec.DecodeError as exc:
        raise InvalidFeed(path, f"{refusal}: {exc}") from exc
