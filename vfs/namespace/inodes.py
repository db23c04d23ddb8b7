"""What the kernel knows: inode numbers, kept in LMDB so that a new worker knows it too.

Written by the fs worker only. Commits are not synced: they must survive a killed process, not a crashed machine, and the
mount ends with the machine. 7 us a commit, 3.5 us a row in a batch (2 cores, ext4, 2026-11-29).

The kernel's lookup counts are kept in memory and written when a row leaves memory. Rows of an earlier worker are
*inherited*: how often the kernel counted them is unknown, so they stay until the mount ends. The kernel forgets an inode
with its whole count at once, which is why dropping at or below zero is right for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lmdb
import msgspec

from vfs.errors import Corrupt, Stale
from vfs.model import Ino, Kind, LakePath, Version

ROOT = Ino(1)
_MAP_BYTES = 64 << 30
_NO_BACKING = 0
_WORKER = b"worker"
"""Key of the number of workers so far, shorter than any name's. Each takes its inode numbers from a range of its own: the
highest row says nothing about numbers that were used and forgotten."""
_NUMBERS_BITS = 40
_INTENT = b"intent"
_FORMAT = b"format"
_FORMAT_VERSION = b"1"
"""Of rows and intents. A worker of another version that reads them differently must not take over a live mount."""


class Row(msgspec.Struct, array_like=True):
    """One inode as stored.

    Attributes:
        identity: what the tree says distinguishes this object from its successor under the same name.
        mode: file type and permission bits as in st_mode.
        cached: the kernel may hold handles in page-cache mode; passthrough is excluded while it may.
        backing: the kernel's backing id while it may hold handles in passthrough, else 0.
        backed_by: the state of the file behind that id in which it was verified; "" for one that is shown as it is.
        file: of a sample, the local file with its content, as far as it was known when the row was written; else "".
    """

    parent: int
    name: bytes
    kind: Kind
    identity: str
    version: Version
    mode: int
    uid: int
    gid: int
    nlink: int
    target: str
    lookups: int = 0
    cached: bool = False
    backing: int = _NO_BACKING
    file: str = ""
    backed_by: str = ""


@dataclass(slots=True, eq=False)
class Inode:
    """An inode in memory.

    Attributes:
        inherited: known from an earlier worker; never dropped.
        opens: handles that this worker opened and has not seen released.
    """

    ino: Ino
    row: Row
    inherited: bool = False
    opens: int = 0


class InodeTable:
    """Numbers to inodes and (parent, name) to numbers.

    Invariants: numbers are never used again; the row of every number that the kernel was told is in LMDB before the reply;
    `_hot` holds at most `hot_max` inodes plus those that are open.
    """

    def __init__(self, directory: str, *, fresh: bool, hot_max: int = 100_000) -> None:
        self._env = lmdb.open(
            directory, map_size=_MAP_BYTES, max_dbs=2, sync=False, metasync=False, writemap=True, map_async=True
        )
        self._rows = self._env.open_db(b"rows")
        self._names = self._env.open_db(b"names")
        self._hot: dict[Ino, Inode] = {}
        self._hot_max = hot_max
        self._txn: Any = None
        if fresh:
            with self._env.begin(write=True) as txn:
                txn.drop(self._rows, delete=False)
                txn.drop(self._names, delete=False)
        elif (found := self._read(self._names, _FORMAT)) not in (None, _FORMAT_VERSION):
            self._env.close()
            what = f"was written as format {found.decode()}, this version reads {_FORMAT_VERSION.decode()}"
            raise Corrupt(directory, what, "unmount and mount again: another version can't take over this mount")
        self._env.reader_check()  # slots of workers that were killed
        with self._env.begin(write=True, db=self._names) as txn:
            worker = int.from_bytes(txn.get(_WORKER, default=b""), "big")
            txn.put(_WORKER, _key(worker + 1))
            txn.put(_FORMAT, _FORMAT_VERSION)
        self._next = Ino((worker << _NUMBERS_BITS) + ROOT + 1)
        self._inherited_below = self._next
        # The root has no parent and no name; its row is never written.
        self._hot[ROOT] = Inode(ROOT, Row(ROOT, b"", Kind.DIRECTORY, "table", Version(0), 0o40555, 0, 0, 2, "", lookups=1))

    def close(self) -> None:
        """Write what is only in memory and close the environment."""
        self._env.close()

    def __len__(self) -> int:
        with self._env.begin(db=self._rows) as txn:
            return int(txn.stat()["entries"])

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write everything inside in one transaction. Not across an await."""
        if self._txn is not None:
            yield
            return
        with self._env.begin(write=True) as txn:
            self._txn = txn
            try:
                yield
            finally:
                self._txn = None

    def get(self, ino: Ino) -> Inode:
        """Return the inode.

        Raises:
            Stale: the number is unknown; the kernel then looks the path up again.
        """
        found = self._hot.get(ino)
        if found is not None:
            return found
        raw = self._read(self._rows, _key(ino))
        if raw is None:
            raise Stale(f"inode {ino}", "is not known any more")
        return self._keep(Inode(ino, _decode(raw), inherited=ino < self._inherited_below))

    def child(self, parent: Ino, name: bytes) -> Inode | None:
        """Return the inode that (parent, name) stands for now, or None."""
        raw = self._read(self._names, _key(parent) + name)
        return None if raw is None else self.get(Ino(int.from_bytes(raw, "big")))

    def remember(self, row: Row, lookups: int) -> Inode:
        """Return the inode of (row.parent, row.name), counting `lookups` references that the kernel is about to hold.

        The same identity keeps its number and gets the row's attributes; another identity gets a new number, and the old
        one lives on for those who have it open.
        """
        current = self.child(Ino(row.parent), row.name)
        if current is not None and current.row.identity == row.identity and current.row.kind == row.kind:
            was, current.row = current.row, row
            row.lookups = was.lookups + lookups
            row.cached, row.backing, row.backed_by = was.cached, was.backing, was.backed_by
            self._hot.setdefault(current.ino, current)
            return current
        row.lookups = lookups
        inode = Inode(self._next, row)
        self._next = Ino(self._next + 1)
        with self.batch():
            self._txn.put(_key(inode.ino), _encode(row), db=self._rows)
            self._txn.put(_key(row.parent) + row.name, _key(inode.ino), db=self._names)
        return self._keep(inode)

    def forget(self, ino: Ino, lookups: int) -> Inode | None:
        """Take `lookups` references back; return the inode if it was dropped with that, so that its resources can go."""
        try:
            inode = self.get(ino)
        except Stale:
            return None
        inode.row.lookups -= lookups
        if inode.row.lookups > 0 or inode.inherited or inode.opens or ino == ROOT:
            return None
        with self.batch():
            self._txn.delete(_key(ino), db=self._rows)
            self._drop_name(inode)
        del self._hot[ino]
        return inode

    def save(self, inode: Inode) -> None:
        """Write the row as it is now: after `cached` or `backing` changed."""
        with self.batch():
            self._txn.put(_key(inode.ino), _encode(inode.row), db=self._rows)

    def retire(self, inode: Inode) -> None:
        """Let its name stand for another inode from the next lookup on; this one lives on for those who have it open."""
        if self.child(Ino(inode.row.parent), inode.row.name) is inode:
            self.unlink(Ino(inode.row.parent), inode.row.name)

    def unlink(self, parent: Ino, name: bytes) -> None:
        """Let (parent, name) stand for nothing; the inode lives on while the kernel refers to it."""
        with self.batch():
            self._txn.delete(_key(parent) + name, db=self._names)

    def rename(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes) -> None:
        """Let the inode of (parent, name) be (new_parent, new_name); what was there is unlinked. O(1) for directories."""
        inode = self.child(parent, name)
        if inode is None:
            return  # done already, by a worker that died before it could say so: the kernel held what it renamed
        with self.batch():
            self._txn.delete(_key(parent) + name, db=self._names)
            self._txn.delete(_key(new_parent) + new_name, db=self._names)
            inode.row.parent, inode.row.name = new_parent, new_name
            self._txn.put(_key(new_parent) + new_name, _key(inode.ino), db=self._names)
            self._txn.put(_key(inode.ino), _encode(inode.row), db=self._rows)

    def exchange(self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes) -> None:
        """Let two names stand for each other's inodes."""
        here, there = self.child(parent, name), self.child(new_parent, new_name)
        with self.batch():
            self._place(here, new_parent, new_name)
            self._place(there, parent, name)

    def _place(self, inode: Inode | None, parent: Ino, name: bytes) -> None:
        if inode is None:
            self._txn.delete(_key(parent) + name, db=self._names)
            return
        inode.row.parent, inode.row.name = parent, name
        self._txn.put(_key(parent) + name, _key(inode.ino), db=self._names)
        self._txn.put(_key(inode.ino), _encode(inode.row), db=self._rows)

    def set_intent(self, intent: bytes) -> None:
        """Keep what is about to be done, in place of what was kept before."""
        with self.batch():
            self._txn.put(_INTENT, intent, db=self._names)

    def intent(self) -> bytes | None:
        """Return what was kept by the worker before this one, or by this one."""
        return self._read(self._names, _INTENT)

    def path(self, ino: Ino, *names: bytes) -> LakePath:
        """Return the lake path of `names` below the inode, non-UTF-8 bytes as surrogates."""
        parts = list(reversed(names))
        while ino != ROOT:
            row = self.get(ino).row
            parts.append(row.name)
            ino = Ino(row.parent)
        return LakePath(b"/".join(reversed(parts)).decode("utf-8", "surrogateescape"))

    def names(self, after: bytes, limit: int) -> tuple[list[tuple[int, bytes]], bytes]:
        """Return up to `limit` (parent, name) beyond the mark `after`, and the next mark, b"" at the end. Any thread may ask.

        Args:
            after: b"" for the start.
        """
        found: list[tuple[int, bytes]] = []
        with self._env.begin(db=self._names) as txn, txn.cursor() as cursor:
            if not cursor.set_range(after + b"\0" if after else b"\0"):
                return [], b""
            for key in cursor.iternext(values=False):
                if len(key) > 8:  # not `_WORKER`
                    found.append((int.from_bytes(key[:8], "big"), bytes(key[8:])))
                if len(found) == limit:
                    return found, bytes(key)
        return found, b""

    def hot(self) -> Iterable[Inode]:
        """Return the inodes in memory."""
        return self._hot.values()

    def _read(self, database: Any, key: bytes) -> bytes | None:
        if self._txn is not None:
            return self._txn.get(key, db=database)  # type: ignore[no-any-return]
        with self._env.begin(db=database) as txn:
            return txn.get(key)

    def _keep(self, inode: Inode) -> Inode:
        self._hot[inode.ino] = inode
        if len(self._hot) > self._hot_max:
            self._cool()
        return inode

    def _cool(self) -> None:
        """Write the older half of the closed inodes back and drop them from memory."""
        cold = [inode for inode in self._hot.values() if not inode.opens and inode.ino != ROOT]
        cold = cold[:-1][: self._hot_max // 2]  # the last one has just come in and is about to be used
        with self.batch():
            for inode in cold:
                self._txn.put(_key(inode.ino), _encode(inode.row), db=self._rows)
                del self._hot[inode.ino]

    def _drop_name(self, inode: Inode) -> None:
        key = _key(inode.row.parent) + inode.row.name
        if self._txn.get(key, db=self._names) == _key(inode.ino):
            self._txn.delete(key, db=self._names)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Row)


def _encode(row: Row) -> bytes:
    return _encoder.encode(row)


def _decode(raw: bytes) -> Row:
    return _decoder.decode(raw)


def _key(ino: int) -> bytes:
    return ino.to_bytes(8, "big")
