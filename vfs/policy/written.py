"""Values with a text form of their own: "ttl=30s", "after=2*p95", "1MiB..16MiB", "200MB/s".

Pure: no I/O, no clock. Each is a `str`, `float` or `tuple` that is parsed when it is made: what is wrong raises
`ValueError` with what to write instead, and equal meanings are equal values.
"""

from __future__ import annotations

import enum
import math
import re
import typing

from vfs.extents.layout import BLOCK
from vfs.model import SiteName
from vfs.units import parse_duration, parse_size

ORIGIN = SiteName("origin")
"""In a site order: the site that says what is there."""
NEAREST = SiteName("nearest")
"""In a site order: every other site that may hold a replica, the one that answers first foremost."""

SNAPSHOT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""A pattern for the whole name."""
_EXACT_UNITS = sorted(
    ((unit, parse_size(f"1{unit}")) for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")),
    key=lambda pair: -pair[1],
)


def size_text(size: int) -> str:
    """Return the size exactly, in the largest unit that divides it: "16MiB", "200MB", "4097B"."""
    for unit, factor in _EXACT_UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def duration_text(seconds: float) -> str:
    """Return the duration as documents write it: "90s", "250ms", "2h"."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % factor == 0:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


class StalenessKind(enum.StrEnum):
    """How an object may change while it is used."""

    IMMUTABLE = "immutable"
    CLOSE_TO_OPEN = "close-to-open"
    TTL = "ttl"
    PINNED = "pinned"


class Staleness(str):
    """When the origin is asked whether an object moved on: "immutable", "close-to-open", "ttl=30s", "pinned=NAME".

    Attributes:
        kind: which of the four.
        ttl_s: with TTL: how long a version is believed. 0 with close-to-open: asked at every open. Else infinite.
        snapshot: with PINNED: name of the snapshot, else "".
    """

    kind: StalenessKind
    ttl_s: float
    snapshot: str

    def __new__(cls, text: str) -> Staleness:
        word, equals, rest = text.strip().partition("=")
        ttl_s, snapshot = math.inf, ""
        if word in ("immutable", "close-to-open") and not equals:
            ttl_s = 0.0 if word == "close-to-open" else math.inf
        elif word == "ttl" and rest:
            ttl_s = parse_duration(rest)
        elif word == "pinned" and re.fullmatch(SNAPSHOT_NAME, rest):
            snapshot = rest
        else:
            raise ValueError(f"{text!r} is no staleness class: write immutable, close-to-open, ttl=30s or pinned=SNAPSHOT")
        self = super().__new__(cls, f"ttl={duration_text(ttl_s)}" if word == "ttl" else text.strip())
        self.kind, self.ttl_s, self.snapshot = StalenessKind(word), ttl_s, snapshot
        return self


class Hedge(str):
    """When a second site is asked the same: "off", "after=500ms", or "after=2*p95" of the site's latency so far.

    Attributes:
        after_s: wait that long for the first site, or None.
        p95_factor: wait that many times the 95th percentile, or None. Both None: never.
    """

    after_s: float | None
    p95_factor: float | None

    def __new__(cls, text: str) -> Hedge:
        word, equals, rest = text.replace(" ", "").partition("=")
        after_s: float | None = None
        factor: float | None = None
        multiple = re.fullmatch(r"(?:([0-9]+(?:\.[0-9]+)?)\*)?p95", rest)
        if word == "after" and multiple:
            factor = float(multiple[1] or 1)
            canonical = f"after={factor:g}*p95"
        elif word == "after" and rest:
            after_s = parse_duration(rest)
            canonical = f"after={duration_text(after_s)}"
        elif word == "off" and not equals:
            canonical = "off"
        else:
            raise ValueError(f"{text!r} is no hedging: write off, after=500ms or after=2*p95")
        self = super().__new__(cls, canonical)
        self.after_s, self.p95_factor = after_s, factor
        return self

    def delay_s(self, latency_p95_s: float) -> float:
        """Return how long to wait for the first site; infinite where hedging is off."""
        if self.after_s is not None:
            return self.after_s
        return math.inf if self.p95_factor is None else self.p95_factor * latency_p95_s


