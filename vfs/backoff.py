"""How long to wait before trying again.

Pure: no I/O, no clock.
"""

from __future__ import annotations

_DOUBLINGS_MAX = 60
"""Far beyond any bound of a wait, and far below where a power of two is no float any more: who tries for ever gets there."""


def doubled_s(least_s: float, most_s: float, attempts: int) -> float:
    """Return the wait after this many failed attempts: `least_s` after the first, doubled with each one, `most_s` at most."""
    return min(most_s, least_s * 2.0 ** min(attempts - 1, _DOUBLINGS_MAX))
