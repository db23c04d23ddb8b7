"""What rules can match: the facts of one access, and the conditions on them.

Pure: no I/O, no clock. A condition on a fact that is not known does not hold: a rule for big files says nothing of a file
whose size nobody has asked for yet.
"""

from __future__ import annotations

import enum
import fnmatch
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from vfs.checkpoints.formats import FORMATS
from vfs.policy.globs import expand_braces, normalise, to_regex
from vfs.policy.written import Names
from vfs.units import parse_size
from vfs.usage import CallerFacts


class Access(enum.StrEnum):
    """What is being done to the path. Looking a name up counts as opening it: nobody knows what will follow."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    LIST = "list"
    PREFETCH = "prefetch"


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one access; None where it is not known.

    Attributes:
        path: lake path, "" is the root.
        size: bytes.
        uid, gid: of the process that asks.
        job: name of the job that it belongs to.
        site: name of the site that is asked.
        access: kind of access.
        format: of the file, by its name: "safetensors", "dcp", "parquet", …
        world: number of ranks of the job.
        host: name of this host.
    """

    path: str
    size: int | None = None
    uid: int | None = None
    gid: int | None = None
    job: str | None = None
    site: str | None = None
    access: Access | None = None
    format: str | None = None
    world: int | None = None
    host: str | None = None


class PathGlobs(tuple[str, ...]):
    """Path patterns (`vfs/policy/globs.py`) without braces, any of which may match.

    Attributes:
        regex: of all of them, for fullmatch; not compiled, because most rules never meet a path that could match.
    """

    regex: str

    def __new__(cls, written: str | list[str]) -> PathGlobs:
        patterns = [normalise(expanded) for pattern in _at_least_one(written) for expanded in expand_braces(pattern)]
        self = super().__new__(cls, patterns)
        self.regex = "|".join(f"(?:{to_regex(pattern)})" for pattern in patterns)
        return self

    def matches(self, path: str) -> bool:
        """Return whether one of the patterns matches the whole path."""
        return re.fullmatch(self.regex, path, re.DOTALL) is not None


class NameGlobs(tuple[str, ...]):
    """Name patterns with *, ? and [], any of which may match; "/" is a character as any other."""

    def __new__(cls, written: str | list[str]) -> NameGlobs:
        return super().__new__(cls, _at_least_one(written))

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the whole name; upper and lower case differ."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self)


class OneOf(tuple[str, ...]):
    """Names, one of which must be equal."""

    def __new__(cls, written: str | list[str]) -> OneOf:
        return super().__new__(cls, _at_least_one(written))

    def matches(self, name: str) -> bool:
        """Return whether the name is one of them."""
        return name in self


class Accesses(OneOf):
    """Kinds of access, one of which it must be."""

    def __new__(cls, written: str | list[str]) -> Accesses:
        kinds = _at_least_one(written)
        for kind in kinds:
            if kind not in list(Access):
                raise ValueError(f"{kind!r} is no kind of access: write {', '.join(Access)}")
        return typing.cast(Accesses, super().__new__(cls, list(kinds)))


class Formats(OneOf):
    """Formats, one of which it must be."""

    def __new__(cls, written: str | list[str]) -> Formats:
        names = _at_least_one(written)
        for name in names:
            if name not in FORMATS:
                raise ValueError(f"{name!r} is no format: write {', '.join(FORMATS)}")
        return typing.cast(Formats, super().__new__(cls, list(names)))


class Ids(tuple[tuple[int, int], ...]):
    """User or group ids: 1000, "1000-1999" (both ends included), or a list of these. Pairs are half-open."""

    def __new__(cls, written: int | str | list[int | str]) -> Ids:
        parts = written if isinstance(written, list) else [written]
        if not parts:
            raise ValueError("names no id: such a rule never matches")
        return super().__new__(cls, [_id_range(part) for part in parts])

    def matches(self, number: int) -> bool:
        """Return whether the id lies in one of the ranges."""
        return any(start <= number < end for start, end in self)


_AMOUNT = re.compile(r"(>=|<=|>|<)?([^<>=]+)")


class SizeRange(str):
    """Sizes: ">=64KiB", "<1GiB", "1MiB..1GiB" (the upper end excluded), or one size exactly.

    Attributes:
        start, end: half-open; end None: no upper end.
    """

    start: int
    end: int | None

    def __new__(cls, text: str) -> SizeRange:
        return _range(cls, text, parse_size)

    def matches(self, number: int) -> bool:
        """Return whether the number lies in the range."""
        return self.start <= number and (self.end is None or number < self.end)


class CountRange(SizeRange):
    """Counts: ">=1024", "8..64" (the upper end excluded), or one number exactly."""

    def __new__(cls, text: str) -> CountRange:
        return _range(cls, text, _parse_count)