class FetchSize(str):
    """Smallest and largest request to a site: "1MiB..16MiB", or one size for both.

    One value, not two, so that no two rules can set a smallest above the largest.

    Attributes:
        least, most: bytes; 64 KiB <= least <= most.
    """

    least: int
    most: int

    def __new__(cls, text: str) -> FetchSize:
        low, dots, high = text.partition("..")
        least = parse_size(low)
        most = parse_size(high) if dots else least
        if least < BLOCK:
            raise ValueError(f"{text!r}: requests are at least {BLOCK >> 10}KiB, the unit that digests cover")
        if most < least:
            raise ValueError(f"{text!r}: write the smaller size first")
        self = super().__new__(cls, f"{size_text(least)}..{size_text(most)}")
        self.least, self.most = least, most
        return self


class Rate(float):
    """Bytes per second: "200MB/s", or "unlimited" (infinite)."""

    def __new__(cls, text: str) -> Rate:
        if text.strip() == "unlimited":
            return super().__new__(cls, math.inf)
        size, slash, per = text.partition("/")
        if not slash or per.strip() != "s":
            raise ValueError(f"{text!r} is no rate: write for example 200MB/s, or unlimited")
        if not (rate := parse_size(size)):
            raise ValueError("a rate of 0 would stop all traffic: write a larger one, or unlimited")
        return super().__new__(cls, rate)


class Allowance(str):
    """What one mechanism that works ahead may take: "on", "off", or limits: "size=1TiB, hourly=200GiB, share=50%, stop=25%".

    Attributes:
        on: whether it works at all.
        size: bytes that it may hold at one place.
        hourly: bytes that it may bring within any hour.
        share: of the requests that a line carries at a time, 0 < share <= 1.
        stop: hit rate below which it goes on without work until its predictions come true again.
    """

    on: bool
    size: int
    hourly: int
    share: float
    stop: float

    def __new__(cls, text: str) -> Allowance:
        found: dict[str, str] = {}
        if text.strip() not in ("on", "off"):
            for part in text.split(","):
                name, equals, value = (each.strip() for each in part.partition("="))
                if not equals or name not in _ALLOWED or name in found:
                    raise ValueError(
                        f"{text!r} is no allowance: write on, off, or size=1TiB, hourly=200GiB, share=50%, stop=25%"
                    )
                found[name] = value
        size, hourly = (parse_size(found[name]) if name in found else UNLIMITED for name in ("size", "hourly"))
        share, stop = (_percent(found.get(name, usual)) for name, usual in (("share", "100%"), ("stop", STOP_BELOW)))
        if not share:
            raise ValueError("a share of nothing would stop it half done: write off")
        texts = {"size": size_text(size), "hourly": size_text(hourly), "share": f"{share:.0%}", "stop": f"{stop:.0%}"}
        stated = ", ".join(f"{name}={texts[name]}" for name in _ALLOWED if name in found)
        self = super().__new__(cls, stated or text.strip())
        self.on, self.size, self.hourly, self.share, self.stop = self != "off", size, hourly, share, stop
        return self


_ALLOWED = ("size", "hourly", "share", "stop")
UNLIMITED = 1 << 60
STOP_BELOW = "25%"
"""Where nothing is stated: of four copies three were for nobody."""


def _percent(text: str) -> float:
    """Return a share, in whole percent."""
    if (matched := re.fullmatch(r"([0-9]{1,3}) *%", text)) is None or int(matched[1]) > 100:
        raise ValueError(f"{text!r} is no share: write 0% to 100%")
    return int(matched[1]) / 100


class Names(tuple[str, ...]):
    """One name or a list of names, in order, none twice."""

    def __new__(cls, written: str | list[str]) -> Names:
        names = [written] if isinstance(written, str) else written
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
            raise ValueError("write a name or a list of names")
        if len(set(names)) != len(names):
            raise ValueError("names something twice")
        return super().__new__(cls, names)


class SiteOrder(Names):
    """Names: site names, "origin" and "nearest"; at least one."""

    def __new__(cls, written: str | list[str]) -> SiteOrder:
        self = typing.cast(SiteOrder, super().__new__(cls, written))
        if not self:
            raise ValueError('name at least one site, or "origin" or "nearest"')
        return self
