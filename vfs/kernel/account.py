"""Counts what each process asks for: operations, bytes and waits by source and cause. And tells who asks, for the policy.

Runs on the worker's loop, 2 to 4 us for a request; what was counted goes to the agent once a second. A process is looked up
in /proc when it is first seen, and again every half minute: 75 us. Only files are read there that need no lock of the
process's memory map: a caller in a page fault of ours holds it, and waits for us.

Where a rule in force asks for a job or its ranks, a call that has a name or opens something waits until the environment of
a process that is new has been read, in a thread. Such a call is no page fault. Reads and writes take what is known by then.

What cannot be counted: reads that the kernel answers from its page cache or in passthrough never come here. Their opens do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import trio

from vfs.processes import Stamp, job_of, read_environ, read_process, read_stamp, world_of
from vfs.usage import NOBODY, Call, CallerFacts, Cause, Request, Row, Source, Usage, serve, serving

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
_IDENTIFY_S_MAX = 0.5
"""How long a call waits for the environment of its process; what comes later holds from the next call on."""
_READERS = 4
_OF_THE_ENVIRONMENT = frozenset(("job", "world"))

Ask = Callable[[], tuple[int, int]]


class Caller:
    """A process, and what it did since the last report.

    Attributes:
        gid: its group when it was looked up last.
        job, world: None as long as nobody had to know.
        here_s: in the worker itself, without waiting for the agent.
        is_listed: it is among those that the next report is about.
    """

    __slots__ = ("causes", "cgroup", "command", "gid", "here_s", "is_listed", "job", "paths", "pid", "rows", "uid", "world")

    def __init__(self, pid: int, uid: int, command: str, cgroup: str) -> None:
        self.pid = pid
        self.uid = uid
        self.command = command
        self.cgroup = cgroup
        self.gid: int | None = None
        self.job: str | None = None
        self.world: int | None = None
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
        wanted: what the policy in force asks of callers.

    Attributes:
        path_of: says what a request is about, for people.
        on_new: told of each process that was not known, with nothing counted yet.

    Invariants: a caller is in `_listed` exactly while `is_listed`. The job of a caller is known, or being read for longer
    than anybody waits, where `_identified` has it by a thread that has that stamp still.
    """

    def __init__(self, ask: Ask | None = None, wanted: Callable[[], frozenset[str]] = frozenset) -> None:
        self._ask = ask or (lambda: (0, 0))
        self.wanted = wanted
        self._identified: dict[int, tuple[Stamp, Caller]] = {}
        self._readers = trio.CapacityLimiter(_READERS)
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

    async def identify(self, request: Request, thread: int, uid: int, gid: int) -> None:
        """Find out of the process that asks what the policy in force wants to know.

        Args:
            thread, uid, gid: as the kernel states them.
        """
        caller = request.caller
        assert isinstance(caller, Caller)
        if thread and not caller.pid:  # the extension is missing
            caller = request.caller = self._look_up(thread, uid, request.began_s)
        request.gid = caller.gid = gid
        if not self.wanted() & _OF_THE_ENVIRONMENT or (stamp := read_stamp(thread)) is None:
            return
        if self._identified.get(thread) == (stamp, caller):
            return
        caller = request.caller = self._look_up(thread, uid, request.began_s)
        caller.gid, caller.job, caller.world = gid, None, None  # what its last program was counts no more

        def read() -> None:
            environ = read_environ(thread)
            caller.job, caller.world = job_of(caller.cgroup, uid, environ), world_of(environ)

        with trio.move_on_after(_IDENTIFY_S_MAX):
            await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=self._readers)
        if len(self._identified) >= _CALLERS_MAX:
            self._identified.clear()
        self._identified[thread] = stamp, caller

    def facts(self) -> CallerFacts:
        """Return what is known of the process whose request the current task serves, as far as the policy wants to know."""
        request = serving()
        if request is None or not self.wanted():
            return NOBODY
        caller = request.caller
        assert isinstance(caller, Caller)
        if not caller.pid:
            return NOBODY
        return CallerFacts(caller.uid, caller.gid if request.gid is None else request.gid, caller.job, caller.world)

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
        pid, command, cgroup, gid = read_process(thread)
        caller = self._processes.get((pid, uid))
        if caller is None or (caller.command, caller.cgroup) != (command, cgroup):
            caller = self._processes[pid, uid] = Caller(pid, uid, command, cgroup)
            self.on_new(Usage(pid, uid, command, cgroup, {}, {}, {}))
        caller.gid = gid
        self._threads[thread] = caller, now_s + _KNOWN_S
        return caller
