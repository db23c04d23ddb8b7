"""Where records are in the store, and as which bytes.

Pure: no I/O, no clock.

    jobs/JOB                      JobState
    inbox/JOB/SOURCE/SEQ/ID       Event that was accepted and not yet taken in
    seen/ID                       event that was accepted; ends with a lease
    checkpoints/HASH              Checkpoint
    files/HASH/PATH               ManifestFile that is complete at its origin; ends with a lease
    hints/ID                      Hint; ends with a lease of its own
    replicas/ID                   ReplicaRecord
    copies/ID/PATH                FileCopy
    open/ID/MOUNT                 a mount reads from the replica; ends with a lease that the mount renews
    lives/ID                      the replica may be offered; ends with a lease, where it may only live so long
    ledger/JOB/ID                 LedgerEntry
    switches/MECHANISM            Switch
    spent/MECHANISM/ID            bytes that were copied; ends with a lease of an hour
    bears/SITE                    Bearing
    deleted/ID/TIME               Deletion; ends with a lease
    leader                        name of the controller that leads; ends with its lease
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import xxhash

from vfs.errors import WrongAnswer
from vfs.foresight.model import HintId, JobName, Mechanism, ReplicaId
from vfs.model import LakePath

JOBS, INBOX, HINTS, REPLICAS, LEDGER, SWITCHES = "jobs/", "inbox/", "hints/", "replicas/", "ledger/", "switches/"
LEADER = "leader"
SPENT, DELETED, BEARS = "spent/", "deleted/", "bears/"
OPEN = "open/"

_encoder = msgspec.msgpack.Encoder()


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a mechanism works, and who said so."""

    on: bool
    by: str = ""


def encode(record: msgspec.Struct) -> bytes:
    """Return a record as the store keeps it."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[Any]) -> Any:
    """Return a record of this type; fields that an older version did not write have their defaults.

    Raises:
        WrongAnswer: it is none.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as exc:
        raise WrongAnswer("the controller's store", f"holds something else than a {kind.__name__}: {exc}") from exc


def job_key(job: JobName) -> str:
    return JOBS + _part(job)


def inbox_key(job: JobName, source: str, seq: int, event: str) -> str:
    """Return the key of an event: those of one source are in the order of their numbers.

    Args:
        seq: of one without a number, the time in ns by the clock of its source: two controllers have two clocks.
    """
    return f"{INBOX}{_part(job)}/{_part(source)}/{seq:020d}/{_part(event)}"


def seen_key(event: str) -> str:
    return f"seen/{_part(event)}"


def checkpoint_key(path: LakePath) -> str:
    return f"checkpoints/{_hash(path)}"


def files_prefix(path: LakePath) -> str:
    return f"files/{_hash(path)}/"


def hint_key(hint: HintId) -> str:
    return HINTS + hint


def replica_key(replica: ReplicaId) -> str:
    return REPLICAS + replica


def copies_prefix(replica: ReplicaId) -> str:
    return f"copies/{replica}/"


def open_prefix(replica: ReplicaId) -> str:
    return f"{OPEN}{replica}/"


def lives_key(replica: ReplicaId) -> str:
    return f"lives/{replica}"


def ledger_key(job: JobName, hint: HintId) -> str:
    return f"{LEDGER}{_part(job)}/{hint}"


def switch_key(mechanism: Mechanism) -> str:
    return SWITCHES + mechanism


def spent_prefix(mechanism: Mechanism) -> str:
    return f"{SPENT}{mechanism}/"


def deleted_key(replica: ReplicaId, now_ns: int) -> str:
    return f"{DELETED}{replica}/{now_ns}"


def _part(name: str) -> str:
    """Return a name as one component of a key."""
    return quote(name, safe="")


def _hash(path: LakePath) -> str:
    return xxhash.xxh3_128_hexdigest(path.encode("utf-8", "surrogateescape"))
