"""`foremount report`: everything that whoever mends a fault has to see, in one file, without secrets.

Never looks at the mount point, and waits for no process that may hang: stacks come from /proc where a process is stopped, the
agent is asked with a deadline. With anything stopped, dead or hung the file is there within some seconds.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from vfs import __version__
from vfs.cli import hostchecks, locate, output
from vfs.cli.locate import Located
from vfs.cli.redact import redact
from vfs.cli.status import GONE, RUNNING, MountStatus, Process, observe
from vfs.errors import Unavailable
from vfs.keeper import procfs
from vfs.rundir import RunDir
from vfs.units import format_size

LOG_BYTES = 512 << 10
"""Of the end of each log."""
DUMP_S = 2.0
"""For a process that runs to write its stacks. One that is stopped, or inside a system call that never ends, writes none."""
_PROC_FILES = ("status", "limits", "cgroup", "stat", "io")
_TASK_FILES = ("comm", "wchan", "stack", "syscall")
_KERNEL_FILES = (
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/sys/fs/file-nr",
    "/proc/self/mountinfo",
    "/etc/fuse.conf",
)
_PACKAGES = ("pyfuse3", "trio", "aiohttp", "pyarrow", "obstore", "lmdb", "xxhash", "numpy", "msgspec", "hdfs-native")

Part = tuple[str, str]
"""(name in the archive, text)."""


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--output", "-o", "path", help="File to write; without it foremount-report-HOST-TIME.tar.gz here.")
@output.json_option
def report(mountpoint: str | None, path: str | None, as_json: bool) -> None:
    """Collect what a bug report needs, of the mount at MOUNTPOINT or of all mounts of this user, in one file.

    In it: status, configuration and policies, stacks of all processes, the ends of their logs, and what the kernel says.
    Works while the daemon hangs. What looks like a secret is taken out; names of files and users are not.
    """
    located = [locate.at(mountpoint)] if mountpoint else locate.recorded()
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"foremount-report-{platform.node()}-{moment}"
    path = path or f"{name}.tar.gz"
    parts = [*_host_parts()]
    for each in located:
        parts += [(f"{each.run_dir.path.rpartition('/')[2]}/{inner}", text) for inner, text in _mount_parts(each)]
    _write(path, name, parts)
    size = os.path.getsize(path)
    if as_json:
        output.print_json({"file": os.path.abspath(path), "bytes": size, "parts": [inner for inner, _ in parts]})
    else:
        click.echo(
            f"{path}: {len(parts)} parts, {format_size(size)}; it names files and users: look at it before you send it"
        )


def _write(path: str, name: str, parts: list[Part]) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for inner, text in parts:
                content = redact(text).encode("utf-8", "replace")
                member = tarfile.TarInfo(f"{name}/{inner}")
                member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(content))
    except OSError as exc:
        raise Unavailable(path, f"can't be written: {exc.strerror}") from exc


# The host


def _host_parts() -> Iterator[Part]:
    yield "versions.txt", "\n".join([f"foremount {__version__}", f"python {sys.version}", *_package_versions()]) + "\n"
    yield "uname.txt", " ".join(os.uname()) + "\n"
    yield "host.json", _json(hostchecks.check_host(None))
    for file in _KERNEL_FILES:
        yield f"kernel{file}", _content(file)


def _package_versions() -> Iterator[str]:
    for package in _PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{package} is not installed"


# A mount


def _mount_parts(located: Located) -> Iterator[Part]:
    directory = located.run_dir
    status = observe(located)
    yield "status.json", _json(status)
    yield "keeper.json", _content(directory.state)
    yield from _stacks(directory, status.processes)
    for program in dict.fromkeys(("keeper", "worker", "agent", *status.processes)):
        yield f"{program}.log", _end(directory.log(program))
        yield f"{program}.err", _end(directory.stderr(program))
    yield "audit.log", _end(directory.audit)
    yield "policies.json", _content(directory.policies)
    yield "run-directory.txt", _listing(directory.path)
    if status.config:
        yield "foremount.toml", _content(status.config)
    for name in ("waiting", "max_background", "congestion_threshold"):
        if status.connection:
            yield f"fuse/{name}", _content(f"/sys/fs/fuse/connections/{status.connection}/{name}")
    yield "cache-disk.txt", _cache_disk(status)


def _stacks(directory: RunDir, processes: dict[str, Process]) -> Iterator[Part]:
    """Have the children write their Python stacks, and say what the kernel knows of each thread."""
    for program, process in processes.items():
        if not process.pid or process.state == GONE:
            continue
        if program != "keeper":  # the keeper hands the signal on to all
            yield f"stacks/{program}.python.txt", _python_stacks(directory.stderr(program), process)
        for file in _PROC_FILES:
            yield f"stacks/{program}.{file}.txt", _content(f"/proc/{process.pid}/{file}")
        yield f"stacks/{program}.threads.txt", _threads(process.pid)
        yield f"stacks/{program}.descriptors.txt", _descriptors(process.pid)


def _python_stacks(path: str, process: Process) -> str:
    """Return what the process has written on SIGUSR1."""
    if process.state != RUNNING:
        return f"the process is {process.state}: it can't write its stacks, see what the kernel says of its threads\n"
    facts = procfs.look(process.pid)
    before = _size(path)
    if facts is None or not procfs.signal_same(process.pid, facts.starttime, signal.SIGUSR1):
        return "the process has just ended\n"
    deadline, written = time.monotonic() + DUMP_S, before
    while time.monotonic() < deadline:
        time.sleep(0.05)
        last, written = written, _size(path)
        if written > before and written == last:
            break
    if written == before:
        return "the process has written nothing: it is in a system call that does not end, or has only just started\n"
    with open(path, "rb") as file:
        file.seek(before)
        return file.read(LOG_BYTES).decode("utf-8", "replace")


def _threads(pid: int) -> str:
    """Return where each thread is in the kernel."""
    lines = []
    for task in _names(f"/proc/{pid}/task"):
        lines.append(f"--- thread {task}")
        lines += [f"{name}: {_content(f'/proc/{pid}/task/{task}/{name}').strip()}" for name in _TASK_FILES]
    return "\n".join(lines) + "\n"


def _descriptors(pid: int) -> str:
    """Return what is open, by kind and number; names of data files are many and say little."""
    targets = []
    for name in _names(f"/proc/{pid}/fd"):
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    special = sorted({target.split("[")[0] for target in targets if not target.startswith("/")})
    counts = [f"{kind} {sum(target.startswith(kind) for target in targets)}" for kind in special]
    return "\n".join([f"all {len(targets)}", *counts]) + "\n"


# Reading


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


def _content(path: str) -> str:
    """Return a file's begin, or why it can't be read: that is a fact too."""
    try:
        with open(path, "rb") as file:
            return file.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError as exc:
        return f"{path}: {exc.strerror}\n"


def _end(path: str) -> str:
    """Return a file's end, from a whole line on."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            content = file.read(LOG_BYTES)
    except OSError as exc:
        return f"{path}: {exc.strerror}\n"
    return content[content.find(b"\n") + 1 if size > LOG_BYTES else 0 :].decode("utf-8", "replace")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _listing(directory: str) -> str:
    lines = []
    for name in _names(directory):
        if os.path.join(directory, name) == RunDir(directory).jobs:
            continue  # samples may be mounted there, and hang
        try:
            found = os.lstat(os.path.join(directory, name))
        except OSError:
            continue
        lines.append(f"{found.st_mode:o} {found.st_uid} {found.st_size:>12} {name}")
    return "\n".join(lines) + "\n"


def _cache_disk(status: MountStatus) -> str:
    """Return how full the cache's disk is, asked in a process that can be ended: `df` of everything would ask the mount."""
    stores = (status.agent_says or {}).get("stores", {})
    directory = stores.get("cache", {}).get("directory")
    if not directory:
        return "the agent has not said where the cache is\n"
    try:
        done = subprocess.run(["df", "-PTk", directory], capture_output=True, text=True, timeout=DUMP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{directory}: {exc}\n"
    return done.stdout + done.stderr
