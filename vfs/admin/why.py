"""Why is it slow: where the time of a process or a job went, and what would change it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from vfs.admin.records import Advice, PathWait, Why
from vfs.agent.ledger import Recent
from vfs.usage import CAUSES, Call, Cause, Source


class Lever(msgspec.Struct, frozen=True):
    """What changes how long something is waited for.

    Attributes:
        value: the policy value, "" where it is none.
        what: how it would help, in words.
    """

    value: str
    what: str


LEVERS: dict[Cause, Lever] = {
    Cause.NAMES: Lever("listing_ttl", "believe names for longer, or staleness = \"immutable\" for what is never rewritten"),
    Cause.QUEUE: Lever("prefetch", "the line is shared: fetch earlier (foremount fetch), or prefetch less elsewhere"),
    Cause.MEMORY: Lever("", "raise limits.memory in foremount.toml: too few bytes may be in flight"),
    Cause.BUDGET: Lever("bandwidth", "the rule lets no more through: raise its bandwidth, it holds at once"),
    Cause.LATENCY: Lever("prefetch", "round trips are waited for one by one: let prefetch run ahead, or use a nearer site"),
    Cause.LINK: Lever("sites", "the line is full: make it local beforehand (foremount fetch), or add a nearer replica"),
    Cause.RETRY: Lever("sites", "the site fails: see agent.log; another replica would serve meanwhile"),
    Cause.STORE: Lever("cache", "the cache disk is slow or full: look at it with iostat and foremount status"),
    Cause.UPLOAD: Lever("write_durability", "local lets fsync return once this host's disk has the bytes"),
    Cause.DEADLINE: Lever("deadline", "the site did not answer: see foremount status; a shorter deadline fails sooner"),
    Cause.AGENT: Lever("", "the agent was away or short of CPU: see foremount status, and the load of this host"),
    Cause.HERE: Lever("", "the worker or the local disk: see the load of this host and iostat"),
}  # fmt: skip
InForce = Callable[[str, str], tuple[str, str]]
"""Takes a lake path and the name of a value; returns what is in force for reading it, and the rule that gave it."""


def explain(
    subject: str,
    entries: Iterable[Recent],
    going_on: Sequence[Call],
    slow: Sequence[Call],
    in_force: InForce,
    *,
    window_s: float,
) -> Why:
    """Return where the time went.

    Args:
        entries: of the subject, within the window.
        going_on, slow: of the subject.
    """
    operations: dict[Source, int] = {}
    size: dict[Source, int] = {}
    causes: dict[Cause, float] = {}
    paths: dict[str, float] = {}
    pids = set()
    for _, _, usage in entries:
        pids.add(usage.pid)
        for by_source in usage.rows.values():
            for source, row in by_source.items():
                operations[source] = operations.get(source, 0) + row.count
                size[source] = size.get(source, 0) + row.bytes
        for cause, seconds in usage.causes.items():
            causes[cause] = causes.get(cause, 0.0) + seconds
        for path, seconds in usage.paths.items():
            paths[path] = paths.get(path, 0.0) + seconds
    here_s = causes.pop(Cause.HERE, 0.0)
    waited_s = sum(causes.values())
    longest = sorted(paths.items(), key=lambda item: -item[1])[:10]
    about = longest[0][0] if longest else next((call.path for call in going_on), "")
    advices = [
        _advice(cause, seconds, waited_s, about, in_force)
        for cause, seconds in sorted(causes.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    return Why(
        subject=subject,
        window_s=window_s,
        sentence=_sentence(operations, waited_s, here_s, advices, going_on),
        processes=len(pids),
        operations=operations,
        bytes=size,
        waited_s=waited_s,
        here_s=here_s,
        causes=advices,
        paths=[PathWait(path, seconds) for path, seconds in longest],
        going_on=list(going_on),
        slow=list(slow),
    )


def _advice(cause: Cause, seconds: float, waited_s: float, path: str, in_force: InForce) -> Advice:
    lever, change, rule = LEVERS[cause], LEVERS[cause].what, ""
    if lever.value and path:
        value, rule = in_force(path, lever.value)
        change = f"{lever.value} = {value} for {path}: {lever.what}"
    return Advice(cause, seconds, seconds / waited_s if waited_s else 0.0, CAUSES[cause], change, rule)


def _sentence(
    operations: dict[Source, int], waited_s: float, here_s: float, advices: Sequence[Advice], going_on: Sequence[Call]
) -> str:
    if going_on:
        longest = max(going_on, key=lambda call: call.seconds)
        more = f", and {len(going_on) - 1} more" if len(going_on) > 1 else ""
        return f"{longest.operation} of {longest.path} has been waiting for {longest.seconds:.1f} s{more}"
    if not operations:
        return "nothing was asked of this mount: what is slow is elsewhere, or read by the kernel alone"
    if waited_s <= max(here_s, 0.01):
        return f"hardly anything was waited for: {waited_s:.2f} s, and {here_s:.2f} s in the worker"
    return f"{waited_s:.1f} s were waited, {advices[0].share:.0%} of them because {advices[0].meaning}"
