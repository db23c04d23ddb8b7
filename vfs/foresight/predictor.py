"""What will be read where: one event in, hints made and withdrawn out.

Pure: no I/O, no clock.

    rule        rests on                                         confidence
    announced   an evaluation or a restart that was said         0.95
    declared    "every k steps at these sites", with the job     0.9
    observed    at least three evaluations at the same distance  share of distances that agree, times n / (n + 1)

Declared and observed evaluations are predicted when their save begins, announced ones as soon as it is known which
checkpoint they read. Where the first two came to nothing, `vfs/foresight/gate.py` narrows their time or leaves them without
copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec
import xxhash

from vfs.foresight.gate import OFF_BELOW, Window, window_of
from vfs.foresight.jobs import EXPECTED_MAX, PAST_MAX, Expected, JobState, Past, Save, with_hint, with_save, without_hint
from vfs.foresight.model import (
    Anomaly,
    CheckpointDeleted,
    Committed,
    EvaluationCancelled,
    EvaluationResult,
    EvaluationScheduled,
    EvaluationStarted,
    FileClosed,
    Happening,
    Hint,
    HintCancelled,
    HintId,
    HotFiles,
    JobName,
    JobSubmitted,
    Mechanism,
    Outcome,
    ReplicaReads,
    Restarted,
    SaveBegun,
    Urgency,
    hint_id,
)
from vfs.foresight.priority import severity
from vfs.model import LakePath, SiteName

ANNOUNCED = 0.95
DECLARED = 0.9
OBSERVED_MIN = 3
CONFIDENCE_MIN = 0.5
"""An observed rhythm that agrees with itself less than this predicts nothing."""
TTL_S = 6 * 3600.0
"""Where nothing is known of a job: a cycle of the largest one measured takes over four hours (PROBLEM.md A1)."""
TTL_S_MIN = 600.0
CROWD_S = 3600.0
"""A start is over within minutes, and is tried again where it fails."""
LEADS = 3.0
"""A hint lives so many times as long as its evaluation took to begin at most, so far."""


class Withdrawn(msgspec.Struct, frozen=True):
    """A hint that holds no more."""

    hint: HintId
    outcome: Outcome
    why: str


class Used(msgspec.Struct, frozen=True):
    """Somebody came for what a hint had announced; `evaluation` is who."""

    hint: HintId
    evaluation: str


class Prediction(msgspec.Struct, frozen=True):
    """What follows from an event: `made` are hints to be stored, each with its time to live beginning now."""

    job: JobState
    made: tuple[Hint, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    used: tuple[Used, ...] = ()


class _Draft:
    """A prediction that is being put together."""

    def __init__(self, job: JobState, now_ns: int, stop_below: StopBelow, by: str) -> None:
        self.by = by
        self.job = job
        self.now_ns = now_ns
        self.stop_below = stop_below
        self._made: dict[HintId, Hint] = {}
        self._withdrawn: dict[HintId, Withdrawn] = {}
        self._used: list[Used] = []

    def result(self) -> Prediction:
        return Prediction(self.job, tuple(self._made.values()), tuple(self._withdrawn.values()), tuple(self._used))

    def make(self, hint: Hint) -> None:
        """Store a hint, unless one says the same with at least its confidence; that one then says why."""
        known = self.job.hint(hint.id)
        if known is not None:
            if known.confidence >= hint.confidence and known.urgency == hint.urgency:
                return
            hint = msgspec.structs.replace(hint, made_ns=known.made_ns)
        self._made[hint.id] = hint
        self._withdrawn.pop(hint.id, None)
        self.job = with_hint(self.job, hint)

    def renew(self, hint: Hint) -> None:
        """Store a hint again: its time begins anew."""
        self._made[hint.id] = hint
        self.job = with_hint(self.job, hint)

    def withdraw(self, hints: Iterable[Hint], why: str) -> None:
        """Take hints back; those for which somebody came were right."""
        for hint in list(hints):
            came = hint.id in self.job.used
            self._made.pop(hint.id, None)
            self._withdrawn[hint.id] = Withdrawn(hint.id, Outcome.HIT if came else Outcome.WITHDRAWN, why)
            self.job = without_hint(self.job, hint.id, came or None)

    def use(self, hint: Hint, evaluation: str) -> None:
        """Note that somebody came."""
        self._used.append(Used(hint.id, evaluation))
        if hint.id not in self.job.used:
            self.job = msgspec.structs.replace(self.job, used=(*self.job.used, hint.id))


StopBelow = Callable[[Mechanism, LakePath], float]


def predict(
    job: JobState,
    what: Happening,
    now_ns: int,
    stop_below: StopBelow = lambda mechanism, path: OFF_BELOW,
    by: str = "",
) -> Prediction:
    """Return what follows from an event.

    Args:
        now_ns: of this controller's clock.
        by: its name: times of another one are measured by another clock.
        stop_below: hit rate below which a mechanism's own predictions for a path bring no copies.
    """
    draft = _Draft(job, now_ns, stop_below, by)
    match what:
        case JobSubmitted():
            _submitted(draft, what)
        case SaveBegun(step=step, path=path):
            _saving(draft, step, path)
        case Committed(step=step, path=path, save_id=save_id):
            _committed(draft, step, path, save_id)
        case EvaluationScheduled():
            _scheduled(draft, what)
        case EvaluationStarted():
            _started(draft, what)
        case EvaluationResult(evaluation=evaluation, step=step, site=site):
            _over(draft, evaluation, step, site, "its evaluation is done")
            if draft.job.anomaly is not None and step >= draft.job.anomaly.step:
                draft.job = msgspec.structs.replace(draft.job, anomaly=None)
        case EvaluationCancelled(evaluation=evaluation, step=step, site=site):
            _over(draft, evaluation, step, site, "its evaluation was cancelled")
        case Restarted():
            _restarted(draft, what)
        case Anomaly():
            _anomaly(draft, what)
        case HotFiles():
            _hot(draft, what)
        case HintCancelled(hint=hint, why=why):
            draft.withdraw((each for each in draft.job.hints if each.id == hint), why or "somebody took it back")
        case CheckpointDeleted(path=path):
            of_it = (each for each in draft.job.hints if each.path == path or each.path.startswith(f"{path}/"))
            draft.withdraw(of_it, "its origin was deleted")
        case FileClosed() | ReplicaReads():
            pass
    return draft.result()


def expired(job: JobState, hint: HintId) -> JobState:
    """Return the job after a hint has lived out its time."""
    return without_hint(job, hint, hint in job.used)


def rhythm(steps: Sequence[int]) -> tuple[int, float]:
    """Return the distance between evaluations and the confidence in it, (0, 0.0) where there is none to be seen.

    Args:
        steps: at which they took place; in any order, with or without repetition.
    """
    ordered = sorted(set(steps))
    gaps = [after - before for before, after in pairwise(ordered)]
    if len(ordered) < OBSERVED_MIN:
        return 0, 0.0
    period, agreeing = max(Counter(gaps).items(), key=lambda item: (item[1], -item[0]))
    confidence = agreeing / len(gaps) * len(gaps) / (len(gaps) + 1)
    return (period, confidence) if confidence >= CONFIDENCE_MIN else (0, 0.0)


def _submitted(draft: _Draft, what: JobSubmitted) -> None:
    if what.data_mix != draft.job.data_mix:
        _forget_rhythm(draft, "the mixture of data has changed")
    draft.job = msgspec.structs.replace(draft.job, submitted=what, data_mix=what.data_mix)
    others = (hint for hint in draft.job.hints if _is_for_start(hint) and hint.path != what.checkpoint)
    draft.withdraw(others, f"the job loads {what.checkpoint or 'no checkpoint'} now")
    if what.checkpoint and what.site:
        why = f"the job was submitted to {what.site} and loads this checkpoint"
        draft.make(_hint(draft, -1, what.checkpoint, what.site, why, ANNOUNCED, starts_in_s=what.starts_in_s))
    if what.checkpoint and what.world_size > 1:
        _planned(draft, what)


def _hot(draft: _Draft, what: HotFiles) -> None:
    readers = max((each.readers for each in what.ranges), default=0)
    why = f"the job says that {readers} will read at once"
    hot = msgspec.structs.replace(
        _hint(draft, -1, what.path, what.site, why, ANNOUNCED, mechanism=Mechanism.HOT_FILES),
        hot=what.ranges,
        starts_in_s=what.starts_in_s,
        ttl_s=what.ttl_s + what.starts_in_s,
    )
    draft.withdraw((each for each in draft.job.hints if each.id == hot.id and each.hot != hot.hot), "other files are hot now")
    draft.make(hot)


def _planned(draft: _Draft, what: JobSubmitted) -> None:
    """Predict the crowd of a job's start; which bytes it wants follows from the plan once the files are known."""
    name = _crowd_id(draft.job.job, what)
    before = (hint for hint in draft.job.hints if hint.world_size and hint.id != name)
    draft.withdraw(before, "the job was submitted with another plan")
    why = f"{what.world_size} ranks load this checkpoint at once, by the job's plan"
    draft.make(
        msgspec.structs.replace(
            _hint(draft, -1, what.checkpoint, what.site, why, ANNOUNCED, gated=True, mechanism=Mechanism.HOT_FILES),
            id=name,
            world_size=what.world_size,
            starts_in_s=what.starts_in_s,
            ttl_s=CROWD_S + what.starts_in_s,
        )
    )


