"""What the fetch service needs of a store, so that one that only keeps accounts can stand in when a trace is replayed.

Pure: no I/O, no clock. `store.Store` is the real one; its docstrings say what each call does and raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vfs.extents.layout import Identity
from vfs.model import ObjectKey


class Blocks(Protocol):
    """Blocks of objects, and which are there."""

    @property
    def root(self) -> str: ...

    def prepare(self, identity: Identity) -> ObjectKey: ...

    def renew(self, identity: Identity) -> ObjectKey: ...

    def hold(self, key: ObjectKey) -> bool: ...

    def release(self, key: ObjectKey) -> None: ...

    def missing(self, key: ObjectKey, offset: int, length: int) -> list[range]: ...

    def write_blocks(self, key: ObjectKey, first: int, body: memoryview | bytes) -> None: ...

    def read_blocks(self, key: ObjectKey, first: int, count: int, scratch: memoryview) -> int: ...

    def drop_if_broken(self, key: ObjectKey, index: int) -> bool: ...

    def needs_seal(self, key: ObjectKey) -> bool: ...

    def seal(self, key: ObjectKey) -> bool: ...

    def seal_many(self, keys: Sequence[ObjectKey]) -> None: ...
