"""Where the copies that a hint asks for go: what may be there first, then what there is room for, then what serves best.

Pure: no I/O, no clock.

The order is the point: governance, then the switch and the quota of the mechanism, then bandwidth and spread. What is refused
is a place too, with the rule, so that it is listed and can be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from vfs.config import READERS_PER_COPY, ArrowSite, Config, HttpSite, S3Site, SiteConfig, WebHdfsSite, can_be_written
from vfs.foresight.governance import PlaceFacts, merged, ruling
from vfs.foresight.model import Hint, HotRange, Labels, Mechanism
from vfs.foresight.spread import Spot, chosen, copies_needed
from vfs.model import SiteName, SitePath

COPIES_AT_ONE_SITE_MAX = 512
"""Of HDFS: what `dfs.replication.max` allows by default."""


class SiteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A site as far as copies are concerned.

    Attributes:
        place: for governance.
        root: directory for copies, "" where none are put.
        size: of all copies there at most.
        multiplies: it makes copies by itself when it is asked (HDFS), with nothing but their number.
    """

    place: PlaceFacts = PlaceFacts()
    root: SitePath = SitePath("")
    size: int = 1 << 40
    rack: str = ""
    uplink: str = ""
    readers: int = READERS_PER_COPY
    multiplies: bool = False


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy says of copies of one path.

    Attributes:
        on: whether this mechanism works at all.
        size: bytes of all copies by this mechanism, at one site, at most.
        duties: that the policy adds to those of the checkpoint.
        names: of the rules that say so, by "on", "size" and the rule of a `Ruling`, for people.
    """

    on: bool = True
    size: int = 1 << 60
    duties: Labels = Labels()
    names: Mapping[str, str] = {}

    def switched_off(self, mechanism: Mechanism) -> str:
        """Return by which rule a mechanism makes no copies; "" where it makes some."""
        return "" if self.on else f"{mechanism} is switched off by rule {self.names.get('on', 'default')}"

    def refusal(self, labels: Labels, place: PlaceFacts) -> str:
        """Return which rule forbids a copy of a checkpoint with these duties at a place, and who stated it; "" for none."""
        said = ruling(merged(labels, self.duties), place, 0.0)
        if said.allowed:
            return ""
        by = "the checkpoint" if not ruling(labels, place, 0.0).allowed else f"rule {self.names.get(said.rule, 'default')}"
        return f"{said.rule}: {said.why}; stated by {by}"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a copy for a hint goes.

    Attributes:
        root: below which copies lie, each in a directory of its own.
        hot, count: as in `ReplicaRecord`.
        refused: rule by which no copy may be there, "" for none.
        expires_in_s: it may live so long at most, 0: as long as its hint.
        labels: the duties that it is made under.
    """

    site: SiteName
    root: SitePath = SitePath("")
    hot: tuple[HotRange, ...] = ()
    count: int = 1
    refused: str = ""
    expires_in_s: float = 0.0
    labels: Labels = Labels()


def places(
    hint: Hint,
    labels: Labels,
    rules: Rules,
    *,
    origin: SiteName,
    sites: Mapping[SiteName, SiteFacts],
    bytes_needed: int,
    used: Mapping[tuple[SiteName, Mechanism], int],
) -> list[Place]:
    """Return where copies for a hint go; those that are refused only where no other can be.

    Args:
        labels: duties of the checkpoint, known or as the hint says.
        origin: where the bytes lie.
        bytes_needed: of one copy, as far as it is known.
        used: bytes that copies take already, by site and mechanism.
    """
    duties = merged(labels, rules.duties)
    if is_off := rules.switched_off(hint.mechanism):
        return [Place(site=hint.site, refused=is_off, labels=duties)]
    ask = _Asked(hint, labels, duties, rules, sites, bytes_needed, used)
    if hint.mechanism is Mechanism.HOT_FILES:
        return _for_crowd(ask, origin)
    return [ask.judged(hint.site)]


