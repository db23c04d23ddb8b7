"""The values that rules set: types, units, defaults with their origin, and when a change takes effect.

Pure: no I/O, no clock. `Values` is the one table of them: the documents' parser, `policies/README.md` and the JSON Schema
are all derived from its fields.
"""

from __future__ import annotations

import enum
import math
import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from vfs.policy.written import (
    NEAREST,
    ORIGIN,
    Allowance,
    FetchSize,
    Hedge,
    Names,
    Rate,
    SiteOrder,
    Staleness,
    duration_text,
    size_text,
)
from vfs.units import Bytes, Seconds


class Effect(enum.StrEnum):
    """When a changed value holds for what is already running."""

    NEXT_OPEN = "next open"
    AT_ONCE = "at once"


class Whose(enum.StrEnum):
    """Which process's uid, gid, job and world decide."""

    CALLER = "caller"
    OPENER = "opener"
    NOBODY = "nobody"


class About(msgspec.Struct, frozen=True):
    """What people must know of a value.

    Attributes:
        text: what it does.
        unit: how it is written.
        effect: when a change takes effect.
        whose: who decides it, by being who it is: who makes the call, who opened the file, or nobody.
        why: where its default comes from.
    """

    text: str
    unit: str
    effect: Effect
    whose: Whose
    why: str


