"""Layout of a tar archive: by walking its headers, or from an index of sample offsets beside it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from itertools import pairwise

from vfs.checkpoints.layout import Layout, Needs, NoLayout, build, want

_BLOCK = 512
READ_BYTES = 64 * 1024
"""Asked for at a header: the headers behind small files come along."""
ASKS_MAX = 256
"""Ranges asked for at most. Each depends on the one before: 100 ms away that is 25 s, and a larger archive needs an index."""
_LONG_BYTES_MAX = 64 * 1024
_LONG_NAME, _PAX = (b"L", b"K"), (b"x", b"g", b"X")


def layout(size: int) -> Needs[Layout]:
    """Return the layout of a file of `size` bytes; a member is a file's content.

    Raises:
        NoLayout: no tar, a broken one, or more members than can be walked.
    """
    items: list[tuple[str, int, int]] = []
    seen: dict[str, int] = {}
    at = asks = first = 0
    held = b""
    name = ""
    wide: int | None = None
    while at + _BLOCK <= size:
        if not first <= at <= first + len(held) - _BLOCK:
            if asks == ASKS_MAX:
                raise NoLayout(f"its headers can't be walked in {ASKS_MAX} steps: put an index beside it")
            asks, first = asks + 1, at
            held = yield from want(at, min(READ_BYTES, size - at), size)
        block = held[at - first : at - first + _BLOCK]
        if not block.strip(b"\0"):
            break
        header = _header(block)
        at += _BLOCK
        length = header.size if wide is None or header.type in (*_LONG_NAME, *_PAX) else wide
        if length < 0 or at + length > size:
            raise NoLayout("a tar member lies outside the file")
        if header.type in (*_LONG_NAME, *_PAX):
            if length > _LONG_BYTES_MAX:
                raise NoLayout("a tar member's name is too long")
            if at + length <= first + len(held):
                text = held[at - first : at - first + length]
            else:
                text = yield from want(at, length, size)
            if header.type == b"L":
                name = text.rstrip(b"\0").decode("utf-8", "replace")
            elif header.type == b"x":
                name, wide = _pax(text, name)
        else:
            if header.isreg() and length:
                items.append((_once(name or header.name, seen), at, length))
            name, wide = "", None
            length = length if header.isreg() else 0
        at += -(-length // _BLOCK) * _BLOCK
    if not items:
        raise NoLayout("no tar, or an empty one")
    return build("tar", size, (0, _BLOCK), items)


def indexed(size: int, index: bytes) -> Layout:
    """Return the layout that a `.tar.idx` gives: little-endian offsets of 64 bits, one per sample and one for the end.

    Raises:
        NoLayout: the offsets don't ascend, or leave the file.
    """
    if len(index) % 8 or len(index) < 16:
        raise NoLayout("no index of offsets")
    offsets = [int.from_bytes(index[at : at + 8], "little") for at in range(0, len(index), 8)]
    return build("tar", size, (0, 0), _samples(offsets))


def _samples(offsets: list[int]) -> Iterator[tuple[str, int, int]]:
    for number, (start, end) in enumerate(pairwise(offsets)):
        yield f"sample/{number}", start, end - start


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except (tarfile.HeaderError, ValueError, IndexError, OverflowError) as exc:
        raise NoLayout("no tar header where one should be") from exc


def _pax(text: bytes, name: str) -> tuple[str, int | None]:
    """Return (name, size) as the records of an extended header set them; None: the size is in the header."""
    size = None
    at = 0
    while at < len(text) and text[at : at + 1] != b"\0":
        digits, space, _ = text[at : at + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        if not len(digits) + 1 < length <= len(text) - at:
            raise NoLayout("an extended tar header is broken")
        key, _, value = text[at + len(digits) + 1 : at + length - 1].partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "replace")
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise NoLayout("an extended tar header has no size")
            size = int(value)
        elif key.startswith(b"GNU.sparse"):
            raise NoLayout("a sparse tar member")
        at += length
    return name, size


def _once(name: str, seen: dict[str, int]) -> str:
    """Return a name that no other member has: a tar may hold one name several times."""
    seen[name] = count = seen.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
