"""What predictions were worth: how a line changes, and what a job's lines come to.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from vfs.foresight.model import Hint, JobName, LedgerEntry, Mechanism, Outcome, ReplicaReads, ReplicaRecord

_HOUR_NS = 3600e9


def begun(entry: LedgerEntry | None, hint: Hint, now_ns: int) -> LedgerEntry:
    """Return the line of a hint that was made, or made again."""
    if entry is not None and entry.outcome is not Outcome.WITHDRAWN:
        return entry
    return LedgerEntry(
        hint=hint.id,
        job=hint.job,
        mechanism=hint.mechanism,
        path=hint.path,
        site=hint.site,
        step=hint.step,
        evaluation=hint.evaluation,
        made_ns=now_ns,
        shadow=hint.shadow,
    )


def committed(entry: LedgerEntry, committed_ns: int) -> LedgerEntry:
    """Return the line once its checkpoint is committed."""
    return msgspec.structs.replace(entry, committed_ns=committed_ns)


def published(entry: LedgerEntry, now_ns: int) -> LedgerEntry:
    """Return the line once a copy can be read."""
    return msgspec.structs.replace(entry, ready_ns=now_ns)


def prepared(entry: LedgerEntry, size: int, wan_bytes: int, cpu_s: float) -> LedgerEntry:
    """Return the line after bytes were copied."""
    return msgspec.structs.replace(
        entry,
        bytes_prepared=entry.bytes_prepared + size,
        wan_bytes=entry.wan_bytes + wan_bytes,
        cpu_s=entry.cpu_s + cpu_s,
    )


def started(entry: LedgerEntry, evaluation: str, now_ns: int) -> LedgerEntry:
    """Return the line when somebody came: in time if a copy is ready, late if not."""
    if entry.started_ns:
        return entry
    ready = entry.ready_ns > 0
    return msgspec.structs.replace(
        entry,
        evaluation=entry.evaluation or evaluation,
        started_ns=now_ns,
        outcome=Outcome.HIT if ready or entry.shadow else Outcome.LATE,
        lead_s=(now_ns - entry.ready_ns) / 1e9 if ready else 0.0,
    )


def ended(entry: LedgerEntry, outcome: Outcome | None, now_ns: int, *, result: bool = False) -> LedgerEntry:
    """Return the line when its hint is gone.

    Args:
        outcome: where nobody came; None: its time ran out.
        result: an evaluation has delivered.
    """
    judged = entry.started_ns or entry.outcome is Outcome.REFUSED
    kept = entry.outcome if judged else outcome or Outcome.MISS
    return msgspec.structs.replace(entry, outcome=kept, ended_ns=now_ns, result_ns=now_ns if result else entry.result_ns)


def dropped(entry: LedgerEntry, replica: ReplicaRecord, now_ns: int) -> LedgerEntry:
    """Return the line after a copy was removed: how long its bytes lay there."""
    hours = max(0, now_ns - replica.made_ns) / _HOUR_NS
    return msgspec.structs.replace(entry, byte_hours=entry.byte_hours + replica.bytes * hours)


def read_from(entry: LedgerEntry, reads: ReplicaReads, now_ns: int) -> LedgerEntry:
    """Return the line after a mount told what it has read."""
    entry = msgspec.structs.replace(
        entry,
        bytes_served=entry.bytes_served + reads.bytes_served,
        bytes_used=min(entry.bytes_prepared, entry.bytes_used + reads.bytes_used),
        fallbacks=entry.fallbacks + reads.fallbacks,
        saved_s=entry.saved_s + reads.saved_s,
    )
    return started(entry, "", now_ns) if reads.bytes_served else entry


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines of one job and mechanism come to.

    Attributes:
        hit_rate: share of those that are over, and were neither withdrawn nor refused, for which somebody came; -1: none yet.
        shadow: of the predictions, those that nothing was copied for, because too few before them had come true.
        lead_s: median of those that were ready in time.
        bytes_unused: prepared, and the hint is over, and nobody has read them.
    """

    job: JobName
    mechanism: Mechanism
    predictions: int
    open: int
    hits: int
    late: int
    misses: int
    withdrawn: int
    refused: int
    shadow: int
    hit_rate: float
    lead_s: float
    ready_after_commit_s: float
    bytes_prepared: int
    bytes_unused: int
    bytes_served: int
    fallbacks: int
    wan_bytes: int
    byte_hours: float
    cpu_s: float
    saved_s: float


def accounts(entries: Iterable[LedgerEntry]) -> list[Account]:
    """Return one account for each job and mechanism, by name."""
    groups: dict[tuple[JobName, Mechanism], list[LedgerEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.job, entry.mechanism), []).append(entry)
    return [_account(job, mechanism, groups[job, mechanism]) for job, mechanism in sorted(groups)]


def _account(job: JobName, mechanism: Mechanism, entries: list[LedgerEntry]) -> Account:
    count = {outcome: sum(entry.outcome is outcome for entry in entries) for outcome in Outcome}
    came = count[Outcome.HIT] + count[Outcome.LATE]
    judged = came + count[Outcome.MISS]
    return Account(
        job=job,
        mechanism=mechanism,
        predictions=len(entries),
        open=count[Outcome.OPEN],
        hits=count[Outcome.HIT],
        late=count[Outcome.LATE],
        misses=count[Outcome.MISS],
        withdrawn=count[Outcome.WITHDRAWN],
        refused=count[Outcome.REFUSED],
        shadow=sum(entry.shadow for entry in entries),
        hit_rate=came / judged if judged else -1.0,
        lead_s=_median([entry.lead_s for entry in entries if entry.outcome is Outcome.HIT and entry.ready_ns]),
        ready_after_commit_s=_median(
            [(entry.ready_ns - entry.committed_ns) / 1e9 for entry in entries if entry.ready_ns and entry.committed_ns]
        ),
        bytes_prepared=sum(entry.bytes_prepared for entry in entries),
        bytes_unused=sum(entry.bytes_prepared - entry.bytes_used for entry in entries if entry.ended_ns),
        bytes_served=sum(entry.bytes_served for entry in entries),
        fallbacks=sum(entry.fallbacks for entry in entries),
        wan_bytes=sum(entry.wan_bytes for entry in entries),
        byte_hours=sum(entry.byte_hours for entry in entries),
        cpu_s=sum(entry.cpu_s for entry in entries),
        saved_s=sum(entry.saved_s for entry in entries),
    )


def _median(values: list[float]) -> float:
    return median(values) if values else 0.0
