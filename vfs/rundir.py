"""Where a mount keeps what lives as long as it runs: sockets, logs, its state file and the two LMDB environments.

Standard library only: the keeper imports it. No function here touches a mount point, for a `stat` on a hung mount blocks.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

JOBS = ".jobs"
"""Name of the directory in the root of a mount that the samples of jobs are mounted on."""
_NAME_BYTES_MAX = 64
"""The path of a socket has 107 bytes at most: this name, 31 of "/run/user/4294967294/foremount/" and 12 of "/worker.sock"."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.")


class UnsafeRunDir(Exception):
    """The run directory's place is taken by something that somebody else can write to."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The names inside one mount's run directory."""

    path: str

    @property
    def state(self) -> str:
        """Return the file that the keeper rewrites on each change (`vfs/keeper/state.py`)."""
        return os.path.join(self.path, "keeper.json")

    @property
    def lock(self) -> str:
        """Return the file that the keeper holds locked for its life: one keeper to a mount point."""
        return os.path.join(self.path, "keeper.lock")

    @property
    def upgrade(self) -> str:
        """Return the file in which `foremount upgrade` asks for its own installation (`vfs/keeper/code.py`)."""
        return os.path.join(self.path, "upgrade.json")

    @property
    def agent_socket(self) -> str:
        """Return the agent's socket for the fs worker (`vfs/wire.py`)."""
        return os.path.join(self.path, "agent.sock")

    @property
    def admin_socket(self) -> str:
        """Return the agent's socket for the command line (HTTP)."""
        return os.path.join(self.path, "admin.sock")

    @property
    def worker_socket(self) -> str:
        """Return the name kept for a socket of the fs worker."""
        return os.path.join(self.path, "worker.sock")

    @property
    def jobs_socket(self) -> str:
        """Return the agent's socket for the worker of `.jobs` (`vfs/samples/wire.py`)."""
        return os.path.join(self.path, "jobs.sock")

    @property
    def foresight_socket(self) -> str:
        """Return the socket of the agent's own controller (`vfs/foresight/controller/api.py`)."""
        return os.path.join(self.path, "foresight.sock")

    @property
    def jobs(self) -> str:
        """Return the directory that an ordinary user's samples are mounted on: fusermount3 can't enter his lake."""
        return os.path.join(self.path, "jobs")

    @property
    def job_inodes(self) -> str:
        """Return the LMDB environment of the worker of `.jobs`."""
        return os.path.join(self.path, "jobinodes.lmdb")

    @property
    def inodes(self) -> str:
        """Return the fs worker's LMDB environment."""
        return os.path.join(self.path, "inodes.lmdb")

    @property
    def catalog(self) -> str:
        """Return the agent's LMDB environment."""
        return os.path.join(self.path, "catalog.lmdb")

    @property
    def public(self) -> str:
        """Return the directory of the status files that the mount shows below `.foremount`."""
        return os.path.join(self.path, "public")

    @property
    def policies(self) -> str:
        """Return the file that holds the policy in force, for a process that is started while a document is broken."""
        return os.path.join(self.path, "policies.json")

    @property
    def audit(self) -> str:
        """Return the log of who put which policy in force."""
        return os.path.join(self.path, "audit.log")

    def log(self, program: str) -> str:
        """Return the log of "keeper", "worker" or "agent"; whoever writes it rotates it."""
        return os.path.join(self.path, f"{program}.log")

    def stderr(self, program: str) -> str:
        """Return where a child's standard error goes: tracebacks from before its log is open, and stack dumps."""
        return os.path.join(self.path, f"{program}.err")


def settle(path: str) -> str:
    """Return the absolute path with symlinks resolved, without asking a file system that may be mounted at its end.

    `os.path.realpath` would `lstat` the last component, which a hung mount never answers; `readlink` on the root of a
    mount fails in the VFS before the file system is asked.
    """
    path = os.path.abspath(path)
    for _ in range(40):  # as many links as the kernel follows
        parent, name = os.path.split(path)
        if not name:
            return path
        path = os.path.join(os.path.realpath(parent), name)
        try:
            target = os.readlink(path)
        except OSError:
            return path
        path = os.path.abspath(os.path.join(os.path.dirname(path), target))
    return path


def escape(mountpoint: str) -> str:
    """Return the mount point as one file name, as systemd escapes paths: "/mnt/lake" is "mnt-lake".

    Other bytes than letters, digits and ":_." become \\xNN. A name that would be too long is cut and carries a digest.
    """
    raw = os.fsencode(mountpoint.strip("/"))
    pieces = []
    for index, byte in enumerate(raw):
        if byte == ord("/"):
            pieces.append("-")
        elif byte in _PLAIN and not (byte == ord(".") and index == 0):
            pieces.append(chr(byte))
        else:
            pieces.append(f"\\x{byte:02x}")
    name = "".join(pieces) or "-"
    if len(name) <= _NAME_BYTES_MAX:
        return name
    return f"{name[: _NAME_BYTES_MAX - 17]}-{hashlib.sha256(raw).hexdigest()[:16]}"


def base_dir(uid: int | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the directory that holds this user's run directories."""
    uid = os.geteuid() if uid is None else uid
    environ = os.environ if environ is None else environ
    if uid == 0:
        return "/run/foremount"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "foremount")
    return f"/tmp/foremount-{uid}"  # noqa: S108 - `create` refuses one that is not ours


def run_dir(mountpoint: str) -> RunDir:
    """Return the run directory of the mount at this absolute path, whether or not it exists."""
    return RunDir(os.path.join(base_dir(), escape(mountpoint)))


def create(directory: RunDir) -> None:
    """Create the run directory, mode 0700, and its parent where they are missing.

    Raises:
        UnsafeRunDir: either belongs to another user, is a symlink or can be written by others.
        OSError: it can't be created.
    """
    parent = os.path.dirname(directory.path)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    _check_ours(parent)
    os.makedirs(directory.path, mode=0o700, exist_ok=True)
    _check_ours(directory.path)
    os.chmod(directory.path, 0o700)


def existing() -> Iterator[RunDir]:
    """Yield this user's run directories that hold a state file, by name."""
    base = base_dir()
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return
    for name in names:
        found = RunDir(os.path.join(base, name))
        if os.path.exists(found.state):
            yield found


def _check_ours(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnsafeRunDir(f"{path} is no directory of this user's")
    if found.st_mode & 0o022:
        raise UnsafeRunDir(f"{path} can be written by other users")
