"""The supervision as a machine: events with their times in, actions out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.keeper.supervise import (
    ENDED,
    ENDING,
    LAKE_WITH_SAMPLES,
    SERVING,
    CloseConnection,
    Disconnected,
    End,
    Exited,
    Kill,
    Limits,
    Said,
    Start,
    StopAsked,
    Supervisor,
    TellReady,
    Terminate,
    Tick,
    Unmount,
    UnmountAnswered,
    UpgradeAsked,
    UpgradeEnded,
    UseCode,
)

STOPPED_WORKER = frozenset({"worker"})


def serving(now: float = 0.0) -> Supervisor:
    """Return a machine whose children have said that they serve."""
    machine = Supervisor()
    machine.begin(now)
    machine.handle(Said("agent", "ready"), now)
    machine.handle(Said("worker", "ready"), now)
    assert machine.phase == SERVING
    return machine


def test_both_children_are_started_first() -> None:
    assert Supervisor().begin(0.0) == [Start("worker", again=False), Start("agent", again=False)]


def test_worker_of_samples_is_started_once_the_lake_is_served_and_ready_is_told_after_it() -> None:
    machine = Supervisor(children=LAKE_WITH_SAMPLES)
    assert machine.begin(0.0) == [Start("worker", again=False), Start("agent", again=False)]
    assert machine.handle(Said("worker", "ready"), 0.1) == []
    assert machine.handle(Said("agent", "ready"), 0.2) == [Start("jobs", again=False)]
    assert machine.handle(Said("jobs", "ready"), 0.3) == [TellReady()]


def test_worker_that_dies_before_the_one_of_samples_is_started_holds_that_one_back() -> None:
    machine = Supervisor(children=LAKE_WITH_SAMPLES)
    machine.begin(0.0)
    machine.handle(Said("worker", "ready"), 0.1)
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 0.2) == [Start("worker", again=True)]
    assert machine.handle(Said("agent", "ready"), 0.3) == []
    assert machine.handle(Said("worker", "ready"), 0.4) == [Start("jobs", again=False)]


def test_samples_that_can_not_be_mounted_give_the_mount_up_with_the_reason() -> None:
    machine = Supervisor(children=LAKE_WITH_SAMPLES)
    machine.begin(0.0)
    machine.handle(Said("worker", "ready"), 0.1)
    machine.handle(Said("agent", "ready"), 0.1)
    for moment in (0.2, 0.3):
        assert machine.handle(Exited("jobs", "can't be mounted: x"), moment) == [Start("jobs", again=True)]
    machine.handle(Exited("jobs", "can't be mounted: x"), 0.4)
    assert (machine.phase, machine.reason) == (ENDING, "the worker of .jobs does not start: can't be mounted: x")


def test_dead_worker_of_samples_is_replaced_and_nothing_else_ends() -> None:
    machine = Supervisor(children=LAKE_WITH_SAMPLES)
    machine.begin(0.0)
    for name in ("worker", "agent", "jobs"):
        machine.handle(Said(name, "ready"), 0.1)
    assert machine.handle(Exited("jobs", "exit status 0"), 9.0) == [Start("jobs", again=True)]
    assert machine.phase == SERVING


def test_ready_is_told_once_when_the_last_child_serves() -> None:
    machine = Supervisor()
    machine.begin(0.0)
    assert machine.handle(Said("worker", "ready"), 0.1) == []
    assert machine.handle(Said("agent", "ready"), 0.2) == [TellReady()]
    machine.handle(Exited("agent", "killed by SIGKILL"), 5.0)
    assert machine.handle(Said("agent", "ready"), 5.5) == []


def test_child_that_dies_while_serving_is_started_again_at_once() -> None:
    machine = serving()
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 1.0) == [Start("worker", again=True)]
    assert machine.lives["worker"].restarts == 1
    assert machine.lives["worker"].last_exit == "killed by SIGKILL"


def test_twenty_deaths_a_second_apart_are_all_followed_by_a_start_at_once() -> None:
    machine = serving()
    for second in range(1, 21):
        assert machine.handle(Exited("worker", "killed by SIGKILL"), second) == [Start("worker", again=True)]
        machine.handle(Said("worker", "ready"), second + 0.3)
    assert machine.lives["worker"].restarts == 20


def test_child_that_served_and_now_dies_at_start_again_and_again_is_started_with_growing_pauses_for_ever() -> None:
    machine = serving()
    assert machine.handle(Exited("agent", "exit status 1"), 100.0) == [Start("agent", again=True)]
    pauses = []
    now = 200.0
    for _ in range(12):
        actions = machine.handle(Exited("agent", "exit status 1"), now)
        pauses.append(round(machine.wake_in_s(now), 3) if not actions else 0.0)
        if not actions:
            now += machine.lives["agent"].restart_at - now  # type: ignore[operator]
            assert machine.handle(Tick(), now) == [Start("agent", again=True)]
    assert pauses[:5] == [0.0, 0.0, 0.0, 0.2, 0.4]
    assert machine.lives["agent"].bad_lives == 12
    assert machine.phase == SERVING


def test_worker_that_dies_of_each_first_request_is_not_restarted_in_a_tight_loop() -> None:
    machine = serving(now=0.0)
    now, starts = 0.1, 0
    while now < 10.0:
        if machine.handle(Exited("worker", "killed by SIGSEGV"), now) == []:
            now = machine.lives["worker"].restart_at  # type: ignore[assignment]
            machine.handle(Tick(), now)
        starts += 1
        machine.handle(Said("worker", "ready"), now + 0.2)
        now += 0.3
    assert starts < 12


def test_life_that_lasted_forgets_the_bad_ones_before_it() -> None:
    machine = serving()
    for moment in (0.1, 0.2, 0.3):
        machine.handle(Exited("worker", "killed by SIGSEGV"), moment)
        machine.handle(Said("worker", "ready"), moment)
    machine.handle(Exited("worker", "killed by SIGSEGV"), 60.0)
    assert machine.lives["worker"].bad_lives == 0


def test_child_that_never_served_is_given_up_after_three_starts_with_its_own_reason() -> None:
    machine = Supervisor()
    machine.begin(0.0)
    machine.handle(Said("worker", "ready"), 0.1)
    for moment in (0.2, 0.4):
        machine.handle(Said("agent", "failed cache: another daemon holds it"), moment)
        assert machine.handle(Exited("agent", "exit status 1"), moment) == [Start("agent", again=True)]
    machine.handle(Said("agent", "failed cache: another daemon holds it"), 0.6)
    assert machine.handle(Exited("agent", "exit status 1"), 0.6) == [
        Unmount(lazy=True),
        Terminate("worker"),
        CloseConnection(),
    ]
    assert machine.handle(UnmountAnswered("done"), 0.7) == []
    assert machine.handle(Exited("worker", "exit status 0"), 0.8) == [
        End(1, "the agent does not start: exit status 1: cache: another daemon holds it")
    ]


def test_last_words_that_arrive_with_the_exit_are_still_its_reason() -> None:
    machine = serving()
    machine.handle(Said("agent", "failed no room left"), 5.0)
    machine.handle(Exited("agent", "exit status 1"), 5.0)
    assert machine.lives["agent"].last_exit == "exit status 1: no room left"


def test_child_that_is_silent_too_long_is_killed_and_started_again() -> None:
    machine = serving()
    for second in range(1, 32):
        machine.handle(Said("agent", "beat"), second)
        assert machine.handle(Tick(), second) == ([] if second <= 30 else [Kill("worker")])
    assert machine.handle(Tick(), 32) == []
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 32) == [Start("worker", again=True)]
    assert machine.lives["worker"].last_exit == "silent for 30 s, killed"


def test_stopped_child_is_not_killed_and_has_its_full_time_once_it_goes_on() -> None:
    machine = serving()
    for second in range(1, 300):
        machine.handle(Said("agent", "beat"), second)
        assert machine.handle(Tick(STOPPED_WORKER), second) == []
    for second in range(300, 330):
        machine.handle(Said("agent", "beat"), second)
        assert machine.handle(Tick(), second) == []
    machine.handle(Said("agent", "beat"), 330)
    assert machine.handle(Tick(), 330) == [Kill("worker")]


def test_keeper_that_was_stopped_itself_does_not_blame_its_children() -> None:
    machine = serving()
    machine.handle(Tick(), 1.0)
    assert machine.handle(Tick(), 1000.0) == []
    assert machine.handle(Tick(), 1001.0) == []


def test_child_that_is_not_ready_after_a_minute_is_killed() -> None:
    machine = Supervisor()
    machine.begin(0.0)
    machine.handle(Said("worker", "ready"), 0.1)
    killed = []
    for second in range(1, 62):
        machine.handle(Said("worker", "beat"), second)
        killed += machine.handle(Tick(), second)
    assert killed == [Kill("agent")]


def test_stop_unmounts_then_ends_the_children_and_the_keeper() -> None:
    machine = serving()
    assert machine.handle(StopAsked(), 10.0) == [Unmount(lazy=False)]
    assert machine.handle(UnmountAnswered("done"), 10.1) == [Terminate("worker"), Terminate("agent"), CloseConnection()]
    assert machine.handle(Exited("worker", "exit status 0", connected=False), 10.2) == []
    assert machine.handle(Exited("agent", "exit status 0", connected=False), 10.3) == [End(0, "asked to stop")]
    assert machine.phase == ENDED
    assert machine.handle(StopAsked(), 10.4) == []


def test_busy_mount_is_tried_again_and_detached_after_the_grace() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    assert machine.handle(UnmountAnswered("busy"), 10.0) == []
    assert machine.handle(Tick(), 10.1) == []
    assert machine.handle(Tick(), 10.2) == [Unmount(lazy=False)]
    assert machine.handle(Tick(), 10.5) == []
    machine.handle(UnmountAnswered("busy"), 10.6)
    assert machine.handle(Tick(), 13.0) == [Unmount(lazy=True), Terminate("worker"), Terminate("agent"), CloseConnection()]


def test_second_stop_detaches_at_once_and_later_ones_do_nothing() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    assert machine.handle(StopAsked(), 10.1) == [
        Unmount(lazy=True),
        Terminate("worker"),
        Terminate("agent"),
        CloseConnection(),
    ]
    assert machine.handle(StopAsked(), 10.2) == []
    assert machine.phase == ENDING


def test_keeper_does_not_end_while_an_unmount_is_unanswered() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    machine.handle(StopAsked(), 10.1)
    machine.handle(Exited("worker", "exit status 0"), 10.2)
    assert machine.handle(Exited("agent", "exit status 0"), 10.2) == []
    assert machine.handle(UnmountAnswered("busy"), 10.3) == []
    assert machine.handle(UnmountAnswered("done"), 10.4) == [End(0, "asked to stop")]


def test_children_that_ignore_sigterm_are_killed_after_three_seconds() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    machine.handle(UnmountAnswered("done"), 10.0)
    assert machine.handle(Tick(), 12.9) == []
    assert machine.handle(Tick(), 13.0) == [Kill("worker"), Kill("agent")]
    assert machine.handle(Tick(), 13.1) == []


def test_stopped_child_is_killed_at_once_when_the_mount_ends() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    machine.handle(UnmountAnswered("done"), 10.0)
    assert machine.handle(Tick(STOPPED_WORKER), 10.1) == [Kill("worker")]


def test_keeper_ends_after_ten_seconds_whatever_hangs_and_names_it() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    machine.handle(UnmountAnswered("done"), 10.0)
    machine.handle(Tick(), 13.0)
    machine.handle(Exited("agent", "killed by SIGKILL"), 13.1)
    assert machine.handle(Tick(), 20.0) == [End(1, "asked to stop; still running: worker")]


def test_unmount_from_outside_ends_the_keeper_with_success() -> None:
    machine = serving()
    assert machine.handle(Exited("worker", "exit status 0", connected=False), 5.0) == [
        Unmount(lazy=True), Terminate("agent"), CloseConnection(),
    ]  # fmt: skip
    machine.handle(UnmountAnswered("gone"), 5.1)
    assert machine.handle(Exited("agent", "exit status 0"), 5.2) == [End(0, "unmounted from outside")]


def test_lost_connection_ends_a_worker_that_did_not_notice() -> None:
    machine = serving()
    actions = machine.handle(Disconnected(), 5.0)
    assert actions == [Unmount(lazy=True), Terminate("worker"), Terminate("agent"), CloseConnection()]


def test_child_that_dies_during_the_stop_is_not_started_again() -> None:
    machine = serving()
    machine.handle(StopAsked(), 10.0)
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 10.1) == []
    assert machine.handle(UnmountAnswered("busy"), 10.2) == []
    assert Start("worker", again=True) not in machine.handle(Tick(), 10.5)


def test_wait_is_a_second_while_nothing_is_due() -> None:
    machine = serving()
    assert machine.wake_in_s(3.0) == 1.0


# -- an upgrade


def upgrading(now: float = 10.0) -> Supervisor:
    """Return a machine whose new children have been started."""
    machine = serving()
    assert machine.handle(UpgradeAsked(), now) == [Terminate("agent", succeeded=True)]
    assert machine.handle(Exited("agent", "exit status 0"), now) == [Kill("worker")]
    started = [UseCode(new=True), Start("worker", again=True), Start("agent", again=True)]
    assert machine.handle(Exited("worker", "killed by SIGKILL"), now) == started
    return machine


def test_upgrade_has_ended_when_both_new_children_have_lived_for_half_a_second() -> None:
    machine = upgrading(now=10.0)
    machine.handle(Said("agent", "ready"), 10.5)
    machine.handle(Said("worker", "ready"), 11.0)
    assert machine.handle(Tick(), 11.4) == []
    assert machine.handle(Tick(), 11.5) == [UpgradeEnded("")]
    assert machine.phase == SERVING
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 13.0) == [Start("worker", again=True)]


def test_agent_that_does_not_end_for_an_upgrade_is_killed_after_three_seconds() -> None:
    machine = serving()
    machine.handle(UpgradeAsked(), 10.0)
    assert machine.handle(Tick(), 12.9) == []
    assert machine.handle(Tick(), 13.0) == [Kill("agent")]
    assert machine.handle(Tick(), 13.1) == []


def test_new_child_that_ends_brings_the_old_version_back() -> None:
    machine = upgrading()
    machine.handle(Said("agent", "failed no room"), 10.2)
    assert machine.handle(Exited("agent", "exit status 1"), 10.2) == [Kill("worker")]
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 10.3) == [
        UseCode(new=False), Start("worker", again=True), Start("agent", again=True),
    ]  # fmt: skip
    assert machine.handle(Said("worker", "ready"), 11.0) == []
    assert machine.handle(Said("agent", "ready"), 11.1) == [UpgradeEnded("the new agent ended: exit status 1: no room")]


def test_new_child_that_ends_in_the_trial_brings_the_old_version_back() -> None:
    machine = upgrading(now=10.0)
    machine.handle(Said("agent", "ready"), 10.5)
    machine.handle(Said("worker", "ready"), 10.5)
    assert machine.handle(Exited("worker", "killed by SIGSEGV"), 10.9) == [Kill("agent")]


def test_new_child_that_is_not_ready_in_time_brings_the_old_version_back() -> None:
    machine = upgrading(now=10.0)
    machine.handle(Said("worker", "ready"), 10.5)
    assert machine.handle(Tick(), 29.9) == []
    assert machine.handle(Tick(), 30.0) == [Kill("worker"), Kill("agent")]
    machine.handle(Exited("worker", "killed by SIGKILL"), 30.1)
    machine.handle(Exited("agent", "killed by SIGKILL"), 30.1)
    machine.handle(Said("agent", "ready"), 31.0)
    assert machine.handle(Said("worker", "ready"), 31.0) == [UpgradeEnded("the new agent is not ready after 20 s")]


def test_upgrade_is_refused_before_the_mount_serves() -> None:
    machine = Supervisor()
    machine.begin(0.0)
    assert machine.handle(UpgradeAsked(), 0.1) == [UpgradeEnded("the mount is starting")]


def test_upgrade_of_a_lake_with_samples_takes_both_workers_along() -> None:
    machine = Supervisor(children=LAKE_WITH_SAMPLES)
    machine.begin(0.0)
    for name in ("worker", "agent", "jobs"):
        machine.handle(Said(name, "ready"), 0.0)
    machine.handle(UpgradeAsked(), 10.0)
    assert machine.handle(Exited("agent", "exit status 0"), 10.0) == [Kill("worker"), Kill("jobs")]
    assert machine.handle(Exited("worker", "killed by SIGKILL"), 10.0) == []
    assert machine.handle(Exited("jobs", "killed by SIGKILL"), 10.0) == [
        UseCode(new=True), Start("worker", again=True), Start("agent", again=True), Start("jobs", again=True),
    ]  # fmt: skip


def test_stop_during_an_upgrade_is_a_stop() -> None:
    machine = upgrading()
    assert machine.handle(StopAsked(), 10.1) == [Unmount(lazy=False)]
    assert machine.handle(Exited("worker", "exit status 1"), 10.2) == []
    assert machine.handle(UnmountAnswered("done"), 10.3) == [Terminate("agent"), CloseConnection()]


_NAMES = [child.name for child in LAKE_WITH_SAMPLES]
_events = st.one_of(
    st.builds(Said, st.sampled_from(_NAMES), st.sampled_from(["ready", "beat", "failed x"])),
    st.builds(StopAsked),
    st.builds(UpgradeAsked),
    st.builds(Tick, st.frozensets(st.sampled_from(_NAMES))),
    st.builds(Disconnected),
    st.sampled_from(["exit worker", "exit agent", "exit jobs", "busy", "done"]),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(_events, st.floats(0.0, 4.0)), max_size=60))
def test_whatever_happens_children_are_never_doubled_and_a_stop_ends_in_ten_seconds(
    history: list[tuple[object, float]],
) -> None:
    machine = Supervisor(Limits(), LAKE_WITH_SAMPLES)
    now, alive, unmounting, ended = 0.0, set[str](), 0, False

    def enact(actions: list[object]) -> None:
        nonlocal unmounting, ended
        for action in actions:
            assert not ended
            if isinstance(action, Start):
                assert action.child not in alive
                alive.add(action.child)
            elif isinstance(action, (Terminate, Kill)):
                assert action.child in alive
            elif isinstance(action, Unmount):
                unmounting += 1
            elif isinstance(action, End):
                ended = True

    enact(list(machine.begin(now)))
    for event, pause in history:
        now += pause
        if isinstance(event, str) and event.startswith("exit "):
            child = event.removeprefix("exit ")
            if child not in alive:
                continue
            alive.discard(child)
            event = Exited(child, "killed by SIGKILL")
        elif isinstance(event, UpgradeAsked) and (machine.upgrade or machine.why_returning):
            continue  # the keeper asks for one at a time
        elif isinstance(event, str):
            if not unmounting:
                continue
            unmounting -= 1
            event = UnmountAnswered(event)
        enact(list(machine.handle(event, now)))  # type: ignore[arg-type]
    enact(list(machine.handle(StopAsked(), now)))
    end = now + 10.0
    while now < end and not ended:
        now += 0.1
        enact(list(machine.handle(Tick(), now)))
    enact(list(machine.handle(Tick(), now + 0.1)))
    assert ended
