"""Who a process is: what /proc says of it, the job that it belongs to, and how many ranks that has.

The environment is what it was started with. Reading it waits for the process's memory map, which a page fault on a mount of
ours may hold for as long as an origin takes: only a thread that nobody depends on may do that. The other files here need no
lock of that kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from vfs.usage import CallerFacts

VARIABLES = {
    "FOREMOUNT_JOB": "",
    "SLURM_JOB_ID": "slurm:",
    "PBS_JOBID": "pbs:",
    "LSB_JOBID": "lsf:",
    "RAY_JOB_ID": "ray:",
    "TORCHELASTIC_RUN_ID": "torchelastic:",
}
"""Variables that name the job, the first one that is set counts, and what is put before their value."""
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables that say how many ranks the job has, the first one that is a number counts. torchrun sets WORLD_SIZE in each
rank; around it, SLURM_NTASKS is the number of its launchers."""
_NAME_CHARS_MAX = 80
_RANKS_DIGITS_MAX = 7
_ENVIRON_BYTES_MAX = 1 << 20
_SLURM = re.compile(r"/job_(\d+)(/|$)")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")
_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?$")
_STARTTIME, _ENV_START, _ENV_END = 22 - 3, 50 - 3, 51 - 3  # fields of proc(5) behind the name, which is the second
_STAT_BYTES_MAX = 4096
Stamp = tuple[int, int, int]
"""When a thread was started and where its environment lies: another process, or another program in it, has another one."""


def job_of(cgroup: str, uid: int, environ: Mapping[str, str]) -> str:
    """Return the name of a process's job. Pure.

    Args:
        cgroup: its path, "" where unknown.
        environ: what it was started with, as far as known.
    """
    for name, prefix in VARIABLES.items():
        if value := environ.get(name, ""):
            return prefix + _printable(value)
    if found := _SLURM.search(cgroup):
        return f"slurm:{found[1]}"
    if found := _POD.search(cgroup):
        return f"pod:{found[1].replace('_', '-')}"
    if found := _CONTAINER.search(cgroup):
        return f"container:{found[1][:12]}"
    unit = cgroup.rstrip("/").rsplit("/", 1)[-1]
    return _printable(unit) if unit else f"uid:{uid}"


def world_of(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks of a process's job; None: its environment does not say. Pure."""
    numbers = (environ.get(name, "") for name in WORLDS)
    return next((int(text) for text in numbers if re.fullmatch(rf"0*[1-9][0-9]{{0,{_RANKS_DIGITS_MAX - 1}}}", text)), None)


def read_environ(pid: int) -> dict[str, str]:
    """Return those of `VARIABLES` and `WORLDS` that a process was started with; nothing where it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(_ENVIRON_BYTES_MAX)
    except OSError:
        return {}
    found = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if (text := name.decode(errors="replace")) in VARIABLES or text in WORLDS:
            found[text] = value.decode(errors="replace")
    return found


def read_process(thread: int) -> tuple[int, str, str, int | None]:
    """Return process, short name, cgroup and group of a thread; (thread, "", "", None) where it is gone or not of our
    namespace."""
    if not thread:
        return 0, "kernel", "", None
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            status = file.read(512)
        with open(f"/proc/{thread}/cgroup", "rb") as file:
            cgroups = file.read(8192)
    except OSError:
        return thread, "", "", None
    return parse_process(thread, status, cgroups)


def parse_process(thread: int, status: bytes, cgroups: bytes) -> tuple[int, str, str, int | None]:
    """Return process, short name, cgroup and group (for file systems) out of /proc files. Pure.

    Of several hierarchies the unified one counts, else the first that has a name.
    """
    fields = dict(line.split(b":\t", 1) for line in status.splitlines() if b":\t" in line)
    paths = [line.split(b":", 2) for line in cgroups.splitlines() if line.count(b":") >= 2]
    unified = next((path for number, _, path in paths if number == b"0"), b"")
    chosen = unified if len(unified) > 1 else next((path for _, _, path in paths if len(path) > 1), unified)
    pid = int(fields.get(b"Tgid", b"%d" % thread))
    gid = int(fields[b"Gid"].split()[-1]) if b"Gid" in fields else None
    return pid, fields.get(b"Name", b"").decode(errors="replace"), chosen.decode(errors="replace"), gid


def look(pid: int) -> CallerFacts | None:
    """Return what policy rules can match of a process; None where there is none. Reads its environment."""
    try:
        owner = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    _, _, cgroup, gid = read_process(pid)
    environ = read_environ(pid)
    return CallerFacts(owner.st_uid, gid, job_of(cgroup, owner.st_uid, environ), world_of(environ))


def read_stamp(thread: int) -> Stamp | None:
    """Return a thread's stamp; None where it is gone, or not of our namespace.

    Cost: 12 us; the file of the process adds up all of its threads, and a file object costs as much again (2026-11).
    """
    try:
        fd = os.open(f"/proc/{thread}/task/{thread}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_stamp(os.read(fd, _STAT_BYTES_MAX))
    except OSError:
        return None  # it has ended in between
    finally:
        os.close(fd)


def parse_stamp(line: bytes) -> Stamp:
    """Return the stamp in a line of /proc/PID/stat. Pure. The name in parentheses may hold anything, parentheses too."""
    fields = line[line.rindex(b")") + 2 :].split()
    return int(fields[_STARTTIME]), int(fields[_ENV_START]), int(fields[_ENV_END])


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)[:_NAME_CHARS_MAX]
