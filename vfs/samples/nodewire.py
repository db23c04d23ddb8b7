"""What agents say to a node service, as JSON over HTTPS. Read first by both sides.

Pure: no I/O, no clock. All calls carry `Authorization: Bearer TOKEN`; all but GET need the role "operate".

    PUT    /v1/jobs/JOB                          body `Told`: the job, and how far it is. May be repeated.
    DELETE /v1/jobs/JOB                          forget it and all that was prepared.
    GET    /v1/jobs/JOB/steps/STEP/ranks/RANK    the group, in the frames of `vfs/samples/stream.py`, each sample once, as it
                                                 gets ready. What is not ready when progress reaches STEP is sent raw.
    GET    /v1/status                            `dict` of facts, and /metrics for Prometheus.

No call names a sample: the node reads the schedule and the raw bytes itself.
"""

from __future__ import annotations

import msgspec

from vfs.model import LakePath

JOB = "/v1/jobs/{job}"
GROUP = "/v1/jobs/{job}/steps/{step}/ranks/{rank}"
STATUS = "/v1/status"
METRICS = "/metrics"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The job and its progress, and nothing else.

    Attributes:
        declaration: lake path of the job's TOML document; "" where `text` is the document itself, and paths in it start
            from `directory`.
        step: the step being consumed, -1: none yet. One that is lower than what was told before changes nothing.
        ranks: those whose groups the caller will fetch; empty: all. What several callers tell is added up.
    """

    declaration: LakePath = LakePath("")
    text: str = ""
    directory: LakePath = LakePath("")
    step: int = -1
    ranks: tuple[int, ...] = ()
