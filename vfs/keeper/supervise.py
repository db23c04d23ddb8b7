"""When children are started, restarted, told to end and killed, and how a stop proceeds: event in, actions out.

Pure: no I/O, no clock. `vfs/keeper/service.py` carries the actions out and reports events, with the time of each.

A stop goes starting or serving -> unmounting (while others hold files open, up to a grace) -> ending (children end, are
killed at a bound) -> ended. Nothing that happens can make it longer than `Limits.stop_total_s`.

An upgrade of the code happens while serving (docs/adr/0015): the agent ends, then the workers are killed, then all are
started from the new installation. If one ends or is late before all have proven themselves, all are killed and started
from the old one. Versions never meet: no child of one runs beside a child of the other, but for old workers without an
agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

STARTING, SERVING, UNMOUNTING, ENDING, ENDED = "starting", "serving", "unmounting", "ending", "ended"
LEAVING, TRIAL, RETURNING = "leaving", "trial", "returning"
"""Steps of an upgrade: the old children end; the new ones prove themselves; the new ones end because they have not."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that is kept running.

    Attributes:
        after: those that have to serve before it is started for the first time.
    """

    name: str
    after: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return what people call it."""
        return {"jobs": "worker of .jobs"}.get(self.name, self.name)


WORKER, AGENT = Child("worker"), Child("agent")
JOBS = Child("jobs", after=("worker", "agent"))
"""Serves `.jobs`: its mount point is a directory that the worker shows, its answers are the agent's."""
LAKE = (WORKER, AGENT)
LAKE_WITH_SAMPLES = (WORKER, AGENT, JOBS)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the supervision, in seconds and counts.

    Attributes:
        start_timeout_s: from start to "ready"; a cold disk needs some 15 s for the imports.
        silence_s: without a beat, not being stopped, before a child is killed.
        failed_starts_max: ends before "ready", in a row, of a child that has never served; then the mount is given up.
        quick_life_s: a child that ends sooner after "ready" died of what it was asked, most likely.
        quick_deaths_free: quick or failed lives in a row that are followed by a start at once.
        back_off_s: the first pause after those; it doubles up to `back_off_s_max`.
        busy_grace_s: how long a stop waits for others to close their files.
        busy_retry_s: between two attempts to unmount.
        terminate_s: from SIGTERM to SIGKILL.
        stop_total_s: from the first SIGTERM to the keeper's end, whatever hangs.
        trial_start_s: from start to "ready" in an upgrade, while callers wait; the command that asks for it has had the
            modules read from the disk before.
        trial_s: that new children have to live for once both are ready.
    """

    start_timeout_s: float = 60.0
    silence_s: float = 30.0
    failed_starts_max: int = 3
    quick_life_s: float = 0.5
    quick_deaths_free: int = 3
    back_off_s: float = 0.2
    back_off_s_max: float = 5.0
    busy_grace_s: float = 3.0
    busy_retry_s: float = 0.2
    terminate_s: float = 3.0
    stop_total_s: float = 10.0
    trial_start_s: float = 20.0
    trial_s: float = 0.5

    def __post_init__(self) -> None:
        assert self.busy_grace_s + self.terminate_s < self.stop_total_s, "a stop would be cut short before its last step"


@dataclass(frozen=True, slots=True)
class Said:
    """A child wrote "ready", "beat" or "failed REASON"."""

    child: str
    line: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A child has ended, or could not be started; `connected` is whether the FUSE connection still is."""

    child: str
    why: str
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The FUSE connection has ended: unmounted or aborted by somebody else."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """SIGTERM or SIGINT came."""


@dataclass(frozen=True, slots=True)
class UpgradeAsked:
    """Children of another installation are wanted."""


@dataclass(frozen=True, slots=True)
class UnmountAnswered:
    """An attempt to unmount has ended: "done", "gone", "busy", or what went wrong."""

    result: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; `stopped` are the children in state T."""

    stopped: frozenset[str] = frozenset()


