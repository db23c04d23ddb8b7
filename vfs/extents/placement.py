"""Which of the sites that hold a version serves the next request: policy first, then health, then what was measured.

Pure: no I/O, no clock.

A replica is a copy only with a proof (`is_same`); everything after that is a matter of speed. The order of the policy says
who may serve and in which order. A site that does not answer comes after those that do. Among the sites that the order calls
"nearest" the one wins whose next request is expected to be answered first: the measured time to first byte, longer by what
is in flight there already, and the time that a request of usual size takes on the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from vfs.extents.layout import Identity
from vfs.model import SiteName, Version
from vfs.policy.written import NEAREST, ORIGIN, FetchSize, Hedge, SiteOrder

USUAL_BYTES = 1 << 20
"""Of the request by which sites are compared: between a lone small read and a large one for a stream."""


class Serving(msgspec.Struct, frozen=True):
    """What the policy says about who serves an object, and how it is asked.

    Attributes:
        order: of the sites; a site that it does not cover is never asked for bytes.
        hedge: when a slow request is sent to the next site too.
        fetch_size: of one request at least and at most; None: as the service's limits say.
    """

    order: SiteOrder = SiteOrder([ORIGIN, NEAREST])
    hedge: Hedge = Hedge("after=p95")
    fetch_size: FetchSize | None = None


class Copy(msgspec.Struct, frozen=True):
    """A copy that was made and verified for readers to come, at a place of its own.

    Attributes:
        ranges: (offset, length) of the object that it holds one after another, whole blocks; empty: all of it.
        turn: place of this copy in the order in which this host asks those that share a crowd; None: no crowd.
    """

    identity: Identity
    ranges: tuple[tuple[int, int], ...] = ()
    turn: int | None = None


class Candidate(msgspec.Struct, frozen=True):
    """A site that has the version, as it looks at the moment.

    Attributes:
        is_local: its files lie on this host.
        answers: it is not known to fail.
        expected_s: until a request of `USUAL_BYTES` is answered; None: nothing was measured.
        turn: as in `Copy`: what is measured counts less than that each copy gets its share of the crowd.
    """

    site: SiteName
    is_origin: bool
    is_local: bool = False
    answers: bool = True
    expected_s: float | None = None
    turn: int | None = None


class Ranked(msgspec.Struct, frozen=True):
    """A place in the order, with the reason for people."""

    site: SiteName
    reason: str


def rank(order: SiteOrder, candidates: Sequence[Candidate]) -> list[Ranked]:
    """Return the sites that may serve, the one to be asked first foremost; empty where the order covers none of them."""
    placed = [(found, place) for found in candidates if (place := _place(order, found.site, is_origin=found.is_origin)) >= 0]
    placed.sort(key=lambda each: (not each[0].answers, each[1], not each[0].is_local, _turn(each[0]), _expected_s(each[0])))
    return [Ranked(found.site, _reason(order, found, place)) for found, place in placed]


def served_here(order: SiteOrder, origin: SiteName, local: Sequence[SiteName], remote: Sequence[SiteName]) -> list[SiteName]:
    """Return the sites on this host that come before every other one: their files are opened without asking anybody."""
    others = {origin, *remote}
    first = min(
        (place for site in others if (place := _place(order, site, is_origin=site == origin)) >= 0), default=len(order)
    )
    places = {site: _place(order, site, is_origin=False) for site in local}
    # of the same place, "nearest", what is here wins over what is not
    return sorted((site for site in local if 0 <= places[site] <= first), key=lambda site: places[site])


def may_serve(order: SiteOrder, site: SiteName) -> bool:
    """Return whether the order lets a replica at this site serve."""
    return _place(order, site, is_origin=False) >= 0


def precedes_origin(order: SiteOrder, origin: SiteName, site: SiteName) -> bool:
    """Return whether a replica at `site` is to be asked before the origin."""
    place, of_origin = _place(order, site, is_origin=False), _place(order, origin, is_origin=True)
    return place >= 0 and (of_origin < 0 or place < of_origin)


def is_same(origin: Version, replica: Version, *, etags_agree: bool, times_agree: bool) -> bool:
    """Return whether a replica's version proves that its bytes are those of the origin's version.

    The same size, and either the same strong ETag or the same modification time. Stores tell whole seconds at least, and so
    do copies made with `cp -p`, rsync or rclone. A version with a `generation` was written so lately that its time says
    nothing yet, and is no proof.

    Args:
        etags_agree: both sites take their ETags from the content or from the file's own dates, so that equal ones mean
            equal bytes; inode numbers and file ids don't.
        times_agree: one of the sites keeps the time that a copy is given. Object stores know only when it was uploaded, and
            two uploads of one second may be of different bytes.
    """
    if origin.size != replica.size:
        return False
    etag = origin.etag.strip('"')  # S3 clients leave the quotes out
    if etags_agree and etag and etag == replica.etag.strip('"') and not etag.startswith("W/"):
        return True
    if not times_agree or origin.generation or replica.generation or not origin.mtime_ns:
        return False
    return origin.mtime_ns // 10**9 == replica.mtime_ns // 10**9


def _place(order: SiteOrder, site: SiteName, *, is_origin: bool) -> int:
    """Return a site's place in the order, -1 where it has none."""
    for name in (site, ORIGIN if is_origin else NEAREST):
        if name in order:
            return order.index(name)
    return -1


def _turn(found: Candidate) -> float:
    return math.inf if found.turn is None else found.turn


def _expected_s(found: Candidate) -> float:
    return math.inf if found.expected_s is None else found.expected_s


def _reason(order: SiteOrder, found: Candidate, place: int) -> str:
    words = [f"number {place + 1} of the policy's order ({', '.join(order)})"]
    if found.is_local:
        words.append("on this host")
    elif found.turn is not None:
        words.append(f"number {found.turn + 1} of the copies of what many read, for this host")
    elif found.expected_s is not None:
        words.append(f"{found.expected_s * 1e3:.3g} ms expected for 1 MiB")
    else:
        words.append("not measured yet")
    if not found.answers:
        words.append("after those that answer: its last requests failed")
    return ", ".join(words)
