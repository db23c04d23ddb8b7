"""In which form a sample is given to a reader who looks it up now.

Pure: no I/O, no clock. The answer holds for the inode that it becomes; asked again later it may be another.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vfs.samples.jobs import Fallback
from vfs.samples.model import Form, Reason, Sample

FINAL = frozenset(
    (Reason.REFUSED, Reason.UNIDENTIFIED, Reason.FAILED, Reason.CRASHED, Reason.TIME, Reason.OUTPUT, Reason.NO_OPERATOR)
)
"""What is raw for these reasons would be so again: the same operator on the same bytes."""


class Way(enum.StrEnum):
    """What to do."""

    READY = "ready"
    RAW = "raw"
    WAIT = "wait"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why it is raw where it is."""

    way: Way
    reason: Reason | None = None


def decide(
    sample: Sample,
    here: Form | None,
    reason: Reason,
    fallback: Fallback,
    *,
    may_wait: bool,
    is_coming: bool,
    has_engine: bool,
) -> Decision:
    """Return what a reader gets.

    Args:
        here: in which form it was prepared, None: it was not.
        reason: why it is not transformed, if it is not.
        may_wait: it is wanted now; False: a directory is listed, which costs no transform.
        is_coming: its group is on its way.
        has_engine: this host can run operators.
    """
    if not sample.operator:
        return Decision(Way.RAW, Reason.NO_OPERATOR)
    if here is Form.TRANSFORMED:
        return Decision(Way.READY)
    if fallback == "local" and may_wait and has_engine and (here is None or reason not in FINAL):
        return Decision(Way.LOCAL, reason)
    if fallback == "wait" and may_wait and is_coming and here is None:
        return Decision(Way.WAIT, reason)
    return Decision(Way.RAW, reason)
