"""Layout of an Arrow IPC file (Feather v2): its record batches and dictionaries.

Pure: no I/O, no clock.

The footer is a flatbuffer; of it only the two lists of blocks are read (File.fbs: Footer, Block).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vfs.checkpoints.layout import Layout, Needs, NoLayout, build, want

TAIL_BYTES = 64 * 1024
FOOTER_BYTES_MAX = 16 << 20
_MAGIC = b"ARROW1"
_END_BYTES = 4 + len(_MAGIC)
_BLOCK = struct.Struct("<qi4xq")
_DICTIONARIES, _BATCHES = 2, 3


def layout(size: int) -> Needs[Layout]:
    """Return the layout of a file of `size` bytes.

    Raises:
        NoLayout: no Arrow file, or a footer that contradicts itself.
    """
    first = max(0, size - TAIL_BYTES)
    tail = yield from want(first, size - first, size)
    if len(tail) < _END_BYTES or not tail.endswith(_MAGIC):
        raise NoLayout("no Arrow footer")
    length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
    start = size - _END_BYTES - length
    if length > FOOTER_BYTES_MAX or start < 0:
        raise NoLayout(f"a footer of {length} bytes")
    footer = tail[start - first : -_END_BYTES] if start >= first else (yield from want(start, length, size))
    try:
        items = [*_blocks(footer, _DICTIONARIES, "dictionary"), *_blocks(footer, _BATCHES, "batch")]
    except struct.error as exc:
        raise NoLayout("the footer ends in the middle") from exc
    return build("arrow", size, (start, size - start), items)


def _blocks(footer: bytes, field: int, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield the blocks of one list of the root table."""
    (table,) = struct.unpack_from("<I", footer, 0)
    (back,) = struct.unpack_from("<i", footer, table)
    shape = table - back
    if shape < 0:
        raise NoLayout("the footer points out of itself")
    (shape_bytes,) = struct.unpack_from("<H", footer, shape)
    if 4 + 2 * field + 2 > shape_bytes:
        return
    (place,) = struct.unpack_from("<H", footer, shape + 4 + 2 * field)
    if not place:
        return
    (ahead,) = struct.unpack_from("<I", footer, table + place)
    (count,) = struct.unpack_from("<I", footer, table + place + ahead)
    begin = table + place + ahead + 4
    if count * _BLOCK.size > len(footer) - begin:
        raise NoLayout("the footer ends in a list")
    for number in range(count):
        offset, head_bytes, body_bytes = _BLOCK.unpack_from(footer, begin + number * _BLOCK.size)
        if head_bytes < 0 or body_bytes < 0:
            raise NoLayout("a block of negative size")
        yield f"{name}.{number}", offset, head_bytes + body_bytes
