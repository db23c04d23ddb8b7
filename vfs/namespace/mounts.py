"""The mount table: lake path to site and site path.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vfs.config import Config, LocalSite, Replica, local_path, mount_prefix, mount_replicas, mount_root
from vfs.model import LakePath, SiteName, SitePath, join, lies_in
from vfs.rundir import JOBS

STATUS_PREFIX = LakePath(".foremount")
STATUS_SITE = SiteName("foremount-status")
JOBS_PREFIX = LakePath(JOBS)
JOBS_SITE = SiteName("foremount-jobs")


class LocalReplica(NamedTuple):
    """A directory of this host that may hold copies."""

    site: SiteName
    directory: str


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One prefix of the lake.

    Attributes:
        local_root: the directory on this host where the origin is a local site, else None.
        replicas: sites that may hold copies, in order of preference.
        local_replicas: those of them whose files lie on this host.
    """

    prefix: LakePath
    site: SiteName
    root: SitePath
    replicas: tuple[Replica, ...] = ()
    writable: bool = False
    local_root: str | None = None
    local_replicas: tuple[LocalReplica, ...] = ()

    def below(self, path: LakePath) -> str:
        """Return `path` relative to the prefix."""
        return path[len(self.prefix) :].lstrip("/") if self.prefix else path

    def site_path(self, path: LakePath) -> SitePath:
        """Return where `path` lies at the origin."""
        return SitePath(join(self.root, self.below(path)))

    def lake_path(self, path: SitePath) -> LakePath | None:
        """Return where a path of the origin lies in the lake; None: not below the root."""
        if not lies_in(path, self.root):
            return None
        return LakePath(join(self.prefix, path[len(self.root) :].lstrip("/")))


class MountTable:
    """Finds the mount point of a path. Invariant: prefixes are unique; the longest one that covers a path wins."""

    def __init__(self, points: list[MountPoint]) -> None:
        self.points = tuple(sorted(points, key=lambda point: point.prefix.count("/") + bool(point.prefix), reverse=True))
        self._children: dict[str, set[str]] = {}
        for point in self.points:
            parts = point.prefix.split("/") if point.prefix else []
            for depth, part in enumerate(parts):
                self._children.setdefault("/".join(parts[:depth]), set()).add(part)

    def find(self, path: LakePath) -> MountPoint | None:
        """Return the mount point that covers `path`; None for what only leads to mount points, and for what is nowhere."""
        for point in self.points:
            if not point.prefix or path == point.prefix or path.startswith(point.prefix + "/"):
                return point
        return None

    def children(self, path: LakePath) -> set[str]:
        """Return the names in directory `path` that exist because something is mounted at or below them."""
        return self._children.get(path, set())

    def leads_to_mounts(self, path: LakePath) -> bool:
        """Return whether `path` is a directory because of the table alone: the root, a prefix, or on the way to one."""
        return not path or path in self._children or any(path == point.prefix for point in self.points)


def build_mount_table(config: Config, status_directory: str | None = None) -> MountTable:
    """Return the table that the configuration states; with a directory of status files, with what is ours too."""
    points = []
    for mount in config.mounts:
        origin = config.sites[mount.site]
        root, replicas = mount_root(mount), mount_replicas(mount)
        points.append(
            MountPoint(
                prefix=mount_prefix(mount),
                site=SiteName(mount.site),
                root=root,
                replicas=tuple(replicas),
                writable=mount.writable,
                local_root=local_path(origin, root) if isinstance(origin, LocalSite) else None,
                local_replicas=tuple(
                    LocalReplica(replica.site, local_path(site, replica.root))
                    for replica in replicas
                    if isinstance(site := config.sites[replica.site], LocalSite)
                ),
            )
        )
    if status_directory is not None:
        points.append(MountPoint(STATUS_PREFIX, STATUS_SITE, SitePath(""), local_root=status_directory))
        if config.samples is not None:
            points.append(MountPoint(JOBS_PREFIX, JOBS_SITE, SitePath("")))
    return MountTable(points)
