"""The facts of a running mount, for `foremount status`, `explain` and the files below `.foremount`."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from vfs import __version__
from vfs.admin.health import health
from vfs.admin.policies import Policies, decision_facts
from vfs.agent.reading.metadata import Metadata
from vfs.agent.reading.objects import Objects
from vfs.agent.reading.prefetch import Prefetcher
from vfs.agent.reading.replicas import Replicas
from vfs.agent.reading.snapshots import Snapshots
from vfs.agent.rules import PathRules
from vfs.agent.server import WorkerServer
from vfs.agent.writing.uploadfacts import UploadFacts
from vfs.errors import ForemountError, NotFound, Unavailable
from vfs.extents.fetch import Fetcher
from vfs.extents.layout import PASSTHROUGH_BYTES_MIN
from vfs.extents.link import LineFacts
from vfs.extents.store import Store
from vfs.model import LakePath, SiteName, Version, object_key
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.policy.explain import facts_text
from vfs.policy.facts import Access
from vfs.units import encode_unit

_STATUS_EVERY_S = 1.0


class Status:
    """Collects facts from the rooms; keeps none.

    Args:
        waiting: says how many operations go on for long right now.

    Attributes:
        mountpoint: where the keeper has mounted it.
        admin: where the API can be reached over TCP, or the trouble with it.
    """

    def __init__(
        self,
        mounts: MountTable,
        stores: Mapping[str, Store],
        metadata: Metadata,
        objects: Objects,
        worker: WorkerServer,
        fetcher: Fetcher,
        prefetcher: Prefetcher,
        replicas: Replicas,
        policies: Policies,
        rules: PathRules,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._mounts = mounts
        self._stores = stores
        self._metadata = metadata
        self._objects = objects
        self._worker = worker
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._replicas = replicas
        self._policies = policies
        self._rules = rules
        self._waiting = waiting
        self.admin: dict[str, str] = {}
        self.uploads: UploadFacts | None = None
        self.snapshots: Snapshots | None = None
        self.mountpoint = ""

    def facts(self) -> dict[str, Any]:
        """Return everything that `status` prints. No secrets: site configurations are not in it."""
        facts = self._facts()
        return {**facts, "health": msgspec.to_builtins(health(facts, waiting=self._waiting()))}

    def worker_facts(self) -> dict[str, Any]:
        """Return how the fs worker does."""
        hello = self._worker.hello
        return {
            "connected": hello is not None,
            "passthrough": hello is not None and hello.passthrough,
            "why_no_passthrough": hello.why_not if hello is not None else "no worker is connected",
            "counters": self._worker.counters,
        }

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "mountpoint": self.mountpoint,
            "admin": self.admin,
            "mounts": [self._mount_facts(point) for point in self._mounts.points],
            "worker": self.worker_facts(),
            "stores": self.store_facts(),
            "open_objects": self._objects.open_count(),
            "fetches": asdict(self._fetcher.counters),
            "lines": {line.site: _line_facts(line) for line in self._fetcher.lines()},
            "sites": self.site_facts(),
            "policies": self._policies.summary(),
            "snapshots": self.snapshots.facts() if self.snapshots is not None else [],
            "uploads": self.uploads.facts() if self.uploads is not None else None,
        }

    def _mount_facts(self, point: MountPoint) -> dict[str, Any]:
        return {
            "prefix": "/" + point.prefix,
            "site": point.site,
            "root": point.root,
            "replicas": [f"{replica.site}:{replica.root}" for replica in point.replicas],
            "writable": point.writable,
            "local": point.local_root is not None,
        }

    def site_facts(self) -> dict[str, dict[str, bool]]:
        """Return what is known of each site."""
        return self._metadata.site_facts()

    def store_facts(self) -> dict[str, dict[str, Any]]:
        """Return the stores' totals and counters."""
        return {name: self._store_facts(store) for name, store in self._stores.items()}

    def _store_facts(self, store: Store) -> dict[str, Any]:
        try:
            totals = msgspec.to_builtins(store.totals(), enc_hook=encode_unit)
        except ForemountError as exc:
            totals = {"trouble": str(exc)}
        return {"directory": store.directory, **totals, **asdict(store.counters)}

    async def explain(self, path: LakePath, *, with_rules: bool = False) -> dict[str, Any]:
        """Return where the bytes of a path come from right now for whom the current task asks, and why.

        Args:
            with_rules: say of every rule what became of it.

        Raises:
            NotFound: nothing is there.
            ForemountError: its origin can't be asked.
        """
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path, "nothing is mounted there")
        facts: dict[str, Any] = {"mount": self._mount_facts(point)}
        if self.snapshots is not None and (name := self._rules.snapshot(path)):
            facts["snapshot"] = await self.snapshots.about(name, path)
        if point.local_root is not None:
            host_path = os.path.join(point.local_root, point.below(path))
            if not os.path.lexists(host_path):
                raise NotFound(path)
            facts |= {"served_from": "local site", "host_path": host_path, "mode": self._passthrough_or_cache()}
            found = os.lstat(host_path)
            size = None if stat.S_ISDIR(found.st_mode) else found.st_size
            return facts | self._policy_facts(path, size, with_rules=with_rules)
        entry = await self._metadata.stat(path)
        if entry is None:
            raise NotFound(path)
        facts |= {"kind": entry.kind, "version": msgspec.structs.asdict(entry.version)}
        if entry.kind == "file":
            facts |= self._object_facts(point, path, entry.version)
            facts |= await self._placement_facts(path, entry.version)
        size = entry.version.size if entry.kind == "file" else None
        return facts | self._policy_facts(path, size, with_rules=with_rules)

    def _policy_facts(self, path: LakePath, size: int | None, *, with_rules: bool) -> dict[str, Any]:
        """Return what holds for opening or listing the path."""
        access = Access.LIST if size is None else Access.OPEN
        known = self._rules.facts(path, access, size)
        found = {"policies": self._policies.summary(), "facts": facts_text(known)}
        found["values"] = decision_facts(self._rules.decision(path, access, size))
        return found | {"rules": self._policies.verdicts(known)} if with_rules else found

    def _object_facts(self, point: MountPoint, path: LakePath, version: Version) -> dict[str, Any]:
        key = object_key(SiteName(point.site), point.site_path(path), version)
        for name, store in self._stores.items():
            try:
                stored = store.stored(key)
            except (NotFound, Unavailable):
                continue
            complete = stored.sealed or stored.present == version.size
            served = "complete verified copy" if complete else "cache, the rest from the origin"
            backed = stored.sealed and version.size >= PASSTHROUGH_BYTES_MIN
            mode = self._passthrough_or_cache() if backed else "page cache over verified blocks"
            return {
                "key": key,
                "served_from": served,
                "mode": mode,
                "store": name,
                "bytes_present": stored.present,
                "held": stored.held,
            }
        return {
            "key": key,
            "served_from": f"origin {point.site}",
            "mode": "page cache over verified blocks",
            "bytes_present": 0,
        }

    async def _placement_facts(self, path: LakePath, version: Version) -> dict[str, Any]:
        """Return who serves what is not here yet, in which order and why; and what is fetched ahead of the readers."""
        origin, serving = self._objects.identity(path, version), self._rules.serving(path, version.size)
        findings = await self._replicas.findings(path, origin, serving)
        proven = {found.replica: found.why for found in findings if found.replica is not None}
        ranked = self._fetcher.placement(origin, proven, serving)
        lines = {line.site: _line_facts(line) for line in self._fetcher.lines()}
        facts: dict[str, Any] = {
            "sites": [
                {"site": each.site, "why": each.reason, **({"line": lines[each.site]} if each.site in lines else {})}
                for each in ranked
            ],
            "replicas": [{"site": found.site, "is_copy": found.replica is not None, "why": found.why} for found in findings],
        }
        ahead = self._prefetcher.facts(object_key(origin.site, origin.path, version))
        return facts if ahead is None else facts | {"prefetch": ahead}

    def _passthrough_or_cache(self) -> str:
        hello = self._worker.hello
        if hello is not None and hello.passthrough:
            return "kernel passthrough"
        return f"page cache ({hello.why_not if hello is not None else 'no worker is connected'})"


def _line_facts(line: LineFacts) -> dict[str, Any]:
    """Return what was measured of a site's line, and what follows from it for requests."""
    facts: dict[str, Any] = msgspec.to_builtins(line, enc_hook=encode_unit)
    del facts["site"]
    return {**facts.pop("seen"), **facts}


class StatusFiles:
    """Keeps `status.json` below the mount's `.foremount` current."""

    def __init__(self, directory: str, status: Status) -> None:
        self._directory = directory
        self._status = status

    async def keep(self) -> None:
        """Write the file anew whenever its content has changed."""
        os.makedirs(self._directory, exist_ok=True)
        last = b""
        while True:
            current = msgspec.json.format(msgspec.json.encode(self._status.facts()), indent=2) + b"\n"
            if current != last:
                self._write("status.json", current)
                last = current
            await asyncio.sleep(_STATUS_EVERY_S)

    def _write(self, name: str, content: bytes) -> None:
        """Replace the file in one step: a reader sees the old one or the new one."""
        path = os.path.join(self._directory, name)
        with open(f"{path}.new", "wb") as file:
            file.write(content)
        os.replace(f"{path}.new", path)
