"""What the origins said: entries and listings of remote directories, kept in LMDB.

Written by the agent only; the fs worker reads it without asking, so that names which were listed cost no message, and go on
being served while the agent or the origin is away. One transaction for each call, none across an await.

    entries    directory hash + name                    -> Known
    listings   directory hash                           -> Listing
    order      directory hash + generation + position   -> name
    learned    hash of a name that the caller makes up  -> bytes that the caller understands
    uploads    id of a staged node                      -> Upload (`staged.py`); "serial" -> counts its changes
    digests    id of a staged node                      -> seq, 8 bytes, and the digests of its blocks, when it is uploaded
    commits    directory hash + when, ns                -> Manifest of a checkpoint; never changed
    doubts     directory hash                           -> what was known below it earlier than this, ns, is to be asked again
    snapshots  name                                     -> Snapshot; what it holds are entries and listings (`snapshots.py`)

A listing is numbered in the order in which it arrived, under a generation of its own: a reader that stands in the middle of
one is not disturbed by the next. The previous generation is kept until another one is complete.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import lmdb
import msgspec
import xxhash

from vfs.checkpoints.manifest import Manifest
from vfs.errors import Unavailable
from vfs.model import Entry, Kind, LakePath, join, split
from vfs.namespace.snapshots import ID_MIN, Snapshot
from vfs.namespace.staged import Upload

log = logging.getLogger(__name__)
FORMAT = 1
_MAP_BYTES = 64 << 30
_READERS_MAX = 64
_DATABASES_MAX = 16
GENERATION_MAX = ID_MIN - 1
POSITION_MAX = (1 << 40) - 1


class Known(msgspec.Struct, frozen=True, array_like=True):
    """One name as the origin stated it last.

    Attributes:
        entry: None where the origin said that nothing is there.
        seen_ns: when, wall clock.
        generation: the listing that it was seen in, 0 for a single stat.
    """

    entry: Entry | None
    seen_ns: int
    generation: int = 0


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """How far a directory has been listed.

    Attributes:
        generation: counts up with every listing of the directory, from 1.
        count: entries so far, numbered from 0.
        complete: all are there.
        begun_ns: when the listing was begun, wall clock: what it says is not younger.
        previous: the last complete generation before this one, else 0.
        last: the highest generation that was ever begun, where that one failed and is not this one, else 0.
    """

    generation: int
    count: int
    complete: bool
    begun_ns: int
    previous: int = 0
    last: int = 0


Read = TypeVar("Read", bound=Callable[..., Any])


def _empty_where_unreadable(nothing: Callable[[], object]) -> Callable[[Read], Read]:
    """Have a method of `Catalog` answer as an empty one does while there is none, or its pages are broken."""

    def wrap(method: Read) -> Read:
        @functools.wraps(method)
        def read(self: Catalog, /, *args: object) -> object:
            if self._env is None and not self._reopen():
                return nothing()
            try:
                return method(self, *args)
            except lmdb.Error as exc:
                self._give_up(exc)
                return nothing()

        return cast("Read", read)

    return wrap


class Catalog:
    """Reads the catalog. Used by the fs worker; the agent's `CatalogWriter` adds the writing.

    A catalog that the agent has not made yet is empty: the worker of a new cache may be the first to start.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._env: Any = None
        self._file: os.stat_result
        self._reopen()

    def _reopen(self) -> bool:
        """Return whether the catalog is there, after trying to open it."""
        try:
            env = lmdb.open(
                self._directory,
                map_size=_MAP_BYTES,
                max_dbs=_DATABASES_MAX,
                max_readers=_READERS_MAX,
                readonly=True,
                create=False,
            )
            env.reader_check()  # slots of workers that were killed: they hold back free pages, and there are only so many
            file = os.stat(os.path.join(self._directory, "data.mdb"))
            if file.st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:  # to read it would end us by a signal
                env.close()
                return False
            self._use(env, create=False)
            self._file = file
        except (lmdb.Error, OSError):
            return False
        return True

    def follow(self) -> None:
        """There is a new agent: read the catalog that it writes, if that is another one now."""
        if self._env is None:
            return
        try:
            if os.path.samestat(self._file, os.stat(os.path.join(self._directory, "data.mdb"))):
                return
        except OSError:
            pass
        self._env.close()
        self._env = None
        self._reopen()

    def _use(self, env: Any, *, create: bool) -> None:
        self._entries = env.open_db(b"entries", create=create)
        self._listings = env.open_db(b"listings", create=create)
        self._order = env.open_db(b"order", create=create)
        self._uploads = env.open_db(b"uploads", create=create)
        self._doubts = env.open_db(b"doubts", create=create)
        self._snapshots = env.open_db(b"snapshots", create=create)
        self._lessons = env.open_db(b"learned") if create else None
        self._commits = env.open_db(b"commits") if create else None
        self._digests = env.open_db(b"digests") if create else None
        self._env = env

    def _give_up(self, error: lmdb.Error) -> None:
        """Take a catalog that can't be read as none, until it can: the agent's next one is another."""
        log.warning("the catalog can't be read: %s", error)
        self._env.close()
        self._env = None

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    @_empty_where_unreadable(lambda: None)
    def known(self, path: LakePath) -> Known | None:
        """Return what was last said about `path`, or None where nothing ever was."""
        parent, name = split(path)
        with self._env.begin(db=self._entries) as txn:
            raw = txn.get(_directory(parent) + name.encode())
        return None if raw is None else _known.decode(raw)

    @_empty_where_unreadable(lambda: None)
    def listing(self, path: LakePath) -> Listing | None:
        """Return how far directory `path` has been listed, or None where it never was."""
        with self._env.begin(db=self._listings) as txn:
            raw = txn.get(_directory(path))
        return None if raw is None else _listing.decode(raw)

    @_empty_where_unreadable(list)
    def page(self, path: LakePath, generation: int, position: int, limit: int) -> list[Entry | None]:
        """Return up to `limit` entries of one generation from `position` on, in listing order.

        Names whose entry has meanwhile been replaced come with what is known now. A name that is gone is None: it still
        takes its position.

        Raises:
            Unavailable: its pages are broken; an end here would be a listing with names missing.
        """
        start = _position(path, generation, position)
        prefix = start[:20]
        found: list[Entry | None] = []
        try:
            with self._env.begin() as txn, txn.cursor(self._order) as cursor:
                if not cursor.set_range(start):
                    return []
                for key, name in cursor:
                    if len(found) >= limit or not key.startswith(prefix):
                        break
                    raw = txn.get(prefix[:16] + name, db=self._entries)
                    found.append(_known.decode(raw).entry if raw is not None else None)
        except lmdb.Error as exc:
            self._give_up(exc)
            raise Unavailable("the catalog", "can't be read") from exc
        return found

    @_empty_where_unreadable(int)
    def doubted_ns(self, path: LakePath) -> int:
        """Return the time before which nothing that is known of `path`, or of names in it, may be believed; 0: all may."""
        with self._env.begin(db=self._doubts) as txn:
            if not txn.stat(self._doubts)["entries"]:
                return 0
            found = [txn.get(_directory(above), default=b"") for above in _from_root(path)]
        return max(int.from_bytes(each, "big") for each in found)

    @_empty_where_unreadable(lambda: None)
    def snapshot(self, name: str) -> Snapshot | None:
        """Return the snapshot of this name, None where there is none."""
        with self._env.begin(db=self._snapshots) as txn:
            raw = txn.get(name.encode())
        return None if raw is None else _snapshot.decode(raw)

    @_empty_where_unreadable(list)
    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots by name, those too that are being taken or dropped."""
        with self._env.begin(db=self._snapshots) as txn, txn.cursor() as cursor:
            return [_snapshot.decode(raw) for _, raw in cursor]

    @_empty_where_unreadable(int)
    def uploads_serial(self) -> int:
        """Return a number that is another one whenever a record of an upload has changed."""
        with self._env.begin(db=self._uploads) as txn:
            return int.from_bytes(txn.get(_SERIAL, default=b""), "big")

    @_empty_where_unreadable(lambda: None)
    def upload(self, node_id: int) -> Upload | None:
        """Return what the agent knows of a staged node, None where it has not begun."""
        with self._env.begin(db=self._uploads) as txn:
            raw = txn.get(_upload_key(node_id))
        return None if raw is None else _upload.decode(raw)

    @_empty_where_unreadable(dict)
    def uploads(self) -> dict[int, Upload]:
        """Return the records of all uploads, by node."""
        with self._env.begin(db=self._uploads) as txn, txn.cursor() as cursor:
            return {int.from_bytes(key, "big"): _upload.decode(raw) for key, raw in cursor if key != _SERIAL}


class CatalogWriter(Catalog):
    """The agent's side. Not thread safe: belongs to the agent's loop."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        env = lmdb.open(
            directory, map_size=_MAP_BYTES, max_dbs=_DATABASES_MAX, max_readers=_READERS_MAX, sync=False, metasync=False,
            writemap=True, map_async=True,
        )  # fmt: skip
        env.reader_check()  # slots of processes that were killed
        self._use(env, create=True)

    def _give_up(self, error: lmdb.Error) -> None:
        raise error  # who writes may not take for absent what is there

    def put(self, path: LakePath, known: Known) -> None:
        """Store what was said about one path."""
        parent, name = split(path)
        with self._env.begin(write=True, db=self._entries) as txn:
            txn.put(_directory(parent) + name.encode(), _encoder.encode(known))

    def begin_listing(self, path: LakePath, now_ns: int) -> Listing:
        """Open a new generation for directory `path` and return it; the one before the last complete one goes."""
        with self._env.begin(write=True) as txn:
            raw = txn.get(_directory(path), db=self._listings)
            old = _listing.decode(raw) if raw is not None else None
            previous = 0
            if old is not None:
                previous = old.generation if old.complete else old.previous
                for generation in {old.generation, old.previous} - {previous, 0}:
                    self._drop_generation(txn, path, generation)
            last = max(old.generation, old.last) if old is not None else 0
            begun = Listing(last % GENERATION_MAX + 1, 0, complete=False, begun_ns=now_ns, previous=previous)
            txn.put(_directory(path), _encoder.encode(begun), db=self._listings)
        return begun

    def extend_listing(self, path: LakePath, listing: Listing, entries: Sequence[Entry], now_ns: int) -> Listing:
        """Append a page and return the listing with its new count."""
        directory = _directory(path)
        grown = msgspec.structs.replace(listing, count=listing.count + len(entries))
        with self._env.begin(write=True) as txn:
            for position, entry in enumerate(entries, listing.count):
                name = entry.name.encode()
                txn.put(directory + name, _encoder.encode(Known(entry, now_ns, listing.generation)), db=self._entries)
                txn.put(_position(path, listing.generation, position), name, db=self._order)
            txn.put(directory, _encoder.encode(grown), db=self._listings)
        return grown

    def complete_listing(self, path: LakePath, listing: Listing) -> Listing:
        """Mark the listing complete; names that the previous one had and nobody has seen since it was begun are gone."""
        done = msgspec.structs.replace(listing, complete=True)
        directory = _directory(path)
        with self._env.begin(write=True) as txn:
            for name in list(self._names(txn, path, listing.previous)) if listing.previous else []:
                raw = txn.get(directory + name, db=self._entries)
                if raw is not None and _is_gone(_known.decode(raw), listing):
                    txn.delete(directory + name, db=self._entries)
            txn.put(directory, _encoder.encode(done), db=self._listings)
        return done

    def abandon_listing(self, path: LakePath, listing: Listing) -> None:
        """Take back a listing that failed: the previous complete one is in force again."""
        with self._env.begin(write=True) as txn:
            self._drop_generation(txn, path, listing.generation)
            count = sum(1 for _ in self._names(txn, path, listing.previous)) if listing.previous else 0
            # Its number is not used again: entries carry it, and readers may stand in it.
            old = Listing(listing.previous, count, complete=bool(listing.previous), begun_ns=0, last=listing.generation)
            txn.put(_directory(path), _encoder.encode(old), db=self._listings)

    def forget_listing(self, path: LakePath, limit: int) -> tuple[list[LakePath], bool]:
        """Forget up to `limit` of a directory's names, all that is known of each; with the last, that it was listed.

        Returns:
            Those of them that are directories, and whether any names are left.
        """
        directory, below = _directory(path), list[LakePath]()
        with self._env.begin(write=True) as txn:
            raw = txn.get(directory, db=self._listings)
            if raw is None:
                return below, False
            prefix = _position(path, _listing.decode(raw).generation, 0)[:20]
            with txn.cursor(self._order) as cursor:
                while cursor.set_range(prefix) and cursor.key().startswith(prefix):
                    if not limit:
                        return below, True
                    limit -= 1
                    name = cursor.value()
                    known = txn.pop(directory + name, db=self._entries)
                    if known is not None and (entry := _known.decode(known).entry) and entry.kind is Kind.DIRECTORY:
                        below.append(LakePath(join(path, entry.name)))
                    cursor.delete()
            txn.delete(directory, db=self._listings)
        return below, False

    def forget(self, path: LakePath) -> None:
        """Forget what was said about one path."""
        parent, name = split(path)
        with self._env.begin(write=True, db=self._entries) as txn:
            txn.delete(_directory(parent) + name.encode())

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Keep what a snapshot is; one that is taken is on the disk, with all that it holds, when this returns."""
        with self._env.begin(write=True, db=self._snapshots) as txn:
            txn.put(snapshot.name.encode(), _encoder.encode(snapshot))
        if snapshot.taken_ns:
            self._env.sync(True)

    def drop_snapshot(self, name: str) -> None:
        """Forget the name of a snapshot whose listings are forgotten."""
        with self._env.begin(write=True, db=self._snapshots) as txn:
            txn.delete(name.encode())

    def learned(self, name: str) -> bytes | None:
        """Return what was kept under `name`."""
        with self._env.begin(db=self._lessons) as txn:
            return txn.get(_directory(name))  # type: ignore[no-any-return]

    def learn(self, name: str, lesson: bytes) -> None:
        """Keep `lesson` under `name` in place of what was there."""
        with self._env.begin(write=True, db=self._lessons) as txn:
            txn.put(_directory(name), lesson)

    def put_upload(self, node_id: int, upload: Upload, digests: bytes = b"") -> None:
        """Store how far a staged node's upload is, and what its blocks were found to be while they were sent."""
        with self._env.begin(write=True, db=self._uploads) as txn:
            txn.put(_upload_key(node_id), _encoder.encode(upload))
            if digests:
                txn.put(_upload_key(node_id), upload.seq.to_bytes(8, "big") + digests, db=self._digests)
            self._count_change(txn)

    def block_digests(self, node_id: int, seq: int) -> bytes | None:
        """Return the digests of the blocks of a node's content as it was sent, None where that was not kept."""
        with self._env.begin(db=self._digests) as txn:
            found = txn.get(_upload_key(node_id))
        return found[8:] if found is not None and int.from_bytes(found[:8], "big") == seq else None

    def drop_upload(self, node_id: int) -> None:
        """Forget a node that the journal does not hold any more."""
        with self._env.begin(write=True, db=self._uploads) as txn:
            txn.delete(_upload_key(node_id))
            txn.delete(_upload_key(node_id), db=self._digests)
            self._count_change(txn)

    def doubt(self, path: LakePath, now_ns: int) -> None:
        """Believe nothing any more that is known of names below directory `path`: its origin has something new."""
        with self._env.begin(write=True, db=self._doubts) as txn:
            txn.put(_directory(path), now_ns.to_bytes(8, "big"))

    def put_manifest(self, manifest: Manifest) -> None:
        """Keep what a checkpoint consists of; another commit of the same path is another manifest."""
        key = _directory(manifest.path) + manifest.committed_ns.to_bytes(8, "big")
        with self._env.begin(write=True, db=self._commits) as txn:
            txn.put(key, _encoder.encode(manifest), overwrite=False)
        self._env.sync(True)

    def manifests(self) -> Iterator[Manifest]:
        """Yield all that were committed through this host; of one path in order of time."""
        with self._env.begin(db=self._commits) as txn, txn.cursor() as cursor:
            for _, raw in cursor:
                yield _manifest.decode(raw)

    def _count_change(self, txn: Any) -> None:
        txn.put(_SERIAL, (int.from_bytes(txn.get(_SERIAL, default=b""), "big") + 1).to_bytes(8, "big"))

    def _names(self, txn: Any, path: LakePath, generation: int) -> Iterator[bytes]:
        prefix = _position(path, generation, 0)[:20]
        with txn.cursor(self._order) as cursor:
            if cursor.set_range(prefix):
                for key, name in cursor:
                    if not key.startswith(prefix):
                        return
                    yield name

    def _drop_generation(self, txn: Any, path: LakePath, generation: int) -> None:
        prefix = _position(path, generation, 0)[:20]
        with txn.cursor(self._order) as cursor:
            while cursor.set_range(prefix) and cursor.key().startswith(prefix):
                cursor.delete()


_encoder = msgspec.msgpack.Encoder()
_known = msgspec.msgpack.Decoder(Known)
_listing = msgspec.msgpack.Decoder(Listing)
_upload = msgspec.msgpack.Decoder(Upload)
_manifest = msgspec.msgpack.Decoder(Manifest)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_SERIAL = b"serial"  # LMDB takes no empty key; ids are 8 bytes


def _is_gone(known: Known, listing: Listing) -> bool:
    return known.generation != listing.generation and known.seen_ns < listing.begun_ns


def _upload_key(node_id: int) -> bytes:
    return node_id.to_bytes(8, "big")


def _from_root(path: str) -> list[str]:
    """Return the directories that lead to a path, and itself."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _directory(path: str) -> bytes:
    return xxhash.xxh3_128_digest(path.encode())


def _position(path: LakePath, generation: int, position: int) -> bytes:
    return _directory(path) + generation.to_bytes(4, "big") + position.to_bytes(8, "big")