_NEXT, _ONCE = Effect.NEXT_OPEN, Effect.AT_ONCE
_ALLOWANCE = "on, off, or size=SIZE, hourly=SIZE, share=PERCENT, stop=PERCENT"


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that rules decide about one access."""

    staleness: Annotated[
        Staleness,
        About(
            "When the origin is asked again whether the object is still the same version. An open file never changes.",
            "immutable, close-to-open, ttl=DURATION or pinned=SNAPSHOT",
            _NEXT,
            Whose.CALLER,
            "limits.listing_ttl of foremount.toml: one question a minute costs no training job anything",
        ),
    ] = Staleness("ttl=60s")
    listing_ttl: Annotated[
        Seconds,
        About(
            "How long a directory's listing is believed: which names there are, and which are not.",
            "duration",
            _NEXT,
            Whose.CALLER,
            "limits.listing_ttl of foremount.toml",
        ),
    ] = Seconds(60.0)
    sites: Annotated[
        SiteOrder,
        About(
            "Which sites serve, first to last: names, origin, and nearest for every other site with a replica.",
            "list of site names",
            _NEXT,
            Whose.OPENER,
            "a replica is there because it is nearer than the origin",
        ),
    ] = SiteOrder([NEAREST, ORIGIN])
    residency: Annotated[
        Names,
        About(
            "Labels, one of which a site must carry to hold a copy. Empty: any site may.",
            "list of labels",
            _NEXT,
            Whose.NOBODY,
            "without a duty to keep data somewhere there is nothing to limit",
        ),
    ] = Names([])
    copy_encryption: Annotated[
        Literal["any", "required"],
        About(
            "Whether copies made ahead must lie and travel encrypted.",
            "any or required",
            _ONCE,
            Whose.NOBODY,
            "only the data's owner knows",
        ),
    ] = "any"
    copy_retention: Annotated[
        Seconds,
        About(
            "How long a copy made ahead may live at most, wanted or not; 0: as long as it is wanted.",
            "duration",
            _ONCE,
            Whose.NOBODY,
            "copies go when nobody wants them any more",
        ),
    ] = Seconds(0.0)
    copy_deletion: Annotated[
        Literal["with-origin", "when-unwanted"],
        About(
            "When what was deleted at its origin is deleted where it was copied: at once, or when nobody wants it.",
            "with-origin or when-unwanted",
            _ONCE,
            Whose.NOBODY,
            "who deletes data means all of it",
        ),
    ] = "with-origin"
    eval_copies: Annotated[
        Allowance,
        About(
            "Copies of checkpoints where they will be evaluated or loaded.",
            _ALLOWANCE,
            _ONCE,
            Whose.NOBODY,
            "they are made only where foremount.toml has a place for them, as large as it says there",
        ),
    ] = Allowance("on")
    hot_copies: Annotated[
        Allowance,
        About(
            "Copies of bytes that many ranks read at once; stop concerns those that follow from a job's plan.",
            _ALLOWANCE,
            _ONCE,
            Whose.NOBODY,
            "as eval_copies",
        ),
    ] = Allowance("on")
    samples_ahead: Annotated[
        Allowance,
        About(
            "Samples made or read ahead of their step, by the path .jobs/JOB; share is of the groups under way.",
            _ALLOWANCE,
            _ONCE,
            Whose.NOBODY,
            "it works only for jobs that were declared, within samples.spool of foremount.toml",
        ),
    ] = Allowance("on")
    prefetch: Annotated[
        Literal["off", "sequential", "tensor", "whole"],
        About(
            "What is fetched before it is asked for: nothing, what follows in the file, the tensors (members, column "
            "chunks) that follow in the order the reader goes, or the whole file at open.",
            "off, sequential, tensor or whole",
            _NEXT,
            Whose.OPENER,
            "right for every format that is read front to back, harmless for the others",
        ),
    ] = "sequential"
    read_ahead: Annotated[
        Bytes,
        About(
            "How far prefetch runs ahead of one reader at most.",
            "size",
            _NEXT,
            Whose.OPENER,
            "5 Gbit/s over a round trip of 100 ms are 64 MB in flight",
        ),
    ] = Bytes(64 << 20)
    fetch_size: Annotated[
        FetchSize,
        About(
            "Smallest and largest request to a site. Reads near each other are merged up to the largest.",
            "SIZE..SIZE, 64KiB or more",
            _NEXT,
            Whose.OPENER,
            "8 MiB are 67 ms at 1 Gbit/s: behind longer ones a read waits that did not ask for them",
        ),
    ] = FetchSize("1MiB..8MiB")
    cache: Annotated[
        Literal["keep", "normal", "stream"],
        About(
            "Which fetched bytes go first where the cache needs room: those that are streamed, least recently used ones, and "
            "last those that are to be kept; what is open never goes whole.",
            "keep, normal or stream",
            _NEXT,
            Whose.OPENER,
            "least recently used suits what nobody knows more about",
        ),
    ] = "normal"
    write_durability: Annotated[
        Literal["local", "remote"],
        About(
            "What fsync waits for: this host's disk (uploaded afterwards), or the origin; with remote, close waits too.",
            "local or remote",
            _ONCE,
            Whose.CALLER,
            "who calls fsync and is not told otherwise expects the data to survive the host",
        ),
    ] = "remote"
    deadline: Annotated[
        Seconds,
        About(
            "A system call that waits for a site fails with EIO after this.",
            "duration",
            _ONCE,
            Whose.CALLER,
            "limits.origin_deadline of foremount.toml",
        ),
    ] = Seconds(60.0)
    hedge: Annotated[
        Hedge,
        About(
            "When a slow request is also sent to the next site.",
            "off, after=DURATION or after=FACTOR*p95",
            _NEXT,
            Whose.OPENER,
            "one request in twenty is later than the site's p95; without a replica there is nobody else to ask",
        ),
    ] = Hedge("after=p95")
    bandwidth: Annotated[
        Rate,
        About(
            "What is fetched from one site at most, shared by all that gets this value from the same rule.",
            "SIZE/s or unlimited",
            _ONCE,
            Whose.OPENER,
            "only the admin knows whose link it is",
        ),
    ] = Rate("unlimited")
    upload_bandwidth: Annotated[
        Rate,
        About(
            "Uploads to one site at most, shared by all that get this value from the same rule.",
            "SIZE/s or unlimited",
            _ONCE,
            Whose.NOBODY,
            "a checkpoint is safe when it is at its origin: nothing slows that down unless an admin wants it",
        ),
    ] = Rate("unlimited")
    commit_marker: Annotated[
        str,
        About(
            "A glob for file names: such a file is uploaded last, when all is there that was written below its directory "
            "before it. The markers of known checkpoint formats need no mention.",
            'glob, or "" for none',
            _ONCE,
            Whose.NOBODY,
            "only the job knows a marker that no format defines",
        ),
    ] = ""


def _abouts() -> dict[str, About]:
    hints = typing.get_type_hints(Values, include_extras=True)
    return {field: hints[field].__metadata__[0] for field in Values.__struct_fields__}


VALUES: dict[str, About] = _abouts()
"""What people must know of each value, by name, in the order of the table."""
DEFAULTS = Values()


if TYPE_CHECKING:

    class Settings(msgspec.Struct, frozen=True):
        """The values that one rule sets; None where it leaves a value alone."""

else:
    Settings = msgspec.defstruct(
        "Settings",
        [
            (field.name, Annotated[field.type, msgspec.Meta(description=VALUES[field.name].text)] | None, None)
            for field in msgspec.structs.fields(Values)
        ],
        frozen=True,
        forbid_unknown_fields=True,
    )


def settings_of(settings: Settings) -> dict[str, Any]:
    """Return what is set, by name."""
    return {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}


def value_text(value: Any) -> str:
    """Return a value as a document would state it, without quotes."""
    if isinstance(value, Rate):
        return "unlimited" if math.isinf(value) else f"{size_text(int(value))}/s"
    if isinstance(value, Bytes):
        return size_text(value)
    if isinstance(value, Seconds):
        return duration_text(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "(none)"
    return str(value)
