"""What a recording says, line by line, from the agent to who records (`POST /v1/trace`), and what a trace file keeps of it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import zlib
from array import array

import msgspec

from vfs.checkpoints.layout import Layout
from vfs.checkpoints.learned import Learned
from vfs.config import Limits, Mount
from vfs.model import LakePath, ObjectKey, SiteName, Version
from vfs.units import Bytes


class PolicyText(msgspec.Struct, frozen=True):
    """A policy document that was in force: see `vfs/policy/loader.py`."""

    source: str
    shipped: bool
    text: str


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Under what a run was recorded, as far as it decides what is fetched. No secrets: of sites the names alone.

    Attributes:
        local_sites: of `sites`, those that are directories of the host.
        policies: texts in force when the recording began.
    """

    version: str
    host: str
    sites: list[SiteName]
    local_sites: list[SiteName]
    mounts: list[Mount]
    cache_size: Bytes
    limits: Limits
    policies: list[PolicyText]


class Line(msgspec.Struct, frozen=True):
    """What was measured of a site's line."""

    ttfb_s: float
    bytes_per_s: float
    window: int


class PackedLayout(msgspec.Struct, frozen=True):
    """A file's layout, as prediction knows it; names and places, no content.

    Attributes:
        packed: zlib of msgpack of (names, offsets, lengths).
        learned: what earlier loads had taught when it was opened.
    """

    key: ObjectKey
    format: str
    size: int
    header: tuple[int, int]
    packed: bytes
    learned: Learned | None = None


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Each carries what there is to say.

    Attributes:
        setting: in the first line.
        worker, files, records, lost: as in `wire.Traced`.
        lines: by site, about once a second where nothing else is said, and at the end.
        requests, fetched_bytes: to sites and from them since the recording began; with `lines`.
        done: the last line.
    """

    setting: Setting | None = None
    worker: int = 0
    files: list[tuple[int, LakePath, Version]] = []
    records: bytes = b""
    lost: int = 0
    lines: dict[SiteName, Line] = {}
    requests: int = 0
    fetched_bytes: int = 0
    layout: PackedLayout | None = None
    done: bool = False


def pack(key: ObjectKey, layout: Layout, learned: Learned | None) -> PackedLayout:
    """Return the layout in a form that travels. Cost: 1 ms for 1,000 members."""
    columns = (layout.names, layout.offsets.tolist(), layout.lengths.tolist())
    packed = zlib.compress(msgspec.msgpack.encode(columns), 6)
    return PackedLayout(key, layout.format, layout.size, layout.header, packed, learned)


def unpack(packed: PackedLayout) -> Layout:
    """Return the layout.

    Raises:
        ValueError: it is none.
    """
    try:
        columns = msgspec.msgpack.decode(zlib.decompress(packed.packed), type=tuple[tuple[str, ...], list[int], list[int]])
    except (zlib.error, msgspec.DecodeError) as exc:
        raise ValueError(f"the layout of {packed.key} can't be read: {exc}") from exc
    names, offsets, lengths = columns
    return Layout(packed.format, packed.size, names, array("q", offsets), array("q", lengths), packed.header)