def _crowd_id(job: JobName, what: JobSubmitted) -> HintId:
    """Return the name of what a plan makes hot: another plan, another hint."""
    plan = xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(what.tensors))
    return hint_id(job, Mechanism.HOT_FILES, what.checkpoint, what.world_size, SiteName(plan))


def _is_for_start(hint: Hint) -> bool:
    """Return whether a hint was made for the start of its job."""
    return bool(hint.world_size) or (hint.mechanism is Mechanism.CHECKPOINTS and hint.step < 0)


def _saving(draft: _Draft, step: int, path: LakePath) -> None:
    draft.job = with_save(draft.job, Save(step, path, draft.now_ns, by=draft.by))
    moved = (hint for hint in draft.job.hints if hint.step == step and hint.path != path)
    draft.withdraw(moved, f"step {step} is saved at {path}")
    for expected in draft.job.expected:
        if expected.step == step and not expected.started:
            draft.make(_announced(draft, expected, expected.path or path))
    job, known = draft.job, {hint.site for hint in draft.job.hints if hint.step == step}
    submitted = job.submitted
    if submitted is not None and submitted.evaluate_every and step % submitted.evaluate_every == 0:
        why = f"evaluated every {submitted.evaluate_every} steps, as the job says"
        for site in submitted.evaluation_sites:
            if site not in known:
                draft.make(_hint(draft, step, path, site, why, DECLARED, gated=True))
                known.add(site)
    for site in sorted({past.site for past in job.past} - known):
        steps = [past.step for past in job.past if past.site == site]
        period, confidence = rhythm(steps)
        if period and step > max(steps) and (step - max(steps)) % period == 0:
            why = f"evaluated every {period} steps, {len(steps)} times so far"
            draft.make(_hint(draft, step, path, site, why, confidence, gated=True))


