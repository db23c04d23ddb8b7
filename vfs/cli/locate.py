"""Which mount a command means, told from text alone: a path inside a hung mount must not be looked up."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vfs import rundir
from vfs.errors import ForemountError, InvalidConfig, NotFound
from vfs.keeper import mountinfo, procfs, state
from vfs.keeper.state import KeeperState
from vfs.model import LakePath
from vfs.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Located:
    """A mount of this user with its run directory; `state` is None where the keeper left none."""

    run_dir: RunDir
    mountpoint: str
    state: KeeperState | None


def at(mountpoint: str) -> Located:
    """Return the mount at this path, recorded or not.

    Raises:
        InvalidConfig: its state file can't be read.
        NotFound: the path lies inside a mount of ours, which may hang and is not asked.
    """
    absolute = os.path.abspath(mountpoint)
    for entry in mountinfo.read():
        if entry.fs_type == mountinfo.FS_TYPE and below(absolute, entry.mountpoint):
            raise NotFound(mountpoint, "is no mount point but lies inside one", f"name {entry.mountpoint}")
    settled = rundir.settle(mountpoint)
    found = rundir.run_dir(settled)
    return Located(found, settled, _read(found))


def recorded() -> list[Located]:
    """Return this user's mounts that have a readable state file, by name of their run directory."""
    found = []
    for directory in rundir.existing():
        try:
            held = state.read(directory.state)
        except state.BrokenState:
            continue
        if held is not None:
            found.append(Located(directory, held.mountpoint, held))
    return found


def one(mountpoint: str | None) -> Located:
    """Return the mount that is named, or the one that is running.

    Raises:
        NotFound: none is running, or several and none is named.
    """
    if mountpoint:
        return at(mountpoint)
    known = [each for each in recorded() if each.state is not None and _is_alive(each.state)]
    if len(known) != 1:
        hint = (
            "start one with foremount mount" if not known else "name one of: " + ", ".join(each.mountpoint for each in known)
        )
        raise NotFound("mount", f"is not clear: {len(known)} are running", hint)
    return known[0]


def lake_paths(paths: tuple[str, ...], mountpoint: str | None) -> tuple[Located, list[LakePath]]:
    """Return the mount that the paths lie in, and the paths below it.

    Each is absolute and inside a mount, relative to a working directory inside one, or a lake path. The longest mount point
    that is a prefix decides.

    Args:
        mountpoint: which mount lake paths belong to; None where only one is running.
    Raises:
        NotFound: no mount, or a path that lies in none.
        ForemountError: the paths lie in different mounts.
    """
    known = recorded()
    chosen = at(mountpoint) if mountpoint else None
    found = [_lake_path(path, known, chosen) for path in paths]
    mounts = {located.mountpoint for located, _ in found}
    if len(mounts) > 1:
        raise ForemountError("", f"the paths lie in different mounts: {', '.join(sorted(mounts))}", "name those of one mount")
    return found[0][0], [path for _, path in found]


def below(path: str, mountpoint: str) -> str | None:
    """Return the absolute `path` relative to `mountpoint`, "" for the mount point itself, None outside. Pure."""
    if path == mountpoint:
        return ""
    prefix = mountpoint.rstrip("/") + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None


def _lake_path(path: str, known: list[Located], chosen: Located | None) -> tuple[Located, LakePath]:
    candidates = [chosen] if chosen else known
    absolute = os.path.abspath(path)
    inside = [(located, rest) for located in candidates if (rest := below(absolute, located.mountpoint)) is not None]
    if inside:
        located, rest = max(inside, key=lambda pair: len(pair[0].mountpoint))
        return located, LakePath(rest)
    if os.path.isabs(path):
        points = ", ".join(located.mountpoint for located in candidates) or "none"
        raise NotFound(path, "lies in no mount of this user", f"mounts: {points}")
    if len(candidates) != 1:
        hint = "start one with foremount mount" if not candidates else "name the mount with --mountpoint"
        raise NotFound(path, f"is a lake path, and {len(candidates)} mounts are running", hint)
    normal = os.path.normpath(path)
    if normal.split("/")[0] == "..":
        raise NotFound(path, "leads out of the lake")
    return candidates[0], LakePath("" if normal == "." else normal)


def _is_alive(held: KeeperState) -> bool:
    facts = procfs.look(held.pid)
    return facts is not None and facts.starttime == held.starttime


def _read(directory: RunDir) -> KeeperState | None:
    try:
        return state.read(directory.state)
    except state.BrokenState as exc:
        raise InvalidConfig(directory.state, str(exc), "remove it if no foremount runs there") from exc
    except PermissionError as exc:
        raise InvalidConfig(directory.state, "belongs to another user", "run this as the user who mounted") from exc
