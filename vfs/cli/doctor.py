"""`foremount doctor`: the host, and a live mount against what frameworks need.

Never touches the mount in this process: the checks of a live mount run in a child that is killed at a deadline, and only
when the state file says that the mount serves.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import msgspec

from vfs import config as configuration
from vfs.cli import hostchecks, locate, output
from vfs.cli.checks import BAD, HANGS, OK, SKIPPED, WARNING, Check, FrameworkVerdict, has_trouble, judge
from vfs.cli.compat import READ_CHECKS, WRITE_CHECKS
from vfs.cli.locate import Located
from vfs.cli.status import MountStatus, observe
from vfs.config import Config, mount_prefix
from vfs.errors import ForemountError
from vfs.keeper import mountinfo
from vfs.keeper.code import child_environ
from vfs.rundir import JOBS

_SIGNS = {OK: "+", WARNING: "~", BAD: "!", HANGS: "!", SKIPPED: "-"}


class Report(msgspec.Struct, frozen=True):
    """Everything that doctor found."""

    host: list[Check]
    mount: list[Check]
    frameworks: list[FrameworkVerdict]


@click.command()
@click.argument("target", metavar="MOUNTPOINT|CONFIG", required=False)
@click.option("--file", "file", default="", help="File of the mount to read; without it the first one found.")
@click.option("--timeout", "timeout_s", default=20.0, show_default=True, help="Seconds for the checks of a live mount.")
@output.json_option
def doctor(target: str | None, file: str, timeout_s: float, as_json: bool) -> None:
    """Check the host, and a live mount against what frameworks need.

    Writes only below a mount that the configuration calls writable. Exit status 1 if something has to be done.
    """
    located, config, checks = _target(target)
    host = [*checks, *hostchecks.check_host(config)]
    mount = check_mount(located, config, file, timeout_s) if located is not None else []
    frameworks = judge(mount) if any(check.name == "read" and check.verdict != SKIPPED for check in mount) else []
    report = Report(host, mount, frameworks)
    if as_json:
        output.print_json(report)
    else:
        click.echo("\n".join(_describe(report)))
    if has_trouble([*host, *mount]):
        click.get_current_context().exit(1)


def check_mount(located: Located, config: Config | None, file: str, timeout_s: float) -> list[Check]:
    """Return the checks of this mount; all but the first are skipped where it does not serve."""
    status = observe(located)
    checks = [_mount_verdict(status)]
    if status.verdict not in ("not mounted", "failed", "dead"):
        checks += [_passthrough(status), _read_ahead(status, config), *_samples(status, located)]
    if not _worker_serves(status):
        return [*checks, *_skipped(f"the mount is not asked: {status.verdict}")]
    return [*checks, *_probe(located.mountpoint, file, _writable_directory(located.mountpoint, config), timeout_s)]


def _target(target: str | None) -> tuple[Located | None, Config | None, list[Check]]:
    """Return (mount, configuration, complaints) for what the user named, told apart without touching a mount."""
    if target is None:
        return None, None, []
    located = locate.at(target)
    is_mounted = mountinfo.on_top(mountinfo.read(), located.mountpoint) is not None
    if not is_mounted and os.path.isfile(located.mountpoint):
        return None, *_load(target)
    if located.state is None:
        return located, None, []
    return located, *_load(located.state.config)


def _load(path: str) -> tuple[Config | None, list[Check]]:
    try:
        return configuration.load(path), []
    except ForemountError as exc:
        return None, [Check("configuration", BAD, str(exc), exc.hint)]


def _mount_verdict(status: MountStatus) -> Check:
    if not status.troubles:
        return Check("mount", OK, f"{status.mountpoint} is {status.verdict}")
    first = status.troubles[0]
    return Check("mount", BAD, first.what, first.advice)


def _passthrough(status: MountStatus) -> Check:
    if status.passthrough:
        return Check("passthrough", OK, "in force: local files are read and written by the kernel alone")
    return Check("passthrough", WARNING, f"not in force: {status.why_no_passthrough or 'unknown'}")


def _read_ahead(status: MountStatus, config: Config | None) -> Check:
    path = f"/sys/class/bdi/0:{status.connection}/read_ahead_kb"
    try:
        with open(path, encoding="ascii") as file:
            in_force = int(file.read())
    except OSError:
        return Check("read-ahead", WARNING, "can't be told", f"{path} is missing")
    wanted = int(config.limits.read_ahead) >> 10 if config is not None else 0
    if in_force < wanted:
        hint = "mount as root, or have root write it there"
        return Check("read-ahead", WARNING, f"{in_force} KiB in force, {wanted} KiB wanted", hint)
    return Check("read-ahead", OK, f"{in_force} KiB in force")


def _samples(status: MountStatus, located: Located) -> list[Check]:
    """Return how `.jobs` is served; nothing where no samples are configured."""
    if "jobs" not in status.processes:
        return []
    number = located.state.jobs_connection if located.state is not None else 0
    if not any(entry.minor == number and entry.fs_type == mountinfo.FS_TYPE for entry in mountinfo.read()):
        return [Check(JOBS, BAD, "is not mounted", "keeper.log in the run directory says why")]
    if not hostchecks.reads_without_open():
        return [Check(JOBS, WARNING, "each file costs a request to open", hostchecks.BUILD_HINT)]
    return [Check(JOBS, OK, "mounted; its files are opened without a request")]


def _worker_serves(status: MountStatus) -> bool:
    worker = status.processes.get("worker")
    return worker is not None and worker.ready and worker.state == "running" and status.verdict in ("serving", "trouble")


def _writable_directory(mountpoint: str, config: Config | None) -> str:
    for mount in config.mounts if config is not None else []:
        if mount.writable:
            return os.path.join(mountpoint, mount_prefix(mount)).rstrip("/")
    return ""


def _probe(mountpoint: str, file: str, directory: str, timeout_s: float) -> list[Check]:
    """Return what the child found; what it was at when the time was up hangs, the rest is skipped."""
    command = [sys.executable, "-P", "-m", "vfs.cli.compat", mountpoint, "--file", file, "--directory", directory]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=child_environ())
    checks: list[Check] = []
    running = ""
    try:
        for verdict, name, *rest in _lines(child, timeout_s):
            running = name if verdict == "begin" else ""
            if verdict != "begin":
                checks.append(Check(name, verdict, *rest))
    finally:
        child.kill()
        assert child.stdout is not None, "stdout is a pipe"
        child.stdout.close()
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel and ends when the mount does
    if running:
        hint = f"foremount status {mountpoint}; foremount umount --force {mountpoint} frees who waits"
        checks.append(Check(running, HANGS, f"no answer within {timeout_s:g} s", hint))
    done = {check.name for check in checks}
    return checks + [check for check in _skipped("not reached in time") if check.name not in done]


def _lines(child: subprocess.Popen[bytes], timeout_s: float) -> Iterator[list[str]]:
    """Yield the child's lines until it ends or the time is up."""
    assert child.stdout is not None, "stdout is a pipe"
    end = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    pending = b""
    while (left := end - time.monotonic()) > 0 and poller.poll(left * 1000):
        received = os.read(child.stdout.fileno(), 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _skipped(why: str) -> list[Check]:
    return [Check(name, SKIPPED, why) for name in ("statfs", "listing", *READ_CHECKS, *WRITE_CHECKS)]


def _describe(report: Report) -> list[str]:
    """Return the report as lines for people. Pure."""
    lines = ["host", *_check_lines(report.host)]
    if report.mount:
        lines += ["", "mount", *_check_lines(report.mount)]
    if report.frameworks:
        rows = [(each.framework, each.verdict, each.because) for each in report.frameworks]
        lines += ["", "frameworks", *output.columns(rows)]
    return lines


def _check_lines(checks: list[Check]) -> list[str]:
    checks = _gather_skipped(checks)
    lines = output.columns([(_SIGNS[check.verdict], check.name, check.found) for check in checks])
    pairs = zip(lines, checks, strict=True)
    return [part for line, check in pairs for part in ([line, f"       -> {check.hint}"] if check.hint else [line])]


def _gather_skipped(checks: list[Check]) -> list[Check]:
    """Return the checks with those that were skipped for one reason as one line at their end."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.verdict == SKIPPED:
            reasons.setdefault(check.found, []).append(check.name)
    kept = [check for check in checks if check.verdict != SKIPPED]
    names_of = {why: ", ".join(names) if len(names) < 9 else f"{len(names)} checks" for why, names in reasons.items()}
    gathered = [Check("not tried", SKIPPED, f"{why} ({names})") for why, names in names_of.items()]
    return kept + gathered
