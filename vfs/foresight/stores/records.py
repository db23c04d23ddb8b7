"""Records of the shared catalog as they are now, for whoever makes no change that depends on their revision."""

from __future__ import annotations

from typing import TypeVar

from vfs.foresight import keys
from vfs.foresight.stores.protocol import Store, every

T = TypeVar("T")


async def record_at(store: Store, key: str, kind: type[T]) -> T | None:
    """Return the record at a key; None: there is none."""
    kept = await store.get(key)
    found: T | None = None if kept is None else keys.decode(kept.value, kind)
    return found


async def records_below(store: Store, prefix: str, kind: type[T]) -> dict[str, T]:
    """Return the records below a prefix, by what their keys have after it."""
    items, _ = await every(store, prefix)
    return {item.key[len(prefix) :]: keys.decode(item.value, kind) for item in items}
