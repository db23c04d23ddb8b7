"""Whether a copy may be made at a place at all, and how long it may stay: asked before any bandwidth is given.

Pure: no I/O, no clock. The duties belong to the checkpoint and travel with it (`model.Labels`); what a place is, its site's
entry in `foremount.toml` says. What is not said counts as not given: a place without a region is in none, and one that does
not say that it encrypts does not.
"""

from __future__ import annotations

import msgspec

from vfs.foresight.model import Labels


class PlaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a site says of itself.

    Attributes:
        labels: regions, or whatever residency is stated in.
        encrypted: what lies there is encrypted at rest, with keys that the data's owner accepts.
        transport_encrypted: bytes reach it through TLS, or never leave this host.
    """

    labels: tuple[str, ...] = ()
    encrypted: bool = False
    transport_encrypted: bool = True


class Ruling(msgspec.Struct, frozen=True):
    """What the rules say of one copy.

    Attributes:
        rule: that refuses it, "" where none does.
        why: for people.
        ttl_s: it may live so long at most.
    """

    rule: str
    why: str
    ttl_s: float = 0.0

    @property
    def allowed(self) -> bool:
        return not self.rule


def merged(*duties: Labels) -> Labels:
    """Return what satisfies all of the duties: of regions those that all allow, of times the shortest.

    Regions that have nothing in common leave one that no place carries: then nothing is copied.
    """
    stated = [set(each.residency) for each in duties if each.residency]
    common = set.intersection(*stated) if stated else set()
    limits = [each.retain_s for each in duties if each.retain_s]
    return Labels(
        residency=tuple(sorted(common)) if common or not stated else (NOWHERE,),
        encrypted=any(each.encrypted for each in duties),
        retain_s=min(limits, default=0.0),
        with_origin=any(each.with_origin for each in duties),
    )


NOWHERE = "(no region satisfies all duties)"


def ruling(labels: Labels, place: PlaceFacts, wanted_ttl_s: float) -> Ruling:
    """Return whether data with these duties may be copied to a place, and for how long.

    Args:
        wanted_ttl_s: as the hint asks; 0: for as long as may be.
    """
    if labels.residency and not set(labels.residency) & set(place.labels):
        has = ", ".join(place.labels) or "no label"
        return Ruling("residency", f"may lie in {', '.join(labels.residency)}; the place has {has}")
    if labels.encrypted and not place.encrypted:
        return Ruling("encryption", "must lie encrypted; the place does not say that it encrypts")
    if labels.encrypted and not place.transport_encrypted:
        return Ruling("encryption", "must travel encrypted; the place is reached without TLS")
    limits = [limit for limit in (labels.retain_s, wanted_ttl_s) if limit > 0]
    return Ruling("", "no rule against it", min(limits, default=0.0))
