"""Layout of a Parquet file: its column chunks, named "row group.column".

Pure: no I/O, no clock.

Only what says where chunks lie is read from the footer (parquet.thrift: FileMetaData, RowGroup, ColumnChunk and
ColumnMetaData), by a reader of Thrift's compact protocol that knows nothing else: a footer comes from anybody, and pyarrow
would build a schema from it in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vfs.checkpoints.layout import MEMBERS_MAX, Layout, Needs, NoLayout, build, want

TAIL_BYTES = 64 * 1024
FOOTER_BYTES_MAX = 16 << 20
_DEPTH_MAX = 32

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def layout(size: int) -> Needs[Layout]:
    """Return the layout of a file of `size` bytes.

    Raises:
        NoLayout: no Parquet, an encrypted footer, or one that contradicts itself.
    """
    first = max(0, size - TAIL_BYTES)
    tail = yield from want(first, size - first, size)
    if len(tail) < 12 or tail[-4:] != b"PAR1":
        raise NoLayout("no Parquet footer")
    length = int.from_bytes(tail[-8:-4], "little")
    start = size - 8 - length
    if length > FOOTER_BYTES_MAX or start < 4:
        raise NoLayout(f"a footer of {length} bytes")
    footer = tail[start - first : -8] if start >= first else (yield from want(start, length, size))
    return build("parquet", size, (start, size - start), _chunks(_Compact(footer).struct(_FILE)))


def _chunks(footer: dict[int, Any]) -> Iterator[tuple[str, int, int]]:
    for number, group in enumerate(footer.get(4, [])):
        for chunk in group.get(1, []):
            column = chunk.get(3)
            if chunk.get(1) or column is None:
                raise NoLayout("a column chunk lies in another file, or is encrypted")
            path, length, offset, dictionary = (column.get(field) for field in (3, 7, 9, 11))
            if path is None or length is None or offset is None:
                raise NoLayout("a column chunk lacks its place")
            if dictionary:
                offset = min(offset, dictionary)
            yield f"{number}.{b'.'.join(path).decode('utf-8', 'replace')}", offset, length


_Fields = dict[int, "tuple[int, Callable[[_Compact], Any]]"]
"""Field → (its wire type, how it is read); fields that are not here are passed over."""


class _Compact:
    """A reader of one buffer. Every method ends with NoLayout where the buffer does."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._depth = 0
        self._count = 0

    def struct(self, fields: _Fields) -> dict[int, Any]:
        """Return the fields of a struct that are asked for."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self.integer()
            wanted, read = fields.get(number, (0, None))
            if read is not None and kind == wanted:
                found[number] = read(self)
            else:
                self._skip(kind)
        return found

    def list_of(self, wanted: int, read: Callable[[_Compact], Any]) -> list[Any]:
        """Return a list whose elements are of one type."""
        kind, count = self._list_head()
        if count and kind != wanted:
            raise NoLayout("the footer holds a list of something else")
        self._count += count
        if self._count > MEMBERS_MAX:
            raise NoLayout("the footer lists too much")
        return [read(self) for _ in range(count)]

    def integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        length = self._varint()
        self._pass(length)
        return self._body[self._at - length : self._at]

    def _byte(self) -> int:
        self._pass(1)
        return self._body[self._at - 1]

    def _pass(self, length: int) -> None:
        self._at += length
        if self._at > len(self._body):
            raise NoLayout("the footer ends in the middle")

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise NoLayout("the footer holds a number of more than 64 bits")

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._body) - self._at:
            raise NoLayout("the footer ends in a list")
        return head & 15, count

    def _skip(self, kind: int, *, in_list: bool = False) -> None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise NoLayout("the footer is nested too deeply")
        if kind in (_TRUE, _FALSE):
            self._pass(int(in_list))
        elif kind == _BYTE:
            self._pass(1)
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in (_LIST, _SET):
            element, count = self._list_head()
            for _ in range(count):
                self._skip(element, in_list=True)
        elif kind == _MAP:
            self._skip_map()
        elif kind == _STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._varint()
                self._skip(head & 15)
        else:
            raise NoLayout("the footer holds a type that there is not")
        self._depth -= 1

    def _skip_map(self) -> None:
        count = self._varint()
        if count > len(self._body) - self._at:
            raise NoLayout("the footer ends in a map")
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._skip(kinds >> 4, in_list=True)
            self._skip(kinds & 15, in_list=True)


def _structs(fields: _Fields) -> tuple[int, Callable[[_Compact], Any]]:
    return _LIST, lambda body: body.list_of(_STRUCT, lambda each: each.struct(fields))


_INTEGER = (_I64, _Compact.integer)
_COLUMN: _Fields = {
    3: (_LIST, lambda body: body.list_of(_BINARY, _Compact.binary)),
    7: _INTEGER,
    9: _INTEGER,
    11: _INTEGER,
}
_CHUNK: _Fields = {1: (_BINARY, _Compact.binary), 3: (_STRUCT, lambda body: body.struct(_COLUMN))}
_FILE: _Fields = {4: _structs({1: _structs(_CHUNK)})}