def _committed(draft: _Draft, step: int, path: LakePath, save_id: str) -> None:
    known = draft.job.save_of(step)
    if known is None or known.path != path:
        _saving(draft, step, path)
        known = draft.job.save_of(step)
        if known is None:  # older than all that are remembered
            return
    draft.job = with_save(draft.job, Save(step, path, known.begun_ns, draft.now_ns, save_id, known.by))


def _scheduled(draft: _Draft, what: EvaluationScheduled) -> None:
    others = tuple(each for each in draft.job.expected if each.evaluation != what.evaluation)
    moved = [each for each in draft.job.expected if each.evaluation == what.evaluation]
    expected = Expected(what.evaluation, what.step, what.site, what.path, what.urgent)
    draft.job = msgspec.structs.replace(draft.job, expected=(*others, expected)[-EXPECTED_MAX:])
    for before in moved:
        if (before.step, before.site) != (what.step, what.site):
            _withdraw_unless_expected(draft, before.step, before.site, f"{what.evaluation} was scheduled differently")
    save = draft.job.save_of(what.step)
    path = what.path or (save.path if save is not None else LakePath(""))
    if path:
        draft.make(_announced(draft, expected, path, what.starts_in_s))


def _started(draft: _Draft, what: EvaluationStarted) -> None:
    job = draft.job
    save = job.save_of(what.step)
    lead_s = max(0.0, (draft.now_ns - save.begun_ns) / 1e9) if save is not None and save.by == draft.by else 0.0
    others = tuple(each for each in job.expected if each.evaluation != what.evaluation)
    expected = Expected(what.evaluation, what.step, what.site, what.path, started=True)
    past = (
        *(each for each in job.past if (each.site, each.step) != (what.site, what.step)),
        Past(what.site, what.step, lead_s),
    )
    draft.job = msgspec.structs.replace(job, expected=(*others, expected)[-EXPECTED_MAX:], past=past[-PAST_MAX:])
    hints = _hints_for(draft.job, what.step, what.site)
    for hint in hints:
        draft.use(hint, what.evaluation)
        draft.renew(hint)
    if not hints:
        draft.job = msgspec.structs.replace(draft.job, unpredicted=draft.job.unpredicted + 1)


def _over(draft: _Draft, evaluation: str, step: int, site: SiteName, why: str) -> None:
    expected = tuple(each for each in draft.job.expected if each.evaluation != evaluation)
    draft.job = msgspec.structs.replace(draft.job, expected=expected)
    _withdraw_unless_expected(draft, step, site, why)


