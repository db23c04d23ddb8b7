"""The log in which the fs worker states what is staged (`staged.py`): appended by it alone, followed by the agent.

A file of frames, each with its length and XXH3-64; a frame that does not match its digest ends the log, and the next worker
cuts it off there. An append is one write: it survives a killed process. `sync` makes it survive the machine. 11 us a frame,
8 us to read one (2 busy cores, 2026-11-29); why not LMDB: docs/adr/0005.

When most of the log is history the worker writes a new file with what holds now, syncs it and renames it over the old one;
readers notice and start again from its beginning.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from vfs.errors import Busy, Corrupt
from vfs.namespace.staged import Begun, Change, Drop, Frame, StagedNodes
from vfs.oserrors import Translated

FORMAT = 1
_MAGIC = b"FMSTAGE1"
_HEADER = struct.Struct("<8sII")  # magic, format, reserved
_FRAME = struct.Struct("<IQ")  # length of the body, its XXH3-64
_BODY_BYTES_MAX = 64 << 20
_READ_BYTES = 1 << 20
COMPACT_BYTES_MIN = 4 << 20
_REQUESTS_MAX = 10_000
"""Requests that are remembered: more than the kernel can have waiting for one connection (256, and one for each thread)."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def journal_path(directory: str) -> str:
    """Return where a staging directory's log lies."""
    return os.path.join(directory, "journal")


def content_path(directory: str, content: int) -> str:
    """Return where a staging file lies."""
    return os.path.join(directory, "content", f"{content:x}")


@dataclass(frozen=True, slots=True)
class Polled:
    """What a look at the log brought.

    Attributes:
        changed: ids of nodes that changed or were dropped.
        anew: everything was read from the start: compare all nodes.
        retired: those of them that were dropped because their origins hold them.
    """

    changed: set[int]
    anew: bool = False
    retired: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self.anew or bool(self.changed)


