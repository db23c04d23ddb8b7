"""Layout of a safetensors file, and the index that names the shards of a large one.

Pure: no I/O, no clock.

8 bytes of little-endian length, that much JSON, then the tensors without a hole. What the format's own reader refuses has no
layout here either.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vfs.checkpoints.layout import Layout, Needs, NoLayout, build, want

FIRST_BYTES = 128 * 1024
"""What is asked for at first: holds the header of about 1,000 tensors, and the kernel's first read-around is as large."""
HEADER_BYTES_MAX = 32 << 20
"""About 250,000 tensors. The format allows 100 MB, which would take 1 GB and seconds to decode."""


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(_Entry)
_INDEX = msgspec.json.Decoder(_Index)


def layout(size: int) -> Needs[Layout]:
    """Return the layout of a file of `size` bytes.

    Raises:
        NoLayout: it is none, or one that the format forbids.
    """
    first = yield from want(0, min(FIRST_BYTES, size), size)
    length = int.from_bytes(first[:8], "little")
    if len(first) < 10 or first[8:9] != b"{" or length < 2 or 8 + length > size:
        raise NoLayout("no safetensors header")
    if length > HEADER_BYTES_MAX:
        raise NoLayout(f"a header of {length} bytes")
    if 8 + length > len(first):
        first += yield from want(len(first), 8 + length - len(first), size)
    start = 8 + length
    found = build("safetensors", size, (0, start), _members(first[8:start], start))
    end = start
    for member in found:
        if member.offset != end:
            raise NoLayout(f"a hole before {member.name[:100]!r}")
        end = member.end
    if end != size:
        raise NoLayout(f"the tensors end at {end}, the file at {size}")
    return found


def _members(header: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    try:
        for name, raw in _HEADER.decode(header).items():
            if name == "__metadata__":
                continue
            begin, end = _ENTRY.decode(raw).data_offsets
            if begin < 0:
                raise NoLayout(f"a negative offset: {name[:100]!r}")
            yield name, start + begin, end - begin
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        raise NoLayout(f"the header can't be decoded: {exc}"[:200]) from exc


def shards(size: int) -> Needs[dict[str, tuple[str, ...]]]:
    """Return file name → names of its tensors, from a `….safetensors.index.json`. The shards' own headers give the ranges.

    Raises:
        NoLayout: it is none, or names a file in another directory.
    """
    if size > HEADER_BYTES_MAX:
        raise NoLayout(f"an index of {size} bytes")
    body = yield from want(0, size, size)
    try:
        weight_map = _INDEX.decode(body).weight_map
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        raise NoLayout(f"the index can't be decoded: {exc}"[:200]) from exc
    found: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not file or "/" in file or "\0" in file or file in (".", ".."):
            raise NoLayout(f"a shard is no file of this directory: {file[:100]!r}")
        found.setdefault(file, []).append(name)
    return {file: tuple(names) for file, names in found.items()}
