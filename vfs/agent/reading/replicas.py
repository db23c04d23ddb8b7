"""Finds the replicas of a version: asks the sites that may hold a copy what they have, and keeps what they said for a while.

Flow: `find` asks all replica sites of the path's mount at once. Those that the policy's order has before the origin are
waited for a moment, so that the first read goes to the right place; what answers later is handed to `on_late`. A site that
did not answer is not waited for again until it has rested.

Tasks: one for each question under way, owned by the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vfs.clock import Clock
from vfs.config import ArrowSite, HttpSite, S3Site, SiteConfig
from vfs.errors import Denied, ForemountError, NotFound, Unavailable
from vfs.extents.layout import Identity
from vfs.extents.placement import Serving, is_same, may_serve, precedes_origin
from vfs.model import Kind, LakePath, SiteName, SitePath, Version, join
from vfs.namespace.mounts import MountPoint, MountTable
from vfs.sites.protocol import Site

log = logging.getLogger(__name__)

WAIT_S = 0.3
"""An open waits so long for replicas: three round trips of a site on the same continent."""
REST_S = 10.0
"""A site that did not answer is not asked for so long."""
_REMEMBERED = 20_000
_OBJECT_STORES = ("s3:", "gs:", "gcs:", "abfs:", "abfss:")


class Finding(NamedTuple):
    """What a site says about one version.

    Attributes:
        replica: what to ask it for, None where it has no copy.
        why: the proof, or why there is none.
    """

    site: SiteName
    replica: Identity | None
    why: str


@dataclass(frozen=True, slots=True)
class _Said:
    finding: Finding
    until_s: float


class Replicas:
    """Answers by lake path and version.

    Args:
        tell_etags: sites whose ETags follow from the content or its dates.
        tell_times: sites that keep the time that a copy is given. If one of the two does, equal times are no accident.
        believed_s: how long what a site says about the names at a path is believed.
        on_answer: told how long a site took to answer.
        wait_s: an open waits so long for replicas that are to be asked before the origin.
    """

    def __init__(
        self,
        mounts: MountTable,
        sites: Mapping[SiteName, Site],
        *,
        tell_etags: Collection[SiteName],
        tell_times: Collection[SiteName],
        clock: Clock,
        believed_s: Callable[[LakePath], float],
        on_answer: Callable[[SiteName, float], None],
        spawn: Callable[[Awaitable[None]], None],
        wait_s: float = WAIT_S,
    ) -> None:
        self._mounts = mounts
        self._sites = sites
        self._tell_etags = tell_etags
        self._tell_times = tell_times
        self._clock = clock
        self._believed_s = believed_s
        self._on_answer = on_answer
        self._spawn = spawn
        self._wait_s = wait_s
        self._said: OrderedDict[tuple[Identity, SiteName, SitePath], _Said] = OrderedDict()
        self._resting_until_s: dict[SiteName, float] = {}
        self._asking: set[asyncio.Task[Finding]] = set()  # keeps them alive where their caller was cancelled

    async def find(
        self, path: LakePath, origin: Identity, serving: Serving, on_late: Callable[[Identity], None]
    ) -> list[Identity]:
        """Return the replicas that are known within a moment.

        Args:
            on_late: told of each one that is found after that.
        """
        questions = self._questions(path, origin, serving)
        waited = [task for task, site in questions.items() if precedes_origin(serving.order, origin.site, site)]
        if any(not task.done() for task in waited):
            await asyncio.wait(waited, timeout=self._wait_s)
        found = []
        for task, site in questions.items():
            if task.done():
                found += [replica for replica in (task.result().replica,) if replica is not None]
                continue
            if task in waited:
                self._rest(site)
            self._spawn(_hand_over(task, on_late))
        return found

    async def findings(self, path: LakePath, origin: Identity, serving: Serving) -> list[Finding]:
        """Return what each replica site says, for `explain`; those that take too long say so."""
        questions = self._questions(path, origin, serving)
        if questions:
            await asyncio.wait(questions, timeout=self._wait_s)
        return [
            task.result() if task.done() else Finding(site, None, f"has not answered within {self._wait_s:g} s")
            for task, site in questions.items()
        ]

    def _questions(self, path: LakePath, origin: Identity, serving: Serving) -> dict[asyncio.Task[Finding], SiteName]:
        point = self._mounts.find(path)
        if point is None or not point.replicas:
            return {}
        questions = {
            asyncio.create_task(self._ask(path, origin, site, at, serving)): site for site, at in _places(point, path)
        }
        self._asking |= questions.keys()
        for question in questions:
            question.add_done_callback(self._asking.discard)
        return questions

    async def _ask(self, path: LakePath, origin: Identity, site: SiteName, at: SitePath, serving: Serving) -> Finding:
        """Return what one site says; never raises."""
        if not may_serve(serving.order, site):
            return Finding(site, None, f"the policy's order leaves it out: {', '.join(serving.order)}")
        now_s = self._clock.monotonic_s()
        said = self._said.get((origin, site, at))
        if said is not None and now_s < said.until_s:
            return said.finding
        if now_s < self._resting_until_s.get(site, 0.0):
            return Finding(site, None, "did not answer a moment ago")
        try:
            entry = await self._sites[site].stat(at)
            self._on_answer(site, self._clock.monotonic_s() - now_s)
            is_file = entry.kind is Kind.FILE
            finding = self._judge(origin, site, at, entry.version) if is_file else Finding(site, None, "has no such file")
        except NotFound:
            finding = Finding(site, None, "has no such file")
        except Denied as exc:
            # It stays in its place of the order, where it denies the read: nobody gets around a denial by way of a copy.
            finding = Finding(site, Identity(site, at, origin.version), f"denies access: {exc.reason}")
        except ForemountError as exc:
            if isinstance(exc, Unavailable):
                self._rest(site)
            log.info("%s: replica site %s can't be asked: %s", path, site, exc)
            return Finding(site, None, f"does not answer: {exc.reason}")
        self._keep((origin, site, at), _Said(finding, self._clock.monotonic_s() + self._believed_s(path)))
        return finding

    def _judge(self, origin: Identity, site: SiteName, at: SitePath, version: Version) -> Finding:
        etags_agree = {site, origin.site} <= set(self._tell_etags)
        times_agree = site in self._tell_times or origin.site in self._tell_times
        if is_same(origin.version, version, etags_agree=etags_agree, times_agree=times_agree):
            return Finding(site, Identity(site, at, version), "has the same version")
        if version.size != origin.version.size:
            return Finding(site, None, f"has another version: {version.size} bytes")
        return Finding(site, None, "has a file of that size, but neither ETag nor modification time prove it the same")

    def _rest(self, site: SiteName) -> None:
        self._resting_until_s[site] = self._clock.monotonic_s() + REST_S

    def _keep(self, key: tuple[Identity, SiteName, SitePath], said: _Said) -> None:
        self._said[key] = said
        self._said.move_to_end(key)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)


def tell_etags(sites: Mapping[str, SiteConfig]) -> frozenset[SiteName]:
    """Return the sites whose ETags follow from the content or its dates."""
    return frozenset(SiteName(name) for name, site in sites.items() if isinstance(site, HttpSite | S3Site))


def tell_times(sites: Mapping[str, SiteConfig]) -> frozenset[SiteName]:
    """Return the sites that keep the time that a copy is given: all but object stores."""
    return frozenset(
        SiteName(name)
        for name, site in sites.items()
        if not isinstance(site, S3Site) and not (isinstance(site, ArrowSite) and site.url.startswith(_OBJECT_STORES))
    )


def _places(point: MountPoint, path: LakePath) -> list[tuple[SiteName, SitePath]]:
    return [(each.site, SitePath(join(each.root, point.below(path)))) for each in point.replicas]


async def _hand_over(question: asyncio.Task[Finding], on_late: Callable[[Identity], None]) -> None:
    replica = (await question).replica
    if replica is not None:
        on_late(replica)
