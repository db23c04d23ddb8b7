"""Which checkpoints there are below a path, and how far each is: committed ones from their manifests, the others from what is
staged here and from what the origin lists.

Nothing is kept: each answer is made from the catalog, the journal and, for one directory, the origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from vfs.agent.writing.uploads import Uploads
from vfs.checkpoints.commit import rule_for, step_of
from vfs.checkpoints.manifest import Manifest, ManifestFile, rank_of
from vfs.clock import Clock
from vfs.errors import NotADirectory, NotFound, from_failure
from vfs.model import Entry, Kind, LakePath, SiteName, SitePath, join, lies_in, split
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import MountTable
from vfs.namespace.staged import Staged, Upload
from vfs.sites.protocol import Site

RANKS_MAX = 100_000
QUIET_S = 60.0
"""A checkpoint without a marker that nobody has written to for so long is incomplete, not being written."""


class RankFacts(msgspec.Struct):
    """What one rank's files cost, seconds: the slowest of each phase, for its files are written one after another or at once.

    Attributes:
        rank: -1 for files that no rank's name is in.
    """

    rank: int
    files: int = 0
    bytes: int = 0
    write_s: float = 0.0
    fsync_s: float = 0.0
    hash_s: float = 0.0
    upload_s: float = 0.0


class CheckpointFacts(msgspec.Struct):
    """One checkpoint.

    Attributes:
        state: "writing" (no marker yet), "incomplete" (none, and nobody writes any more), "committed" (its marker is complete
            on this host and waits for what it covers) or "durable" (the origin has all of it, verified, and the marker).
        begun_s, written_s, local_s, durable_s: seconds since the epoch; 0: not yet, or not known here.
        waits_for: what keeps it from being durable, "" for nothing.
        here: whether this host has written of it; else only the origin's listing is known.
    """

    path: str
    state: str
    format: str = ""
    step: int | None = None
    save_id: str = ""
    files: int = 0
    bytes: int = 0
    tensors: int = 0
    begun_s: float = 0.0
    written_s: float = 0.0
    local_s: float = 0.0
    durable_s: float = 0.0
    waits_for: str = ""
    here: bool = True
    ranks: list[RankFacts] = []


class Checkpoints:
    """Answers by path."""

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        catalog: CatalogWriter,
        uploads: Uploads | None,
        clock: Clock,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._catalog = catalog
        self._uploads = uploads
        self._clock = clock

    async def below(self, path: LakePath) -> list[CheckpointFacts]:
        """Return the checkpoints at or below a directory, by path; of one path only the latest.

        Raises:
            NotFound: nothing is mounted there.
            ForemountError: its origin can't be asked.
        """
        found = {
            manifest.path: of_manifest(manifest) for manifest in self._catalog.manifests() if lies_in(manifest.path, path)
        }
        for facts in self._staged(path):
            committed = found.get(LakePath(facts.path))
            if committed is None or facts.state == "committed" or facts.written_s > committed.durable_s:
                found[LakePath(facts.path)] = facts
        for facts in await self._listed(path):
            found.setdefault(LakePath(facts.path), facts)
        return [found[each] for each in sorted(found)]

    def _staged(self, path: LakePath) -> list[CheckpointFacts]:
        """Return what is staged here and not at its origin, by directory."""
        if self._uploads is None:
            return []
        groups: dict[str, list[tuple[str, Staged, Upload | None]]] = {}
        markers: dict[str, tuple[Staged, Upload | None]] = {}
        for node, record in self._uploads.pending():
            where = self._uploads.nodes.path(node)
            if where is None or not lies_in(where, path):
                continue
            directory = checkpoint_directory(where)
            if directory is not None:
                groups.setdefault(directory, []).append((where, node, record))
            if rule_for(where) is not None and not node.writing:
                markers[directory or split(where)[0]] = node, record
        return [self._of_staged(directory, files, markers.get(directory)) for directory, files in groups.items()]

    def _of_staged(
        self, directory: str, files: list[tuple[str, Staged, Upload | None]], marker: tuple[Staged, Upload | None] | None
    ) -> CheckpointFacts:
        record = marker[1] if marker is not None else None
        waits_for = str(from_failure(record.failure)) if record is not None and record.failure is not None else ""
        written_ns = max(node.written_ns for _, node, _ in files)
        quiet = not any(node.writing for _, node, _ in files) and self._clock.wall_ns() - written_ns > QUIET_S * 1e9
        return CheckpointFacts(
            directory,
            "committed" if marker is not None else "incomplete" if quiet else "writing",
            step=step_of(directory),
            files=len(files),
            bytes=sum(node.size for _, node, _ in files),
            written_s=written_ns / 1e9,
            local_s=max(node.synced_ns for _, node, _ in files) / 1e9,
            waits_for=waits_for,
        )

    async def _listed(self, path: LakePath) -> list[CheckpointFacts]:
        """Return the directories of the origin that are named for a step, those without a marker as incomplete."""
        point = self._mounts.find(path)
        if point is None or point.local_root is not None:
            return []
        site = self._sites[point.site]
        beside = await entries_of(site, point.site_path(path))
        tracked = await self._tracked(site, point.site_path(path), beside)
        found = []
        for entry in beside:
            if entry.kind is not Kind.DIRECTORY or step_of(entry.name) is None:
                continue
            within = await entries_of(site, SitePath(join(point.site_path(path), entry.name)))
            files = [each for each in within if each.kind is Kind.FILE]
            marked = entry.name in tracked or any(rule_for(each.name) is not None for each in within)
            newest_ns = max((each.version.mtime_ns for each in within), default=0)
            quiet = self._clock.wall_ns() - newest_ns > QUIET_S * 1e9
            found.append(
                CheckpointFacts(
                    join(path, entry.name),
                    "durable" if marked else "incomplete" if quiet else "writing",
                    step=step_of(entry.name),
                    files=len(files),
                    bytes=sum(each.version.size for each in files),
                    written_s=newest_ns / 1e9,
                    here=False,
                )
            )
        return found

    async def _tracked(self, site: Site, path: SitePath, beside: Iterable[Entry]) -> set[str]:
        """Return the names of the directories that trackers in a directory vouch for."""
        found: set[str] = set()
        for entry in beside:
            rule = rule_for(entry.name)
            if rule is None or not 0 < entry.version.size <= 4096:
                continue
            pieces = site.read(SitePath(join(path, entry.name)), entry.version, 0, entry.version.size)
            cover = rule(entry.name, b"".join([bytes(piece) async for piece in pieces]))
            found |= set(cover.below) if cover is not None else set()
        return found


def of_manifest(manifest: Manifest) -> CheckpointFacts:
    """Return a committed checkpoint's facts. Pure."""
    return CheckpointFacts(
        manifest.path,
        "durable",
        format=manifest.format,
        step=manifest.step,
        save_id=manifest.save_id,
        files=len(manifest.files),
        bytes=manifest.size,
        tensors=manifest.tensors,
        begun_s=manifest.begun_ns / 1e9,
        written_s=manifest.written_ns / 1e9,
        local_s=manifest.local_ns / 1e9,
        durable_s=manifest.committed_ns / 1e9,
        ranks=by_rank(manifest.files),
    )


