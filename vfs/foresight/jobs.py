"""What is remembered of a job: as much as predictions rest on, and no more.

Pure: no I/O, no clock. Kept in the store as one record for each job; every list is bounded.
"""

from __future__ import annotations

import msgspec

from vfs.foresight.model import Anomaly, Hint, HintId, JobName, JobSubmitted, Mechanism
from vfs.model import LakePath, SiteName

SAVES_MAX = 32
EXPECTED_MAX = 256
PAST_MAX = 64
OUTCOMES_MAX = 16
HINTS_MAX = 40
"""Open at a time: all of them can be withdrawn in one write of the store, each with its line in the ledger."""
SOURCES_MAX = 1024


class Save(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint that the job began to write. `save_id` is "" until it is committed; `by`: whose clock it was."""

    step: int
    path: LakePath
    begun_ns: int
    committed_ns: int = 0
    save_id: str = ""
    by: str = ""


class Expected(msgspec.Struct, frozen=True, array_like=True):
    """An evaluation that was announced or has begun.

    Attributes:
        site: "" nowhere in particular.
        path: of the checkpoint, "" while nobody has said.
    """

    evaluation: str
    step: int
    site: SiteName
    path: LakePath
    urgent: bool = False
    started: bool = False


class Past(msgspec.Struct, frozen=True, array_like=True):
    """An evaluation that took place: `lead_s` from the begin of the save to its start, 0: not known."""

    site: SiteName
    step: int
    lead_s: float = 0.0


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes:
        sequences: of each source, the number of the last event that was taken in.
        saves: by step, ascending.
        hints: that are open.
        used: of these, those for which somebody came.
        anomaly: that no evaluation has answered yet.
        outcomes: of the last predictions of each mechanism, latest last: whether somebody came.
        unpredicted: evaluations that nothing had predicted.
    """

    job: JobName
    submitted: JobSubmitted | None = None
    sequences: dict[str, int] = {}
    saves: tuple[Save, ...] = ()
    expected: tuple[Expected, ...] = ()
    past: tuple[Past, ...] = ()
    hints: tuple[Hint, ...] = ()
    used: tuple[HintId, ...] = ()
    data_mix: str = ""
    anomaly: Anomaly | None = None
    outcomes: dict[Mechanism, tuple[bool, ...]] = {}
    unpredicted: int = 0

    def save_of(self, step: int) -> Save | None:
        """Return the checkpoint of a step."""
        return next((save for save in self.saves if save.step == step), None)

    def hint(self, hint: HintId) -> Hint | None:
        """Return an open hint."""
        return next((each for each in self.hints if each.id == hint), None)


def with_save(job: JobState, save: Save) -> JobState:
    """Return the job with this checkpoint in place of the one of its step."""
    others = [each for each in job.saves if each.step != save.step]
    saves = tuple(sorted([*others, save], key=lambda each: each.step)[-SAVES_MAX:])
    return msgspec.structs.replace(job, saves=saves)


def with_hint(job: JobState, hint: Hint) -> JobState:
    """Return the job with this hint in place of the one of its name."""
    hints = (*(each for each in job.hints if each.id != hint.id), hint)[-HINTS_MAX:]
    return msgspec.structs.replace(job, hints=hints)


def without_hint(job: JobState, hint: HintId, came: bool | None) -> JobState:
    """Return the job without a hint.

    Args:
        came: whether somebody came for it; None says nothing for or against the predictions.
    """
    gone = job.hint(hint)
    if gone is None:
        return job
    outcomes = job.outcomes
    if came is not None:
        outcomes = {
            **outcomes,
            gone.mechanism: (*outcomes.get(gone.mechanism, ()), came)[-OUTCOMES_MAX:],
        }
    return msgspec.structs.replace(
        job,
        hints=tuple(each for each in job.hints if each.id != hint),
        used=tuple(each for each in job.used if each != hint),
        outcomes=outcomes,
    )


def with_sequence(job: JobState, source: str, seq: int) -> JobState:
    """Return the job with an event of this number taken in; of too many sources the oldest are forgotten."""
    if not seq:
        return job
    sequences = {name: last for name, last in job.sequences.items() if name != source}
    kept = dict([*sequences.items(), (source, seq)][-SOURCES_MAX:])
    return msgspec.structs.replace(job, sequences=kept)
