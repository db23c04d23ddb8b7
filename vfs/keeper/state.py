"""`keeper.json`: what the keeper knows, for `status`, `umount` and the next keeper on this mount point.

Written whole and renamed into place on each change; readable while everything else hangs.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

FORMAT_VERSION = 1

STARTING, SERVING, STOPPING, FAILED = "starting", "serving", "stopping", "failed"
"""`phase`. After a stop in order the file is removed; "failed" stays with its reason."""


class BrokenState(Exception):
    """The state file is none, or of another format version."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """A child as last started.

    Attributes:
        pid: 0 before the first start and while none runs.
        starttime: of the pid, from /proc/PID/stat.
        ready: it has said that it serves.
        restarts: how often it was started again.
        last_exit: why the one before ended, "" if none has.
    """

    pid: int = 0
    starttime: int = 0
    ready: bool = False
    restarts: int = 0
    last_exit: str = ""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The last upgrade that was asked for.

    Attributes:
        id: of the request, "" where there was none.
        version: of the package that was wanted.
        why_not: why it has ended without it, "" otherwise.
    """

    id: str = ""
    version: str = ""
    ended: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class KeeperState:
    """The whole file.

    Attributes:
        connection: number of the FUSE connection (the minor of its device); 0 before it is mounted.
        flags: what INIT agreed on, 64 bits.
        why_no_passthrough: "" with passthrough.
        read_ahead_kb: in force, 0 where it could not be read.
        jobs: of the worker of `.jobs`; None without samples.
        jobs_connection: as `connection`, of `.jobs`.
        since: seconds after the epoch at which the keeper started.
        reason: why the phase is "failed" or "stopping".
        version, python: of what the worker and the agent are started from.
        keeper_version: of the keeper itself, which no upgrade changes. "" of one that knows no upgrades.
    """

    pid: int
    starttime: int
    mountpoint: str
    config: str
    phase: str = STARTING
    connection: int = 0
    flags: int = 0
    passthrough: bool = False
    why_no_passthrough: str = ""
    read_ahead_kb: int = 0
    why_no_read_ahead: str = ""
    worker: ChildState = ChildState()
    agent: ChildState = ChildState()
    jobs: ChildState | None = None
    jobs_connection: int = 0
    since: float = 0.0
    reason: str = ""
    version: str = ""
    python: str = ""
    keeper_version: str = ""
    upgrade: Upgrade = Upgrade()
    format: int = FORMAT_VERSION

    def with_child(self, name: str, child: ChildState) -> KeeperState:
        """Return the state with this child's part replaced."""
        return replace(self, **{name: child})  # type: ignore[arg-type]  # the names of children are fields

    @property
    def children(self) -> dict[str, ChildState]:
        """Return the parts by child, in the order in which they are started."""
        jobs = {} if self.jobs is None else {"jobs": self.jobs}
        return {"worker": self.worker, "agent": self.agent, **jobs}

    @property
    def connections(self) -> list[int]:
        """Return the numbers of the FUSE connections that were made."""
        return [number for number in (self.connection, self.jobs_connection) if number]


def new(*, pid: int, starttime: int, mountpoint: str, config: str, version: str = "", python: str = "") -> KeeperState:
    """Return the state of a keeper that has just started."""
    now = time.time()
    return KeeperState(
        pid, starttime, mountpoint, config, since=now, version=version, python=python, keeper_version=version
    )  # fmt: skip


def encode(state: KeeperState) -> str:
    """Return the file's content. Pure."""
    return json.dumps(asdict(state), indent=1) + "\n"


def decode(text: str) -> KeeperState:
    """Return the state in a file's content. Pure.

    Fields that a keeper of another version has added are left out: its command line and ours meet in an upgrade.

    Raises:
        BrokenState: it holds none, or one of another format version.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document.get("format") != FORMAT_VERSION:
            raise BrokenState(f"has format {document.get('format')}, this version reads {FORMAT_VERSION}")
        parts = {"worker": ChildState, "agent": ChildState, "jobs": ChildState, "upgrade": Upgrade}
        nested = {
            name: kind(**_known(kind, document[name])) for name, kind in parts.items() if document.get(name) is not None
        }
        return KeeperState(**_known(KeeperState, document) | nested)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise BrokenState(f"holds no keeper state: {exc}") from exc


def _known(kind: type[Any], fields_read: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in fields_read.items() if name in names}


def read(path: str) -> KeeperState | None:
    """Return the state in this file, or None where there is none.

    Raises:
        BrokenState: as `decode`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return decode(file.read())
    except FileNotFoundError:
        return None


def write(path: str, state: KeeperState) -> None:
    """Replace the file at once, so that a reader sees the old or the new state."""
    beside = f"{path}.{os.getpid()}.new"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(encode(state))
    os.rename(beside, path)


def remove(path: str) -> None:
    """Remove the file if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
