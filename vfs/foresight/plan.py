"""What is to be done next for one replica: what is wanted against what is there.

Pure: no I/O, no clock. Nothing is remembered between two looks: whoever asks again, after a crash or on another host, gets
the same answer from the same facts. `vfs/foresight/controller/reconcile.py` carries the steps out, each so that it can be
broken off anywhere and done again.

    DESIRED, COPYING -> VERIFIED -> PUBLISHED        wanted
    any              -> EXPIRING -> DROPPED          not wanted: first not offered any more, then, unread, removed
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from vfs.checkpoints.manifest import ManifestFile
from vfs.foresight.model import Checkpoint, FileCopy, Phase, ReplicaRecord


class Step(enum.StrEnum):
    """What one look asks for."""

    WAIT = "wait"
    COPY = "copy"
    VERIFY = "verify"
    PUBLISH = "publish"
    EXPIRE = "expire"
    AGAIN = "again"
    """Back to copying: it is wanted again, or was verified for another save."""
    DROP = "drop"
    FORGET = "forget"


class Origin(enum.StrEnum):
    """What the origin has of what was copied."""

    UNKNOWN = "unknown"
    WHOLE = "whole"
    GONE = "gone"
    """Nothing at all, and it said so: it was deleted, and the copies have to follow."""
    DAMAGED = "damaged"
    """Some of it is gone or another version: this may be the last good copy."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica as it was found.

    Attributes:
        wanted: its hint lives, its mechanism is on, and it has not outlived what it may.
        why: it is not, for people.
        checkpoint: None: nothing is known of it.
        files: that are complete at the origin and belong into the copy, by path; None where no step depends on them.
        count: of those that belong into it, once all are there.
        copies: that were verified at the destination, by path; None likewise.
        is_open: somebody reads from it, or has not said that they stopped.
        rested: long enough since it was last offered that everybody has heard so.
        spent: it has lived as long as it may, while its hint lives on: it is not made anew.
        origin: asked only where a drop depends on it.
    """

    replica: ReplicaRecord
    wanted: bool
    why: str = ""
    checkpoint: Checkpoint | None = None
    files: Mapping[str, ManifestFile] | None = None
    count: int = 0
    copies: Mapping[str, FileCopy] | None = None
    is_open: bool = False
    rested: bool = False
    spent: bool = False
    origin: Origin = Origin.UNKNOWN


@dataclass(frozen=True, slots=True)
class Next:
    """A step, and why. `files` are those to be copied."""

    step: Step
    why: str = ""
    files: tuple[ManifestFile, ...] = ()


def next_step(seen: Seen) -> Next:
    """Return what is to be done now."""
    return _towards(seen) if seen.wanted else _away(seen)


def missing(seen: Seen) -> tuple[ManifestFile, ...]:
    """Return the files that are complete at the origin and not, in this version, at the destination; by path."""
    copies = seen.copies or {}
    files = sorted((seen.files or {}).items())
    return tuple(file for path, file in files if path not in copies or not is_of(copies[path], file))


def may_be_last(seen: Seen) -> bool:
    """Return whether this could be the only good copy left: it is complete, and of the save that the checkpoint still is."""
    save_id = seen.replica.save_id
    return bool(save_id and seen.copies) and (seen.checkpoint is None or seen.checkpoint.save_id == save_id)


def is_of(copy: FileCopy, file: ManifestFile) -> bool:
    """Return whether a copy was made of this version of a file, as far as its digest is known with this digest."""
    if (copy.origin_at, copy.origin) != (file.at, file.version):
        return False
    return not file.digest or bool(copy.ranges) or copy.digest == file.digest


def _towards(seen: Seen) -> Next:
    replica, save_id = seen.replica, seen.checkpoint.save_id if seen.checkpoint is not None else ""
    match replica.phase:
        case Phase.REFUSED:
            return Next(Step.WAIT, replica.reason)
        case Phase.DROPPED:
            return Next(Step.FORGET, "it is wanted anew")
        case Phase.EXPIRING:
            return Next(Step.AGAIN, "it is wanted again")
        case Phase.PUBLISHED:
            return Next(Step.WAIT) if replica.save_id == save_id else Next(Step.EXPIRE, "the checkpoint is saved anew")
        case Phase.VERIFIED if replica.save_id == save_id and not missing(seen):
            return Next(Step.PUBLISH)
        case Phase.VERIFIED:
            return Next(Step.AGAIN, "the checkpoint is saved anew")
    if files := missing(seen):
        return Next(Step.COPY, files=files)
    if not save_id:
        return Next(Step.WAIT, "the checkpoint is not committed")
    if len(seen.files or ()) < seen.count:
        return Next(Step.WAIT, "not all files of the checkpoint are known")
    return Next(Step.VERIFY)


def _away(seen: Seen) -> Next:
    match seen.replica.phase:
        case Phase.DROPPED if seen.spent:
            return Next(Step.WAIT, seen.why)
        case Phase.DROPPED:
            return Next(Step.FORGET, seen.why)
        case Phase.EXPIRING if not seen.rested:
            return Next(Step.WAIT, "it was offered a moment ago")
        case Phase.EXPIRING if seen.is_open:
            return Next(Step.WAIT, "it is being read")
        case Phase.EXPIRING if not may_be_last(seen):
            return Next(Step.DROP, seen.why)
        case Phase.EXPIRING if seen.origin is Origin.UNKNOWN:
            return Next(Step.WAIT, "the origin can't be asked whether it still has it")
        case Phase.EXPIRING if seen.origin is Origin.DAMAGED:
            return Next(Step.WAIT, "the origin has not all of it any more: this may be the last good copy")
        case Phase.EXPIRING:
            return Next(Step.DROP, seen.why)
    return Next(Step.EXPIRE, seen.why)
