"""Names and attributes: asks the origins once for many callers and writes what they say into the catalog.

Tasks: one for each directory that is being listed; they belong to the service and outlive their callers. A single lookup is
a stat; the second one in the same directory lists it, so that a scan costs pages and not names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vfs import wire
from vfs.checkpoints.commit import rule_for
from vfs.checkpoints.patterns import generalise
from vfs.clock import Clock
from vfs.errors import ForemountError, NotADirectory, NotFound, Unavailable
from vfs.model import Entry, Kind, LakePath, SiteName, Version, join, split
from vfs.namespace.catalog import CatalogWriter, Known, Listing
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.namespace.pins import Pins
from vfs.namespace.snapshots import ID_MIN
from vfs.sites.protocol import Site

log = logging.getLogger(__name__)

LOOKUPS_BEFORE_LISTING = 2
"""A directory in which this many names were looked up within its listing's life is listed whole."""
STEPS_BEFORE_LISTING = 4
"""The same where the names are those of steps: a job goes into one or two, a scan into all."""
_ENTRIES_FOR_LOOKUP = 10_000
"""A lookup does not wait for more of a listing than this: in a huge directory it asks for the one name."""
_REMEMBERED_DIRECTORIES = 10_000
_FILES_KEPT = 8
"""Directories whose files are kept in memory, 10,000 each at most: a reader opens one shard after the other."""
SITE_REST_S = 2.0
"""A site that could not be reached is not asked again for this long where something older can be served instead."""


@dataclass(slots=True)
class _Run:
    """A listing under way.

    Attributes:
        progress: set and replaced whenever a page has arrived, and at the end.
        failure: why it ended early.
    """

    listing: Listing
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    failure: ForemountError | None = None
    finished: bool = False

    def advance(self) -> None:
        """Wake all who wait for the next step."""
        self.progress.set()
        self.progress = asyncio.Event()


