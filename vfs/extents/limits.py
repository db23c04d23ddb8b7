"""Bounds of the fetch service, with their origin. One place, required by everyone else as an argument.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How the fetch service behaves.

    Attributes:
        request_bytes_min: asked for at once where so much is wanted, however short the line.
        request_bytes_max: asked for in one request. 8 MiB are 67 ms at 1 Gbit/s: longer ones make a foreground read wait
            behind bytes that it did not ask for, and lose more when a body is cut.
        batch_bytes: collected of a body before the next write: one system call and one thread hop (60 us) for 16 blocks.
        waste_max: bytes that nobody wants, for each wanted one of a request, to save a request.
        requests_per_site: in flight at most; the line decides below that (`link.py`).
        attempts_max: requests without a single new byte before a fetch is given up, over all replicas.
        backoff_s: before the second request to the same site, doubled for each further one.
        backoff_s_max: the most that it grows to.
        stall_s: a connection that stays open and sends nothing for so long has failed.
        trickle_bytes_per_s: a request that gets less than this has failed too, see `Link.deadline_s`.
        store_retry_s: how long the cache is left alone after it could not take a block.
        writers: threads that write to the stores; two saturate a disk, four hide one slow write.
    """

    request_bytes_min: int = 1 << 20
    request_bytes_max: int = 8 << 20
    batch_bytes: int = 1 << 20
    waste_max: float = 0.1
    requests_per_site: int = 64
    attempts_max: int = 8
    backoff_s: float = 0.1
    backoff_s_max: float = 5.0
    stall_s: float = 10.0
    trickle_bytes_per_s: float = 32e3
    store_retry_s: float = 30.0
    writers: int = 4