Event = Said | Exited | Disconnected | StopAsked | UpgradeAsked | UnmountAnswered | Tick


@dataclass(frozen=True, slots=True)
class Start:
    """Start a child; `again` is true from its second start on (the worker then asks for unanswered requests)."""

    child: str
    again: bool


@dataclass(frozen=True, slots=True)
class Terminate:
    """Have it end: SIGTERM, or SIGINT where a successor is waited for and goes on with what is left."""

    child: str
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL."""

    child: str


@dataclass(frozen=True, slots=True)
class Unmount:
    """Unmount without waiting for it here."""

    lazy: bool


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the descriptor: with the worker's gone too, the kernel aborts what still waits."""


@dataclass(frozen=True, slots=True)
class UseCode:
    """Start children from the new installation from now on, or from the old one again."""

    new: bool


@dataclass(frozen=True, slots=True)
class UpgradeEnded:
    """The new children serve, or `why_not` they don't."""

    why_not: str


@dataclass(frozen=True, slots=True)
class TellReady:
    """Every child serves for the first time."""


@dataclass(frozen=True, slots=True)
class End:
    """Exit with this status; `reason` is for people."""

    status: int
    reason: str


Action = Start | Terminate | Kill | Unmount | CloseConnection | UseCode | UpgradeEnded | TellReady | End


@dataclass(slots=True)
class Life:
    """What is remembered of a child.

    Invariants: `restart_at` is None while it is alive; `ready` only while it is alive.

    Attributes:
        starts: so far.
        bad_lives: failed starts and quick deaths in a row.
        last_words: reason of its last "failed" line, for the message about its end.
        doom: why we killed it, else "".
    """

    alive: bool = False
    ready: bool = False
    has_served: bool = False
    started_at: float = 0.0
    ready_at: float = 0.0
    heard_at: float = 0.0
    restart_at: float | None = None
    starts: int = 0
    bad_lives: int = 0
    last_words: str = ""
    last_exit: str = ""
    doom: str = ""

    @property
    def restarts(self) -> int:
        """Return how often it was started again."""
        return max(0, self.starts - 1)


