"""Commit markers: what each waits for, and the manifest once it is at the origin."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vfs.agent.writing.uploadplan import files_below, node_at
from vfs.checkpoints.commit import BODY_BYTES_MAX, Blocker, Cover, Here, Rule, blockers, covers, rule_for, unknown_names
from vfs.checkpoints.manifest import Manifest, ManifestFile, Phases, save_id_of
from vfs.errors import NotFound
from vfs.model import Kind, LakePath, SitePath, Version
from vfs.namespace.catalog import CatalogWriter
from vfs.namespace.mounts import MountPoint
from vfs.namespace.staged import Staged, StagedKind, StagedNodes, Upload, UploadState
from vfs.oserrors import Translated
from vfs.sites.protocol import Site

STATS_AT_ONCE = 16
COVERS_MAX = 32


@dataclass(frozen=True, slots=True)
class Look:
    """What was found when a marker's turn had come.

    Attributes:
        cover: None where the file's content makes it no marker.
        blocked: what it waits for; empty: it may be shown.
        there: entries of the named files that are not staged here.
    """

    cover: Cover | None
    blocked: list[Blocker]
    there: Mapping[str, Version | None]


class Commits:
    """Looks at markers on behalf of the uploads.

    Attributes:
        on_commit: called with each manifest.
        _covers: what the last markers cover, by content and path: one that waits is looked at often.
    """

    def __init__(self, catalog: CatalogWriter) -> None:
        self._catalog = catalog
        self.on_commit: Callable[[Manifest], None] = lambda manifest: None
        self._covers: OrderedDict[tuple[int, int, LakePath], Cover | None] = OrderedDict()

    def rule(self, path: LakePath, commit_marker: str) -> Rule | None:
        """Return the rule by which a file commits others, None where its name makes it none."""
        return rule_for(path, commit_marker)

    async def look(
        self, rule: Rule, marker: Staged, path: LakePath, content: str, point: MountPoint, site: Site, nodes: StagedNodes
    ) -> Look:
        """Return what the marker covers and waits for.

        Args:
            content: staging file of the marker.

        Raises:
            ForemountError: the origin can't be asked; the marker waits.
        """
        key = marker.id, marker.seq, path
        if key not in self._covers:
            self._covers[key] = await asyncio.to_thread(_cover, rule, path, content, marker.size)
            if len(self._covers) > COVERS_MAX:
                self._covers.popitem(last=False)
        cover = self._covers[key]
        if cover is None:
            return Look(None, [], {})
        here = self._here(cover, marker, point, nodes)
        there = await self._ask(sorted(unknown_names(cover, here)), point, site)
        sizes = {each: None if version is None else version.size for each, version in there.items()}
        return Look(cover, blockers(cover, here, sizes), there)

    def _here(self, cover: Cover, marker: Staged, point: MountPoint, nodes: StagedNodes) -> dict[str, Here]:
        return {
            path: self._state(node, path, marker, point) for path, node in self._staged(cover, marker, point, nodes).items()
        }

    def _staged(self, cover: Cover, marker: Staged, point: MountPoint, nodes: StagedNodes) -> dict[LakePath, Staged]:
        """Return the staged files that the marker may cover, by path."""
        found: dict[LakePath, Staged] = {}
        for directory in cover.below:
            below = LakePath(directory)
            found |= dict(files_below(nodes, node_at(nodes, point.prefix, below), below))
        for name in cover.named:
            node = node_at(nodes, point.prefix, LakePath(name))
            if node is not None and node.kind in (StagedKind.FILE, StagedKind.ABSENT):
                found[LakePath(name)] = node
        return {path: node for path, node in found.items() if node.id != marker.id}

    def _state(self, node: Staged, path: str, marker: Staged, point: MountPoint) -> Here:
        earlier = node.id < marker.id
        if node.kind is StagedKind.ABSENT:
            return Here(durable=False, earlier=earlier, why="was removed")
        if node.writing:
            return Here(durable=False, earlier=earlier, why="is still being written")
        record = self.record(node)
        if record is None or record.at is None or record.at.path != point.site_path(LakePath(path)):
            return Here(durable=False, earlier=earlier)
        return Here(durable=True, earlier=earlier)

    def record(self, node: Staged) -> Upload | None:
        """Return where the origin holds what the node holds now; None: it does not."""
        record = self._catalog.upload(node.id)
        if record is not None and record.state is UploadState.DONE and record.seq == node.seq:
            return record
        return Upload(node.seq, UploadState.DONE, node.at, node.size, done_ns=node.settled_ns) if node.settled else None

    async def _ask(self, paths: list[str], point: MountPoint, site: Site) -> dict[str, Version | None]:
        turns = asyncio.Semaphore(STATS_AT_ONCE)

        async def ask(path: str) -> Version | None:
            async with turns:
                try:
                    entry = await site.stat(point.site_path(LakePath(path)))
                except NotFound:
                    return None
                return entry.version if entry.kind is Kind.FILE else None

        return dict(zip(paths, await asyncio.gather(*map(ask, paths)), strict=True))

    def commit(
        self, look: Look, marker: Staged, record: Upload, path: LakePath, point: MountPoint, nodes: StagedNodes
    ) -> Manifest:
        """Keep and return the manifest of a checkpoint whose marker is at the origin."""
        assert look.cover is not None and not look.blocked and record.at is not None
        cover = look.cover
        staged = {
            each: node
            for each, node in self._staged(cover, marker, point, nodes).items()
            if covers(cover, each, earlier=node.id < marker.id)
        }
        files = [self._file(cover, each, node) for each, node in sorted(staged.items())]
        for each, version in sorted(look.there.items()):
            assert version is not None
            files.append(ManifestFile(_relative(each, cover), version.size, "", point.site_path(LakePath(each)), version))
        own = ManifestFile(
            _relative(path, cover), marker.size, record.digest, record.at.path, record.at.version, _phases(marker, record)
        )
        nodes_of_all = [*staged.values(), marker]
        manifest = Manifest(
            path=LakePath(cover.directory),
            marker=path,
            format=cover.format,
            step=cover.step,
            save_id=save_id_of(record.digest, [*files, own]),
            files=[*files, own],
            tensors=cover.tensors,
            begun_ns=min(filter(None, (self._seen_ns(node) for node in nodes_of_all)), default=0),
            written_ns=max(node.written_ns for node in nodes_of_all),
            local_ns=max(node.synced_ns for node in nodes_of_all) if all(node.synced_ns for node in nodes_of_all) else 0,
            committed_ns=record.done_ns,
        )
        self._catalog.put_manifest(manifest)
        self.on_commit(manifest)
        return manifest

    def _file(self, cover: Cover, path: LakePath, node: Staged) -> ManifestFile:
        record = self.record(node)
        assert record is not None and record.at is not None
        return ManifestFile(
            _relative(path, cover), node.size, record.digest, record.at.path, record.at.version, _phases(node, record)
        )

    def _seen_ns(self, node: Staged) -> int:
        record = self._catalog.upload(node.id)
        return 0 if record is None else record.seen_ns


def _cover(rule: Rule, path: LakePath, content: str, size: int) -> Cover | None:
    """Return what a marker covers, from its content as far as that is not too much."""
    if size > BODY_BYTES_MAX:
        return rule(path, b"")
    with Translated(content), open(content, "rb") as file:
        return rule(path, file.read())


def _relative(path: str, cover: Cover) -> str:
    above = cover.directory + "/" if cover.directory else ""
    return path[len(above) :] if path.startswith(above) else "/" + path


def _phases(node: Staged, record: Upload) -> Phases:
    return Phases(
        write=_seconds(record.seen_ns, node.written_ns),
        fsync=_seconds(node.written_ns, node.synced_ns),
        hash=record.hash_s,
        upload=_seconds(record.begun_ns, record.done_ns),
    )


def _seconds(begun_ns: int, done_ns: int) -> float:
    return max(0, done_ns - begun_ns) / 1e9 if begun_ns and done_ns else 0.0


def site_path_of(point: MountPoint, path: LakePath | None) -> SitePath | None:
    """Return where a lake path is at its origin."""
    return None if path is None else point.site_path(path)
