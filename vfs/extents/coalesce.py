"""Wanted blocks → requests: what lies close together is asked for at once, what is long in parts.

Pure: no I/O, no clock.

Two numbers of a link say what close and long mean. While one request waits for its first byte the others of the window use
the line, so a request costs `ttfb / window` of the line's time, and bridging a gap is cheaper as long as its bytes pass in
less. A request is long enough when the window's requests together are twice what the line holds: half of them send while the
other half wait; and when it takes the line much longer than us. Bridged bytes are waste: a share of the wanted bytes bounds
them, whatever the line.

Source: after Arrow's derivation from time to first byte and bandwidth (arrow/io/caching.cc, MakeFromNetworkMetrics), which
assumes one request at a time: on a line of 1 Gbit/s and 100 ms it would bridge 12 MB.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from vfs.extents.layout import BLOCK

REQUEST_S = 1 / 64
"""Of the line's time for a request, where so much is wanted: one costs the agent a millisecond whatever its length."""


class Pace(msgspec.Struct, frozen=True):
    """What a site's line does, as measured.

    Attributes:
        ttfb_s: from sending a request to its first byte.
        bytes_per_s: of the whole line, all requests together.
        window: requests in flight.
    """

    ttfb_s: float
    bytes_per_s: float
    window: int


class Knobs(msgspec.Struct, frozen=True):
    """How requests are formed for a site at the moment; shown by `explain`.

    Attributes:
        pace: that they follow from.
        gap_blocks: unwanted blocks that are bridged at most between two wanted ones.
        request_blocks: in one request at most.
        waste_max: bridged bytes for each wanted byte of a request at most.
        awaited_blocks: in one request at most when somebody waits for all of it: it comes as one piece of work.
    """

    pace: Pace
    gap_blocks: int
    request_blocks: int
    waste_max: float
    awaited_blocks: int = 1


class Request(msgspec.Struct, frozen=True):
    """One request to a site.

    Attributes:
        blocks: to ask for.
        wasted: of them, those that nobody wants.
    """

    blocks: range
    wasted: int


def knobs(pace: Pace, *, request_bytes_min: int, request_bytes_max: int, waste_max: float) -> Knobs:
    """Return how to form requests on such a line.

    Args:
        request_bytes_min: asked for at once where there is so much: a request costs the site and us some work too.
        request_bytes_max: bounds what a foreground read waits for, and what a broken body loses.
    """
    held = pace.ttfb_s * pace.bytes_per_s
    gap = held / pace.window
    size = min(max(2 * held / pace.window, REQUEST_S * pace.bytes_per_s, request_bytes_min), request_bytes_max)
    return Knobs(pace, int(gap // BLOCK), max(1, round(size / BLOCK)), waste_max, max(1, request_bytes_max // BLOCK))


def coalesce(wanted: Sequence[range], rule: Knobs) -> list[Request]:
    """Return the requests that bring all wanted blocks.

    Args:
        wanted: non-empty ranges of blocks in the order in which they are needed; they may overlap.

    Returns:
        Disjoint requests, the one with the block that is needed first before the others.
    """
    requests: list[Request] = []
    for bridged in _bridge(within_reach(wanted, 1), rule):
        stops = [run.stop for run in bridged]
        for start in range(bridged[0].start, bridged[-1].stop, rule.request_blocks):
            stop = min(start + rule.request_blocks, bridged[-1].stop)
            first = bisect_right(stops, start)
            touched = []
            while first < len(bridged) and bridged[first].start < stop:
                touched.append(_overlap(range(start, stop), bridged[first]))
                first += 1
            if touched:  # cutting a group can leave a part without any
                requests.append(_request(touched))
    return _ordered(requests, wanted)


def within_reach(wanted: Iterable[range], gap_blocks: int) -> list[range]:
    """Return ascending ranges that hold all wanted ones, with gaps of at least `gap_blocks`, which is 1 or more."""
    near: list[range] = []
    for run in sorted(wanted, key=lambda run: run.start):
        if near and run.start < near[-1].stop + gap_blocks:
            near[-1] = range(near[-1].start, max(near[-1].stop, run.stop))
        else:
            near.append(run)
    return near


def common(wanted: Sequence[range], runs: Sequence[range]) -> list[range]:
    """Return the parts of the wanted ranges that lie in the runs, in the order of the wanted ones.

    Args:
        runs: ascending, disjoint.
    """
    stops = [run.stop for run in runs]
    found = []
    for each in wanted:
        place = bisect_right(stops, each.start)
        while place < len(runs) and runs[place].start < each.stop:
            found.append(_overlap(each, runs[place]))
            place += 1
    return found


def divided(wanted: Sequence[range], special: Sequence[range]) -> tuple[list[range], list[range]]:
    """Return what of the wanted blocks lies in special ranges, and what lies outside, each in the order it was given."""
    inside: list[range] = []
    outside: list[range] = []
    merged = within_reach(special, 1)
    for run in wanted:
        at = run.start
        for part in merged:
            shared = _overlap(range(at, run.stop), part)
            if shared:
                if at < shared.start:
                    outside.append(range(at, shared.start))
                inside.append(shared)
                at = shared.stop
        if at < run.stop:
            outside.append(range(at, run.stop))
    return inside, outside


def _request(runs: Sequence[range]) -> Request:
    """Return the request from the first run to the last one, counting the blocks between them."""
    part = range(runs[0].start, runs[-1].stop)
    return Request(part, len(part) - sum(map(len, runs)))


def _ordered(requests: Sequence[Request], wanted: Sequence[range]) -> list[Request]:
    """Return ascending requests in the order of the first wanted range that lies in each."""
    stops = [request.blocks.stop for request in requests]
    ranks: dict[int, int] = {}
    for rank, run in enumerate(wanted):
        place = bisect_right(stops, run.start)
        while place < len(requests) and requests[place].blocks.start < run.stop:
            ranks.setdefault(place, rank)
            place += 1
    return [requests[place] for place in sorted(ranks, key=lambda place: (ranks[place], place))]


def _bridge(runs: Sequence[range], rule: Knobs) -> list[list[range]]:
    """Return the runs in groups that are worth one transfer each."""
    groups: list[list[range]] = []
    wanted = wasted = 0
    for run in runs:
        gap = run.start - groups[-1][-1].stop if groups else 0
        if groups and gap <= rule.gap_blocks and wasted + gap <= rule.waste_max * (wanted + len(run)):
            groups[-1].append(run)
            wanted, wasted = wanted + len(run), wasted + gap
        else:
            groups.append([run])
            wanted, wasted = len(run), 0
    return groups


def _overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))
