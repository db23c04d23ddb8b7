"""What training tells ahead, what is predicted from it, and which copies follow. Read first.

Pure: no I/O, no clock.

Times in ns are the wall clock of the controller that wrote them, for people to read and for durations that one controller
measured; nothing is decided by comparing the clocks of two hosts. What ends after a while carries a time to live (`ttl_s`),
which the store counts.
"""

from __future__ import annotations

import enum
from typing import NewType

import msgspec
import xxhash

from vfs.checkpoints.manifest import ManifestFile
from vfs.model import LakePath, SiteName, SitePath, Version

JobName = NewType("JobName", str)
HintId = NewType("HintId", str)
ReplicaId = NewType("ReplicaId", str)


class Mechanism(enum.StrEnum):
    """What can be switched on and off, limited and accounted for alone."""

    CHECKPOINTS = "checkpoints"
    """Copies of a checkpoint at the site where it will be evaluated or restarted from."""
    HOT_FILES = "hot_files"
    """More copies of what many ranks read at once."""
    SAMPLES = "samples"
    """Samples that are transformed before their step."""


class Labels(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Duties that travel with a checkpoint.

    Attributes:
        residency: regions that may hold copies; empty: all.
        encrypted: copies must lie on encrypted storage.
        retain_s: copies may not live longer; 0: no limit.
        with_origin: copies are deleted when what they are of is deleted at its origin, wanted or not.
    """

    residency: tuple[str, ...] = ()
    encrypted: bool = False
    retain_s: float = 0.0
    with_origin: bool = False


# --- events: what training and the mounts say ------------------------------------------------------------------------


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a job divides a model. The product is the world size where all are stated."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


class TensorRanks(msgspec.Struct, frozen=True, array_like=True):
    """Which ranks read a tensor.

    Attributes:
        ranks: (start, end, step), end exclusive: (0, 2048, 1) are all of 2,048, (3, 2048, 8) every eighth from the third on.
    """

    tensor: str
    ranks: tuple[tuple[int, int, int], ...]


class HotRange(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file that many read at once; length 0 is the whole file."""

    path: LakePath
    offset: int = 0
    length: int = 0
    readers: int = 1


class JobSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="job_submitted"):
    """A job will start.

    Attributes:
        checkpoint: directory it will load, "" for none.
        site: where it runs, "" where that is not known.
        parameters: of the model.
        importance: of the job among the others, 0 to 1.
        data_mix: name or digest of the mixture of data; when it changes, so do the evaluations.
        evaluate_every: steps between evaluations, 0: not said.
        evaluation_sites: where those run.
        evaluation_s: how long one takes, 0: not said.
        starts_in_s: seconds from now to its first read.
    """

    world_size: int
    plan: ParallelPlan = ParallelPlan()
    tensors: tuple[TensorRanks, ...] = ()
    checkpoint: LakePath = LakePath("")
    site: SiteName = SiteName("")
    parameters: float = 0.0
    importance: float = 0.5
    data_mix: str = ""
    evaluate_every: int = 0
    evaluation_sites: tuple[SiteName, ...] = ()
    evaluation_s: float = 0.0
    starts_in_s: float = 0.0


class SaveBegun(msgspec.Struct, frozen=True, kw_only=True, tag="save_begun"):
    """The first byte of a checkpoint is about to be written.

    Attributes:
        labels: duties that travel with it; None: those of the policy.
    """

    step: int
    path: LakePath
    labels: Labels | None = None


class FileClosed(msgspec.Struct, frozen=True, kw_only=True, tag="file_closed"):
    """A file of a checkpoint is complete at its origin.

    Attributes:
        path: directory of the checkpoint.
        file: its path is relative to that.
    """

    path: LakePath
    file: ManifestFile


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag="committed"):
    """A checkpoint's marker is at the origin, and all that it covers.

    Attributes:
        files: all of them, the marker last.
        labels: as in `SaveBegun`; what was stated there holds too.
    """

    step: int
    path: LakePath
    save_id: str
    marker: str
    files: tuple[ManifestFile, ...]
    labels: Labels | None = None


