"""Layout of a torch.save file: a zip archive whose entries are stored, not deflated.

Pure: no I/O, no clock.

The central directory at the end names the entries and where their local headers lie. A member reaches from its local header
to the next one: a reader reads the header before the payload, and asking for each one would cost a round trip for nothing.
"""

from __future__ import annotations

import struct

from vfs.checkpoints.layout import Layout, Needs, NoLayout, build, want

TAIL_BYTES = 64 * 1024 + 98
"""The longest comment, and the end records before and after 64 bits."""
DIRECTORY_BYTES_MAX = 32 << 20

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL_BYTES = 30
_FULL = 0xFFFFFFFF


def layout(size: int) -> Needs[Layout]:
    """Return the layout of a file of `size` bytes.

    Raises:
        NoLayout: no zip, one that is compressed or in parts, or one that contradicts itself.
    """
    first = max(0, size - TAIL_BYTES)
    tail = yield from want(first, size - first, size)
    count, length, start = _end(tail, first)
    if start + length > size or length > DIRECTORY_BYTES_MAX or count * _ENTRY.size > length:
        raise NoLayout("the zip directory lies outside the file, or is too large")
    if start >= first:
        directory = tail[start - first : start - first + length]
    else:
        directory = yield from want(start, length, size)
    entries = sorted(_entries(directory, count))
    if not entries:
        raise NoLayout("an empty zip")
    ends = [offset for offset, _, _ in entries[1:]] + [start]
    items = []
    for (offset, stored, name), end in zip(entries, ends, strict=True):
        if offset + _LOCAL_BYTES + stored > end:
            raise NoLayout(f"a zip entry overlaps the one after it: {name[:100]!r}")
        items.append((name, offset, end - offset))
    return build("torch", size, (start, size - start), items)


def _end(tail: bytes, first: int) -> tuple[int, int, int]:
    """Return (entries, length and offset of the central directory)."""
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise NoLayout("no zip")
    _, disk, disk_of_directory, _, count, length, start, _ = _END.unpack_from(tail, at)
    before = at - _LOCATOR.size
    if before >= 0 and tail.startswith(b"PK\6\7", before):
        _, _, end64, _ = _LOCATOR.unpack_from(tail, before)
        if not first <= end64 <= first + before - _END64.size or not tail.startswith(b"PK\6\6", end64 - first):
            raise NoLayout("the zip's 64 bit record is not where it should be")
        _, _, _, _, disk, disk_of_directory, _, count, length, start = _END64.unpack_from(tail, end64 - first)
    if disk or disk_of_directory:
        raise NoLayout("a zip in several parts")
    return count, length, start


def _entries(directory: bytes, count: int) -> list[tuple[int, int, str]]:
    """Return (offset of the local header, stored size, name without the archive's own) of each entry."""
    found = []
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(directory) or not directory.startswith(b"PK\1\2", at):
            raise NoLayout("the zip directory is broken")
        entry = _ENTRY.unpack_from(directory, at)
        method, stored, whole, offset = entry[4], entry[8], entry[9], entry[16]
        names, extras, comments = entry[10:13]
        at += _ENTRY.size
        name = directory[at : at + names].decode("utf-8", "replace")
        if method != 0:
            raise NoLayout("the zip is compressed")
        if _FULL in (stored, offset, whole):
            stored, offset = _wide(directory[at + names : at + names + extras], whole, stored, offset)
        at += names + extras + comments
        found.append((offset, stored, name.partition("/")[2] or name))
    return found


def _wide(extra: bytes, whole: int, stored: int, offset: int) -> tuple[int, int]:
    """Return (stored size, offset) with what the 64 bit extra field says in place of full 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == 1:
            values = iter(struct.unpack_from(f"<{min(length, len(extra) - at) // 8}Q", extra, at))
            _, stored, offset = (next(values, -1) if each == _FULL else each for each in (whole, stored, offset))
            if stored < 0 or offset < 0:
                break
            return stored, offset
        at += length
    raise NoLayout("a zip entry of 64 bits lacks its sizes")
