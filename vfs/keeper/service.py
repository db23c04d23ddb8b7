"""The keeper at work: one thread that waits for signals, children's lines and time, and carries out what is decided.

Flow: `run` clears the way, mounts, answers INIT, then turns the loop: signals and pipes become events for
`supervise.Supervisor`, its actions are carried out here. Unmounting has a thread of its own, for the call can block as
long as a server that hangs. The descriptor of the connection is looked at once a second and not waited for: the kernel
would wake this process at each request.

The samples' connection is made in a thread, too: where its place is a directory of the lake, the kernel first has the worker
look that up. When its connection has ended, by whatever hand, the child ends, and it is mounted anew for the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO

from vfs import rundir
from vfs.keeper import code, mountinfo, mounting, notify, procfs, report, state, supervise

log = logging.getLogger(__name__)

STDERR_BYTES_MAX = 1 << 20
HEADLESS_S = 0.3
"""How long a process may take from the end of its first thread to that of its last; a kill takes milliseconds."""
_STATE_PHASE = {
    supervise.STARTING: state.STARTING,
    supervise.SERVING: state.SERVING,
    supervise.UNMOUNTING: state.STOPPING,
    supervise.ENDING: state.STOPPING,
    supervise.ENDED: state.STOPPING,
}


_PROGRAMS = {"worker": "vfs.kernel", "agent": "vfs.agent", "jobs": "vfs.kernel.jobs"}
_SERVING = ("worker", "jobs")
"""The children that serve a connection each."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `foremount mount` decides before it starts the keeper.

    Attributes:
        mountpoint: settled (`vfs.rundir.settle`).
        config: absolute path of the configuration; handed on to the children, not read here.
        run_dir: created, mode 0700.
        why_no_passthrough: what the caller knows against it (not built, switched off), or "".
        read_ahead_kb: what to raise the kernel's read-ahead to; 0 leaves it.
        ready_fd: where to write "ready" or "failed REASON", or -1.
        foreground: log to standard error too.
        read_only: nothing below can be written. The kernel then also keeps attributes over a read, which it otherwise
            asks for again because of the access time.
        samples: mount `.jobs` beneath, with a worker of its own.
        samples_read_ahead_kb: as `read_ahead_kb`, for that mount.
        commands: how the children are started, for tests of the keeper alone; {} for the real ones.
        limits: overrides of `supervise.Limits` by name.
    """

    mountpoint: str
    config: str
    run_dir: str
    why_no_passthrough: str = ""
    read_ahead_kb: int = 0
    ready_fd: int = -1
    foreground: bool = False
    read_only: bool = False
    samples: bool = False
    samples_read_ahead_kb: int = 0
    commands: dict[str, list[str]] | None = None
    limits: dict[str, float] | None = None

    @staticmethod
    def load(path: str) -> Options:
        """Return the options in a JSON file.

        Raises:
            OSError: it can't be read.
            ValueError, TypeError: it holds no options.
        """
        with open(path, encoding="utf-8") as file:
            return Options(**json.load(file))


@dataclass(slots=True)
class _Child:
    """A running child with the reading end of its status pipe; `silent` once it has closed its own end.

    Attributes:
        headless_at: when it was first seen dead but for threads that the kernel holds; None while it is not.
    """

    popen: subprocess.Popen[bytes]
    pipe: int
    pending: bytes = b""
    silent: bool = False
    headless_at: float | None = None


@dataclass(slots=True)
class _Served:
    """A connection; `by_workers` counts those that were started for it: the first finds nothing that was begun."""

    connection: mounting.Connection
    by_workers: int = 0


class Keeper:
    """One mount from its start to its end.

    Attributes:
        state: as last written to the state file.
        children: those that have not been collected.
        remnants: children that are dead but for a thread that the kernel holds, and that have a successor.
        connections: by the child that serves each; without "worker" before the mount and after `CloseConnection`.
        code: what children are started from.
        wanted: the upgrade under way; None where there is none.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rundir = rundir.RunDir(options.run_dir)
        kept = supervise.LAKE_WITH_SAMPLES if options.samples else supervise.LAKE
        self.supervisor = supervise.Supervisor(supervise.Limits(**(options.limits or {})), kept)  # type: ignore[arg-type]
        own = procfs.look(os.getpid())
        assert own is not None, "a process finds itself in /proc"
        self.code = code.own()
        self.wanted: code.Wanted | None = None
        self._code_before = self.code
        self.state = state.new(
            pid=os.getpid(),
            starttime=own.starttime,
            mountpoint=options.mountpoint,
            config=options.config,
            version=self.code.version,
            python=self.code.python,
        )
        self.children: dict[str, _Child] = {}
        self.remnants: list[subprocess.Popen[bytes]] = []
        self.connections: dict[str, _Served] = {}
        self.ended: supervise.End | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._posted: list[Callable[[], None]] = []

    def run(self) -> int:
        """Serve until asked to stop, unmounted or given up; return the exit status."""
        with open(self.rundir.lock, "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return self._fail(f"another keeper runs for {self.options.mountpoint}", keep_state=True)
            self._catch_signals()
            try:
                self._mount()
            except mounting.CantMount as exc:
                return self._fail(str(exc))
            with contextlib.suppress(PermissionError):  # it leads a session already, in the foreground
                os.setsid()  # not before: autofs lets its own process group alone come to a place that it has mounted
            self._carry_out(self.supervisor.begin(time.monotonic()))
            while self.ended is None:
                self._turn()
            return self._finish(self.ended)

    # -- start and end

    def _mount(self) -> None:
        for sentence in mounting.clear_way(self.options.mountpoint, self._recorded()):
            log.warning("%s", sentence)
        self._save()
        why_not = self.options.why_no_passthrough or mounting.host_against_passthrough()
        connection = mounting.open_connection(
            self.options.mountpoint, why_no_passthrough=why_not, read_only=self.options.read_only
        )
        assert mounting.fuse_descriptors() == [connection.fd], "another /dev/fuse descriptor would outlive the mount"
        self.connections["worker"] = _Served(connection)
        read_ahead_kb, why_no_read_ahead = 0, ""
        if self.options.read_ahead_kb:
            read_ahead_kb, why_no_read_ahead = mounting.raise_read_ahead(connection.number, self.options.read_ahead_kb)
        self.state = replace(
            self.state,
            connection=connection.number,
            flags=connection.agreed.flags,
            passthrough=connection.agreed.passthrough,
            why_no_passthrough=connection.agreed.why_no_passthrough,
            read_ahead_kb=read_ahead_kb,
            why_no_read_ahead=why_no_read_ahead,
        )
        log.info("mounted on %s, connection %d", self.options.mountpoint, connection.number)

    def _recorded(self) -> state.KeeperState | None:
        try:
            return state.read(self.rundir.state)
        except state.BrokenState as exc:
            log.warning("%s %s: taken as absent", self.rundir.state, exc)
            return None

    def _fail(self, reason: str, *, keep_state: bool = False) -> int:
        log.error("%s", reason)
        self._answer(f"failed {reason}")
        if not keep_state:
            self.state = replace(self.state, phase=state.FAILED, reason=reason)
            state.write(self.rundir.state, self.state)
        return 1

    def _finish(self, end: supervise.End) -> int:
        log.info("ended: %s", end.reason)
        if end.status:
            return self._fail(end.reason)
        self._answer(f"failed {end.reason}")  # to somebody who still waits for "ready"
        state.remove(self.rundir.state)
        return 0

    def _answer(self, line: str) -> None:
        """Tell whoever waits for readiness, once."""
        if self.options.ready_fd >= 0:
            try:
                os.write(self.options.ready_fd, line.encode()[:4000] + b"\n")
            except BrokenPipeError:
                pass  # they have given up
            os.close(self.options.ready_fd)
            self.options = replace(self.options, ready_fd=-1)

    # -- the loop

    def _catch_signals(self) -> None:
        """Have signals arrive as bytes on a pipe; no handler does any work, so none can be entered twice."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _turn(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        names = {child.pipe: name for name, child in self.children.items() if not child.silent}
        for pipe in names:
            poller.register(pipe, select.POLLIN)
        wait_s = self.supervisor.wake_in_s(time.monotonic())
        if any(child.headless_at for child in self.children.values()):
            wait_s = min(wait_s, HEADLESS_S)
        woken = poller.poll(wait_s * 1000 + 1)
        for fd, _ in woken:
            if fd in names:
                self._listen(names[fd])
        self._collect()
        for number in self._signals():
            self._on_signal(number)
        while self._posted:
            self._posted.pop(0)()
        if "worker" in self.connections and not self._is_connected("worker"):
            self._feed(supervise.Disconnected())
        self._feed(supervise.Tick(self._stopped_children()))
        notify.notify("WATCHDOG=1")

    def _feed(self, event: supervise.Event) -> None:
        before = self.supervisor.phase
        self._carry_out(self.supervisor.handle(event, time.monotonic()))
        if self.supervisor.phase != before:
            log.info("%s -> %s %s", before, self.supervisor.phase, self.supervisor.reason)
            if before in (supervise.STARTING, supervise.SERVING) and self.supervisor.phase != supervise.SERVING:
                notify.notify("STOPPING=1")
        self._save()

    def _carry_out(self, actions: list[supervise.Action]) -> None:
        for action in actions:
            match action:
                case supervise.Start():
                    self._start(action)
                case supervise.Terminate():
                    self._signal(action.child, signal.SIGINT if action.succeeded else signal.SIGTERM)
                case supervise.Kill():
                    self._signal(action.child, signal.SIGKILL)
                case supervise.Unmount():
                    threading.Thread(target=self._unmount, args=(action.lazy,), name="unmount", daemon=True).start()
                case supervise.CloseConnection():
                    for name in list(self.connections):
                        os.close(self.connections.pop(name).connection.fd)
                case supervise.UseCode():
                    self._use_code(new=action.new)
                case supervise.UpgradeEnded():
                    self._end_upgrade(action.why_not)
                case supervise.TellReady():
                    log.info("serving")
                    self._answer("ready")
                    notify.notify("READY=1\nSTATUS=serving")
                case supervise.End():
                    self.ended = action

    # -- actions

    def _start(self, action: supervise.Start) -> None:
        if action.child in _SERVING and not self._is_connected(action.child):
            threading.Thread(target=self._mount_samples, args=(action.child,), name="mount", daemon=True).start()
        else:
            self._spawn(action.child)

    def _spawn(self, name: str) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        command, inherited = self._command(name, writing)
        try:
            with _fresh_log(self.rundir.stderr(name)) as stderr:
                popen = subprocess.Popen(
                    command,
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    process_group=0,  # Ctrl-C at a terminal is for the keeper
                    env=self.code.environ(),
                )
        except OSError as exc:
            os.close(reading)
            self._feed(supervise.Exited(name, f"can't be started: {exc.strerror}"))
            return
        finally:
            os.close(writing)
        self.children[name] = _Child(popen, reading)
        log.info("started the %s, process %d", supervise.Child(name).title, popen.pid)

    def _command(self, name: str, status_fd: int) -> tuple[list[str], list[int]]:
        """Return the command line and the descriptors that go along."""
        base = (self.options.commands or {}).get(name) or self.code.command(_PROGRAMS[name])
        common = ["--status-fd", str(status_fd), "--parent-pid", str(os.getpid())]
        common += ["--run-dir", self.rundir.path, "--config", self.options.config]
        if name not in _SERVING:
            return [*base, *common], [status_fd]
        served = self.connections[name]
        fd, negotiated = served.connection.fd, served.connection.agreed.to_text()
        fuse = ["--fuse-fd", str(fd), "--mountpoint", self._place(name), "--negotiated", negotiated]
        resend = ["--resend"] if served.by_workers else []  # a kernel without resend still knows our inodes
        served.by_workers += 1
        return [*base, *fuse, *common, *resend], [status_fd, fd]

    def _place(self, name: str) -> str:
        """Return where a child's mount is."""
        if name == "worker":
            return self.options.mountpoint
        return os.path.join(self.options.mountpoint, rundir.JOBS) if os.geteuid() == 0 else self.rundir.jobs

    def _is_connected(self, name: str) -> bool:
        served = self.connections.get(name)
        return served is not None and mounting.is_connected(served.connection.fd)

    def _mount_samples(self, name: str) -> None:
        """In a thread: mount for a child and wake the loop with the result."""
        made: mounting.Connection | str
        try:
            made = mounting.open_samples(
                self._place(name), mountpoint=self.options.mountpoint, ours=self.state.connections
            )  # fmt: skip
        except mounting.CantMount as exc:
            made = str(exc)
        self._post(functools.partial(self._mounted_samples, name, made))

    def _mounted_samples(self, name: str, made: mounting.Connection | str) -> None:
        if isinstance(made, str):
            self._feed(supervise.Exited(name, f"can't be mounted: {made}"))
            return
        if self.supervisor.phase not in (supervise.STARTING, supervise.SERVING):  # asked to stop meanwhile
            mounting.abort_connection(made.number)
            os.close(made.fd)
            self._feed(supervise.Exited(name, "not needed any more"))
            return
        if name in self.connections:  # the one that has ended
            os.close(self.connections[name].connection.fd)
        self.connections[name] = _Served(made)
        if self.options.samples_read_ahead_kb:
            mounting.raise_read_ahead(made.number, self.options.samples_read_ahead_kb)
        self.state = replace(self.state, jobs_connection=made.number)
        log.info("mounted on %s, connection %d", self._place(name), made.number)
        self._spawn(name)

    def _use_code(self, *, new: bool) -> None:
        assert self.wanted is not None, "code changes with an upgrade only"
        self.code = self.wanted.code if new else self._code_before
        log.info("children are version %s from now on, of %s", self.code.version, self.code.python)

    def _ask_upgrade(self) -> None:
        """Begin what the file in the run directory asks for; one upgrade at a time."""
        try:
            wanted = code.asked(self.rundir.upgrade)
        except (OSError, ValueError) as exc:
            log.warning("SIGUSR2 without a request for an upgrade: %s", exc)
            return
        if self.wanted is not None:
            log.warning("an upgrade is under way: %s is not begun", wanted.code.version)
            return
        log.info("upgrade to version %s asked for, of %s", wanted.code.version, wanted.code.python)
        self.wanted, self._code_before = wanted, self.code
        self.state = replace(self.state, upgrade=state.Upgrade(wanted.id, wanted.code.version))
        self._feed(supervise.UpgradeAsked())

    def _end_upgrade(self, why_not: str) -> None:
        assert self.wanted is not None, "an upgrade ends that has begun"
        log.log(
            logging.WARNING if why_not else logging.INFO, "upgrade to %s: %s", self.wanted.code.version, why_not or "done"
        )
        upgrade = state.Upgrade(self.wanted.id, self.wanted.code.version, ended=True, why_not=why_not)
        self.state = replace(self.state, upgrade=upgrade, version=self.code.version, python=self.code.python)
        self.wanted = None
        state.write(self.rundir.state, self.state)

    def _signal(self, name: str, number: int) -> None:
        child = self.children.get(name)
        if child is not None:
            child.popen.send_signal(number)  # not collected yet, so the pid is still its own

    def _unmount(self, lazy: bool) -> None:
        """In a thread: unmount what is beneath first, and wake the loop with the result."""
        places = {"jobs": self.state.jobs_connection, "worker": self.state.connection}
        result = "gone"
        try:
            for name in (
                reversed(places) if lazy else places
            ):  # lazily the lake takes along what is beneath, without being asked
                place = self._place(name)
                entry = mountinfo.on_top(mountinfo.read(), place)
                # what others have mounted there since is not ours to take away
                ours = entry is not None and entry.minor == places[name] and entry.fs_type == mountinfo.FS_TYPE
                answer = mounting.unmount(place, lazy=lazy) if ours else "gone"
                result = answer if name == "worker" or answer == "busy" else result
                if answer == "busy":
                    break
        except mounting.CantMount as exc:
            result = str(exc)
        log.info("umount%s: %s", " -l" if lazy else "", result)
        self._post(lambda: self._feed(supervise.UnmountAnswered(result)))

    def _post(self, work: Callable[[], None]) -> None:
        """Have the loop do this; from a thread."""
        self._posted.append(work)
        os.write(self._wake_write, b"\0")

    # -- events

    def _listen(self, name: str) -> None:
        child = self.children[name]
        try:
            received = os.read(child.pipe, 65536)
        except BlockingIOError:
            return
        child.silent = not received
        lines, child.pending = report.split_lines(child.pending, received)
        for line in lines:
            self._feed(supervise.Said(name, line))

    def _collect(self) -> None:
        """Report the children that have ended, after their last words."""
        self.remnants = [popen for popen in self.remnants if popen.poll() is None]
        for name, child in list(self.children.items()):
            status = child.popen.poll()
            if status is None and not self._is_remnant(child):
                continue
            self._listen(name)
            os.close(child.pipe)
            del self.children[name]
            if status is None:
                self.remnants.append(child.popen)
            why = describe_exit(status) if status is not None else "killed, with a thread that waits in the kernel"
            expected = status == 0 or self.supervisor.phase in (supervise.UNMOUNTING, supervise.ENDING)
            log.log(logging.INFO if expected else logging.WARNING, "the %s ended: %s", supervise.Child(name).title, why)
            self._feed(supervise.Exited(name, why, self._is_connected("worker")))

    def _is_remnant(self, child: _Child) -> bool:
        """Return whether a child that can't be collected is dead all the same.

        A thread that was putting bytes into the page cache when its process was killed may wait there for a page that only an
        answer to a READ unlocks: the successor has to be there before this one can end.
        """
        facts = procfs.look(child.popen.pid)
        if facts is None or facts.state != "Z":
            return False
        now = time.monotonic()
        child.headless_at = child.headless_at or now
        return now - child.headless_at > HEADLESS_S

    def _signals(self) -> list[int]:
        try:
            return [number for number in os.read(self._wake_read, 4096) if number]
        except BlockingIOError:
            return []

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            log.info("got %s", signal.Signals(number).name)
            self._feed(supervise.StopAsked())
        elif number == signal.SIGUSR1:
            for name in self.supervisor.lives:
                self._signal(name, signal.SIGUSR1)
        elif number == signal.SIGHUP:
            self._signal("agent", signal.SIGHUP)
        elif number == signal.SIGUSR2:
            self._ask_upgrade()

    def _stopped_children(self) -> frozenset[str]:
        found = {name: procfs.look(child.popen.pid) for name, child in self.children.items()}
        return frozenset(name for name, facts in found.items() if facts and facts.state in procfs.STOPPED)

    def _save(self) -> None:
        """Write the state file where anything has changed."""
        fresh = replace(self.state, phase=_STATE_PHASE[self.supervisor.phase], reason=self.supervisor.reason)
        for name in self.supervisor.lives:
            fresh = fresh.with_child(name, self._child_state(name))
        if fresh != self.state or not os.path.exists(self.rundir.state):
            self.state = fresh
            state.write(self.rundir.state, fresh)

    def _child_state(self, name: str) -> state.ChildState:
        life = self.supervisor.lives[name]
        child = self.children.get(name)
        pid = child.popen.pid if child else 0
        known = self.state.children.get(name)
        starttime = known.starttime if known is not None and known.pid == pid else 0
        if pid and not starttime and (facts := procfs.look(pid)):
            starttime = facts.starttime
        return state.ChildState(pid, starttime, life.ready, life.restarts, life.last_exit)


def describe_exit(status: int) -> str:
    """Return a child's end in words. Pure."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def close_inherited(keep: set[int]) -> None:
    """Close every descriptor but the standard three and these: a leaked /dev/fuse would keep a dead mount alive."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the one that listdir itself used
                pass


def _fresh_log(path: str) -> BinaryIO:
    """Open for appending; begin anew when it has grown too large."""
    too_large = os.path.exists(path) and os.path.getsize(path) > STDERR_BYTES_MAX
    return open(path, "wb" if too_large else "ab")


def _ignore(number: int, frame: object) -> None:
    """Do nothing: the wakeup descriptor has told the loop."""