def by_rank(files: Iterable[ManifestFile]) -> list[RankFacts]:
    """Return the phases of each rank, by rank. Pure."""
    found: dict[int, RankFacts] = {}
    for file in files:
        rank = rank_of(file.path)
        facts = found.setdefault(-1 if rank is None else rank, RankFacts(-1 if rank is None else rank))
        facts.files += 1
        facts.bytes += file.size
        facts.write_s = max(facts.write_s, file.phases.write)
        facts.fsync_s = max(facts.fsync_s, file.phases.fsync)
        facts.hash_s = max(facts.hash_s, file.phases.hash)
        facts.upload_s = max(facts.upload_s, file.phases.upload)
    return [found[rank] for rank in sorted(found)[:RANKS_MAX]]


async def entries_of(site: Site, path: SitePath) -> list[Entry]:
    """Return what lies in a directory; nothing where there is no such directory."""
    try:
        return [entry async for page in site.list(path) for entry in page]
    except (NotFound, NotADirectory):
        return []


def checkpoint_directory(path: str) -> str | None:
    """Return the directory named for a step that a file lies in, else its own where it is a marker; None: it is in none."""
    parts = path.split("/")[:-1]
    for depth in range(len(parts), 0, -1):
        if step_of(parts[depth - 1]) is not None:
            return "/".join(parts[:depth])
    return "/".join(parts) if rule_for(path) is not None else None
