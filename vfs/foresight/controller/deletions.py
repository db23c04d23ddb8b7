"""Copies go when their origin does, and each one that goes leaves a record: what, when, why, and that it was found gone.

Flow: an event says that a checkpoint was deleted, or `Sweep` finds that its origin has nothing of it any more and says so in
the same way; its hints are withdrawn and the copies go in two passes as ever. The record is written together with the last
change of the replica, is signed with the controller's first secret where it has any, and lives for `KEPT_S`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import xxhash

from vfs.clock import Clock
from vfs.foresight import keys
from vfs.foresight.controller.intake import SEEN_S, Marks, accept
from vfs.foresight.model import CheckpointDeleted, Deletion, Event, FileCopy, Phase, ReplicaId, ReplicaRecord
from vfs.foresight.plan import Origin
from vfs.foresight.signing import HEADER, signed, signer
from vfs.foresight.stores.protocol import Store
from vfs.foresight.stores.records import record_at

log = logging.getLogger(__name__)
KEPT_S = 400 * 24 * 3600.0
LOOKED_AT_ONCE = 32
"""Copies whose origin is asked each second: a million are gone through in nine hours, a thousand in half a minute."""
SAMPLE = 3
_METHOD = "DELETED"


def deletion_of(
    replica: ReplicaRecord, copies: Sequence[FileCopy], gone: int, now_ns: int, by: str, secrets: Mapping[str, bytes]
) -> Deletion:
    """Return the record of a copy that was removed.

    Args:
        copies: that it consisted of.
        gone: files that were removed and then asked for and not found.
    """
    rows = sorted(f"{copy.at}\0{copy.digest}" for copy in copies)
    found = Deletion(
        replica=replica.id,
        hint=replica.hint,
        job=replica.job,
        mechanism=replica.mechanism,
        path=replica.path,
        site=replica.site,
        root=replica.root,
        save_id=replica.save_id,
        files=len(copies),
        bytes=replica.bytes,
        digest=xxhash.xxh3_128_hexdigest("\n".join(rows).encode("utf-8", "surrogateescape")),
        gone=gone,
        why=replica.reason,
        made_ns=replica.made_ns,
        deleted_ns=now_ns,
        by=by,
    )
    return msgspec.structs.replace(found, signature=signed(secrets, _METHOD, replica.id, _said(found)).get(HEADER, ""))


def unsigned(replica: ReplicaRecord, copies: Sequence[FileCopy], gone: int, now_ns: int) -> Deletion:
    """Return the same without a signature."""
    return deletion_of(replica, copies, gone, now_ns, "", {})


def signer_of(deletion: Deletion, secrets: Mapping[str, bytes]) -> str:
    """Return whose signature a record has, "" where it has none of anybody known, or was changed since."""
    return signer(secrets, deletion.signature, _METHOD, deletion.replica, _said(deletion)) or ""


def _said(deletion: Deletion) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(deletion, signature=""))


class Sweep:
    """Goes through the published copies and asks whether their origins are still there.

    Attributes:
        _left: those that are still to be looked at in this round.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        origin: Callable[[ReplicaRecord, Sequence[FileCopy]], Awaitable[Origin]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._origin = origin
        self._marks = Marks(store, clock, SEEN_S)
        self._left: list[ReplicaId] = []

    async def look(self, replicas: Mapping[ReplicaId, object]) -> None:
        """Look at the next few."""
        self._left = self._left or list(replicas)
        for name in self._left[-LOOKED_AT_ONCE:]:
            record = await record_at(self._store, keys.replica_key(name), ReplicaRecord)
            if record is not None and record.phase is Phase.PUBLISHED and record.labels.with_origin:
                await self._look_at(record)
        del self._left[-LOOKED_AT_ONCE:]

    async def _look_at(self, record: ReplicaRecord) -> None:
        page = await self._store.range(keys.copies_prefix(record.id), limit=SAMPLE)
        copies = [keys.decode(item.value, FileCopy) for item in page.items]
        if not copies or await self._origin(record, copies) is not Origin.GONE:
            return
        log.warning("%s was deleted at its origin: its copies go", record.path)
        what = CheckpointDeleted(path=record.path)
        event = Event(id=f"deleted:{record.id}:{record.save_id}", job=record.job, what=what, source="controller")
        await accept(self._store, event, self._marks, self._clock.wall_ns())