class EvaluationScheduled(msgspec.Struct, frozen=True, kw_only=True, tag="evaluation_scheduled"):
    """An evaluation will read the checkpoint of a step.

    Attributes:
        evaluation: its name within the job; scheduled again, it replaces what was said before.
        path: directory of the checkpoint, "" while it is not known.
        starts_in_s: seconds from now.
        urgent: a person or an alarm waits for it.
    """

    evaluation: str
    step: int
    site: SiteName
    path: LakePath = LakePath("")
    starts_in_s: float = 0.0
    urgent: bool = False


class EvaluationStarted(msgspec.Struct, frozen=True, kw_only=True, tag="evaluation_started"):
    """It reads from now on."""

    evaluation: str
    step: int
    site: SiteName
    path: LakePath = LakePath("")


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True, tag="evaluation_result"):
    """It is done: its copies are not needed any more."""

    evaluation: str
    step: int
    site: SiteName


class EvaluationCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="evaluation_cancelled"):
    """It will not take place."""

    evaluation: str
    step: int
    site: SiteName


class Restarted(msgspec.Struct, frozen=True, kw_only=True, tag="restarted"):
    """The job goes on from a checkpoint; what it saved after that is not read again.

    Attributes:
        step: of the checkpoint.
        data_mix: "" for unchanged.
    """

    step: int
    path: LakePath = LakePath("")
    world_size: int = 0
    data_mix: str = ""


class Anomaly(msgspec.Struct, frozen=True, kw_only=True, tag="anomaly"):
    """Training looks wrong: what is evaluated next is urgent.

    Attributes:
        loss_spike: by how many standard deviations the loss left its recent mean, 0 or more.
        gradient_norm: the same of the gradients' norm.
    """

    step: int
    loss_spike: float = 0.0
    gradient_norm: float = 0.0


class HotFiles(msgspec.Struct, frozen=True, kw_only=True, tag="hot_files"):
    """Many will read the same bytes at once: `SetReplicationHints`.

    Attributes:
        path: directory of the checkpoint that they belong to.
        site: where the readers are.
        ttl_s: the copies are not needed any more after this.
    """

    path: LakePath
    site: SiteName
    ranges: tuple[HotRange, ...]
    starts_in_s: float = 0.0
    ttl_s: float = 3600.0


class HintCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="hint_cancelled"):
    """Somebody takes a hint back, and its copies with it."""

    hint: HintId
    why: str = ""


class CheckpointDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint_deleted"):
    """A checkpoint, or a directory of several, was deleted at its origin: its copies have to follow."""

    path: LakePath


class ReplicaReads(msgspec.Struct, frozen=True, kw_only=True, tag="replica_reads"):
    """What a mount read from a replica since it said so last.

    Attributes:
        bytes_used: of them, those that it read for the first time.
        fallbacks: reads that had to go to the origin all the same.
        saved_s: what its readers did not wait, from its control reads.
    """

    hint: HintId
    bytes_served: int
    bytes_used: int = 0
    fallbacks: int = 0
    saved_s: float = 0.0


Happening = (
    JobSubmitted
    | SaveBegun
    | FileClosed
    | Committed
    | EvaluationScheduled
    | EvaluationStarted
    | EvaluationResult
    | EvaluationCancelled
    | Restarted
    | Anomaly
    | HotFiles
    | HintCancelled
    | CheckpointDeleted
    | ReplicaReads
)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that one source says about one job.

    Attributes:
        id: unique; an event that comes again under its id changes nothing.
        source: who counts `seq`: "trainer", or the name of a mount.
        seq: counts up by one within (job, source) from 1; 0: in no order with others.
        at_ns: the sender's clock: orders what this source says without a number, and is compared with nobody else's.
    """

    id: str
    job: JobName
    what: Happening
    source: str = ""
    seq: int = 0
    at_ns: int = 0


# --- hints: what is predicted ----------------------------------------------------------------------------------------


class Urgency(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a priority is made of (`vfs/foresight/priority.py`).

    Attributes:
        parameters: of the model, 0: not known.
        importance: of the job, 0 to 1.
        severity: of what looks wrong, 0 (nothing) to 1.
        urgent: somebody waits.
    """

    parameters: float = 0.0
    importance: float = 0.5
    severity: float = 0.0
    urgent: bool = False


