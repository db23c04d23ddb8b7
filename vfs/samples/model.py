"""What a scheduled sample is, and what became of it. Read first.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from vfs.model import LakePath


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One line of a schedule: which bytes one slot of one rank reads in one step, and what is to be made of them.

    Attributes:
        job: name of the job, one path component.
        step, rank, slot: 0-based; (step, rank, slot) is unique within a job.
        sample_id: the data set's own name of the sample, one path component.
        source: file in the lake that holds the raw bytes.
        offset, length: of the raw bytes in it.
        operator: "name" or "name@version"; "" leaves the bytes as they are.
        params: of the operator, canonical JSON (sorted keys, no blanks); "" where there is no operator.
        seed: of everything random in the operator.
        dataset_version: whatever the feed calls the state of the data set; "" where it tells none.
        more: further (offset, length) of `source` that follow: tokens of one sample may come from several documents.
    """

    job: str
    step: int
    rank: int
    slot: int
    sample_id: str
    source: LakePath
    offset: int
    length: int
    operator: str = ""
    params: str = ""
    seed: int = 0
    dataset_version: str = ""
    more: tuple[tuple[int, int], ...] = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return where the raw bytes lie, in their order."""
        return ((self.offset, self.length), *self.more)

    @property
    def raw_size(self) -> int:
        """Return how many raw bytes there are."""
        return self.length + sum(length for _, length in self.more)


class Form(enum.StrEnum):
    """What the bytes of a sample file are."""

    RAW = "raw"
    TRANSFORMED = "transformed"


class Reason(enum.StrEnum):
    """Why a sample is raw; none where it is transformed, or where nothing was to be made of it."""

    NO_OPERATOR = "no operator"
    LATE = "late"
    CPU = "cpu"
    QUEUE = "queue"
    MEMORY = "memory"
    EGRESS = "egress"
    QUOTA = "quota"
    FAILED = "failed"
    CRASHED = "crashed"
    TIME = "time limit"
    OUTPUT = "output over its declaration"
    REFUSED = "operator refused"
    UNIDENTIFIED = "identity incomplete"
    NODE_LOST = "node lost"


def hit_ratio(transformed: int, raw: Mapping[Reason, int]) -> float:
    """Return which share of the samples of which something was to be made went out transformed; 0.0 where there were none."""
    wanted = transformed + sum(count for reason, count in raw.items() if reason != Reason.NO_OPERATOR)
    return transformed / wanted if wanted else 0.0


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What travels before the bytes of one sample, and says what they are.

    Attributes:
        step, rank, slot: as scheduled.
        form: of the bytes.
        extension: of the file name, without the dot, e.g. "npy".
        size: of the bytes that follow.
        digest: XXH3-128 of them, hexadecimal.
        provenance: the identity as canonical JSON (`vfs/samples/identity.py`): data set version, raw range and its digest,
            operator and library versions, params, seed; "" where it is not known.
        reason: why it is raw, else None.
    """

    step: int
    rank: int
    slot: int
    form: Form
    extension: str
    size: int
    digest: str
    provenance: str = ""
    reason: Reason | None = None
