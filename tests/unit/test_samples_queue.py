"""What a node decides: the queue, admission, and the cost model. No process, no clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from vfs.samples import admission
from vfs.samples.admission import Bounds, JobUse, Load
from vfs.samples.cost import CostModel, Seen, start_by
from vfs.samples.model import Envelope, Form, Reason, Sample
from vfs.samples.node.queue import Item, Place, Queue, State
from vfs.samples.prepared import Failed, Prepared

IDLE = Load(cpus=2)
NOBODY: Counter[str] = Counter()


def item(step: int, slot: int, cost_s: float = 1.0, job: str = "run7", rank: int = 0) -> Item:
    sample = Sample(job, step, rank, slot, f"{step}-{slot}", "bin", slot, 100, "image@1", "{}", 1, "v1")  # type: ignore[arg-type]
    return Item(Place(job, step, rank), sample, cost_s, made_bytes_max=400)


def made(each: Item, size: int = 400) -> Prepared:
    sample = each.sample
    envelope = Envelope(sample.step, sample.rank, sample.slot, Form.TRANSFORMED, "npy", size, "")
    return Prepared(envelope, bytes(size), 0, 0.0, 0.5)


def queue(*items: Item, bounds: Bounds | None = None, consumed: int = 0, **told: Any) -> Queue:
    found = Queue(bounds or Bounds(queue=10_000))
    for job in sorted({each.place.job for each in items} or {"run7"}):
        found.tell(job, **{"ahead": 4, "wait_s": 0.0, "ranks": (), "step": consumed, "now_s": 0.0, **told})
    for place in {each.place for each in items}:
        found.add(place, [each for each in items if each.place == place])
    return found


def started(found: Queue, load: Load = IDLE) -> list[tuple[int, int]]:
    order = []
    while (each := found.next(load, running=NOBODY)) is not None:
        order.append((each.sample.step, each.sample.slot))
    return order


def test_next_step_comes_first_and_its_heaviest_sample_before_the_others() -> None:
    found = queue(item(2, 0, 9.0), item(1, 0, 1.0), item(1, 1, 5.0))
    assert started(found) == [(1, 1), (1, 0), (2, 0)]


def test_sample_that_takes_longer_than_a_step_begins_before_the_step_in_front_of_it() -> None:
    found = queue(item(2, 0, 30.0), item(1, 0, 1.0))
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=0, now_s=0.0)
    found.jobs["run7"].step_s = 10.0
    assert started(found) == [(2, 0), (1, 0)]
    assert start_by(2, 30.0, consumed=0, step_s=10.0) < start_by(1, 1.0, consumed=0, step_s=10.0)


def test_queue_holds_its_bytes_and_goes_on_when_some_are_fetched() -> None:
    found = queue(*(item(1, slot) for slot in range(5)), bounds=Bounds(queue=1000))
    running = [found.next(IDLE, running=NOBODY), found.next(IDLE, running=NOBODY)]
    assert found.next(IDLE, running=NOBODY) is None
    assert found.queued == 800
    for each in running:
        assert each is not None
        found.done(each, made(each, 500), 0.0)
    assert found.queued == 1000
    assert found.next(IDLE, running=NOBODY) is None
    group = found.ask(Place("run7", 1, 0), None)
    found.given(group.outbox.popleft())
    assert found.queued == 500
    assert found.next(IDLE, running=NOBODY) is not None


def test_job_gets_its_share_of_the_queue_only() -> None:
    first = [item(1, slot, job="a") for slot in range(4)]
    second = [item(1, slot, job="b") for slot in range(4)]
    found = queue(*first, *second, bounds=Bounds(queue=1600))
    started(found)
    assert {name: state.queued for name, state in found.jobs.items()} == {"a": 800, "b": 800}


@pytest.mark.parametrize(("jobs", "bounds"), [(40, Bounds(queue=10_000)), (1, Bounds(queue=10_000, job_queue=500))])
def test_job_with_a_small_share_of_the_queue_begins_before_it_is_known_how_large_its_samples_get(
    jobs: int, bounds: Bounds
) -> None:
    """An eighth of the whole queue would be more than its share."""
    small = [item(1, 0, job=f"run{number:02d}") for number in range(jobs)]
    for each in small:
        each.sample = structs.replace(each.sample, length=10)
        each.made_bytes_max = 1 << 30
    found = queue(*small, bounds=bounds)
    assert len(started(found)) == jobs


def test_job_over_its_cpu_quota_waits_and_the_other_goes_on() -> None:
    found = queue(item(1, 0, job="a"), item(1, 0, job="b"), bounds=Bounds(queue=10_000, job_cpus=0.5))
    found.charge("a", cpu_s=10.0, elapsed_s=10.0)
    each = found.next(IDLE, running=NOBODY)
    assert each is not None
    assert each.place.job == "b"
    assert found.next(IDLE, running=NOBODY) is None


def test_overload_aborts_what_runs_and_gives_raw_to_who_waits() -> None:
    waited, other = item(1, 0), item(2, 0)
    found = queue(waited, other, item(1, 1))
    group = found.ask(waited.place, None)
    assert started(found)
    aborted = found.stop(Reason.CPU)
    assert {each.place.step for each in aborted} == {1, 2}
    given = [(each.sample.slot, each.outcome) for each in group.outbox]
    assert sorted(given, key=lambda each: each[0]) == [(0, Failed(Reason.CPU, "")), (1, Failed(Reason.CPU, ""))]
    assert (other.state, found.queued) == (State.WAITING, 0)
    assert found.jobs["run7"].totals.aborted == {Reason.CPU: 3}


def test_lead_is_the_time_from_a_groups_last_transform_to_its_step() -> None:
    first, second, never = item(1, 0), item(2, 0), item(3, 0)
    found = queue(first, second, never)
    started(found)
    for each, now_s in ((first, 2.0), (second, 4.0)):
        found.done(each, made(each), now_s)
    for step, now_s in ((1, 7.0), (3, 11.0)):
        found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=step, now_s=now_s)
    totals = found.jobs["run7"].totals
    assert (totals.lead_s, totals.lead_groups) == (5.0 + 7.0, 2)


def test_hit_ratio_leaves_samples_out_of_which_nothing_was_to_be_made() -> None:
    ready, late, plain = item(1, 0), item(1, 1), item(1, 2)
    found = queue(ready, late, plain)
    started(found)
    for each, outcome in ((ready, made(ready)), (late, Failed(Reason.LATE, "")), (plain, Failed(Reason.NO_OPERATOR, ""))):
        found.done(each, outcome, 0.0)
        found.given(each)
    assert found.jobs["run7"].totals.hit_ratio == 0.5


def test_group_that_is_asked_for_under_overload_is_raw_at_once() -> None:
    each = item(1, 0)
    group = queue(each).ask(each.place, Reason.MEMORY)
    assert [one.outcome for one in group.outbox] == [Failed(Reason.MEMORY, "")]


def test_result_of_an_aborted_transform_changes_nothing() -> None:
    each = item(1, 0)
    found = queue(each)
    found.ask(each.place, None)
    started(found)
    found.stop(Reason.CPU)
    found.done(each, made(each), 0.0)
    assert each.outcome == Failed(Reason.CPU, "")


@pytest.mark.parametrize(("now_s", "is_raw"), [(4.9, False), (5.0, True)])
def test_sample_of_the_step_being_consumed_is_waited_for_as_long_as_its_job_says(now_s: float, is_raw: bool) -> None:
    each = item(1, 0)
    found = queue(each, wait_s=5.0)
    group = found.ask(each.place, None)
    found.tell("run7", ahead=4, wait_s=5.0, ranks=(), step=1, now_s=0.0)
    assert found.next_due_s(1.0) == 4.0
    assert found.late(now_s) == []
    assert [one.outcome for one in group.outbox] == ([Failed(Reason.LATE, "")] if is_raw else [])


def test_late_sample_says_what_held_it_up() -> None:
    each = item(1, 0)
    found = queue(each)
    group = found.ask(each.place, None)
    assert found.next(Load(cpus=2, others_cpus=1.5), running=NOBODY) is None
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=1, now_s=0.0)
    found.late(0.0)
    assert [one.outcome for one in group.outbox] == [Failed(Reason.CPU, "")]


def test_step_that_has_passed_is_dropped_and_counted_as_unused() -> None:
    ready, running = item(1, 0, 2.0), item(1, 1)
    found = queue(ready, running)
    started(found)
    found.done(ready, made(ready, 300), 0.0)
    aborted = found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=2, now_s=1.0)
    totals = found.jobs["run7"].totals
    assert aborted == [running]
    assert (totals.unused_bytes, totals.unused_cpu_s, totals.aborted, found.queued) == (300, 0.5, {Reason.LATE: 1}, 0)


def test_progress_never_goes_back_and_steps_are_timed() -> None:
    found = queue()
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=4, now_s=8.0)
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=1, now_s=9.0)
    assert (found.jobs["run7"].consumed, found.jobs["run7"].step_s) == (4, 2.0)
    assert list(found.wanted_steps("run7")) == [5, 6, 7, 8]


def test_ranks_that_agents_tell_add_up_and_all_stays_all() -> None:
    found = queue(ranks=(0,))
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(3,), step=0, now_s=0.0)
    assert found.jobs["run7"].ranks == {0, 3}
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(), step=0, now_s=0.0)
    found.tell("run7", ahead=4, wait_s=0.0, ranks=(5,), step=0, now_s=0.0)
    assert found.jobs["run7"].ranks == frozenset()


def test_who_asks_again_gets_the_whole_group_again() -> None:
    one, two = item(1, 0), item(1, 1)
    found = queue(one, two)
    started(found)
    found.done(one, made(one), 0.0)
    group = found.ask(one.place, None)
    found.given(group.outbox.popleft())
    found.unask(one.place)
    group = found.ask(one.place, None)
    assert (one.state, two.state, list(group.outbox)) == (State.WAITING, State.RUNNING, [])


BOUNDS = Bounds(cpu=0.8, memory_free=0.1, egress=1000, queue=5000)


@pytest.mark.parametrize(
    ("load", "use", "reason"),
    [
        (Load(2, 1.35), JobUse(), None),
        (Load(2, 1.36), JobUse(), Reason.CPU),
        (Load(2, memory_free=0.1), JobUse(), None),
        (Load(2, memory_free=0.09), JobUse(), Reason.MEMORY),
        (Load(2, egress=1000), JobUse(), None),
        (Load(2, egress=1001), JobUse(), Reason.EGRESS),
        (Load(2, queued=4600), JobUse(), None),
        (Load(2, queued=4601), JobUse(), Reason.QUEUE),
        (Load(2), JobUse(queued=2100, jobs=2), None),
        (Load(2), JobUse(queued=2101, jobs=2), Reason.QUOTA),
    ],
)
def test_transform_begins_up_to_each_bound_and_not_beyond(load: Load, use: JobUse, reason: Reason | None) -> None:
    assert admission.refuse(load, BOUNDS, use, raw_bytes=100, made_bytes=400) is reason


def test_sample_that_shrinks_is_made_whatever_leaves_the_node() -> None:
    assert admission.refuse(Load(2, egress=9999), BOUNDS, JobUse(), raw_bytes=400, made_bytes=400) is None


@pytest.mark.parametrize(
    ("others", "stopped", "seats"), [(0.0, None, 1), (0.59, None, 1), (1.59, None, 1), (1.6, Reason.CPU, 0)]
)  # fmt: skip
def test_transforms_run_on_what_others_leave_of_80_percent(others: float, stopped: Reason | None, seats: int) -> None:
    assert admission.stop(Load(2, others), BOUNDS) is stopped
    assert admission.seats(Load(2, others), BOUNDS, most=8) == seats
    assert admission.seats(Load(16, others), BOUNDS, most=8) == 8


KIND = ("video@1", "{}", "mp4")


def test_cost_model_learns_what_pixels_and_bytes_cost() -> None:
    model, rng = CostModel(), np.random.default_rng(0)
    for index in range(200):
        size, pixels = int(rng.integers(10_000, 1_000_000)), int(rng.integers(100_000, 50_000_000))
        model.learn(KIND, ("bin", index), Seen(size, pixels, 0.0, 0.01 + size * 2e-8 + pixels * 5e-8))
    expected = 0.01 + 500_000 * 2e-8 + 40_000_000 * 5e-8
    model.learn(KIND, ("bin", 999), Seen(500_000, 40_000_000, 0.0, expected))
    assert model.predict(KIND, ("bin", 999), 500_000) == pytest.approx(expected, rel=0.1)
    assert 0 < model.error < 2


def test_sample_that_was_never_decoded_is_guessed_from_its_bytes() -> None:
    model = CostModel()
    assert model.predict(KIND, ("bin", 0), 50_000_000) == pytest.approx(1.0)
    for index in range(20):
        model.learn(KIND, ("bin", index), Seen(1000 * (index + 1), 1_000_000 * (index + 1), 0.0, 0.1 * (index + 1)))
    assert model.predict(KIND, ("bin", 77), 10_000) == pytest.approx(1.0, rel=0.1)
