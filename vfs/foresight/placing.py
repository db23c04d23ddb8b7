"""Where the copies that a hint asks for go: what may be there first, then what there is room for, then what serves best.

Pure: no I/O, no clock.

The order is the point: governance, then the switch and the quota of the mechanism, then bandwidth and spread. What is refused
is a place too, with the rule, so that it is listed and can be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        residency: labels, one of which a place must carry.
        rule: that says so, for people.
    """

    on: bool = True
    size: int = 1 << 60
    residency: tuple[str, ...] = ()
    rule: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a copy for a hint goes.

    Attributes:
        root: below which copies lie, each in a directory of its own.
        hot, count: as in `ReplicaRecord`.
        refused: rule by which no copy may be there, "" for none.
        expires_in_s: it may live so long at most, 0: as long as its hint.
    """

    site: SiteName
    root: SitePath = SitePath("")
    hot: tuple[HotRange, ...] = ()
    count: int = 1
    refused: str = ""
    expires_in_s: float = 0.0


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
    if not rules.on:
        return [Place(site=hint.site, refused=f"{hint.mechanism} is switched off by {rules.rule or 'the policy'}")]
    duties = merged(labels, Labels(residency=rules.residency))
    if hint.mechanism is Mechanism.HOT_FILES:
        return _for_crowd(hint, duties, rules, origin, sites, bytes_needed, used)
    return [_judged(hint, duties, rules, hint.site, sites, bytes_needed, used)]


def _for_crowd(
    hint: Hint,
    duties: Labels,
    rules: Rules,
    origin: SiteName,
    sites: Mapping[SiteName, SiteFacts],
    bytes_needed: int,
    used: Mapping[tuple[SiteName, Mechanism], int],
) -> list[Place]:
    readers = max((each.readers for each in hint.hot), default=0)
    home = sites.get(origin, SiteFacts())
    if home.multiplies:
        count = min(copies_needed(readers, home.readers), COPIES_AT_ONE_SITE_MAX)
        said = ruling(duties, home.place, hint.ttl_s)
        refused = "" if said.allowed else f"{said.rule}: {said.why}"
        return [Place(site=origin, hot=hint.hot, count=count, refused=refused, expires_in_s=said.ttl_s)]
    judged = {
        site: _judged(hint, duties, rules, site, sites, bytes_needed, used)
        for site, facts in sites.items()
        if facts.root and site != origin
    }
    spots = [
        Spot(site, sites[site].rack, sites[site].uplink, sites[site].readers, used.get((site, hint.mechanism), 0))
        for site, place in judged.items()
        if not place.refused
    ]
    found, borne = [], 0
    for spot in chosen(readers, spots):  # the copies before this one bear so many: the next holds what more than those want
        wanted = tuple(each for each in hint.hot if each.readers > borne)
        found.append(msgspec.structs.replace(judged[spot.site], hot=wanted))
        borne += spot.bears
    return found or list(judged.values())


def _judged(
    hint: Hint,
    duties: Labels,
    rules: Rules,
    site: SiteName,
    sites: Mapping[SiteName, SiteFacts],
    bytes_needed: int,
    used: Mapping[tuple[SiteName, Mechanism], int],
) -> Place:
    facts = sites.get(site, SiteFacts())
    said = ruling(duties, facts.place, hint.ttl_s)
    refused = "" if said.allowed else f"{said.rule}: {said.why}"
    there = sum(size for (each, _), size in used.items() if each == site)
    mine = used.get((site, hint.mechanism), 0)
    if refused:
        pass
    elif not facts.root:
        refused = 'place: site has no "copies" directory in foremount.toml'
    elif there + bytes_needed > facts.size:
        refused = f"quota: copies take {there} of {facts.size} bytes at the site, {bytes_needed} more do not fit"
    elif mine + bytes_needed > rules.size:
        refused = f"quota: {hint.mechanism} takes {mine} of {rules.size} bytes at the site, {bytes_needed} more do not fit"
    return Place(site=site, root=facts.root, hot=hint.hot, refused=refused, expires_in_s=said.ttl_s)


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
