"""Complete files of samples on this host's disk, within a budget: prepared groups, and raw bytes that were asked for.

    <directory>/boot                                  which boot wrote it: after another one nothing here is trusted
    <directory>/groups/<job>/step_…/rank_…/<slot>     a sample; what it is stands in its xattr `user.foremount.sample`
    <directory>/raw/<first two digits>/<key>          raw bytes

A file appears under its name when it is complete and its digest was verified. Nothing is synced: a file costs no more than
being made again. Where the file system has no xattrs a restarted agent begins with an empty spool.

Threads: methods marked "blocking" do disk I/O and are called from one writing thread or at the start; the others never block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from vfs.errors import WrongAnswer
from vfs.oserrors import meaning_of
from vfs.samples import tree
from vfs.samples.model import Envelope, Form, Reason
from vfs.samples.stream import Decoder

_XATTR = "user.foremount.sample"
_BOOT = "/proc/sys/kernel/random/boot_id"
GroupKey = tuple[str, int, int]
"""(job, step, rank)"""


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """A sample that is here.

    Attributes:
        key: of its content.
        file: absolute path; "" in an xattr, which its own place completes.
    """

    slot: int
    form: Form
    extension: str
    key: str
    size: int
    provenance: str = ""
    reason: Reason | None = None
    file: str = ""


@dataclass(slots=True)
class Group:
    """What is here of a (step, rank).

    Attributes:
        complete: nothing more will come.
        ready: by slot.
        over: it was read and may go when room is needed.
    """

    complete: bool = False
    over: bool = False
    ready: dict[int, Ready] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(each.size for each in self.ready.values())


class Spool:
    """The files and what they are. One agent at a time: its cache's lock guards it.

    Invariants: `used` is the sum over `_groups` and `_raw`; every `Ready.file` was complete when it was entered.

    Args:
        grace_s: raw bytes that were asked for within it stay: somebody is about to open their file.
    """

    def __init__(self, directory: str, cap_bytes: int, grace_s: float = 10.0) -> None:
        self.directory = directory
        self.cap = cap_bytes
        self.used = 0
        self._groups: dict[GroupKey, Group] = {}
        self._grace_s = grace_s
        self._raw: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._made = 0

    @classmethod
    def open(cls, directory: str, cap_bytes: int, grace_s: float = 10.0) -> Spool:
        """Return the spool of a directory, with what an agent of the same boot left in it. Blocking.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        spool = cls(directory, cap_bytes, grace_s)
        boot = os.path.join(directory, "boot")
        with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as file:
            current = file.read()
            with open(boot, encoding="ascii") as written:
                if written.read() == current:
                    spool._load()
                    return spool
        try:
            shutil.rmtree(directory, ignore_errors=True)
            for name in ("groups", "raw"):
                os.makedirs(os.path.join(directory, name), mode=0o700)
            with open(_BOOT, encoding="ascii") as file, open(boot, "w", encoding="ascii") as written:
                written.write(file.read())
        except OSError as exc:
            raise meaning_of(exc, directory) from exc
        return spool

    # What is here

    def find(self, group: GroupKey, slot: int) -> Ready | None:
        """Return a prepared sample."""
        found = self._groups.get(group)
        return None if found is None else found.ready.get(slot)

    def group(self, group: GroupKey) -> Group | None:
        """Return what is here of a group."""
        return self._groups.get(group)

    def jobs(self) -> list[str]:
        """Return the jobs of which something is here."""
        return sorted({job for job, _, _ in self._groups})

    def groups(self, job: str) -> Iterator[tuple[GroupKey, Group]]:
        """Yield the groups of a job by step and rank."""
        yield from sorted((key, group) for key, group in self._groups.items() if key[0] == job)

    def raw_file(self, key: str) -> str:
        """Return the file that holds these raw bytes, "" where none does."""
        with self._lock:
            if key not in self._raw:
                return ""
            self._raw[key] = self._raw[key][0], time.monotonic()
            self._raw.move_to_end(key)
        return self._raw_path(key)

    def has_room(self) -> bool:
        """Return whether more may be prepared."""
        return self.used < self.cap or any(group.over for group in self._groups.values())

    def complete(self, group: GroupKey) -> None:
        """No more will come of a group."""
        self._groups.setdefault(group, Group()).complete = True

    # Changes, blocking

    def keep(self, group: GroupKey, sample: Ready, body: bytes | memoryview) -> Ready:
        """Write a sample whose digest was verified and return it with its file. Blocking.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        writer = _Writer(self._begin(group), self.directory)
        try:
            writer.write(body)
            return self._enter(group, sample, writer)
        except BaseException:
            writer.discard()
            raise

    def keep_raw(self, key: str, body: bytes) -> str:
        """Write raw bytes and return their file. Blocking.

        Raises:
            NoSpace, Unavailable: the disk refuses.
        """
        path = self._raw_path(key)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        except OSError as exc:
            raise meaning_of(exc, path) from exc
        writer = _Writer(self._temporary(os.path.dirname(path)), self.directory)
        try:
            writer.write(body)
            writer.finish(path)
        except BaseException:
            writer.discard()
            raise
        with self._lock:
            self.used += len(body) - self._raw.pop(key, (0, 0.0))[0]
            self._raw[key] = len(body), time.monotonic()
        self._make_room()
        return path

    def take(self, group: GroupKey) -> Group | None:
        """Forget a group and return it; its files stay until `remove`. Does not block."""
        with self._lock:
            found = self._groups.pop(group, None)
            if found is not None:
                self.used -= found.size
            return found

    def remove(self, group: GroupKey) -> None:
        """Remove the files of a group that was taken, unless it is here anew; who has them open reads on. Blocking."""
        if group in self._groups:
            return
        directory = self._group_path(group)
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(directory))

    def drop_job(self, job: str) -> None:
        """Remove all groups of a job. Blocking."""
        for key in [key for key in list(self._groups) if key[0] == job]:
            self.take(key)
            self.remove(key)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(self.directory, "groups", job))

    # Inside

    def _begin(self, group: GroupKey) -> str:
        """Return the name of a new file for a group."""
        directory = self._group_path(group)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise meaning_of(exc, directory) from exc
        return self._temporary(directory)

    def _temporary(self, directory: str) -> str:
        with self._lock:
            self._made += 1
            return os.path.join(directory, f".{self._made}")

    def _enter(self, key: GroupKey, sample: Ready, writer: _Writer) -> Ready:
        path = os.path.join(self._group_path(key), str(sample.slot))
        before = self.find(key, sample.slot)
        if before is not None and before.form is Form.TRANSFORMED and sample.form is Form.RAW:
            writer.discard()  # a stream that was cut and asked for again ends raw
            return before
        with contextlib.suppress(OSError):  # no xattrs here: a restart forgets it
            os.setxattr(writer.path, _XATTR, msgspec.msgpack.encode(msgspec.structs.replace(sample, file="")))
        writer.finish(path)
        placed = msgspec.structs.replace(sample, file=path)
        with self._lock:
            group = self._groups.setdefault(key, Group())
            before = group.ready.get(sample.slot)
            group.ready[sample.slot] = placed
            self.used += sample.size - (before.size if before else 0)
        self._make_room()
        return placed

    def _make_room(self) -> None:
        """Remove what was kept without need: groups that are over, then the raw bytes that were asked for longest ago."""
        while self.used > self.cap:
            over = min((key for key, group in self._groups.items() if group.over), key=lambda key: key[1], default=None)
            if over is not None:
                self.take(over)
                self.remove(over)
                continue
            with self._lock:
                oldest, (size, used_s) = next(iter(self._raw.items()), ("", (0, 0.0)))
                if not oldest or time.monotonic() < used_s + self._grace_s:
                    return
                del self._raw[oldest]
                self.used -= size
            with contextlib.suppress(OSError):
                os.unlink(self._raw_path(oldest))

    def _load(self) -> None:
        """Enter what an agent before this one has written; remove the rest. Blocking."""
        shutil.rmtree(os.path.join(self.directory, "raw"), ignore_errors=True)
        os.makedirs(os.path.join(self.directory, "raw"), mode=0o700, exist_ok=True)
        top = os.path.join(self.directory, "groups")
        for directory, _, names in os.walk(top):
            place = tree.parse(os.path.relpath(directory, top))
            for name in names:
                path = os.path.join(directory, name)
                sample = _described(path)
                if sample is None or not isinstance(place, tree.RankPlace) or str(sample.slot) != name:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                    continue
                group = self._groups.setdefault((place.job, place.step, place.rank), Group())
                group.ready[sample.slot] = msgspec.structs.replace(sample, file=path)
                self.used += sample.size

    def _group_path(self, group: GroupKey) -> str:
        job, step, rank = group
        return os.path.join(self.directory, "groups", job, tree.step_name(step), tree.rank_name(rank))

    def _raw_path(self, key: str) -> str:
        return os.path.join(self.directory, "raw", key[:2], key)


class Arriving:
    """Takes one group's stream into the spool, piece by piece. Blocking, in the writing thread.

    Args:
        raw_keys: of the raw bytes of each slot: a node names contents by their digest only.
    """

    def __init__(self, spool: Spool, group: GroupKey, raw_keys: dict[int, str], name: str) -> None:
        self._spool = spool
        self._group = group
        self._raw_keys = raw_keys
        self._decoder = Decoder(name)
        self._name = name
        self._envelope: Envelope | None = None
        self._left = 0
        self._writer: _Writer | None = None

    def feed(self, piece: bytes) -> list[Ready]:
        """Return the samples that this piece completes.

        Raises:
            WrongAnswer: the stream is broken, of another group, or its bytes are not those that it announces.
            NoSpace, Unavailable: the disk refuses.
        """
        found = []
        try:
            for part in self._decoder.feed(piece):
                if isinstance(part, Envelope):
                    self._start(part)
                else:
                    assert self._writer is not None
                    self._writer.write(part)
                    self._left -= len(part)
                if self._left == 0 and self._envelope is not None:
                    found.append(self._finish(self._envelope))
        except BaseException:
            self.discard()
            raise
        return found

    def end(self) -> None:
        """The stream has ended.

        Raises:
            WrongAnswer: in the middle of the group.
        """
        self._decoder.finish()

    def discard(self) -> None:
        """Remove what is not complete."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None

    def _start(self, envelope: Envelope) -> None:
        if (envelope.step, envelope.rank) != self._group[1:] or envelope.slot not in self._raw_keys:
            where = f"step {envelope.step}, rank {envelope.rank}, slot {envelope.slot}"
            raise WrongAnswer(self._name, f"holds {where}, which is not of this group")
        self._envelope, self._left = envelope, envelope.size
        self._writer = _Writer(self._spool._begin(self._group), self._spool.directory)

    def _finish(self, envelope: Envelope) -> Ready:
        assert self._writer is not None
        key = self._raw_keys[envelope.slot] if envelope.form is Form.RAW else envelope.digest
        sample = Ready(
            envelope.slot, envelope.form, envelope.extension, key, envelope.size, envelope.provenance, envelope.reason
        )
        placed = self._spool._enter(self._group, sample, self._writer)
        self._envelope = self._writer = None
        return placed


class _Writer:
    """One file under a name of its own until it is complete."""

    def __init__(self, path: str, subject: str) -> None:
        self.path = path
        self._subject = subject
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise meaning_of(exc, subject) from exc

    def write(self, body: bytes | memoryview) -> None:
        view = memoryview(body)
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            raise meaning_of(exc, self._subject) from exc

    def finish(self, path: str) -> None:
        try:
            os.close(self._fd)
            os.rename(self.path, path)
        except OSError as exc:
            raise meaning_of(exc, self._subject) from exc
        self._fd = -1

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def _described(path: str) -> Ready | None:
    try:
        sample = msgspec.msgpack.decode(os.getxattr(path, _XATTR), type=Ready)
        return sample if os.stat(path).st_size == sample.size else None
    except (OSError, msgspec.DecodeError):
        return None
