"""What the policy in force says about a lake path, in the terms of the agent's services.

Pure but for the set in force, which the agent replaces: each answer holds for the moment that it is given in. It is for the
process that the current task asks for, except where a file is served for all its readers alike: then for those who have it
open. A reader may wait in the kernel for a page that another one has asked for; nobody here sees it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal

from vfs.extents.books import Keep
from vfs.extents.fair import Priority
from vfs.extents.layout import Identity
from vfs.extents.placement import Serving
from vfs.model import LakePath, ObjectKey, SiteName
from vfs.namespace.mounts import MountTable
from vfs.policy.engine import Decision
from vfs.policy.facts import Access, Facts
from vfs.policy.inforce import InForce
from vfs.usage import NOBODY, CallerFacts

Mode = Literal["off", "sequential", "tensor", "whole"]
_OPENED_MAX = 10_000
"""Objects of which it is remembered who opened them: 300 bytes each, with one opener."""
_OPENERS_MAX = 16
"""Of one object: each costs a decision for each request."""


class PathRules:
    """Answers by lake path; the site of each question is the origin of the path's mount."""

    def __init__(self, policy: InForce, mounts: MountTable) -> None:
        self._policy = policy
        self._mounts = mounts
        self._openers: OrderedDict[ObjectKey, list[CallerFacts]] = OrderedDict()

    def opened(self, key: ObjectKey, caller: CallerFacts) -> None:
        """Note that a process, `NOBODY` for none that matters, has an object open."""
        if caller == NOBODY:
            return
        openers = self._openers.setdefault(key, [])
        if caller in openers:
            openers.remove(caller)
        openers.append(caller)
        del openers[:-_OPENERS_MAX]
        self._openers.move_to_end(key)
        if len(self._openers) > _OPENED_MAX:
            self._openers.popitem(last=False)

    def closed(self, key: ObjectKey) -> None:
        """Note that no process has an object open any more: who opened it last is remembered."""
        if openers := self._openers.get(key):
            del openers[:-1]

    def _openers_of(self, identity: Identity) -> list[CallerFacts]:
        """Return who has an object open, or had: who opened it last is the last."""
        return (self._openers and self._openers.get(identity.key)) or [NOBODY]

    def listing_ttl_s(self, path: LakePath) -> float:
        """Return how long the names in directory `path` are believed."""
        return self._policy.listing_ttl_s(path, self._site(path))

    def version_ttl_s(self, path: LakePath, size: int) -> float:
        """Return how long a file is believed to be still the same version; 0: asked anew each time."""
        return self._policy.version_ttl_s(path, self._site(path), size)

    def snapshot(self, path: LakePath) -> str:
        """Return the snapshot that a path is pinned to, "" where it is not."""
        return self._policy.snapshot(path, self._site(path))

    def prefetch_rule(self, path: LakePath, size: int) -> tuple[Mode, int]:
        """Return what is fetched ahead of a reader, and how many bytes ahead of it at most; ("off", 0): nothing."""
        values = self._policy.decision(path, Access.PREFETCH, self._site(path), size).values
        is_off = values.prefetch == "off" or not values.read_ahead
        return ("off", 0) if is_off else (values.prefetch, int(values.read_ahead))

    def serving(self, path: LakePath, size: int) -> Serving:
        """Return which sites serve a file, in which order, and when a second one is asked."""
        values = self._policy.decision(path, Access.OPEN, self._site(path), size).values
        return Serving(values.sites, values.hedge, values.fetch_size)

    def keep_of(self, identity: Identity) -> Keep:
        """Return what becomes of the fetched bytes of an object."""
        path = self._path_of(identity)
        if path is None:
            return "normal"
        last = self._openers_of(identity)[-1]
        return self._policy.decision(path, Access.OPEN, identity.site, identity.version.size, last).values.cache

    def _path_of(self, identity: Identity) -> LakePath | None:
        """Return a lake path of an object, None where no mount shows it."""
        below = (point.lake_path(identity.path) for point in self._mounts.points if point.site == identity.site)
        return next((path for path in below if path is not None), None)

    def rate_of(self, identity: Identity, priority: Priority) -> tuple[str, float]:
        """Return the rule that bounds what is fetched of an object, and to how many bytes a second.

        Of those who have it open, the one counts that may go the fastest: the others come along.
        """
        path = self._path_of(identity)
        if path is None:
            return "", math.inf
        access = Access.READ if priority is Priority.FOREGROUND else Access.PREFETCH
        site, size = identity.site, identity.version.size
        decisions = (self._policy.decision(path, access, site, size, each) for each in self._openers_of(identity))
        found = max(decisions, key=lambda decision: decision.values.bandwidth)
        return str(found.origins["bandwidth"]), found.values.bandwidth

    def facts(
        self, path: LakePath, access: Access, size: int | None = None, caller: CallerFacts | None = None
    ) -> Facts:  # fmt: skip
        """Return what rules can match of an access; `caller` as of `InForce.facts`."""
        return self._policy.facts(path, access, self._site(path), size, caller)

    def decision(
        self, path: LakePath, access: Access, size: int | None = None, caller: CallerFacts | None = None
    ) -> Decision:  # fmt: skip
        """Return all values that hold for an access, and the rule that gave each; `caller` as of `InForce.facts`."""
        return self._policy.decision(path, access, self._site(path), size, caller)

    def _site(self, path: LakePath) -> SiteName:
        point = self._mounts.find(path)
        return SiteName("") if point is None else point.site
