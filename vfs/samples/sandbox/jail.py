"""This side of the sandbox: `Jail` owns the zygote, a `Cell` one process at a time that runs one sample after the other.

Blocking, to be called from threads: a cell from one thread, `Cell.kill` from any. Raw bytes go through shared memory that
the process may only read; what it makes is copied out before anybody looks at it, and bounded by the declaration because the
memory ends there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from vfs.errors import Unavailable, Unsupported
from vfs.samples.model import Reason
from vfs.samples.operators.registry import Operator
from vfs.samples.sandbox.messages import (
    FRAME_BYTES_MAX,
    LENGTH,
    Answer,
    Confinement,
    OwnOperator,
    Settings,
    Start,
    Task,
    Trouble,
    frame,
)
from vfs.samples.sandbox.outcome import Fault, Made, Outcome

log = logging.getLogger(__name__)
START_S = 60.0
_WAIT_PER_CPU = 3.0
"""A sample may wait for its CPU as long as this makes of its own limit: then it hangs rather than works."""
_REASONS = {
    "failed": Reason.FAILED,
    "memory": Reason.MEMORY,
    "output": Reason.OUTPUT,
    "parameters": Reason.REFUSED,
    "unknown": Reason.REFUSED,
}
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A process with threads can't be forked safely, nor leave its user namespace."""


class Jail:
    """The zygote and what it was told. Thread-safe.

    Invariant: `_control` carries one request and its answer at a time, under `_lock`.
    """

    def __init__(self, settings: Settings, operators: Sequence[Operator]) -> None:
        self.settings = settings
        self._own = [OwnOperator(each.declaration, each.code) for each in operators if each.code]
        self._lock = threading.Lock()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._confinement: Confinement | None = None

    def start(self) -> Confinement:
        """Start the zygote unless it runs; return what is in force.

        Raises:
            Unsupported: this host can't keep operators from network or files.
            Unavailable: it did not start.
        """
        with self._lock:
            return self._started()

    def fork(self, fds: list[int]) -> tuple[int, int]:
        """Return pid and pidfd of a new process that was given these descriptors."""
        with self._lock:
            self._started()
            assert self._control is not None
            try:
                socket.send_fds(self._control, [b"f"], fds)
                said, got, _, _ = socket.recv_fds(self._control, 64, 1)
                if not got:
                    raise EOFError
            except (OSError, EOFError) as exc:
                self._end()
                raise Unavailable("sandbox", "its zygote ended") from exc
            return int(said), got[0]

    def wait(self, pid: int) -> str:
        """Return how a process that has ended, ended; "" where that is not known any more."""
        with self._lock:
            if self._control is None:
                return ""
            try:
                self._control.sendall(b"w%d" % pid)
                status = int(self._control.recv(64))
            except (OSError, ValueError):
                self._end()
                return ""
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit {os.waitstatus_to_exitcode(status)}"

    def close(self) -> None:
        """End the zygote and all its children."""
        with self._lock:
            self._end()

    def _started(self) -> Confinement:
        if self._zygote is not None and self._zygote.poll() is None:
            assert self._confinement is not None
            return self._confinement
        self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, "-P", "-m", "vfs.samples.sandbox.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environ(),
                start_new_session=True,
            )
        self._control = ours
        try:
            ours.settimeout(START_S)
            ours.sendall(frame(Start(self.settings, self._own)))
            found = msgspec.msgpack.decode(_receive(ours), type=Confinement | Trouble)
            ours.settimeout(None)
        except (OSError, EOFError, msgspec.DecodeError) as exc:
            self._end()
            raise Unavailable("sandbox", "its zygote does not start", "its words are on standard error") from exc
        if isinstance(found, Trouble):
            self._end()
            raise Unsupported("operator", found.text, "its code can't be loaded in the sandbox")
        if not (found.network and found.writes):
            self._end()
            why = "; ".join(found.missing) or "neither Landlock nor seccomp is in force"
            raise Unsupported("sandbox", "this host can't keep operators from network and files", why)
        self._confinement = found
        return found

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._zygote.wait(5)
            if self._zygote.poll() is None:
                self._zygote.kill()
                self._zygote.wait()
        self._control = self._zygote = self._confinement = None


