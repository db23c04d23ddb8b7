"""What was loaded last, read once for all who ask."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sized
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT", bound=Sized)


class LoadCache(Generic[KeyT, ValueT]):
    """Single flight and a short memory over a function that loads what belongs to a key.

    Args:
        kept: how many are remembered.

    Invariant: at most `kept` are; one that failed or has nothing is not among them, so it is looked at again.
    """

    def __init__(self, load: Callable[[KeyT], Awaitable[ValueT]], *, kept: int) -> None:
        self._load = load
        self._kept = kept
        self._loaded: OrderedDict[KeyT, asyncio.Future[ValueT]] = OrderedDict()

    async def get(self, key: KeyT) -> ValueT:
        """Return what belongs to a key. Raises as the function that loads."""
        loading = self._loaded.get(key)
        if loading is None:
            loading = self._loaded[key] = asyncio.ensure_future(self._load(key))
            loading.add_done_callback(lambda done: self._forget_useless(key, done))
            if len(self._loaded) > self._kept:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return await asyncio.shield(loading)

    def _forget_useless(self, key: KeyT, done: asyncio.Future[ValueT]) -> None:
        useless = done.cancelled() or done.exception() is not None or not len(done.result())
        if useless and self._loaded.get(key) is done:
            del self._loaded[key]