class Metadata:
    """Answers stats and listings.

    Args:
        ttl_s: how long the names in a directory are believed.
        version_ttl_s: how long a file of this path and size is believed to be still the same version.
        pins: answer for what the policy pins to a snapshot; None: nothing is pinned.
        commits: whether a file of this path is a commit marker.

    Invariant: a directory has at most one run; a run that failed or finished is not in `_runs`.
    """

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        catalog: CatalogWriter,
        *,
        clock: Clock,
        ttl_s: Callable[[LakePath], float],
        version_ttl_s: Callable[[LakePath, int], float],
        spawn: Callable[[Awaitable[None]], None],
        pins: Pins | None = None,
        commits: Callable[[LakePath], bool] = lambda path: rule_for(path) is not None,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._catalog = catalog
        self._clock = clock
        self._ttl_s = ttl_s
        self._version_ttl_s = version_ttl_s
        self._spawn = spawn
        self._pins = Pins(catalog, lambda path: "") if pins is None else pins
        self._commits = commits
        self._runs: dict[LakePath, _Run] = {}
        self._lookups: OrderedDict[LakePath, int] = OrderedDict()
        self._files: OrderedDict[LakePath, tuple[wire.Listed, Sequence[Entry]]] = OrderedDict()
        self._stats: dict[LakePath, tuple[int, asyncio.Future[Entry | None]]] = {}
        self._resting_until_s: dict[SiteName, float] = {}

    async def stat(self, path: LakePath) -> Entry | None:
        """Return what the origin says about one path, None where it says that nothing is there.

        Raises:
            Denied, Unavailable: the origin's own failure; the catalog keeps what it said before.
            Stale: it is pinned to a snapshot that is not here.
        """
        if self._pins.named(path):
            try:
                return self._pins.entry(path)
            except NotFound:
                return None
        parent = LakePath(split(path)[0])
        point = self._point(path)
        believed_s = self._believed_s(parent, path)
        if not believed_s:
            return await self._stat(point, path, must=True)  # not shared: one that was asked before us may say less
        if (listed := self._listed(parent, path, believed_s)) is not None:
            return listed
        is_step = _names_a_step(path) and self._catalog.known(path) is None
        if is_step and path not in self._runs:
            self._spawn(self._list_quietly(path))  # who asks for it lists it next: one round trip for both
        if point.prefix != path and self._should_list(
            parent, believed_s, STEPS_BEFORE_LISTING if is_step else LOOKUPS_BEFORE_LISTING
        ):
            found, entry = await self._stat_by_listing(parent, path, believed_s)
            if found:
                return entry
        begun_ns, under_way = self._stats.get(path, (0, None))
        if under_way is None or begun_ns <= self._catalog.doubted_ns(path):
            under_way = asyncio.ensure_future(self._stat(point, path))
            mine = self._stats[path] = self._clock.wall_ns(), under_way
            under_way.add_done_callback(lambda _: self._stats.get(path) is mine and self._stats.pop(path))
        return await asyncio.shield(under_way)

    def _listed(self, parent: LakePath, path: LakePath, believed_s: float) -> Entry | None:
        """Return the entry that the last listing of the directory has of a path, if that may be believed still."""
        known, listing = self._catalog.known(path), self._catalog.listing(parent)
        if known is None or listing is None or known.generation != listing.generation:
            return None
        is_doubted = known.seen_ns <= self._catalog.doubted_ns(path)
        return None if is_doubted or self._clock.wall_ns() - known.seen_ns >= believed_s * 1e9 else known.entry

    async def _list_quietly(self, path: LakePath) -> None:
        with contextlib.suppress(ForemountError):
            await self.list(path, 0, 0)

    def _believed_s(self, parent: LakePath, path: LakePath) -> float:
        """Return how old a listing may be to answer for `path`: as old as listings may be, and as the file's version."""
        known = self._catalog.known(path)
        if known is None or known.entry is None or known.entry.kind is Kind.DIRECTORY:
            return self._ttl_s(parent)
        version_s = self._version_ttl_s(path, known.entry.version.size)
        return version_s and min(version_s, self._ttl_s(parent))

    async def files(self, directory: LakePath) -> Sequence[Entry]:
        """Return what a directory holds; of a huge one nothing. What was listed once is the same object each time.

        Raises:
            ForemountError: as `list`.
        """
        listed = await self.list(directory, 0, 0)
        while not listed.complete and listed.count <= _ENTRIES_FOR_LOOKUP:
            listed = await self.list(directory, listed.generation, listed.count)
        if listed.count > _ENTRIES_FOR_LOOKUP:
            return []
        of, files = self._files.get(directory, (None, ()))
        if of != listed:
            page = self.page(directory, listed.generation, 0, listed.count)
            files = [entry for entry in page if entry is not None]
            self._files[directory] = listed, files
            if len(self._files) > _FILES_KEPT:
                self._files.popitem(last=False)
        return files

    async def list(self, path: LakePath, generation: int, after: int, believed_s: float | None = None) -> wire.Listed:
        """Return how far the directory is listed, once there is more than `after`, or no more to come.

        Args:
            believed_s: how old a listing may be; None: as the policy says.
        Raises:
            NotFound, NotADirectory, Denied, Unavailable: from the origin, before the first page.
            Stale: it is pinned to a snapshot that is not here.
        """
        if self._pins.named(path):
            snapshot, count = self._pins.directory(path)
            return wire.Listed(snapshot.id, count, complete=True)
        run = self._runs.get(path)
        if run is None:
            current = self._catalog.listing(path)
            if (
                current is not None
                and current.complete
                and (generation == current.generation or self._is_fresh(path, current, believed_s))
            ):
                return wire.Listed(current.generation, current.count, complete=True)
            if current is not None and (current.complete or current.previous):
                self._refuse_while_resting(self._point(path).site, path)
            run = self._start(path)
        return await self._wait(run, after)

    def is_pinned(self, path: LakePath) -> bool:
        """Return whether what is said of a path comes from a snapshot."""
        return bool(self._pins.named(path))

    def page(self, path: LakePath, generation: int, position: int, limit: int) -> Sequence[Entry | None]:
        """Return up to `limit` entries of what `list` told of, from `position` on.

        Raises:
            Stale: of a snapshot that was dropped meanwhile.
        """
        if generation >= ID_MIN:
            return self._pins.page(path, generation, position, limit)
        return self._catalog.page(path, generation, position, limit)

    async def _wait(self, run: _Run, after: int) -> wire.Listed:
        while not run.finished and run.listing.count <= after:
            await run.progress.wait()
        if run.failure is not None:
            raise run.failure
        return wire.Listed(run.listing.generation, run.listing.count, run.listing.complete)

    def _start(self, path: LakePath) -> _Run:
        self._lookups.pop(path, None)  # counted anew within the life of this listing
        run = _Run(self._catalog.begin_listing(path, self._clock.wall_ns()))
        self._runs[path] = run
        self._spawn(self._list(path, run))
        return run

    async def _list(self, path: LakePath, run: _Run) -> None:
        """Bring a directory into the catalog, page by page."""
        point = self._point(path)
        try:
            async for page in self._site(point).list(point.site_path(path)):
                self._doubt_if_commits(path, page)
                run.listing = self._catalog.extend_listing(path, run.listing, page, self._clock.wall_ns())
                run.advance()
            run.listing = self._catalog.complete_listing(path, run.listing)
        except ForemountError as exc:
            run.failure = exc
            self._note(point.site, exc)
            self._catalog.abandon_listing(path, run.listing)
        except BaseException as exc:
            run.failure = Unavailable(path, "listing it was interrupted")
            self._catalog.abandon_listing(path, run.listing)
            if not isinstance(exc, Exception):
                raise
            log.exception("bug while listing %s", path)
        finally:
            run.finished = True
            del self._runs[path]
            run.advance()

    def _should_list(self, parent: LakePath, believed_s: float, lookups: int) -> bool:
        """Count a lookup in `parent`; return whether its listing is to answer: it is there, or it is time to have one."""
        listing = self._catalog.listing(parent)
        if parent in self._runs or (listing is not None and listing.complete and self._is_fresh(parent, listing, believed_s)):
            return True
        count = self._lookups.get(parent, 0) + 1
        self._lookups[parent] = count
        self._lookups.move_to_end(parent)
        if len(self._lookups) > _REMEMBERED_DIRECTORIES:
            self._lookups.popitem(last=False)
        return count >= lookups

    async def _stat_by_listing(self, parent: LakePath, path: LakePath, believed_s: float) -> tuple[bool, Entry | None]:
        """Return (True, entry) if a listing of the directory settles it, else (False, None)."""
        try:
            listed = await self.list(parent, 0, 0, believed_s)
            while True:
                settled, entry = self._settled(parent, path, listed)
                if settled or listed.complete or listed.count >= _ENTRIES_FOR_LOOKUP:
                    return settled, entry
                listed = await self.list(parent, listed.generation, listed.count)
        except (NotFound, NotADirectory, Unavailable):
            return False, None

    def _settled(self, parent: LakePath, path: LakePath, listed: wire.Listed) -> tuple[bool, Entry | None]:
        """Return whether a listing says what `path` is, or it was asked for by itself since the listing was begun."""
        known, listing = self._catalog.known(path), self._catalog.listing(parent)
        if listing is None or listing.generation != listed.generation:
            return False, None  # replaced before we had our turn: its silence says nothing any more
        doubted_ns = self._catalog.doubted_ns(parent)
        if known is not None and known.generation == listed.generation and known.seen_ns > doubted_ns:
            return True, known.entry  # seen with the marker that gave rise to the doubt, or after it
        if listing.begun_ns <= doubted_ns:
            return False, None
        if known is not None and (known.generation == listed.generation or known.seen_ns >= listing.begun_ns):
            return True, known.entry
        return listed.complete, None

    async def _stat(self, point: MountPoint, path: LakePath, *, must: bool = False) -> Entry | None:
        """Ask the origin.

        Args:
            must: what it said before is no answer, so it is asked however it did a moment ago.
        """
        if not must and self._catalog.known(path) is not None:
            self._refuse_while_resting(point.site, path)
        asked_ns = self._clock.wall_ns()  # the answer may be as old as the question
        try:
            entry: Entry | None = await self._site(point).stat(point.site_path(path))
        except NotFound:
            entry = None
            if point.prefix == path:  # the mount's root exists, whatever the store makes of an empty prefix
                entry = Entry(split(path)[1], Kind.DIRECTORY, Version(0))
        except ForemountError as exc:
            self._note(point.site, exc)
            raise
        if entry is not None:
            self._doubt_if_commits(LakePath(split(path)[0]), [entry])
        self._catalog.put(path, Known(entry, asked_ns))
        return entry

    def _doubt_if_commits(self, directory: LakePath, entries: Sequence[Entry]) -> None:
        """Before a commit marker is shown that was not there: doubt what is known of the names that it may vouch for.

        Its files are at the origin since before it was; that they were not there is what was seen earlier.
        """
        for entry in entries:
            path = LakePath(join(directory, entry.name))
            if entry.kind is Kind.FILE and self._commits(path):
                known = self._catalog.known(path)
                if known is None or known.entry is None or known.entry.version != entry.version:
                    self._catalog.doubt(directory, self._clock.wall_ns())

    def _refuse_while_resting(self, site: SiteName, path: LakePath) -> None:
        if self._clock.monotonic_s() < self._resting_until_s.get(site, 0.0):
            raise Unavailable(path, f"site {site} did not answer a moment ago")

    def _note(self, site: SiteName, error: ForemountError) -> None:
        if isinstance(error, Unavailable):
            self._resting_until_s[site] = self._clock.monotonic_s() + SITE_REST_S

    def site_facts(self) -> dict[str, dict[str, bool]]:
        """Return for each site whether it answered when it was asked last."""
        now = self._clock.monotonic_s()
        return {site: {"answers": now >= self._resting_until_s.get(site, 0.0)} for site in self._sites}

    def _is_fresh(self, path: LakePath, listing: Listing, believed_s: float | None = None) -> bool:
        believed_s = self._ttl_s(path) if believed_s is None else believed_s
        if listing.begun_ns <= self._catalog.doubted_ns(path):
            return False
        return self._clock.wall_ns() - listing.begun_ns < believed_s * 1e9

    def _point(self, path: LakePath) -> MountPoint:
        point = self._mounts.find(path)
        if point is None:
            raise NotFound(path, "nothing is mounted there")
        return point

    def _site(self, point: MountPoint) -> Site:
        return self._sites[point.site]


def _names_a_step(path: LakePath) -> bool:
    """Return whether it looks like the directory of a step, `step_1000` or `checkpoint-500`. Pure."""
    pattern, numbers = generalise(split(path)[1])
    return bool(numbers) and pattern.strip("*") != "" and "." not in pattern
