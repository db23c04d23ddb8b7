"""Where the members of a file lie: tensors of a checkpoint, column chunks of a table, files of an archive.

Pure: no I/O, no clock.

A layout is advice. A file whose layout can't be had, or makes no sense, is still served as bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from vfs.errors import ForemountError

T = TypeVar("T")
Needs = Generator[tuple[int, int], bytes, T]
"""A parser: yields (offset, length) inside the file, is sent exactly these bytes, returns what it found."""

MEMBERS_MAX = 2_000_000
"""A layout of that many takes about 300 MB of an agent; 10**5 is a large checkpoint."""
NAME_CHARS_MAX = 4096


class NoLayout(ForemountError):
    """The file has no layout that can be used. It is read as bytes."""

    def __init__(self, reason: str) -> None:
        super().__init__("", reason)


class Member(NamedTuple):
    """One named part of a file."""

    name: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The members of one file. Make it with `build`.

    Attributes:
        format: "safetensors", "torch", "tar", "parquet", "arrow", "dcp", "bytecheckpoint".
        size: of the file, bytes.
        names, offsets, lengths: one entry per member in ascending offset, in columns since there may be 10**5. Members don't
            overlap and lie inside the file; those without a byte are left out, as no read can want them.
        header: (offset, length) that a reader of this format reads before any member.
    """

    format: str
    size: int
    names: tuple[str, ...]
    offsets: array[int]
    lengths: array[int]
    header: tuple[int, int]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Member:
        return Member(self.names[index], self.offsets[index], self.lengths[index])

    def __iter__(self) -> Iterator[Member]:
        return (self[index] for index in range(len(self)))

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self)

    def touched(self, offset: int, length: int) -> range:
        """Return the indices of the members that share a byte with the range; empty for an empty range."""
        if length <= 0:
            return range(0)
        first = bisect_right(self.offsets, offset) - 1
        if first < 0 or self.offsets[first] + self.lengths[first] <= offset:
            first += 1
        return range(first, max(first, bisect_left(self.offsets, offset + length)))

    def at(self, offset: int, length: int) -> list[Member]:
        """Return the members that share a byte with the range, in ascending offset."""
        return [self[index] for index in self.touched(offset, length)]


def is_alike(one: Layout, other: Layout) -> bool:
    """Return whether two files have the same members at the same places."""
    columns = ((each.format, each.size, each.header, each.offsets, each.lengths, each.names) for each in (one, other))
    return next(columns) == next(columns)


def build(format: str, size: int, header: tuple[int, int], items: Iterable[tuple[str, int, int]]) -> Layout:  # noqa: A002
    """Return the layout of (name, offset, length) in any order.

    Raises:
        NoLayout: an item lies outside the file or on another one, two have one name, or there are too many.
    """
    found: list[tuple[int, int, str]] = []
    for name, offset, length in items:
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0 or offset + length > size:
            raise NoLayout(f"a member lies outside the file: {name[:100]!r}")
        if len(name) > NAME_CHARS_MAX:
            raise NoLayout(f"a member's name has {len(name)} characters")
        if length:
            found.append((offset, length, name))
        if len(found) > MEMBERS_MAX:
            raise NoLayout(f"more than {MEMBERS_MAX} members")
    found.sort()
    end = 0
    for offset, length, name in found:
        if offset < end:
            raise NoLayout(f"a member overlaps the one before it: {name[:100]!r}")
        end = offset + length
    names = tuple(name for _, _, name in found)
    if len(set(names)) != len(names):
        raise NoLayout("two members have one name")
    offsets = array("q", (offset for offset, _, _ in found))
    lengths = array("q", (length for _, length, _ in found))
    return Layout(format, size, names, offsets, lengths, header)


def run(parser: Needs[T], read: Callable[[int, int], bytes]) -> T:
    """Return what the parser finds, given a function that reads (offset, length); for bytes that are at hand."""
    try:
        need = next(parser)
        while True:
            need = parser.send(read(*need))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def advance(parser: Needs[T], body: bytes | None) -> tuple[tuple[int, int] | None, T | None]:
    """Give a parser what it asked for, None to begin; return what it asks for next, or what it found."""
    try:
        return (next(parser) if body is None else parser.send(body)), None
    except StopIteration as end:
        return None, end.value


def want(offset: int, length: int, size: int) -> Needs[bytes]:
    """Ask for one range.

    Raises:
        NoLayout: it reaches out of the file, or fewer bytes came.
    """
    if offset < 0 or length < 0 or offset + length > size:
        raise NoLayout("the file ends before a part that its header announces")
    if not length:
        return b""
    body = yield offset, length
    if len(body) != length:
        raise NoLayout(f"{len(body)} bytes came instead of {length}")
    return body