def _note(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions of a rule; all that are stated must hold. None stated: it matches everything."""

    path: Annotated[PathGlobs, _note("Patterns of the whole path below the mount: *, **, ?, [a-z], {a,b}.")] | None = None
    size: Annotated[SizeRange, _note("Size of the file: >=64KiB, <1GiB, or 1MiB..1GiB (upper end excluded).")] | None = None
    uid: Annotated[Ids, _note("User ids: a number, 1000-1999, or a list of these.")] | None = None
    gid: Annotated[Ids, _note("Group ids: a number, 100-199, or a list of these.")] | None = None
    job: Annotated[NameGlobs, _note("Names of jobs; *, ? and [] are wildcards.")] | None = None
    site: Annotated[OneOf, _note("Names of the sites that are asked, as in foremount.toml.")] | None = None
    access: Annotated[Accesses, _note("Kinds of access: open, read, write, list, prefetch.")] | None = None
    format: Annotated[Formats, _note(f"Formats, as the file's name says: {', '.join(FORMATS)}.")] | None = None
    world: Annotated[CountRange, _note("Ranks of the job: >=1024, or 8..64 (upper end excluded).")] | None = None
    host: Annotated[NameGlobs, _note("Names of hosts; *, ? and [] are wildcards.")] | None = None


NARROW = tuple(field for field in Match.__struct_fields__ if field not in ("path", "size"))
"""The facts that take few different values on a host, so that what they select can be remembered."""


OF_CALLERS = frozenset(CallerFacts.__struct_fields__)
"""The facts about who asks; the others are about what is asked for."""
KNOWN: Mapping[str, str] = {
    "path": "yes, always",
    "size": "yes, once the origin has told it",
    "uid": "yes, of the calling process",
    "gid": "yes, of the calling process",
    "job": "yes, of the calling process: as `foremount why --job` names it",
    "site": "yes, always",
    "access": "yes, always",
    "format": "yes, by the file's name, whatever is in it",
    "world": "yes, of the calling process: by its environment",
    "host": "yes, always",
}
"""What the fs worker and the agent know of an access (`inforce.py`), for people."""


def conditions_of(match: Match) -> dict[str, Any]:
    """Return the conditions that are stated, by fact."""
    return {name: condition for name in Match.__struct_fields__ if (condition := getattr(match, name)) is not None}


def mismatch(match: Match, facts: Facts, names: tuple[str, ...] = Match.__struct_fields__) -> str | None:
    """Return the first of the facts `names` whose condition does not hold, or None where all do.

    This is what a rule means; the engine only finds the same answer sooner.
    """
    for name in names:
        condition = getattr(match, name)
        if condition is None:
            continue
        known = getattr(facts, name)
        if known is None or not condition.matches(known):
            return name
    return None


def _at_least_one(written: str | list[str]) -> Names:
    names = Names(written)
    if not names:
        raise ValueError("the list is empty: such a rule never matches")
    return names


def _id_range(part: int | str) -> tuple[int, int]:
    low, dash, high = str(part).partition("-")
    if isinstance(part, bool) or not low.strip().isdecimal() or (dash and not high.strip().isdecimal()):
        raise ValueError(f"{part!r} is no id: write a number, or 1000-1999")
    start, last = int(low), int(high) if dash else int(low)
    if last < start:
        raise ValueError(f"{part!r}: write the smaller id first")
    return start, last + 1


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number")
    return int(text)


_R = TypeVar("_R", bound=SizeRange)


def _range(cls: type[_R], text: str, parse: Callable[[str], int]) -> _R:
    """Return the range that `text` states.

    Raises:
        ValueError: it states none, or an empty one.
    """
    low, dots, high = text.replace(" ", "").partition("..")
    start, end = _bounds(low, high, parse) if dots else _comparison(low, text, parse)
    if end is not None and end <= start:
        raise ValueError(f"{text!r} holds nothing: the upper end is excluded and must lie above the lower")
    self: Any = str.__new__(cls, text.replace(" ", ""))
    self.start, self.end = start, end
    return self  # type: ignore[no-any-return]


def _bounds(low: str, high: str, parse: Callable[[str], int]) -> tuple[int, int | None]:
    return (parse(low) if low else 0), (parse(high) if high else None)


def _comparison(amount: str, text: str, parse: Callable[[str], int]) -> tuple[int, int | None]:
    matched = _AMOUNT.fullmatch(amount)
    if matched is None:
        raise ValueError(f"{text!r} is no range: write for example >=64KiB, <1GiB or 1MiB..1GiB")
    sign, number = matched[1], parse(matched[2])
    return {
        ">=": (number, None),
        ">": (number + 1, None),
        "<": (0, number),
        "<=": (0, number + 1),
        None: (number, number + 1),
    }[sign]