class _Asked(NamedTuple):
    """What `places` was asked; `duties`: those of the checkpoint and the policy's together."""

    hint: Hint
    labels: Labels
    duties: Labels
    rules: Rules
    sites: Mapping[SiteName, SiteFacts]
    bytes_needed: int
    used: Mapping[tuple[SiteName, Mechanism], int]

    def governed(self, site: SiteName) -> Place:
        """Return a place as far as duties go."""
        facts = self.sites.get(site, SiteFacts())
        ttl_s, refused = ruling(self.duties, facts.place, self.hint.ttl_s).ttl_s, self.rules.refusal(self.labels, facts.place)
        return Place(site=site, root=facts.root, hot=self.hint.hot, refused=refused, expires_in_s=ttl_s, labels=self.duties)

    def judged(self, site: SiteName) -> Place:
        """Return a place as far as duties, room and quota go, in this order."""
        found, facts = self.governed(site), self.sites.get(site, SiteFacts())
        if found.refused:
            return found
        if not facts.root:
            return refused(found, 'place: site has no "copies" directory in foremount.toml')
        left, why = room(facts, self.rules, site, self.hint.mechanism, self.used)
        return refused(found, f"{why}, {self.bytes_needed} more do not fit") if self.bytes_needed > left else found


def refused(place: Place, why: str) -> Place:
    """Return the place as one where no copy may be."""
    return msgspec.structs.replace(place, refused=why)


def room(
    facts: SiteFacts,
    rules: Rules,
    site: SiteName,
    mechanism: Mechanism,
    used: Mapping[tuple[SiteName, Mechanism], int],
) -> tuple[int, str]:
    """Return how many bytes more a mechanism may put at a site, and what limits it."""
    there = sum(size for (each, _), size in used.items() if each == site)
    mine = used.get((site, mechanism), 0)
    site_left, mine_left = facts.size - there, rules.size - mine
    if site_left <= mine_left:
        return site_left, f"quota: copies take {there} of {facts.size} bytes at the site"
    by = rules.names.get("size", "default")
    return mine_left, f"quota: {mechanism} takes {mine} of {rules.size} bytes at the site (rule {by})"


def _for_crowd(ask: _Asked, origin: SiteName) -> list[Place]:
    hint, sites = ask.hint, ask.sites
    readers = max((each.readers for each in hint.hot), default=0)
    home = sites.get(origin, SiteFacts())
    if home.multiplies:
        count = min(copies_needed(readers, home.readers), COPIES_AT_ONE_SITE_MAX)
        return [msgspec.structs.replace(ask.governed(origin), root=SitePath(""), count=count)]
    judged = {site: ask.judged(site) for site, facts in sites.items() if facts.root and site != origin}
    spots = [
        Spot(site, sites[site].rack, sites[site].uplink, sites[site].readers, ask.used.get((site, hint.mechanism), 0))
        for site, place in judged.items()
        if not place.refused
    ]
    found, borne = [], 0
    for spot in chosen(readers, spots):  # the copies before this one bear so many: the next holds what more than those want
        wanted = tuple(each for each in hint.hot if each.readers > borne)
        found.append(msgspec.structs.replace(judged[spot.site], hot=wanted))
        borne += spot.bears
    return found or list(judged.values())


def site_facts(config: Config) -> dict[SiteName, SiteFacts]:
    """Return what a configuration says of its sites."""
    return {SiteName(name): _facts(site) for name, site in config.sites.items()}


def _facts(site: SiteConfig) -> SiteFacts:
    return SiteFacts(
        place=PlaceFacts(
            labels=tuple(site.labels), encrypted=site.encrypted, transport_encrypted=_is_reached_encrypted(site)
        ),
        root=SitePath(site.copies.strip("/")) if can_be_written(site) else SitePath(""),
        size=site.copies_size,
        rack=site.rack,
        uplink=site.uplink,
        readers=site.readers,
        multiplies=isinstance(site, WebHdfsSite),
    )


def _is_reached_encrypted(site: SiteConfig) -> bool:
    match site:
        case HttpSite(url=url) | WebHdfsSite(url=url):
            return url.startswith("https:")
        case S3Site(endpoint=endpoint):
            return endpoint is None or endpoint.startswith("https:")
        case ArrowSite(url=url):
            return url.split(":")[0] in ("gs", "gcs", "abfss", "file")
        case _:
            return True
