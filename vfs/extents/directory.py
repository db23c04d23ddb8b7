"""A store's directory apart from its objects: who has it, how full it was, what earlier runs and versions left in it.

Blocking. `lock` is flocked by the daemon that has the directory and holds its pid; `v<FORMAT>` is the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator

from vfs.errors import Busy
from vfs.extents.files import used_on_disk
from vfs.model import ObjectKey

logger = logging.getLogger(__name__)

_KEY = re.compile(r"([0-9a-f]{32})\.(data|sums)")
_FORMAT_DIRECTORY = re.compile(r"v[0-9]+")


def spill_directory(name: str) -> str:
    """Return where the store in memory lies that takes what the cache disk can't; `name` tells this host's mounts apart."""
    return f"/dev/shm/foremount-{os.geteuid()}-{name}"  # noqa: S108  made with mode 0700, no links are followed in it


def spill_of_process(kind: str) -> str:
    """Return where this process has a store in memory of its own; `sweep_spills` removes it after a kill."""
    return spill_directory(f"{kind}-{os.getpid()}")


def sweep_spills(kind: str) -> None:
    """Remove the stores in memory that killed processes of this user and kind have left."""
    above, prefix = os.path.split(spill_directory(f"{kind}-"))
    for name in os.listdir(above):
        pid, directory = name.removeprefix(prefix), os.path.join(above, name)
        if pid == name or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        with contextlib.suppress(OSError, Busy):  # another sweeps it, or a container has it whose processes are not seen
            found = os.lstat(directory)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():  # anybody may make names there
                continue
            lock = take_lock(directory)
            try:
                shutil.rmtree(directory)
            finally:
                os.close(lock)
            logger.info("removed %s of a process that was killed", directory)


def leftovers(root: str, stop: threading.Event) -> Iterator[tuple[ObjectKey, int, int] | tuple[ObjectKey, None, None]]:
    """Yield (key, bytes on the disk, last use in ns) of all objects, directory by directory; None for half of an object."""
    for directory in sorted(os.listdir(f"{root}/objects")):
        names = os.listdir(f"{root}/objects/{directory}")
        keys = {ObjectKey(matched[1]) for name in names if (matched := _KEY.fullmatch(name))}
        for key in sorted(keys):
            if stop.is_set():
                return
            facts = used_on_disk(root, key)
            yield (key, *facts) if facts else (key, None, None)


def take_lock(directory: str) -> int:
    """Return the descriptor that holds the directory's lock, until it is closed.

    Raises:
        Busy: another process has it.
        OSError: as the system says.
    """
    fd = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as exc:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise Busy(
            directory, f"is in use by process {holder}", "stop the other mount, or give this one a cache directory of its own"
        ) from exc
    except OSError:
        os.close(fd)
        raise
    return fd


def discard_other_formats(directory: str, ours: str) -> None:
    """Remove the stores of other versions of this program; one line in the log for each."""
    for name in sorted(os.listdir(directory)):
        if _FORMAT_DIRECTORY.fullmatch(name) and name != ours:
            logger.info("discarding the cache of another version of this program: %s", os.path.join(directory, name))
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def empty(directory: str, stop: threading.Event) -> None:
    """Unlink all files in a directory."""
    for name in os.listdir(directory):
        if stop.is_set():
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def read_number(path: str) -> int:
    """Return the number in a file; 0 where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


def write_number(path: str, number: int) -> None:
    """Write a number that `read_number` reads; one write, so that it is never half of one and half of another."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, f"{number:<31}\n".encode(), 0)
    finally:
        os.close(fd)