class JournalReader:
    """Follows the log. `nodes` is what held at the last `poll`.

    A log that the worker has not made yet is empty.
    """

    def __init__(self, directory: str) -> None:
        self._path = journal_path(directory)
        self._fd = -1
        self._tail = _Tail()
        self.nodes = StagedNodes()

    def poll(self) -> Polled:
        """Read what was appended since. Blocks for the disk at most.

        Raises:
            Corrupt: the log is of another version of Foremount.
        """
        anew = self._reopen_if_replaced()
        if self._fd < 0:
            return Polled(set(), anew)
        changed: set[int] = set()
        retired: set[int] = set()
        for frame in self._tail.read(self._fd, self._path):
            changed |= self.nodes.apply(frame.changes)
            retired |= {change.id for change in frame.changes if isinstance(change, Drop) and change.retired}
        return Polled(changed, anew, frozenset(retired))

    def _reopen_if_replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        if self._fd >= 0:
            here = os.fstat(self._fd)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return False
        self.close()
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._tail = _Tail()
        self.nodes = StagedNodes()
        return True

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class JournalWriter:
    """The worker's side. Belongs to one loop; `sync` may run in a thread.

    Args:
        fresh: this is the first worker of a mount.
        compact_bytes: a shorter log is not worth writing anew.

    Attributes:
        nodes: what holds.
        requests: numbers of the kernel's requests that frames of this mount have carried out, the last 10,000.

    Raises:
        Busy: another worker has the staging directory.
        Corrupt: the log is of another version of Foremount.
    """

    def __init__(self, directory: str, *, fresh: bool, compact_bytes: int = COMPACT_BYTES_MIN) -> None:
        self._compact_bytes = compact_bytes
        self._directory = directory
        self._path = journal_path(directory)
        with Translated(directory):
            os.makedirs(os.path.join(directory, "content"), mode=0o700, exist_ok=True)
            self._lock_fd = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._lock_fd)
            raise Busy(directory, "another mount stages there", "give each mount a staging directory of its own") from exc
        self.nodes = StagedNodes()
        self.requests: dict[int, None] = {}
        self._fd, self._end = self._open()
        if fresh:
            self.append([Begun(self.nodes.next_id)])
        self._live_bytes = self._end

    def _open(self) -> tuple[int, int]:
        with Translated(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(fd).st_size < _HEADER.size:
                os.ftruncate(fd, 0)
                os.pwrite(fd, _HEADER.pack(_MAGIC, FORMAT, 0), 0)
            tail = _Tail()
            for frame in tail.read(fd, self._path):
                self._take(frame)
            os.ftruncate(fd, tail.at)  # what follows is a frame that was being written when a worker died
        return fd, tail.at

    def _take(self, frame: Frame) -> None:
        self.nodes.apply(frame.changes)
        for change in frame.changes:
            if isinstance(change, Begun):
                self.requests.clear()
        if frame.request:
            self.requests[frame.request] = None
            while len(self.requests) > _REQUESTS_MAX:
                del self.requests[next(iter(self.requests))]

    def next_id(self) -> int:
        """Return a number for a node or a content; it is not given again by this writer."""
        self.nodes.next_id += 1
        return self.nodes.next_id - 1

    def append(self, changes: Sequence[Change], request: int = 0) -> None:
        """Let the changes hold, all together.

        Raises:
            NoSpace, Unavailable: nothing was changed.
        """
        frame = Frame(list(changes), request)
        raw = _packed(frame)
        with Translated(self._path):
            written = os.pwrite(self._fd, raw, self._end)
            if written != len(raw):
                written = os.pwrite(self._fd, raw, self._end)  # says why, usually ENOSPC
        if written != len(raw):
            raise Corrupt(self._path, "takes only part of a frame", "look at its disk")
        self._end += len(raw)
        self._take(frame)

    def sync(self) -> None:
        """Return when everything that was appended before is on the disk."""
        with Translated(self._path):
            os.fdatasync(self._fd)

    @property
    def wants_compaction(self) -> bool:
        """Whether most of the log is history."""
        return self._end > max(self._compact_bytes, 4 * self._live_bytes)

    def compact(self) -> None:
        """Write the log anew with what holds now. Blocks for a sync."""
        new_path = self._path + ".new"
        with Translated(new_path):
            fd = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                pieces = [_HEADER.pack(_MAGIC, FORMAT, 0), _packed(Frame([Begun(self.nodes.next_id)]))]
                pieces += [_packed(Frame([node])) for node in self.nodes]
                pieces += [_packed(Frame([], request)) for request in self.requests]
                end = os.write(fd, b"".join(pieces))
                if end != sum(map(len, pieces)):
                    raise Corrupt(new_path, "takes only part of the log", "look at its disk")
                os.fsync(fd)
                os.rename(new_path, self._path)
            except BaseException:
                os.close(fd)
                raise
            sync_directory(self._directory)
        os.close(self._fd)
        self._fd, self._end, self._live_bytes = fd, end, end

    def close(self) -> None:
        """Close the log and let another worker have the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._lock_fd)
            self._fd = -1


class _Tail:
    """Reads frames from where the last reading ended.

    Invariant: `at` is the end of the last whole frame.
    """

    def __init__(self) -> None:
        self.at = 0

    def read(self, fd: int, path: str) -> list[Frame]:
        frames: list[Frame] = []
        if self.at == 0:
            header = os.pread(fd, _HEADER.size, 0)
            if len(header) < _HEADER.size:
                return frames
            magic, version, _ = _HEADER.unpack(header)
            if magic != _MAGIC or version != FORMAT:
                raise Corrupt(
                    path, f"is no journal of format {FORMAT}", "upload what it holds with the version that wrote it"
                )
            self.at = _HEADER.size
        buffer = b""
        while True:
            piece = os.pread(fd, _READ_BYTES, self.at + len(buffer))
            buffer += piece
            taken = self._unpack(buffer, frames)
            buffer = buffer[taken:]
            self.at += taken
            if not piece:
                return frames

    @staticmethod
    def _unpack(buffer: bytes, frames: list[Frame]) -> int:
        """Append the whole frames at the start of `buffer` and return how many bytes they take."""
        at = 0
        while at + _FRAME.size <= len(buffer):
            length, digest = _FRAME.unpack_from(buffer, at)
            body = buffer[at + _FRAME.size : at + _FRAME.size + length]
            if length > _BODY_BYTES_MAX or len(body) < length or xxhash.xxh3_64_intdigest(body) != digest:
                break
            frames.append(_decoder.decode(body))
            at += _FRAME.size + length
        return at


def sync_directory(directory: str) -> None:
    """Return when the names in a directory are on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _packed(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return _FRAME.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body