@dataclass(slots=True)
class Supervisor:
    """The state machine. Feed events in the order in which they happened; `now` never goes back.

    Attributes:
        children: in the order in which they are started.
        phase: see the module.
        lives: by child.
        reason: why it stops, "" before.
        exit_status: of the keeper, once it stops.
        stop_at: time of the first reason to stop.
        ending_at: time at which the children were told to end.
        unmount_at: when the next attempt to unmount is due; None while one runs or none is wanted.
        unmounts_running: attempts that have not been answered; the keeper does not end before them.
        upgrade: its step, "" where there is none; only while serving.
        upgrade_at: time at which the step began.
        why_returning: what the new children failed of; told when the old version serves again, "" from then on.
    """

    limits: Limits = field(default_factory=Limits)
    children: tuple[Child, ...] = LAKE
    phase: str = STARTING
    lives: dict[str, Life] = field(init=False)
    reason: str = ""
    exit_status: int = 0
    stop_at: float = 0.0
    ending_at: float = 0.0
    unmount_at: float | None = None
    unmounts_running: int = 0
    ticked_at: float = 0.0
    upgrade: str = ""
    upgrade_at: float = 0.0
    why_returning: str = ""

    def __post_init__(self) -> None:
        self.lives = {child.name: Life() for child in self.children}

    def begin(self, now: float) -> list[Action]:
        """Return the first actions."""
        self.ticked_at = now
        return self._first_starts(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return what to do about the event."""
        if self.phase == ENDED:
            return []
        match event:
            case Said():
                return self._on_said(event, now)
            case Exited():
                return self._on_exited(event, now)
            case Disconnected():
                return self._on_disconnected(now)
            case StopAsked():
                return self._on_stop_asked(now)
            case UpgradeAsked():
                return self._on_upgrade_asked(now)
            case UnmountAnswered():
                return self._on_unmount_answered(event, now)
            case Tick():
                return self._on_tick(event, now)

    def wake_in_s(self, now: float) -> float:
        """Return after how long a `Tick` is due at the latest: 1 s, or the next restart or attempt to unmount."""
        due = [life.restart_at for life in self.lives.values() if life.restart_at is not None]
        if self.unmount_at is not None:
            due.append(self.unmount_at)
        if self.upgrade:
            due.append(now + 0.1)
        if self.phase == ENDING:
            due.append(now + 0.1)
        return max(0.0, min([now + 1.0, *due]) - now)

    # -- events

    def _on_said(self, event: Said, now: float) -> list[Action]:
        life = self.lives[event.child]
        if not life.alive:  # a line that lay in the pipe when it ended
            life.last_words = event.line.removeprefix("failed ") if event.line.startswith("failed ") else life.last_words
            return []
        life.heard_at = now
        if event.line.startswith("failed "):
            life.last_words = event.line.removeprefix("failed ")
        elif event.line == "ready" and not life.ready:
            life.ready = life.has_served = True
            life.ready_at = now
            if all(other.ready for other in self.lives.values()):
                return self._on_all_ready()
            if self.phase == STARTING:
                return self._first_starts(now)
        return []

    def _on_all_ready(self) -> list[Action]:
        if self.phase == STARTING:
            self.phase = SERVING
            return [TellReady()]
        if self.why_returning and not self.upgrade:
            why, self.why_returning = self.why_returning, ""
            return [UpgradeEnded(why)]
        return []

    def _on_exited(self, event: Exited, now: float) -> list[Action]:
        life = self.lives[event.child]
        was_bad = self.upgrade != LEAVING and (not life.ready or now - life.ready_at < self.limits.quick_life_s)
        life.bad_lives = life.bad_lives + 1 if was_bad else 0
        life.last_exit = _sentence(life.doom or event.why, life.last_words)
        life.alive = life.ready = False
        life.last_words = life.doom = ""
        if self.phase == UNMOUNTING:
            return []
        if self.phase == ENDING:
            return self._end_if_alone()
        if not event.connected:
            return self._on_disconnected(now)
        if self.upgrade:
            return self._on_exited_in_upgrade(event.child, now)
        if not life.has_served and life.bad_lives >= self.limits.failed_starts_max:
            return self._give_up(f"the {Child(event.child).title} does not start: {life.last_exit}", now)
        pause = self._pause_s(life)
        if pause == 0:
            return [self._start(event.child, now)]
        life.restart_at = now + pause
        return []

    def _on_disconnected(self, now: float) -> list[Action]:
        if self.phase in (STARTING, SERVING):
            self.stop_at = now
            self.reason = "unmounted from outside"
            self.upgrade = ""
            return [self._unmount(lazy=True), *self._end_children(now)]  # an aborted connection leaves its mount behind
        if self.phase == UNMOUNTING:
            return self._end_children(now)
        return []

    def _on_stop_asked(self, now: float) -> list[Action]:
        if self.phase in (STARTING, SERVING):
            self.phase = UNMOUNTING
            self.stop_at = now
            self.reason = "asked to stop"
            self.upgrade = ""
            for life in self.lives.values():
                life.restart_at = None
            return [self._unmount(lazy=False)]
        if self.phase == UNMOUNTING:  # asked again: no more waiting for others
            return [self._unmount(lazy=True), *self._end_children(now)]
        return []

    def _on_unmount_answered(self, event: UnmountAnswered, now: float) -> list[Action]:
        self.unmounts_running -= 1
        assert self.unmounts_running >= 0, "an attempt to unmount was answered twice"
        if self.phase == ENDING:
            return self._end_if_alone()
        if event.result in ("done", "gone"):
            return self._end_children(now)
        self.unmount_at = now + self.limits.busy_retry_s
        return []

    def _on_tick(self, event: Tick, now: float) -> list[Action]:
        self._forgive(event.stopped, now)
        if self.upgrade:
            return self._upgrade_tick(event.stopped, now)
        if self.phase in (STARTING, SERVING):
            return [*self._due_starts(now), *self._overdue(now)]
        if self.phase == UNMOUNTING:
            return self._unmounting_tick(now)
        return self._ending_tick(event.stopped, now)

    # -- an upgrade

    def _on_upgrade_asked(self, now: float) -> list[Action]:
        assert not (self.upgrade or self.why_returning), "one upgrade at a time is asked for"
        if self.phase != SERVING:
            return [UpgradeEnded(f"the mount is {self.phase}")]
        self.upgrade, self.upgrade_at = LEAVING, now
        for life in self.lives.values():
            life.restart_at = None
        if self.lives["agent"].alive:  # the worker goes on with what is here until the agent has ended
            return [Terminate("agent", succeeded=True)]
        return self._leave_workers(now)

    def _leave_workers(self, now: float) -> list[Action]:
        if not self._anyone_alive():
            return self._begin_trial(now)
        # What they have taken and not answered, their successors are asked again.
        return self._kill([name for name, life in self.lives.items() if life.alive], "killed for the upgrade")

    def _begin_trial(self, now: float) -> list[Action]:
        self.upgrade, self.upgrade_at = TRIAL, now
        return [UseCode(new=True), *self._start_all(now)]

    def _on_exited_in_upgrade(self, child: str, now: float) -> list[Action]:
        if self.upgrade == LEAVING:
            return self._leave_workers(now) if child == "agent" else self._begin_trial_if_alone(now)
        if self.upgrade == TRIAL:
            return self._return(f"the new {Child(child).title} ended: {self.lives[child].last_exit}", now)
        return self._start_old_if_alone(now)

    def _begin_trial_if_alone(self, now: float) -> list[Action]:
        """Go on when the workers have ended; they may do so by themselves before the agent has."""
        return [] if self._anyone_alive() else self._begin_trial(now)

    def _return(self, why: str, now: float) -> list[Action]:
        self.upgrade, self.upgrade_at, self.why_returning = RETURNING, now, why
        if not self._anyone_alive():
            return self._start_old_if_alone(now)
        doomed = [name for name, life in self.lives.items() if life.alive]
        for name in doomed:
            self.lives[name].doom = self.lives[name].doom or "killed with the rest of its version"
        return [Kill(name) for name in doomed]

    def _start_old_if_alone(self, now: float) -> list[Action]:
        if self._anyone_alive():
            return []
        self.upgrade = ""
        return [UseCode(new=False), *self._start_all(now)]

    def _start_all(self, now: float) -> list[Action]:
        for life in self.lives.values():
            life.bad_lives = 0
        return [self._start(name, now) for name in self.lives]

    def _anyone_alive(self) -> bool:
        return any(life.alive for life in self.lives.values())

    def _upgrade_tick(self, stopped: Iterable[str], now: float) -> list[Action]:
        lives = self.lives
        if self.upgrade == LEAVING:
            late = now - self.upgrade_at >= self.limits.terminate_s
            if lives["agent"].alive and not lives["agent"].doom and (late or "agent" in stopped):
                return self._kill(["agent"], "killed for the upgrade")
        elif self.upgrade == TRIAL:
            if all(life.ready for life in lives.values()):
                if now - max(life.ready_at for life in lives.values()) < self.limits.trial_s:
                    return []
                self.upgrade = ""
                return [UpgradeEnded("")]
            if now - self.upgrade_at >= self.limits.trial_start_s:
                late_ones = [name for name, life in lives.items() if not life.ready]
                return self._return(
                    f"the new {Child(late_ones[0]).title} is not ready after {self.limits.trial_start_s:.0f} s", now
                )
        return []

    # -- parts of a tick

    def _forgive(self, stopped: Iterable[str], now: float) -> None:
        """Move the time of the last beat where silence says nothing: for stopped children, and after a stop of our own."""
        gap = now - self.ticked_at
        self.ticked_at = now
        for name, life in self.lives.items():
            if name in stopped or gap > 5.0:
                life.heard_at = now

    def _due_starts(self, now: float) -> list[Action]:
        due = [name for name, life in self.lives.items() if life.restart_at is not None and life.restart_at <= now]
        return [self._start(name, now) for name in due]

    def _overdue(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for name, life in self.lives.items():
            bound = self.limits.silence_s if life.ready else self.limits.start_timeout_s
            if life.alive and not life.doom and now - life.heard_at > bound:
                life.doom = f"silent for {bound:.0f} s, killed" if life.ready else f"not ready after {bound:.0f} s, killed"
                actions.append(Kill(name))
        return actions

    def _unmounting_tick(self, now: float) -> list[Action]:
        if now - self.stop_at >= self.limits.busy_grace_s:
            self.reason += "; files were still open"
            return [self._unmount(lazy=True), *self._end_children(now)]
        if self.unmount_at is not None and self.unmount_at <= now:
            self.unmount_at = None
            return [self._unmount(lazy=False)]
        return []

    def _ending_tick(self, stopped: Iterable[str], now: float) -> list[Action]:
        if now - self.stop_at >= self.limits.stop_total_s:
            self.phase = ENDED
            left = [name for name, life in self.lives.items() if life.alive] or ["the call to unmount"]
            return [End(1, f"{self.reason}; still running: {', '.join(left)}")]
        late = now - self.ending_at >= self.limits.terminate_s
        doomed = [name for name, life in self.lives.items() if life.alive and not life.doom and (late or name in stopped)]
        return self._kill(doomed, "killed at the end")

    # -- steps

    def _first_starts(self, now: float) -> list[Action]:
        """Start the children that have not been and that wait for nobody any more."""
        due = [child.name for child in self.children if not self.lives[child.name].starts and self._may_start(child)]
        return [self._start(name, now) for name in due]

    def _may_start(self, child: Child) -> bool:
        return all(self.lives[name].ready for name in child.after)

    def _start(self, name: str, now: float) -> Start:
        life = self.lives[name]
        assert not life.alive, f"the {name} is already running"
        life.alive = True
        life.started_at = life.heard_at = now
        life.restart_at = None
        life.starts += 1
        return Start(name, again=life.starts > 1)

    def _kill(self, names: Sequence[str], why: str) -> list[Action]:
        for name in names:
            self.lives[name].doom = why
        return [Kill(name) for name in names]

    def _unmount(self, *, lazy: bool) -> Unmount:
        self.unmounts_running += 1
        return Unmount(lazy)

    def _pause_s(self, life: Life) -> float:
        excess = life.bad_lives - self.limits.quick_deaths_free
        if excess <= 0:
            return 0.0
        return min(self.limits.back_off_s_max, self.limits.back_off_s * 2.0 ** min(excess - 1, 20))

    def _give_up(self, reason: str, now: float) -> list[Action]:
        self.stop_at = now
        self.reason = reason
        self.exit_status = 1
        return [self._unmount(lazy=True), *self._end_children(now)]

    def _end_children(self, now: float) -> list[Action]:
        self.phase = ENDING
        self.ending_at = now
        self.unmount_at = None
        for life in self.lives.values():
            life.restart_at = None
        tell: list[Action] = [Terminate(name) for name, life in self.lives.items() if life.alive]
        return [*tell, CloseConnection(), *self._end_if_alone()]

    def _end_if_alone(self) -> list[Action]:
        if self.unmounts_running or self._anyone_alive():
            return []
        self.phase = ENDED
        return [End(self.exit_status, self.reason)]


def _sentence(why: str, last_words: str) -> str:
    return f"{why}: {last_words}" if last_words else why
