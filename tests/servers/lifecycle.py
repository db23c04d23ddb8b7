"""Starting a server, waiting until it answers, ending it: what every server here has in common."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

POLL_S = 0.02
END_S = 10.0


class Missing(Exception):
    """This machine can't run the server; the message says why and what would help."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody listens on now, all different."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    return free_ports(1)[0]


def program(name: str, hint: str, *places: str) -> str:
    """Return the path of an executable, looked for on PATH and in `places`.

    Raises:
        Missing: it is nowhere; `hint` says how to get it.
    """
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *places]))
    if found is None:
        raise Missing(f"{name} is not installed: {hint}")
    return found


def wait_until(is_ready: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until `is_ready` returns true.

    Raises:
        TimeoutError: it did not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not ready after {timeout_s:.0f} s")
        time.sleep(POLL_S)


def accepts(port: int) -> bool:
    """Return whether something listens on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    patience_s: float = END_S,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in `log`; afterwards it and the children in its process group are gone.

    Args:
        patience_s: between SIGTERM and SIGKILL.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env, start_new_session=True
        )
    try:
        yield child
    finally:
        end(child, patience_s)


def end(child: subprocess.Popen[bytes], patience_s: float = END_S) -> None:
    """Ask the program to end, insist after a while, and reap it."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, END_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
            return


def wait_ready(child: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path, timeout_s: float) -> None:
    """Wait until the started program answers.

    Raises:
        RuntimeError: it ended or stayed silent; the message carries the end of its log.
    """

    def ready_or_gone() -> bool:
        return child.poll() is not None or is_ready()

    try:
        wait_until(ready_or_gone, str(child.args), timeout_s)
    except TimeoutError as exc:
        raise RuntimeError(f"{exc}; its log ends with:\n{tail(log)}") from exc
    if child.poll() is not None:
        raise RuntimeError(f"{child.args} ended with {child.returncode}; its log ends with:\n{tail(log)}")


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
