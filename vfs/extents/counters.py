"""What the store and the fetch service count, as plain numbers; `vfs/admin/metrics.py` gives them their public names.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreCounters:
    """Of one store since it was opened.

    Attributes:
        blocks_written: including those written again.
        blocks_broken: found not to match their digest, by a reader or by a scrub, and dropped.
        evictions: whole objects that made room.
        evicted_bytes: of them, as the disk counts.
        punches: segments of open objects that made room, since nothing else was left.
        sealed: objects found complete and verified.
        recreated: leftovers that could not be used and were made anew.
    """

    blocks_written: int = 0
    blocks_broken: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    punches: int = 0
    sealed: int = 0
    recreated: int = 0


@dataclass(slots=True)
class FetchCounters:
    """Of the fetch service since it was started.

    Attributes:
        fetches: requests sent to sites, retries and hedges included.
        fetched_bytes: that came back, used or not.
        shared: blocks that a caller wanted and another caller's fetch was bringing already.
        retries: requests sent again after a transient failure.
        failovers: requests sent to another replica than the one before.
        hedges: second requests sent because the first was slower than the site's p95.
        hedges_won: of them, those that answered first.
        stalls: connections that stayed open and sent nothing.
        failures: fetches given up, after which their callers got an error.
        bypasses: objects moved to memory because the cache could not take them.
        salvaged_bytes: copied from the cache to memory after that, instead of being fetched again.
        unread_bytes: fetched ahead and not read by the time that their object was closed.
        foreground_bytes, prefetched_bytes, background_bytes: `fetched_bytes` by who asked first.
        copied_bytes: the same, of copies between sites.
    """

    fetches: int = 0
    fetched_bytes: int = 0
    shared: int = 0
    retries: int = 0
    failovers: int = 0
    hedges: int = 0
    hedges_won: int = 0
    stalls: int = 0
    failures: int = 0
    bypasses: int = 0
    salvaged_bytes: int = 0
    unread_bytes: int = 0
    foreground_bytes: int = 0
    prefetched_bytes: int = 0
    background_bytes: int = 0
    copied_bytes: int = 0
