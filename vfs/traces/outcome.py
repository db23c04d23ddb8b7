"""What a run came to: hits, bytes, waiting; and several runs side by side.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from vfs.units import format_size


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        reads: that came to the fs worker; what the page cache answered is in none of these figures.
        hit_rate: share of them that waited for nothing.
        hit_bytes_rate: share of their bytes.
        wanted_bytes: distinct bytes that were read of remote files.
        amplification: `fetched_bytes` for each wanted byte; None where nothing was wanted.
        wait_s: that all readers waited, added up.
        wait_s_p50, wait_s_p99, wait_s_max: of one read.
        duration_s: from the first event to the end of the last one.
        prefetched_bytes: of `fetched_bytes`, those that nobody waited for when they were asked for; None: not known.
        failed: reads that met their deadline or could not be served.
    """

    name: str
    reads: int
    hit_rate: float
    hit_bytes_rate: float
    read_bytes: int
    wanted_bytes: int
    fetched_bytes: int
    prefetched_bytes: int | None
    amplification: float | None
    requests: int
    wait_s: float
    wait_s_p50: float
    wait_s_p99: float
    wait_s_max: float
    duration_s: float
    failed: int

    @classmethod
    def of(
        cls,
        name: str,
        *,
        waits_s: npt.NDArray[np.float64],
        fetched: npt.NDArray[np.bool_],
        lengths: npt.NDArray[np.int64],
        duration_s: float,
        wanted_bytes: int,
        fetched_bytes: int,
        prefetched_bytes: int | None,
        requests: int,
        failed: int,
    ) -> Outcome:
        """Return the figures of reads, given by column: how long each took, whether it waited for a fetch, its bytes."""
        count, size = len(waits_s), int(lengths.sum())
        p50, p99, most = np.quantile(waits_s, [0.5, 0.99, 1.0]) if count else (0.0, 0.0, 0.0)
        return cls(
            name=name,
            reads=count,
            hit_rate=1 - float(fetched.mean()) if count else 0.0,
            hit_bytes_rate=1 - float(lengths[fetched].sum()) / size if size else 0.0,
            read_bytes=size,
            wanted_bytes=wanted_bytes,
            fetched_bytes=fetched_bytes,
            prefetched_bytes=prefetched_bytes,
            amplification=fetched_bytes / wanted_bytes if wanted_bytes else None,
            requests=requests,
            wait_s=float(waits_s.sum()),
            wait_s_p50=float(p50),
            wait_s_p99=float(p99),
            wait_s_max=float(most),
            duration_s=float(duration_s),
            failed=failed,
        )


def table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return the runs side by side: a row of names, then a row for each figure."""
    rows = [("", *(outcome.name for outcome in outcomes))]
    for label, write in _ROWS:
        rows.append((label, *(write(outcome) for outcome in outcomes)))
    return rows


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


_ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("reads", lambda run: str(run.reads)),
    ("hit rate", lambda run: f"{run.hit_rate:.1%}"),
    ("hit rate, by bytes", lambda run: f"{run.hit_bytes_rate:.1%}"),
    ("wanted", lambda run: format_size(run.wanted_bytes)),
    ("fetched", lambda run: format_size(run.fetched_bytes)),
    ("of it ahead", lambda run: "-" if run.prefetched_bytes is None else format_size(run.prefetched_bytes)),
    ("amplification", lambda run: "-" if run.amplification is None else f"{run.amplification:.3f}"),
    ("requests", lambda run: str(run.requests)),
    ("wait, all reads", lambda run: _seconds(run.wait_s)),
    ("wait, median read", lambda run: _seconds(run.wait_s_p50)),
    ("wait, 99 % of reads", lambda run: _seconds(run.wait_s_p99)),
    ("wait, longest read", lambda run: _seconds(run.wait_s_max)),
    ("duration", lambda run: _seconds(run.duration_s)),
    ("failed reads", lambda run: str(run.failed)),
)
