"""What a store of the shared catalog can do: ordered keys, changes that are made together or not at all, watch, leases.

The words are etcd's: a *revision* counts changes of the whole store, a *lease* takes its keys with it when it ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NewType, Protocol

import msgspec

from vfs.errors import Stale

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)
CHANGES_MAX = 100
"""In one `write`; etcd refuses more than 128 as it is set up by default."""
PAGE_ITEMS = 1000
LEASE_S_MIN = 2.0
"""etcd counts in whole seconds and rounds what is less up to two."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A key as it is now. `revision` is that of its last change."""

    key: str
    value: bytes
    revision: int


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Part of a range, and the revision of the store when it was read."""

    items: list[Item]
    revision: int


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What became of a key: None: it was deleted, or its lease ended."""

    key: str
    value: bytes | None
    revision: int


class Put(msgspec.Struct, frozen=True, array_like=True):
    """Give a key a value; its lease is this one from now on."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


class Delete(msgspec.Struct, frozen=True, array_like=True):
    """Remove a key; one that is not there is no error."""

    key: str


class Compacted(Stale):
    """What was changed since then is not kept any more: read everything again."""


class Store(Protocol):
    """Raises (of all): Unavailable; after a `write` that raised it, the changes may have been made or not."""

    async def get(self, key: str) -> Item | None:
        """Return a key as it is now."""
        ...

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """Return the keys that begin with `prefix` and come after the key `after`, in order of their UTF-8 bytes."""
        ...

    async def write(self, changes: Sequence[Put | Delete], *, expect: Mapping[str, int] | None = None) -> bool:
        """Make all changes together if every expected key is still at its revision, 0 for not there; else none, and False.

        Args:
            changes: at most CHANGES_MAX, no key twice.

        Raises:
            Stale: a lease has ended.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[list[Change]]:
        """Yield what is changed after a revision, in order, each change once.

        Raises:
            Compacted: it lies too far back, or the reader fell behind.
            Unavailable: the line broke; go on from the last revision seen.
        """
        ...

    async def lease(self, ttl_s: float) -> LeaseId:
        """Begin a lease; it ends `ttl_s` after it was renewed last, never earlier, and up to some seconds later."""
        ...

    async def renew(self, lease: LeaseId) -> bool:
        """Return whether it still lives, and if so begin its time again."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End it now, and its keys with it; one that has ended is no error."""
        ...

    async def close(self) -> None:
        """Let go of files and sockets."""
        ...


async def pages(store: Store, prefix: str) -> AsyncIterator[Page]:
    """Yield all keys below a prefix in pieces; what changes meanwhile is seen by a watch from the first one's revision."""
    after = ""
    while True:
        page = await store.range(prefix, after=after, limit=PAGE_ITEMS)
        yield page
        if len(page.items) < PAGE_ITEMS:
            return
        after = page.items[-1].key


async def every(store: Store, prefix: str) -> tuple[list[Item], int]:
    """Return all keys below a prefix and the revision to watch from; what changes meanwhile is seen by that watch."""
    found: list[Item] = []
    revision = None
    async for page in pages(store, prefix):
        revision = page.revision if revision is None else revision
        found += page.items
    assert revision is not None
    return found, revision


async def write_all(store: Store, changes: Sequence[Put | Delete]) -> None:
    """Make changes that need not be made together, in order, as many in one `write` as it takes."""
    for start in range(0, len(changes), CHANGES_MAX):
        await store.write(changes[start : start + CHANGES_MAX])


def end_of(prefix: bytes) -> bytes:
    """Return the first key that comes after all that begin with `prefix`; b"\\0", etcd's word for no end, where none does."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"
