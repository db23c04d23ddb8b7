"""How many copies a crowd needs, where they go, and which of them each reader asks.

Pure: no I/O, no clock.

    R = ceil(readers / C)            C = what one copy bears at a time, measured for each site

Copies go where they share the least with those that are there already: another rack first, another uplink next. Readers
choose by rendezvous hashing: a copy that is added or lost moves only the readers that it gains or loses, and nobody has to be
asked. With the number of readers known the shares are made even, which the plain hash does not do.

Source: equation 1 and the value of C are those of the paper (facts/PAPER.md 1.3: 64 replicas for 10,000 ranks, 128 for
20,000); rendezvous hashing is Thaler and Ravishankar 1998, with the bound of Mirrokni et al. 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from vfs.config import READERS_PER_COPY
from vfs.model import SiteName


class Spot(msgspec.Struct, frozen=True):
    """A place that may hold a copy.

    Attributes:
        rack, uplink: what fails, or is full, together; "": not known, so shared with nobody.
        bears: readers at a time.
        load: readers that it has already.
    """

    site: SiteName
    rack: str = ""
    uplink: str = ""
    bears: int = READERS_PER_COPY
    load: int = 0


def copies_needed(readers: int, bears: int = READERS_PER_COPY) -> int:
    """Return how many copies so many readers at once need; 0 for nobody."""
    return -(-max(0, readers) // max(1, bears))


def chosen(readers: int, spots: Sequence[Spot]) -> list[Spot]:
    """Return where the copies for a crowd go, best first: enough that each bears its share, or all that there are.

    Ties go to the spot with the least load, then to the first in order.
    """
    left, free, taken = readers, list(spots), list[Spot]()
    racks: dict[str, int] = {}
    uplinks: dict[str, int] = {}
    while left > 0 and free:
        best = min(free, key=lambda spot: (racks.get(spot.rack, 0), uplinks.get(spot.uplink, 0), spot.load))
        free.remove(best)
        taken.append(best)
        left -= max(1, best.bears)
        if best.rack:
            racks[best.rack] = racks.get(best.rack, 0) + 1
        if best.uplink:
            uplinks[best.uplink] = uplinks.get(best.uplink, 0) + 1
    return taken


def order(reader: str, subject: str, copies: Sequence[str]) -> list[int]:
    """Return in which order a reader asks the copies, as indexes: the first is its own, the others stand in for it."""
    scores = [_hash(subject, reader, copy) for copy in copies]
    return sorted(range(len(copies)), key=lambda index: (-scores[index], copies[index]))


def even_order(place: int, count: int, subject: str, copies: Sequence[str]) -> list[int]:
    """Return the same for reader number `place` of `count`: the first choices are even, to within one reader a copy.

    Everybody works out the same shares: readers choose one after another, each the best of the copies that are not full.

    Args:
        place: 0 <= place < count; what lies outside chooses as `order` does.
    Cost:
        O(count * copies): 20,000 readers over 128 copies take some 0.1 s, once for each set of copies.
    """
    if not copies or not 0 <= place < count:
        return order(str(place), subject, copies)
    mine = int(shares(count, subject, copies)[place])
    return [mine, *(index for index in order(str(place), subject, copies) if index != mine)]


def shares(count: int, subject: str, copies: Sequence[str]) -> NDArray[np.int64]:
    """Return the copy that each of `count` readers asks first, as indexes.

    Shape:
        int64[count]
    """
    salt = np.array([_hash(subject, copy) for copy in copies], np.uint64)
    room = np.full(len(copies), -(-count // len(copies)), np.int64)
    mine = np.empty(count, np.int64)
    for place in range(count):
        scores = _mixed(salt ^ np.uint64(place * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF))
        scores[room == 0] = 0
        best = int(np.argmax(scores))
        mine[place] = best
        room[best] -= 1
    return mine


def _hash(*fields: str) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(fields).encode("utf-8", "surrogateescape"))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values with their bits mixed. Source: the finaliser of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)), np.uint64)