class Cell:
    """One process of a jail, replaced when it has ended or done enough.

    Invariant: `_pid`, `_pidfd` and `_line` are of one process that was not waited for, or all unset.
    """

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._raw_fd = os.memfd_create("raw", os.MFD_CLOEXEC)
        self._made_fd = os.memfd_create("made", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._pid = self._pidfd = -1
        self._line: socket.socket | None = None
        self._done = 0
        self._killed = False
        self._lock = threading.Lock()

    def run(self, task: Task, raw: bytes | bytearray | memoryview) -> Outcome:
        """Return what the operator makes of `raw`, or why nothing came out. A process that ended costs this one sample.

        Raises:
            Unavailable, Unsupported: no process can be started.
        """
        if self._line is None or self._done >= self._jail.settings.samples_per_process:
            self._replace()
        if self._killed:
            return Fault(Reason.CPU, "aborted")
        self._done += 1
        self._fit(len(raw), task.output_bytes)
        os.pwrite(self._raw_fd, raw, 0)
        assert self._line is not None
        wait_s = task.cpu_s * _WAIT_PER_CPU + 1
        try:
            self._line.sendall(frame(task))
            answer = self._answer(wait_s)
        except TimeoutError:
            self._end()
            return Fault(Reason.TIME, f"gives no answer for {wait_s:g} s")
        except (OSError, EOFError, msgspec.MsgspecError) as exc:
            return self._ended(task, exc)
        if isinstance(answer, Trouble):
            return Fault(_REASONS[answer.kind], answer.text, answer.cpu_s)
        if not 0 <= answer.size <= task.output_bytes:
            self._end()
            return Fault(Reason.OUTPUT, f"says that it made {answer.size} bytes")
        return Made(os.pread(self._made_fd, answer.size, 0), answer.pixels, answer.seconds, answer.cpu_s)

    def kill(self) -> None:
        """Abort what runs or is about to: `run` returns a fault at once. From any thread."""
        with self._lock:
            self._killed = True
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def arm(self) -> None:
        """Forget an abort; before each `run` that may be aborted from now on."""
        with self._lock:
            self._killed = False

    def cpu_s(self) -> float:
        """Return the CPU time of the process that runs now; 0 for none."""
        with self._lock:
            if self._pid < 0:
                return 0.0
            try:
                with open(f"/proc/{self._pid}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process. Not while `run` runs."""
        self._end()
        os.close(self._raw_fd)
        os.close(self._made_fd)

    def _replace(self) -> None:
        self._end()
        ours, theirs = socket.socketpair()
        readable = os.open(f"/proc/self/fd/{self._raw_fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with theirs:
                pid, pidfd = self._jail.fork([theirs.fileno(), readable, self._made_fd])
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(readable)
        with self._lock:
            self._pid, self._pidfd, self._line, self._done = pid, pidfd, ours, 0

    def _fit(self, raw_size: int, made_size: int) -> None:
        """Give both memories their size: before it grows that of the last sample is given back."""
        os.ftruncate(self._raw_fd, raw_size)
        os.ftruncate(self._made_fd, made_size)

    def _answer(self, wait_s: float) -> Answer:
        assert self._line is not None
        deadline = time.monotonic() + wait_s
        body = _receive(self._line, deadline)
        found: Answer = msgspec.msgpack.decode(body, type=Answer)
        return found

    def _ended(self, task: Task, exc: Exception) -> Fault:
        killed, how = self._killed, self._end()
        if killed:
            return Fault(Reason.CPU, "aborted")
        if how == "SIGXCPU":
            return Fault(Reason.TIME, f"takes more than {task.cpu_s:g} s of CPU time", task.cpu_s)
        if isinstance(exc, msgspec.MsgspecError):
            return Fault(Reason.CRASHED, "answers with something else")
        return Fault(Reason.CRASHED, f"ended: {how or 'unknown'}")

    def _end(self) -> str:
        """End the process if there is one; return how it ended."""
        with self._lock:
            if self._line is None:
                return ""
            pid, pidfd = self._pid, self._pidfd
            self._line.close()
            self._line, self._pid, self._pidfd = None, -1, -1
        if not select.select([pidfd], [], [], 0)[0]:
            # What closed its end dies by itself; how it does is worth a moment.
            if not select.select([pidfd], [], [], 0.05)[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
        os.close(pidfd)
        return self._jail.wait(pid)


def _environ() -> dict[str, str]:
    """Return this environment without what could be a secret: operators need none of it."""
    kept = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ} | _ONE_THREAD


def _receive(line: socket.socket, deadline: float | None = None) -> bytes:
    """Return the body of the next frame.

    Raises:
        EOFError: the other end is closed, or says too much.
        TimeoutError: `deadline` has passed.
    """
    (length,) = LENGTH.unpack(_exactly(line, LENGTH.size, deadline))
    if length > FRAME_BYTES_MAX:
        raise EOFError
    return _exactly(line, length, deadline)


def _exactly(line: socket.socket, size: int, deadline: float | None) -> bytes:
    found = bytearray()
    while len(found) < size:
        if deadline is not None:
            line.settimeout(max(0.001, deadline - time.monotonic()))
        piece = line.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
