"""`foremount mount`: check everything that can be checked, start the keeper, wait until the mount answers."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import click

from vfs import config as configuration
from vfs import rundir
from vfs.cli import locate, output
from vfs.config import Config, LocalSite
from vfs.errors import (
    AlreadyExists,
    Busy,
    DeadlineExceeded,
    ForemountError,
    InvalidConfig,
    NotADirectory,
    NotFound,
    Unavailable,
)
from vfs.keeper import mounting, procfs
from vfs.keeper.code import child_environ
from vfs.keeper.service import Options
from vfs.policy.inforce import open_store
from vfs.rundir import RunDir

ANSWER_S = 10.0
"""For the first statfs of a mount whose children have said that they serve."""
LOG_LINES = 12
_KEEPER_END_S = 15.0
"""Longer than `Limits.stop_total_s`."""


@click.command()
@click.argument("config")
@click.argument("mountpoint")
@click.option("--foreground", is_flag=True, help="Stay in the foreground, as systemd (Type=notify) wants it.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds until the mount has to answer.")
@click.option("--no-passthrough", is_flag=True, help="Read local files through the page cache, to compare or to rule it out.")
@output.json_option
def mount(
    config: str, mountpoint: str, foreground: bool, timeout_s: float, no_passthrough: bool, as_json: bool
) -> None:  # fmt: skip
    """Mount what CONFIG describes at MOUNTPOINT.

    Returns once the mount answers. A dead mount of ours at that place is detached first.
    """
    loaded = configuration.load(config)
    settled = rundir.settle(mountpoint)
    config_path = os.path.abspath(config)
    directory = rundir.run_dir(settled)
    check_places(loaded, config_path, settled, directory)
    open_store(loaded, config_path)
    _check_host(settled)
    why_no_passthrough = "switched off by --no-passthrough" if no_passthrough else _why_no_shim()
    options = Options(
        mountpoint=settled,
        config=config_path,
        run_dir=directory.path,
        why_no_passthrough=why_no_passthrough,
        read_only=not any(entry.writable for entry in loaded.mounts),
        read_ahead_kb=int(loaded.limits.read_ahead) >> 10,
        samples=loaded.samples is not None,
        samples_read_ahead_kb=configuration.SAMPLES_READ_AHEAD >> 10,
        foreground=foreground,
    )
    _create(directory)
    if os.geteuid() != 0 and not mounting.user_allow_other():
        click.echo("note: only you can enter this mount; for others put user_allow_other into /etc/fuse.conf", err=True)
    if foreground:
        os.execve(sys.executable, _command(_write_options(directory, options)), child_environ())  # noqa: S606 - no shell
    pid = start_keeper(directory, options, timeout_s)
    if as_json:
        output.print_json({"mountpoint": settled, "pid": pid, "run_dir": directory.path})
    else:
        click.echo(f"mounted {config} on {settled}")


def check_places(loaded: Config, config_path: str, mountpoint: str, directory: RunDir) -> None:
    """Refuse places that would have the daemon ask its own mount: it would wait for itself for ever.

    Raises:
        InvalidConfig: naming the place.
    """
    places = [(f"{config_path}: cache.directory", loaded.cache.directory), ("the run directory", directory.path)]
    places.append(("the configuration file", config_path))
    base = os.path.dirname(config_path)
    places += [(f"{config_path}: policies", os.path.join(base, source)) for source in loaded.policies]
    local = [
        (f"{config_path}: sites.{name}.path", site) for name, site in loaded.sites.items() if isinstance(site, LocalSite)
    ]
    for name, place in [*places, *((name, site.path) for name, site in local)]:
        if locate.below(rundir.settle(place), mountpoint) is not None:
            raise InvalidConfig(name, f"{place!r} lies inside the mount point {mountpoint}", "choose a place outside of it")
    for name, site in local:
        if locate.below(mountpoint, rundir.settle(site.path)) is not None:
            raise InvalidConfig(name, f"the mount point {mountpoint} lies inside {site.path!r}", "mount elsewhere")


def start_keeper(directory: RunDir, options: Options, timeout_s: float) -> int:
    """Start the keeper, which leaves for a session of its own; return its pid once the mount answers.

    Raises:
        ForemountError: it did not come up, with its reason and the last lines of its logs. It is gone then.
    """
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    options = Options(**{**asdict(options), "ready_fd": writing})
    before = {name: _size(path) for name, path in _logs(directory)}
    with open(directory.stderr("keeper"), "ab") as stderr:
        keeper = subprocess.Popen(
            _command(_write_options(directory, options)),
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=child_environ(),
        )
    os.close(writing)
    try:
        said = _wait_line(reading, timeout_s)
    finally:
        os.close(reading)
    if said == "ready" and mounting.probe(options.mountpoint, ANSWER_S) == "alive":
        return keeper.pid
    error = _why_not_up(said, keeper, options.mountpoint, timeout_s)
    _end(keeper)
    for line in _last_lines(directory, before):
        click.echo(line, err=True)
    raise error


def _why_not_up(said: str | None, keeper: subprocess.Popen[bytes], mountpoint: str, timeout_s: float) -> ForemountError:
    if said is None:
        keeper.send_signal(signal.SIGUSR1)  # stack dumps of the children go to their logs, shown below
        time.sleep(0.2)  # they write no answer to wait for
        return DeadlineExceeded(mountpoint, f"is not up after {timeout_s:g} s", "the logs above say where it stands")
    if said == "ready":
        return Unavailable(mountpoint, f"says that it is ready but has not answered statfs within {ANSWER_S:g} s")
    if said.startswith("failed "):
        return Unavailable(mountpoint, said.removeprefix("failed "))
    return Unavailable(mountpoint, "the keeper ended without a word", "the logs above may say why")


def _check_host(mountpoint: str) -> None:
    """Refuse what can't work before anything is started; whether something is mounted there decides the keeper again.

    The mount point is looked at only where the mount table says that nothing hangs on it.
    """
    if not os.path.exists("/dev/fuse"):
        raise NotFound("/dev/fuse", "no such device", "modprobe fuse; in a container pass --device /dev/fuse")
    try:
        located = locate.at(mountpoint)
    except InvalidConfig:
        located = None  # the keeper takes a broken state file as absent
    recorded = located.state if located else None
    if recorded is not None and procfs.is_same(recorded.pid, recorded.starttime):
        raise Busy(mountpoint, f"is already mounted, by process {recorded.pid}", f"foremount umount {mountpoint}")
    try:
        mounting.clear_way(mountpoint, recorded)
    except mounting.CantMount as exc:
        raise AlreadyExists(mountpoint, exc.reason, exc.hint) from exc
    if not os.path.lexists(mountpoint):
        raise NotFound(mountpoint, "no such directory", f"mkdir -p {mountpoint}")
    if not os.path.isdir(mountpoint):
        raise NotADirectory(mountpoint, "is no directory")


def _why_no_shim() -> str:
    if importlib.util.find_spec("vfs.kernel._passthrough") is None:
        return "the passthrough extension is not built (it needs a compiler, pkg-config and libfuse3-dev)"
    return ""


def _create(directory: RunDir) -> None:
    try:
        rundir.create(directory)
    except (OSError, rundir.UnsafeRunDir) as exc:
        raise Unavailable(directory.path, f"can't be used as run directory: {exc}") from exc


def _write_options(directory: RunDir, options: Options) -> str:
    path = os.path.join(directory.path, "options.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(asdict(options), file)
    return path


def _command(options_path: str) -> list[str]:
    return [sys.executable, "-P", "-m", "vfs.keeper", "--options", options_path]


def _wait_line(fd: int, timeout_s: float) -> str | None:
    """Return the keeper's line, "" when it ended without one, None when the time is up."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        return None
    return os.read(fd, 4096).decode("utf-8", "replace").strip()


def _end(keeper: subprocess.Popen[bytes]) -> None:
    """Have it unmount and end; kill it when it does not."""
    if keeper.poll() is None:
        keeper.terminate()
    try:
        keeper.wait(_KEEPER_END_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def _logs(directory: RunDir) -> list[tuple[str, str]]:
    programs = ("keeper", "worker", "agent", "jobs")
    return [(path, path) for program in programs for path in (directory.log(program), directory.stderr(program))]


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _last_lines(directory: RunDir, before: dict[str, int]) -> list[str]:
    """Return the last lines that this start added to each log."""
    lines = []
    for path, _ in _logs(directory):
        if (start := before.get(path, 0)) >= _size(path):
            continue
        with open(path, "rb") as file:
            file.seek(start)
            fresh = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
        lines += [f"--- {path}", *(f"    {line}" for line in fresh)]
    return lines
