"""Takes staging files into the cache when the worker gives them up: no byte is copied, none is fetched again.

The worker has made sure that nobody can write the file any more. What its blocks are was found out while it was uploaded, and
the origin has verified that; so the file becomes a complete object under the version that the origin states. As soon as it is
read back and found to be still that, it is sealed and the kernel reads it alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from vfs.agent.writing.uploads import Uploads
from vfs.errors import ForemountError, NotFound
from vfs.extents.layout import PASSTHROUGH_BYTES_MIN, Identity
from vfs.extents.store import Store
from vfs.model import ObjectKey
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.journal import content_path
from vfs.namespace.mounts import MountTable
from vfs.namespace.staged import UploadState

log = logging.getLogger(__name__)


class Adoption:
    """Gives the cache what was staged.

    Args:
        directory: of the staging area.
        spawn: runs what nobody waits for.

    Invariant: a key is in `_under_way` from the worker's word until its file is an object, or is not going to be one.
    """

    def __init__(
        self,
        uploads: Uploads,
        mounts: MountTable,
        catalog: CatalogWriter,
        store: Store,
        directory: str,
        *,
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._uploads = uploads
        self._mounts = mounts
        self._catalog = catalog
        self._store = store
        self._directory = directory
        self._spawn = spawn
        self._under_way: dict[ObjectKey, asyncio.Event] = {}
        self._sealing = asyncio.Lock()

    async def adopt(self, node_id: int, seq: int, content: int) -> bool:
        """Return whether a staging file is the cache's now. Else it lies where it was, and its bytes are at the origin."""
        identity = self._identity(node_id, seq)
        digests = self._catalog.block_digests(node_id, seq)
        if identity is None or digests is None:
            return False
        key = identity.key
        self._under_way[key] = passed = asyncio.Event()
        try:
            source = content_path(self._directory, content)
            taken = await asyncio.to_thread(self._store.adopt, identity, source, digests)
        except (ForemountError, ValueError) as exc:
            log.info("the cache does not take %s over: %s", identity.path, exc)
            return False
        finally:
            self._under_way.pop(key, None)
            passed.set()
        if taken is not None and identity.version.size >= PASSTHROUGH_BYTES_MIN:
            self._spawn(self._seal(key))
        return taken is not None

    async def passed(self, identity: Identity) -> None:
        """Return when no file of this object is about to be adopted: who opens it finds it whole."""
        under_way = self._under_way.get(identity.key)
        if under_way is not None:
            await under_way.wait()

    def _identity(self, node_id: int, seq: int) -> Identity | None:
        """Return which object a node's content is at its origin, None where that is not certain."""
        node, record = self._uploads.nodes.get(node_id), self._catalog.upload(node_id)
        path = None if node is None else self._uploads.nodes.path(node)
        point = None if path is None else self._mounts.find(path)
        if point is None or record is None or record.state is not UploadState.DONE or record.seq != seq:
            return None
        if record.at is None or record.at.version.generation:  # too young: it will be stated as another version
            return None
        return Identity(point.site, record.at.path, record.at.version)

    async def _seal(self, key: ObjectKey) -> None:
        async with self._sealing:
            try:
                await asyncio.to_thread(self._store.seal, key)
            except NotFound:
                return  # evicted meanwhile
            except ForemountError as exc:
                log.warning("what was staged can't be sealed: %s", exc)
