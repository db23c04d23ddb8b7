"""Which hints follow from events, and which events take them back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.foresight.gate import Window, window_of
from vfs.foresight.jobs import HINTS_MAX, JobState
from vfs.foresight.model import (
    Anomaly,
    Committed,
    EvaluationCancelled,
    EvaluationResult,
    EvaluationScheduled,
    EvaluationStarted,
    Happening,
    Hint,
    JobName,
    JobSubmitted,
    Mechanism,
    Outcome,
    Restarted,
    SaveBegun,
)
from vfs.foresight.predictor import ANNOUNCED, DECLARED, TTL_S, Prediction, expired, predict, rhythm
from vfs.model import LakePath, SiteName

JOB = JobName("run7")
EVAL = SiteName("eval")
HOUR_NS = 3_600_000_000_000


def path_of(step: int) -> LakePath:
    return LakePath(f"ckpt/run7/step_{step}")


def save(step: int) -> SaveBegun:
    return SaveBegun(step=step, path=path_of(step))


def commit(step: int) -> Committed:
    return Committed(step=step, path=path_of(step), save_id="save", marker="", files=())


def schedule(step: int, name: str = "", site: SiteName = EVAL, *, urgent: bool = False) -> EvaluationScheduled:
    return EvaluationScheduled(evaluation=name or f"eval-{step}", step=step, site=site, urgent=urgent)


def start(step: int, site: SiteName = EVAL) -> EvaluationStarted:
    return EvaluationStarted(evaluation=f"eval-{step}", step=step, site=site)


def result(step: int, site: SiteName = EVAL) -> EvaluationResult:
    return EvaluationResult(evaluation=f"eval-{step}", step=step, site=site)


def after(events: Iterable[Happening], job: JobState | None = None) -> tuple[JobState, Prediction]:
    """Return the job after the events, one an hour, and what followed from the last."""
    job, last = job or JobState(job=JOB), Prediction(JobState(job=JOB))
    for hour, event in enumerate(events):
        last = predict(job, event, hour * HOUR_NS)
        job = last.job
    return job, last


def seen(hints: Iterable[Hint]) -> list[tuple[int, str, float]]:
    return [(hint.step, hint.site, hint.confidence) for hint in hints]


CYCLE = [event for step in (1000, 2000, 3000) for event in (save(step), start(step), result(step))]


def test_announced_evaluation_is_predicted_when_its_save_begins() -> None:
    _, last = after([schedule(1000), save(1000)])
    assert seen(last.made) == [(1000, EVAL, ANNOUNCED)]
    assert last.made[0].path == path_of(1000)
    assert "eval-1000 was announced" in last.made[0].why


def test_evaluation_announced_after_its_save_is_predicted_at_once() -> None:
    _, last = after([save(1000), schedule(1000)])
    assert seen(last.made) == [(1000, EVAL, ANNOUNCED)]


def test_announced_evaluation_of_an_unknown_step_waits() -> None:
    assert after([schedule(1000)])[1].made == ()


def test_declared_evaluations_are_predicted_every_k_steps() -> None:
    job = JobSubmitted(world_size=8, evaluate_every=500, evaluation_sites=(EVAL, SiteName("west")))
    assert after([job, save(400)])[1].made == ()
    _, last = after([job, save(1500)])
    assert seen(last.made) == [(1500, EVAL, DECLARED), (1500, "west", DECLARED)]


def test_observed_rhythm_is_predicted_with_its_confidence() -> None:
    _, last = after([*CYCLE, save(4000)])
    assert seen(last.made) == [(4000, EVAL, pytest.approx(2 / 3))]
    assert after([*CYCLE, save(3500)])[1].made == ()


def test_two_evaluations_are_no_rhythm() -> None:
    assert after([*CYCLE[:6], save(3000)])[1].made == ()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], (0, 0.0)),
        ([1, 2], (0, 0.0)),
        ([10, 20, 30], (10, pytest.approx(2 / 3))),
        ([30, 10, 20, 20], (10, pytest.approx(2 / 3))),
        ([10, 20, 30, 40, 55], (10, pytest.approx(3 / 5))),
        ([1, 5, 7, 100], (0, 0.0)),
    ],
    ids=["none", "two", "three", "any order", "one stray", "no agreement"],
)
def test_rhythm_of_steps(steps: list[int], expected: tuple[int, float]) -> None:
    assert rhythm(steps) == expected


def test_commit_without_a_begin_predicts_too() -> None:
    _, last = after([schedule(1000), commit(1000)])
    assert seen(last.made) == [(1000, EVAL, ANNOUNCED)]
    assert last.job.saves[0].save_id == "save"


@pytest.mark.parametrize(
    "contradiction",
    [
        EvaluationCancelled(evaluation="eval-1000", step=1000, site=EVAL),
        Restarted(step=500),
        Restarted(step=1000, data_mix="other"),
        schedule(2000, "eval-1000"),
        schedule(1000, "eval-1000", SiteName("west")),
    ],
    ids=["cancelled", "restart before it", "other data", "other step", "other site"],
)
def test_contradiction_withdraws_the_hint(contradiction: Happening) -> None:
    events: list[Happening] = [schedule(1000), save(1000)]
    if isinstance(contradiction, Restarted) and contradiction.data_mix:
        events = [JobSubmitted(world_size=1, evaluate_every=1000, evaluation_sites=(EVAL,)), save(1000)]
    job, _ = after(events)
    (hint,) = job.hints
    _, last = after([contradiction], job)
    assert [(gone.hint, gone.outcome) for gone in last.withdrawn] == [(hint.id, Outcome.WITHDRAWN)]
    assert hint.id not in [each.id for each in last.job.hints]
    assert last.job.outcomes == {}, "a contradiction says nothing against the predictions"


@pytest.mark.parametrize(
    "contradiction",
    [
        JobSubmitted(world_size=64, checkpoint=path_of(900)),
        JobSubmitted(world_size=128, checkpoint=path_of(1000)),
        JobSubmitted(world_size=64),
        Restarted(step=900, path=path_of(900)),
    ],
    ids=["submitted with another checkpoint", "with other ranks", "without one", "restarted from another"],
)
def test_contradiction_withdraws_what_the_start_of_a_job_was_to_read(contradiction: Happening) -> None:
    job, last = after([JobSubmitted(world_size=64, checkpoint=path_of(1000), site=EVAL)])
    assert {(hint.mechanism, hint.world_size) for hint in last.made} == {
        (Mechanism.CHECKPOINTS, 0),
        (Mechanism.HOT_FILES, 64),
    }
    crowd = next(hint for hint in last.made if hint.world_size)
    _, last = after([contradiction], job)
    assert crowd.id in [gone.hint for gone in last.withdrawn]
    assert crowd.id not in [hint.id for hint in last.job.hints]


def test_restart_at_the_checkpoint_itself_keeps_its_hint() -> None:
    job, _ = after([schedule(1000), save(1000)])
    assert after([Restarted(step=1000)], job)[1].withdrawn == ()


def test_one_of_two_evaluations_cancelled_keeps_the_hint() -> None:
    job, _ = after([schedule(1000, "a"), schedule(1000, "b"), save(1000)])
    one = EvaluationCancelled(evaluation="a", step=1000, site=EVAL)
    job, last = after([one], job)
    assert last.withdrawn == ()
    assert after([msgspec.structs.replace(one, evaluation="b")], job)[1].withdrawn != ()


def test_start_counts_as_used_and_begins_the_time_again() -> None:
    job, last = after([schedule(1000), save(1000), start(1000)])
    assert [used.evaluation for used in last.used] == ["eval-1000"]
    assert [hint.id for hint in last.made] == [hint.id for hint in job.hints]


def test_result_ends_the_hint_as_a_hit() -> None:
    job, last = after([schedule(1000), save(1000), start(1000), result(1000)])
    assert [gone.outcome for gone in last.withdrawn] == [Outcome.HIT]
    assert (job.hints, job.expected, job.used) == ((), (), ())
    assert job.outcomes == {Mechanism.CHECKPOINTS: (True,)}


def test_evaluation_that_nothing_predicted_is_counted() -> None:
    assert after([save(1000), start(1000)])[0].unpredicted == 1


def test_saving_a_step_elsewhere_moves_its_hint() -> None:
    job, _ = after([schedule(1000), save(1000)])
    _, last = after([SaveBegun(step=1000, path=LakePath("ckpt/again"))], job)
    assert [hint.path for hint in last.made] == ["ckpt/again"]
    assert len(last.withdrawn) == 1


def test_anomaly_makes_open_hints_and_the_next_ones_more_urgent_until_an_evaluation_answers() -> None:
    job, last = after([schedule(1000), save(1000), Anomaly(step=1010, loss_spike=9.0)])
    assert [hint.urgency.severity > 0.8 for hint in last.made] == [True]
    job, last = after([schedule(1020), save(1020)], job)
    assert [hint.urgency.severity > 0.8 for hint in last.made] == [True]
    job, _ = after([result(1020)], job)
    assert job.anomaly is None


def test_urgent_schedule_makes_an_urgent_hint_of_one_that_could_wait() -> None:
    job, _ = after([schedule(1000), save(1000)])
    _, last = after([schedule(1000, urgent=True)], job)
    assert [hint.urgency.urgent for hint in last.made] == [True]


def test_restart_from_a_checkpoint_elsewhere_is_predicted() -> None:
    submitted = JobSubmitted(world_size=8, checkpoint=path_of(7), site=EVAL, parameters=1e12, importance=1.0)
    _, last = after([submitted])
    assert [(hint.mechanism, hint.path, hint.site, hint.urgency.parameters) for hint in last.made] == [
        (Mechanism.CHECKPOINTS, path_of(7), EVAL, 1e12),
        (Mechanism.HOT_FILES, path_of(7), EVAL, 1e12),
    ]


def test_time_to_live_follows_what_was_observed() -> None:
    assert after([schedule(1000), save(1000)])[1].made[0].ttl_s == TTL_S
    assert after([*CYCLE, save(4000)])[1].made[0].ttl_s == 3 * 3600.0, "three times the hour it took so far"


def test_time_that_two_controllers_measured_says_nothing() -> None:
    job = predict(JobState(job=JOB), schedule(1000), 0, by="one").job
    job = predict(job, save(1000), 0, by="one").job
    assert predict(job, start(1000), HOUR_NS, by="one").job.past[-1].lead_s == 3600.0
    assert predict(job, start(1000), HOUR_NS, by="two").job.past[-1].lead_s == 0.0


@pytest.mark.parametrize(
    ("outcomes", "window"),
    [
        ([False] * 4, Window()),
        ([True, True, True, False, False], Window()),
        ([True, True, False, False, False], Window(0.5)),
        ([True, False, False, False, False], Window(0.5, off=True)),
    ],
    ids=["too few", "more than half", "under half", "under a quarter"],
)
def test_window_narrows_and_closes_with_the_hit_rate(outcomes: list[bool], window: Window) -> None:
    found = window_of(outcomes)
    assert (found.share, found.off) == (window.share, window.off)


def test_predictions_that_came_to_nothing_go_on_without_copies_and_come_back() -> None:
    declared = JobSubmitted(world_size=1, evaluate_every=1, evaluation_sites=(EVAL,))
    job, _ = after([declared])
    for step in range(1, 6):
        job, _ = after([save(step)], job)
        job = expired(job, job.hints[-1].id)
    job, last = after([save(6)], job)
    assert [hint.shadow for hint in last.made] == [True]
    assert "0 of the last 5 came true" in last.made[0].why
    for step in range(6, 12):
        job, last = after([save(step), start(step), result(step)], job)
    assert not after([save(12)], job)[1].made[0].shadow


def test_what_was_announced_is_copied_whatever_came_of_the_predictions() -> None:
    job = JobState(job=JOB, outcomes={Mechanism.CHECKPOINTS: (False,) * 8})
    assert not after([schedule(1000), save(1000)], job)[1].made[0].shadow


STEPS = st.integers(0, 12).map(lambda index: index * 100)
SITES = st.sampled_from([EVAL, SiteName("west")])
NAMES = st.sampled_from(["a", "b", "c"])
EVENTS = st.one_of(
    st.builds(save, STEPS),
    st.builds(commit, STEPS),
    st.builds(EvaluationScheduled, evaluation=NAMES, step=STEPS, site=SITES, urgent=st.booleans()),
    st.builds(EvaluationStarted, evaluation=NAMES, step=STEPS, site=SITES),
    st.builds(EvaluationResult, evaluation=NAMES, step=STEPS, site=SITES),
    st.builds(EvaluationCancelled, evaluation=NAMES, step=STEPS, site=SITES),
    st.builds(Restarted, step=STEPS, data_mix=st.sampled_from(["", "x", "y"])),
    st.builds(Anomaly, step=STEPS, loss_spike=st.floats(0, 20)),
    st.builds(
        JobSubmitted,
        world_size=st.just(8),
        evaluate_every=st.sampled_from([0, 200]),
        evaluation_sites=st.just((EVAL,)),
        data_mix=st.sampled_from(["", "x"]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens_hints_are_sound_and_the_job_knows_which_are_open(events: list[Happening]) -> None:
    job, opened = JobState(job=JOB), dict[str, Hint]()
    for number, event in enumerate(events):
        found = predict(job, event, number * HOUR_NS)
        assert found == predict(job, event, number * HOUR_NS)
        for gone in found.withdrawn:
            assert gone.hint in opened or gone.hint in {hint.id for hint in found.made}
            opened.pop(gone.hint, None)
        for hint in found.made:
            assert 0 < hint.confidence <= 1
            assert hint.ttl_s > 0
            assert hint.why
            opened[hint.id] = hint
        assert not {gone.hint for gone in found.withdrawn} & {hint.id for hint in found.made}
        job = found.job
        assert {hint.id: hint for hint in job.hints} == opened
        assert len(job.hints) <= HINTS_MAX
        assert set(job.used) <= set(opened)
        if isinstance(event, Restarted):
            assert all(hint.step <= event.step for hint in job.hints)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=JobState) == job


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=20), st.sampled_from([save(300), schedule(300, "a"), Restarted(step=400)]))
def test_event_that_comes_twice_makes_nothing_new(events: list[Happening], event: Happening) -> None:
    job, _ = after(events)
    once = predict(job, event, 0)
    twice = predict(once.job, event, 0)
    assert {hint.id for hint in twice.job.hints} == {hint.id for hint in once.job.hints}
