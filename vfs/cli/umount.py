"""`foremount umount`: ask the keeper; by force: detach, abort, kill. Neither looks at the mount point itself."""

from __future__ import annotations

import os
import signal
import time

import click

from vfs.cli import locate, output
from vfs.cli.locate import Located
from vfs.errors import Busy, DeadlineExceeded, Denied, NotFound
from vfs.keeper import mountinfo, mounting, procfs, state
from vfs.keeper.mountinfo import FS_TYPE
from vfs.keeper.state import KeeperState

KILL_S = 2.0


@click.command()
@click.argument("mountpoint")
@click.option("--force", is_flag=True, help="Detach, abort waiting callers and kill the processes.")
@click.option("--timeout", "timeout_s", default=15.0, show_default=True, help="Seconds that the keeper has to end.")
@output.json_option
def umount(mountpoint: str, force: bool, timeout_s: float, as_json: bool) -> None:
    """End the mount at MOUNTPOINT.

    Open files are waited for some seconds, then detached. A stopped keeper is continued. What has hung for long ends with
    --force.
    """
    located = locate.at(mountpoint)
    started = time.monotonic()
    how = force_end(located) if force else ask_to_end(located, timeout_s)
    if as_json:
        output.print_json({"mountpoint": located.mountpoint, "how": how, "seconds": round(time.monotonic() - started, 3)})
    else:
        click.echo(f"unmounted {located.mountpoint} ({how})")


def ask_to_end(located: Located, timeout_s: float) -> str:
    """Have the keeper end the mount, or detach a dead one; return how it went.

    Raises:
        NotFound: nothing of ours is mounted there.
        DeadlineExceeded: the keeper has not ended in time.
        Denied: it belongs to another user.
    """
    held = located.state
    if held is None or not procfs.is_same(held.pid, held.starttime):
        return _detach_dead(located)
    _signal(held, signal.SIGTERM)
    _signal(held, signal.SIGCONT)  # a stopped process does not see SIGTERM
    if not procfs.wait_gone(held.pid, held.starttime, timeout_s):
        raise DeadlineExceeded(
            located.mountpoint,
            f"the keeper (process {held.pid}) has not ended within {timeout_s:g} s",
            f"foremount umount --force {located.mountpoint}",
        )
    if _own_entry(located) is not None:  # it was killed before it could detach
        _detach_dead(located)
    return "in order"


def force_end(located: Located) -> str:
    """Detach, abort the connections and kill the recorded processes, in bounded time; return how it went.

    Raises:
        NotFound: nothing of ours is mounted there and no process of it lives.
    """
    held = located.state
    entry = _own_entry(located)
    alive = _alive(held)
    if entry is None and not alive:
        if held is not None:
            state.remove(located.run_dir.state)
        raise NotFound(located.mountpoint, "no foremount is mounted there")
    connections = {entry.minor} if entry is not None else set()
    for connection in connections.union(held.connections if held is not None else ()):
        mounting.abort_connection(connection)  # first: a thread that the kernel holds in a push would hold the unmount up
    if _own_entry(located) is not None:  # the keeper may have been quicker
        _unmount_lazily(located.mountpoint)
    _detach_samples(located)
    for pid, starttime in alive:
        procfs.signal_same(pid, starttime, signal.SIGKILL)
    for pid, starttime in alive:
        procfs.wait_gone(pid, starttime, KILL_S)
    state.remove(located.run_dir.state)
    return f"by force, {len(alive)} processes killed"


def _alive(held: KeeperState | None) -> list[tuple[int, int]]:
    """Return (pid, starttime) of the recorded processes that live; the keeper first, so that it restarts nothing."""
    if held is None:
        return []
    recorded = [(held.pid, held.starttime), *((child.pid, child.starttime) for child in held.children.values())]
    return [(pid, starttime) for pid, starttime in recorded if pid and procfs.is_same(pid, starttime)]


def _detach_dead(located: Located) -> str:
    entry = _own_entry(located)
    if entry is None:
        if located.state is not None:
            state.remove(located.run_dir.state)
        raise NotFound(located.mountpoint, "no foremount is mounted there")
    if located.state is not None and entry.minor == located.state.connection:
        mounting.abort_connection(entry.minor)  # nobody of ours serves it; what the kernel holds of the last worker goes on
    _unmount_lazily(located.mountpoint)
    _detach_samples(located)
    state.remove(located.run_dir.state)
    return "its keeper was gone"


def _detach_samples(located: Located) -> None:
    """Detach the samples of an ordinary user's mount, which do not lie beneath it."""
    if mountinfo.on_top(mountinfo.read(), located.run_dir.jobs) is not None:
        _unmount_lazily(located.run_dir.jobs)


def _unmount_lazily(mountpoint: str) -> None:
    try:
        answer = mounting.unmount(mountpoint, lazy=True)
    except mounting.CantMount as exc:
        raise Denied(mountpoint, exc.reason, "run this as the user who mounted, or as root") from exc
    if answer == "busy":
        raise Busy(mountpoint, "can't be detached", "run this as the user who mounted, or as root")


def _own_entry(located: Located) -> mountinfo.MountEntry | None:
    entry = mountinfo.on_top(mountinfo.read(), located.mountpoint)
    return entry if entry is not None and entry.fs_type == FS_TYPE else None


def _signal(held: KeeperState, number: int) -> None:
    try:
        procfs.signal_same(held.pid, held.starttime, number)
    except PermissionError as exc:
        hint = "run this as the user who mounted, or as root"
        raise Denied(held.mountpoint, f"process {held.pid} belongs to another user than {os.geteuid()}", hint) from exc