class Hint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prediction: these bytes will be read at this site.

    Attributes:
        path: directory of the checkpoint, or what the hot files have in common.
        step: of training, -1: none.
        site: where they will be read.
        why: for people: the rule and what it rests on.
        confidence: 0 to 1.
        ttl_s: lives so long from when it was stored last, whatever happens.
        made_ns: when it was predicted first.
        evaluation: it is made for, "" for none.
        hot: with HOT_FILES: what is hot.
        world_size: with HOT_FILES: ranks of the job from whose plan it follows what is hot, once the checkpoint's files are
            known (`vfs/foresight/hot.py`); 0: it stands in `hot`.
        starts_in_s: seconds from `made_ns` to the first read.
        shadow: nothing is copied for it; the ledger sees whether it would have been of use.
    """

    id: HintId
    job: JobName
    mechanism: Mechanism
    path: LakePath
    site: SiteName
    why: str
    confidence: float
    ttl_s: float
    step: int = -1
    evaluation: str = ""
    urgency: Urgency = Urgency()
    labels: Labels = Labels()
    hot: tuple[HotRange, ...] = ()
    world_size: int = 0
    starts_in_s: float = 0.0
    made_ns: int = 0
    shadow: bool = False


# --- copies: what follows from hints ---------------------------------------------------------------------------------


class Phase(enum.StrEnum):
    """How far a replica is. Mounts read from it while it is PUBLISHED, and at no other time."""

    DESIRED = "desired"
    COPYING = "copying"
    VERIFIED = "verified"
    PUBLISHED = "published"
    EXPIRING = "expiring"
    """Not offered any more; the bytes stay until nobody has it open."""
    DROPPED = "dropped"
    REFUSED = "refused"
    """Governance, a quota or the destination said no; `reason` says which rule."""


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of one checkpoint, or of hot bytes, at one site: published and dropped as a whole.

    Attributes:
        path: directory of the checkpoint or one file.
        root: path at the site under which the copy lies.
        save_id: of the checkpoint that was committed; "" until then. A published replica has one.
        files, bytes: that have been copied and verified.
        hot: with HOT_FILES: the bytes that are multiplied.
        count: with HOT_FILES at a site that multiplies by itself (HDFS): copies that it is to hold in all; else 1.
        expires_in_s: seconds that it stays after it was published, 0: as long as its hint lives.
        reason: why it is where it is, for people.
        attempts: that failed one after another.
        priority: as `vfs/foresight/priority.py` gave it, higher is sooner.
    """

    id: ReplicaId
    hint: HintId
    job: JobName
    mechanism: Mechanism
    path: LakePath
    site: SiteName
    root: SitePath
    phase: Phase
    step: int = -1
    save_id: str = ""
    files: int = 0
    bytes: int = 0
    labels: Labels = Labels()
    priority: float = 0.0
    hot: tuple[HotRange, ...] = ()
    count: int = 1
    expires_in_s: float = 0.0
    reason: str = ""
    attempts: int = 0
    made_ns: int = 0
    ready_ns: int = 0
    published_ns: int = 0


class FileCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a replica, verified at its destination.

    Attributes:
        path: relative to the replica's path; "" where the replica is of one file.
        digest: of the whole file (`object_digest`), or of the ranges one after another.
        origin_at, origin: where the bytes came from, and their version there.
        at, version: where the copy lies at its site, and its version there.
        ranges: (offset, length) that were copied, one after another in the copy; empty: the whole file.
        count_before: where the site multiplies by itself: copies that it kept before, to be gone back to; else 0.
        cpu_s: of the process that made it (`transfers.share_of_cpu_s`).
    """

    path: str
    size: int
    digest: str
    origin_at: SitePath
    origin: Version
    at: SitePath
    version: Version
    ranges: tuple[tuple[int, int], ...] = ()
    count_before: int = 0
    cpu_s: float = 0.0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a checkpoint at its origin. Its files are kept one by one, as they are closed.

    Attributes:
        save_id: "" until it is committed, and again when it is being saved anew.
        files: that it consists of, once it is committed.
    """

    path: LakePath
    job: JobName
    step: int
    save_id: str = ""
    files: int = 0
    bytes: int = 0
    labels: Labels | None = None
    begun_ns: int = 0
    committed_ns: int = 0


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """That a copy was removed, for whoever has to prove it.

    Attributes:
        files, bytes, digest: what it consisted of; the digest is of the paths at the site and the files' digests.
        gone: files that were removed and then asked for and not found, what a copy that was broken off had left among them.
        by: the controller.
        signature: by the first secret of the controller, over all of the above; "" where it has none.
    """

    replica: ReplicaId
    hint: HintId
    job: JobName
    mechanism: Mechanism
    path: LakePath
    site: SiteName
    root: SitePath
    save_id: str
    files: int
    bytes: int
    digest: str
    gone: int
    why: str
    made_ns: int
    deleted_ns: int
    by: str
    signature: str = ""


# --- the ledger ------------------------------------------------------------------------------------------------------


class Outcome(enum.StrEnum):
    """What became of a prediction."""

    OPEN = "open"
    HIT = "hit"
    """What was predicted was read, and the copy was ready."""
    LATE = "late"
    """It was read before the copy was ready: the remote path served it."""
    MISS = "miss"
    """It lived out its time and nobody came."""
    WITHDRAWN = "withdrawn"
    """Contradicted before anybody came."""
    REFUSED = "refused"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one hint was worth and what it cost.

    Attributes:
        lead_s: from the copy being ready to its first read; negative: late by so much.
        bytes_prepared, bytes_used: copied, and read from the copy at least once.
        bytes_served: read from the copy, however often.
        fallbacks: reads that had to take the remote path although there was a copy.
        wan_bytes, byte_hours, cpu_s: cost.
        saved_s: waiting that readers did not have, from control reads (docs/foresight.md).
        shadow: nothing was copied for it.
    """

    hint: HintId
    job: JobName
    mechanism: Mechanism
    path: LakePath
    site: SiteName
    step: int = -1
    evaluation: str = ""
    outcome: Outcome = Outcome.OPEN
    made_ns: int = 0
    committed_ns: int = 0
    ready_ns: int = 0
    started_ns: int = 0
    result_ns: int = 0
    ended_ns: int = 0
    lead_s: float = 0.0
    bytes_prepared: int = 0
    bytes_used: int = 0
    bytes_served: int = 0
    fallbacks: int = 0
    wan_bytes: int = 0
    byte_hours: float = 0.0
    cpu_s: float = 0.0
    saved_s: float = 0.0
    shadow: bool = False


# --- names -----------------------------------------------------------------------------------------------------------


def hint_id(job: JobName, mechanism: Mechanism, path: LakePath, step: int, site: SiteName) -> HintId:
    """Return the name of a prediction: who predicts the same again gets the same hint."""
    return HintId(_name(job, mechanism, path, str(step), site))


def replica_id(hint: HintId, path: LakePath, site: SiteName, root: SitePath) -> ReplicaId:
    """Return the name of a copy: made again for the same hint at the same place, it is the same record."""
    return ReplicaId(_name(hint, path, site, root))


def _name(*fields: str) -> str:
    """Source: XXH3-64 of the fields joined by NUL, 16 hex digits; 10**6 names collide with a chance of 3e-8."""
    return xxhash.xxh3_64_hexdigest("\0".join(fields).encode("utf-8", "surrogateescape"))
