"""Whether a node may transform now: it stands beside a store that others need more.

Pure: no I/O, no clock. Asked when a group is accepted, and again just before each transform starts; what runs when the answer
turns to no is aborted, and raw bytes go out at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from vfs.samples.model import Reason

_START_CPUS = 0.25
"""Room that has to be there before something starts, so that a load at the limit does not start and abort in turns."""


@dataclass(frozen=True, slots=True)
class Load:
    """The host as it is now.

    Attributes:
        cpus: that this process may use.
        others_cpus: of them, how many are busy with something else than our transforms; 1.0 is one core.
        memory_free: available memory, as a share of all.
        egress: bytes a second that leave this process.
        queued: bytes of transformed samples that wait to be fetched, with those being made.
    """

    cpus: int
    others_cpus: float = 0.0
    memory_free: float = 1.0
    egress: float = 0.0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a node may take.

    Attributes:
        cpu: of all cores, the share that others may use before transforms stop; 0: no bound.
        memory_free: they stop below this share.
        egress: bytes a second, 0: no bound.
        queue: bytes.
        job_cpus: cores that one job's transforms may use on average, 0: no bound.
        job_queue: bytes of one job in the queue, 0: the queue is divided evenly.
    """

    cpu: float = 0.8
    memory_free: float = 0.1
    egress: int = 0
    queue: int = 2 << 30
    job_cpus: float = 0.0
    job_queue: int = 0


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one job takes now: cores on average, bytes in the queue; `jobs` share the node."""

    cpus: float = 0.0
    queued: int = 0
    jobs: int = 1


def stop(load: Load, bounds: Bounds) -> Reason | None:
    """Return why no transform may run now, not even one that has begun; None: they may."""
    if bounds.cpu and load.others_cpus >= bounds.cpu * load.cpus:
        return Reason.CPU
    if load.memory_free < bounds.memory_free:
        return Reason.MEMORY
    return None


def refuse(load: Load, bounds: Bounds, use: JobUse, *, raw_bytes: int, made_bytes: int) -> Reason | None:
    """Return why this transform may not begin now; None: it may.

    Args:
        raw_bytes: of the sample.
        made_bytes: that will probably come out.
    """
    if (reason := stop(load, bounds)) is not None:
        return reason
    if bounds.cpu and bounds.cpu * load.cpus - load.others_cpus < min(_START_CPUS, bounds.cpu * load.cpus / 2):
        return Reason.CPU
    if bounds.egress and load.egress > bounds.egress and made_bytes > raw_bytes:
        return Reason.EGRESS
    if load.queued + made_bytes > bounds.queue:
        return Reason.QUEUE
    if bounds.job_cpus and use.cpus >= bounds.job_cpus:
        return Reason.QUOTA
    if use.queued + made_bytes > job_queue(bounds, use.jobs):
        return Reason.QUOTA
    return None


def job_queue(bounds: Bounds, jobs: int) -> int:
    """Return how many bytes of the queue one of so many jobs may take."""
    return bounds.job_queue or bounds.queue // max(1, jobs)


def seats(load: Load, bounds: Bounds, most: int) -> int:
    """Return how many transforms may run at once: as many cores as the others leave, one at least while any may."""
    if stop(load, bounds) is not None:
        return 0
    if not bounds.cpu:
        return most
    return max(1, min(most, int(bounds.cpu * load.cpus - load.others_cpus)))