def _restarted(draft: _Draft, what: Restarted) -> None:
    later = (hint for hint in draft.job.hints if hint.step > what.step)
    draft.withdraw(later, f"the job goes on from step {what.step}")
    save = draft.job.save_of(what.step)
    loads = what.path or (save.path if save is not None else LakePath(""))
    if loads:
        others = (hint for hint in draft.job.hints if _is_for_start(hint) and hint.path != loads)
        draft.withdraw(others, f"the job loads {loads} instead")
    draft.job = msgspec.structs.replace(
        draft.job,
        saves=tuple(save for save in draft.job.saves if save.step <= what.step),
        expected=tuple(each for each in draft.job.expected if each.step <= what.step),
        past=tuple(each for each in draft.job.past if each.step <= what.step),
    )
    if what.data_mix and what.data_mix != draft.job.data_mix:
        _forget_rhythm(draft, "the mixture of data has changed")
        draft.job = msgspec.structs.replace(draft.job, data_mix=what.data_mix)


def _anomaly(draft: _Draft, what: Anomaly) -> None:
    draft.job = msgspec.structs.replace(draft.job, anomaly=what)
    for hint in draft.job.hints:
        if hint.step < 0 or hint.id in draft.job.used:
            continue
        urgency = msgspec.structs.replace(hint.urgency, severity=_severity(draft.job))
        if urgency != hint.urgency:
            draft.renew(msgspec.structs.replace(hint, urgency=urgency))


def _forget_rhythm(draft: _Draft, why: str) -> None:
    announced = {(each.step, each.site) for each in draft.job.expected}
    draft.withdraw((hint for hint in draft.job.hints if hint.step >= 0 and (hint.step, hint.site) not in announced), why)
    draft.job = msgspec.structs.replace(draft.job, past=())


def _withdraw_unless_expected(draft: _Draft, step: int, site: SiteName, why: str) -> None:
    """Take back the hints for a step at a site that no other evaluation was announced for."""
    if not any((each.step, each.site) == (step, site) for each in draft.job.expected):
        draft.withdraw(_hints_for(draft.job, step, site), why)


def _hints_for(job: JobState, step: int, site: SiteName) -> list[Hint]:
    return [hint for hint in job.hints if (hint.step, hint.site) == (step, site)]


def _announced(draft: _Draft, expected: Expected, path: LakePath, starts_in_s: float = 0.0) -> Hint:
    why = f"{expected.evaluation} was announced for step {expected.step} at {expected.site}"
    hint = _hint(draft, expected.step, path, expected.site, why, ANNOUNCED, starts_in_s=starts_in_s)
    urgency = msgspec.structs.replace(hint.urgency, urgent=expected.urgent)
    return msgspec.structs.replace(hint, evaluation=expected.evaluation, urgency=urgency)


def _hint(
    draft: _Draft,
    step: int,
    path: LakePath,
    site: SiteName,
    why: str,
    confidence: float,
    *,
    gated: bool = False,
    starts_in_s: float = 0.0,
    mechanism: Mechanism = Mechanism.CHECKPOINTS,
) -> Hint:
    job = draft.job
    window = window_of(job.outcomes.get(mechanism, ()), draft.stop_below(mechanism, path)) if gated else Window()
    urgency = Urgency(severity=_severity(job))
    if job.submitted is not None:
        given = job.submitted
        urgency = msgspec.structs.replace(urgency, parameters=given.parameters, importance=given.importance)
    return Hint(
        id=hint_id(job.job, mechanism, path, step, site),
        job=job.job,
        mechanism=mechanism,
        path=path,
        site=site,
        why=f"{why}; {window.why}" if window.why else why,
        confidence=confidence,
        ttl_s=max(TTL_S_MIN, _ttl_s(job, site) * window.share) + starts_in_s,
        step=step,
        urgency=urgency,
        starts_in_s=starts_in_s,
        made_ns=draft.now_ns,
        shadow=window.off,
    )


def _ttl_s(job: JobState, site: SiteName) -> float:
    """Return how long a hint lives: as its evaluation will take to begin, by those before it and with room, and to run."""
    leads = [past.lead_s for past in job.past if past.site == site and past.lead_s]
    lasts_s = job.submitted.evaluation_s if job.submitted is not None else 0.0
    return LEADS * max(leads) + lasts_s if leads else TTL_S + lasts_s


def _severity(job: JobState) -> float:
    return 0.0 if job.anomaly is None else severity(job.anomaly.loss_spike, job.anomaly.gradient_norm)
