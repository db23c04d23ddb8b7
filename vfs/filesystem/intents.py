"""Changes of local directories that are not to be done twice: what was about to be done, for the worker after this one.

A change and the record of it can't be one step on somebody else's file system. So the intent is written first, with the
number of the kernel's request; the next worker compares it with what it finds, before it takes any request, and knows whether
it was carried out. One record is enough: on a local directory a request is answered before the next one is taken up.

Staged trees need no such thing: there the change is a record (`vfs/namespace/journal.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from vfs.errors import ForemountError
from vfs.filesystem.request import is_resent, request_number
from vfs.filesystem.tree import Tree
from vfs.model import LakePath
from vfs.namespace.inodes import InodeTable
from vfs.namespace.mounts import MountTable


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """One change that was about to be made.

    Attributes:
        path: what goes, or comes where `before` is "".
        new_path: where to it is renamed.
        before: identity of what was at `path`, "" where nothing was.
    """

    request: int
    path: LakePath
    new_path: LakePath | None
    before: str


_decoder = msgspec.msgpack.Decoder(Intent)


class Intents:
    """Writes intents, and knows whether the running request was carried out by an earlier worker."""

    def __init__(self, inodes: InodeTable) -> None:
        self._inodes = inodes
        self._done = 0

    async def declare(self, tree: Tree, path: LakePath, new_path: LakePath | None = None) -> None:
        """Write down what is about to be done to `path`, unless the request can't be told from others."""
        if request_number():
            before = await _identity(tree, path)
            self._inodes.set_intent(msgspec.msgpack.encode(Intent(request_number(), path, new_path, before)))

    def was_done(self) -> bool:
        """Return whether an earlier worker carried out the running request, and died before it could answer."""
        return is_resent() and request_number() == self._done

    async def settle(self, mounts: MountTable, trees: Mapping[LakePath, Tree]) -> None:
        """Find out what became of the last intent of the worker before this one. Before any request is taken."""
        raw = self._inodes.intent()
        if raw is None:
            return
        intent = _decoder.decode(raw)
        point = mounts.find(intent.path)
        if point is None:
            return
        tree = trees[point.prefix]
        now = await _identity(tree, intent.path)
        if intent.new_path is not None:
            done = bool(intent.before) and await _identity(tree, intent.new_path) == intent.before != now
        else:
            done = now != intent.before
        if done:
            self._done = intent.request


async def _identity(tree: Tree, path: LakePath) -> str:
    try:
        return (await tree.lookup(path)).identity
    except ForemountError:
        return ""
