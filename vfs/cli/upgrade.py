"""`foremount upgrade`: have a mount go on with the installation that this command belongs to, without an unmount.

What can be found out without the mount is found out first: callers wait only while the processes are exchanged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid

import click

from vfs import __version__
from vfs import config as configuration
from vfs.cli import locate, output
from vfs.cli.locate import Located
from vfs.errors import DeadlineExceeded, Denied, ForemountError, NotFound, Unavailable, Unsupported
from vfs.keeper import code, procfs, state
from vfs.keeper.state import KeeperState
from vfs.policy.inforce import open_store

_MAINS = (
    ("vfs.kernel.__main__",),
    ("vfs.kernel.jobs.__main__",),
    ("vfs.agent.__main__", "vfs.agent.samples.rooms", "vfs.agent.foresight.rooms", "vfs.foresight.replicaserver"),
)
"""Each with what it imports only where the configuration asks for it."""
_IMPORT_S = 60.0
"""A cold disk needs some 15 s."""
_POLL_S = 0.05


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait for the outcome.")
@output.json_option
def upgrade(mountpoint: str | None, timeout_s: float, as_json: bool) -> None:
    """Restart the processes of the mount at MOUNTPOINT from this installation, without an unmount.

    Run the command of the new version, for example /opt/foremount/0.2.0/bin/foremount upgrade. Callers wait for a moment.
    If the new processes do not start, the ones of before are started again and this fails. The keeper stays as it is until
    the next mount.
    """
    located = locate.one(mountpoint)
    held = _running(located)
    before, mine = held.version, code.own()
    _try_out(held, mine)
    began = time.monotonic()
    ended = _wait(located, held, _ask(located, held, mine), timeout_s)
    if ended.why_not:
        raise Unavailable(
            located.mountpoint, f"version {mine.version} was not taken: {ended.why_not}", f"version {before} serves again"
        )
    if as_json:
        output.print_json(
            {"mountpoint": located.mountpoint, "before": before, "after": mine.version, "python": mine.python,
             "seconds": round(time.monotonic() - began, 3)}
        )  # fmt: skip
    else:
        click.echo(f"{located.mountpoint}: version {mine.version} of {mine.python} serves, was {before}")


def _running(located: Located) -> KeeperState:
    held = located.state
    if held is None or not procfs.is_same(held.pid, held.starttime):
        raise NotFound(located.mountpoint, "no foremount runs there", f"foremount mount CONFIG {located.mountpoint}")
    if not held.keeper_version:  # SIGUSR2 would end it, and the mount
        raise Unsupported(located.mountpoint, "its keeper is of a version without upgrades", "unmount it and mount it again")
    if held.phase != state.SERVING:
        raise Unavailable(located.mountpoint, f"is {held.phase}", "see foremount status")
    return held


def _try_out(held: KeeperState, mine: code.Code) -> None:
    """Have this installation read the configuration and import everything: errors show here, and the disk is warm.

    Raises:
        ForemountError: this installation can't serve the mount.
    """
    open_store(configuration.load(held.config), held.config)
    for main in _MAINS:  # each in a process of its own: they load the same libraries in different ways
        _import(mine, ", ".join(main))


def _import(mine: code.Code, modules: str) -> None:
    command = [mine.python, "-P", "-c", f"import {modules}"]
    try:
        ran = subprocess.run(command, env=mine.environ(), capture_output=True, text=True, timeout=_IMPORT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise DeadlineExceeded(mine.python, f"has not imported {modules} within {_IMPORT_S:.0f} s") from exc
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        raise Unavailable(
            mine.python, f"can't run version {__version__}: {last}", "mend the installation; the mount is untouched"
        )


def _ask(located: Located, held: KeeperState, mine: code.Code) -> str:
    wanted = code.Wanted(uuid.uuid4().hex, mine)
    try:
        code.ask(located.run_dir.upgrade, wanted)
        asked = procfs.signal_same(held.pid, held.starttime, signal.SIGUSR2)
    except PermissionError as exc:
        hint = "run this as the user who mounted, or as root"
        raise Denied(located.mountpoint, f"belongs to another user than {os.geteuid()}", hint) from exc
    if not asked:
        raise NotFound(located.mountpoint, "its keeper has just ended")
    return wanted.id


def _wait(located: Located, held: KeeperState, wanted: str, timeout_s: float) -> state.Upgrade:
    """Return the outcome as the keeper writes it down.

    Raises:
        DeadlineExceeded: it has not in time; the upgrade goes on.
        ForemountError: the keeper has ended.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = state.read(located.run_dir.state)
        if now is not None and now.upgrade.id == wanted and now.upgrade.ended:
            return now.upgrade
        if not procfs.is_same(held.pid, held.starttime):
            raise ForemountError(located.mountpoint, "the mount has ended meanwhile", "see keeper.log")
        time.sleep(_POLL_S)  # the keeper tells by this file alone
    raise DeadlineExceeded(
        located.mountpoint, f"the upgrade has not ended within {timeout_s:g} s", "foremount status says how it goes on"
    )
