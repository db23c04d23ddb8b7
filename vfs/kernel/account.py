"""Counts what each process asks for: operations, bytes and waits by source and cause.

Runs on the worker's loop, 2 to 4 us for a request; what was counted goes to the agent once a second. A process is looked up
in /proc when it is first seen, and again every half minute: 75 us. Only files are read there that need no lock of the
process's memory map: a caller in a page fault of ours holds it, and waits for us.

What cannot be counted: reads that the kernel answers from its page cache or in passthrough never come here. Their opens do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from vfs.usage import Call, Cause, Request, Row, Source, Usage, serve

log = logging.getLogger(__name__)

SLOW_S = 0.1
"""A request that takes longer is reported by itself: what people notice."""
_SLOW_MAX = 20
"""Reported in one second, the slowest."""
_WAITING_MAX = 50
_PATHS_MAX = 16
"""Paths of one process in one report; those beyond are counted and not named."""
_KNOWN_S = 30.0
_CALLERS_MAX = 20_000
_GROUPS = {"open": "open", "read": "read", "write": "write"}

Ask = Callable[[], tuple[int, int]]


class Caller:
    """A process, and what it did since the last report.

    Attributes:
        here_s: in the worker itself, without waiting for the agent.
        is_listed: it is among those that the next report is about.
    """

    __slots__ = ("causes", "cgroup", "command", "here_s", "is_listed", "paths", "pid", "rows", "uid")

    def __init__(self, pid: int, uid: int, command: str, cgroup: str) -> None:
        self.pid = pid
        self.uid = uid
        self.command = command
        self.cgroup = cgroup
        self.is_listed = False
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[str, dict[Source, Row]] = {}
        self.causes: dict[Cause, float] = {}
        self.paths: dict[str, float] = {}
        self.here_s = 0.0

    def take(self) -> Usage:
        """Return what was counted and begin anew."""
        self.causes[Cause.HERE] = self.here_s
        found = Usage(self.pid, self.uid, self.command, self.cgroup, self.rows, self.causes, self.paths)
        self.is_listed = False
        self._clear()
        return found


class Account:
    """The books of one worker.

    Args:
        ask: returns thread and uid of the request that is being started; None: they can't be told, all are process 0.

    Attributes:
        path_of: says what a request is about, for people.
        on_new: told of each process that was not known, with nothing counted yet.

    Invariant: a caller is in `_listed` exactly while `is_listed`.
    """

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask or (lambda: (0, 0))
        self._threads: dict[int, tuple[Caller, float]] = {}
        self._processes: dict[tuple[int, int], Caller] = {}
        self._listed: list[Caller] = []
        self._going_on: set[Request] = set()
        self._slow: list[Call] = []
        self.on_new: Callable[[Usage], None] = lambda usage: None
        self.path_of: Callable[[Sequence[object]], str] = str

    def begin(self, operation: str, subject: Sequence[object]) -> Request:
        """Note that a request is being served. Called before its handler awaits anything.

        Args:
            subject: the handler's arguments, for `path_of`.
        """
        now_s = time.perf_counter()
        thread, uid = self._ask()
        caller, known_until_s = self._threads.get(thread, (None, 0.0))
        if caller is None or known_until_s < now_s or caller.uid != uid:
            caller = self._look_up(thread, uid, now_s)
        request = Request(operation, caller, subject, now_s)
        self._going_on.add(request)
        serve(request)
        return request

    def end(self, request: Request, size: int, error: str = "") -> None:
        """Note that it was answered.

        Args:
            size: bytes that its caller got or gave.
        """
        self._going_on.discard(request)
        seconds = time.perf_counter() - request.began_s
        caller = request.caller
        assert isinstance(caller, Caller)
        if not caller.is_listed:
            caller.is_listed = True
            self._listed.append(caller)
        rows = caller.rows.setdefault(_GROUPS.get(request.operation, "names"), {})
        row = rows.get(request.source)
        if row is None:
            row = rows[request.source] = Row()
        row.count += 1
        row.bytes += size
        row.seconds += seconds
        caller.here_s += seconds
        if request.causes:
            self._note_waits(caller, request, request.causes)
        if seconds > SLOW_S:
            self._slow.append(self._call(request, seconds, error))
            if len(self._slow) > 2 * _SLOW_MAX:
                self._keep_slowest()

    def _note_waits(self, caller: Caller, request: Request, causes: dict[Cause, float]) -> None:
        waited_s = 0.0
        for cause, seconds in causes.items():
            caller.causes[cause] = caller.causes.get(cause, 0.0) + seconds
            waited_s += seconds
        caller.here_s -= waited_s
        path = self.path_of(request.subject)
        if path in caller.paths or len(caller.paths) < _PATHS_MAX:
            caller.paths[path] = caller.paths.get(path, 0.0) + waited_s

    def _call(self, request: Request, seconds: float, error: str = "") -> Call:
        caller = request.caller
        assert isinstance(caller, Caller)
        causes = dict(request.causes or {})
        began_s = time.time() - seconds
        path = self.path_of(request.subject)
        return Call(request.operation, path, caller.pid, caller.uid, caller.command, began_s, seconds, causes, error)

    def _keep_slowest(self) -> None:
        self._slow = sorted(self._slow, key=lambda call: -call.seconds)[:_SLOW_MAX]

    def take(self) -> tuple[list[Usage], list[Call], list[Call]]:
        """Return what was counted, what was slow and what goes on for long, and begin anew."""
        usages = [caller.take() for caller in self._listed]
        self._listed.clear()
        self._keep_slowest()
        slow, self._slow = self._slow, []
        now_s = time.perf_counter()
        long = [request for request in self._going_on if now_s - request.began_s > SLOW_S]
        long.sort(key=lambda request: request.began_s)
        waiting = [self._call(request, now_s - request.began_s) for request in long[:_WAITING_MAX]]
        return usages, slow, waiting

    def _look_up(self, thread: int, uid: int, now_s: float) -> Caller:
        """Return the process that a thread belongs to, and remember it for a while."""
        if len(self._threads) >= _CALLERS_MAX:
            self._threads.clear()
            self._processes = {(caller.pid, caller.uid): caller for caller in self._listed}
        pid, command, cgroup = _read_process(thread)
        caller = self._processes.get((pid, uid))
        if caller is None or (caller.command, caller.cgroup) != (command, cgroup):
            caller = self._processes[pid, uid] = Caller(pid, uid, command, cgroup)
            self.on_new(Usage(pid, uid, command, cgroup, {}, {}, {}))
        self._threads[thread] = caller, now_s + _KNOWN_S
        return caller


def _read_process(thread: int) -> tuple[int, str, str]:
    """Return process, short name and cgroup of a thread; (thread, "", "") where it is gone or of another namespace."""
    if not thread:
        return 0, "kernel", ""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            status = file.read(512)
        with open(f"/proc/{thread}/cgroup", "rb") as file:
            cgroups = file.read(8192)
    except OSError:
        return thread, "", ""
    return parse_process(thread, status, cgroups)


def parse_process(thread: int, status: bytes, cgroups: bytes) -> tuple[int, str, str]:
    """Return process, short name and cgroup out of /proc files. Pure.

    Of several hierarchies the unified one counts, else the first that has a name.
    """
    fields = dict(line.split(b":\t", 1) for line in status.splitlines() if b":\t" in line)
    paths = [line.split(b":", 2) for line in cgroups.splitlines() if line.count(b":") >= 2]
    unified = next((path for number, _, path in paths if number == b"0"), b"")
    chosen = unified if len(unified) > 1 else next((path for _, _, path in paths if len(path) > 1), unified)
    pid = int(fields.get(b"Tgid", b"%d" % thread))
    return pid, fields.get(b"Name", b"").decode(errors="replace"), chosen.decode(errors="replace")
