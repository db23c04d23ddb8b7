"""Which version of each path a replay reads, and what it can't say of a policy.

A trace holds what was read, not what snapshots hold or what an origin had besides. So a path that the tried policy pins is
read in one version for the whole run, the one that the run read first; whether the snapshot has that one, nobody here knows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np

from vfs.agent.rules import PathRules
from vfs.model import LakePath
from vfs.policy.facts import Access
from vfs.traces.parquet import Trace
from vfs.traces.scenario import Scenario
from vfs.units import format_size


def read_as(trace: Trace, rules: PathRules) -> list[int]:
    """Return for each file of the trace which one is read in its place: itself, or the first version of a pinned path."""
    found = list(range(len(trace.files)))
    first: dict[LakePath, int] = {}
    numbers, events = np.unique(trace.file, return_index=True)
    for number in numbers[np.argsort(events)].tolist():
        path, _ = trace.files[number]
        if rules.snapshot(path):
            found[number] = first.setdefault(path, number)
    return found


def unsaid(trace: Trace, scenario: Scenario, recorded: Scenario) -> Iterator[str]:
    """Yield what the figures of a scenario leave out because the trace does not hold it.

    Args:
        recorded: the setting of the run.
    """
    files = [(path, version) for path, version in trace.files if _is_remote(path, scenario)]
    rules = scenario.rules(trace)
    yield from _about_pins({path for path, _ in files}, rules, recorded.rules(trace))
    classes = Counter(rules.decision(path, Access.OPEN, version.size).values.cache for path, version in files)
    if classes["keep"] or classes["stream"]:
        yield (
            f"cache classes (keep: {classes['keep']} files, stream: {classes['stream']}) say what goes first when "
            f"{format_size(scenario.cache_size)} are full; the cache is empty at the start, and holds nothing of other runs"
        )
    bounds: dict[str, float] = {}
    for path, version in files:
        for access in (Access.READ, Access.PREFETCH):
            decision = rules.decision(path, access, version.size)
            bounds[str(decision.origins["bandwidth"])] = decision.values.bandwidth
    for rule, rate in sorted(bounds.items()):
        if math.isfinite(rate):
            yield f"{format_size(rate)}/s of {rule} bound what the trace reads, and nothing else that a mount fetches"


def _about_pins(paths: Collection[LakePath], rules: PathRules, before: PathRules) -> Iterator[str]:
    """Yield what is not known of paths that are pinned otherwise than when they were recorded."""
    changed = [(now, then) for path in paths if (now := rules.snapshot(path)) != (then := before.snapshot(path))]
    for name, count in sorted(Counter(now for now, _ in changed if now).items()):
        yield f"what {name} holds is not in the trace: {count} files that it pins are read as the run read them first"
    for name, count in sorted(Counter(then for now, then in changed if not now).items()):
        yield f"{count} files were pinned to {name} when they were recorded: they are read as it had them"


def _is_remote(path: LakePath, scenario: Scenario) -> bool:
    point = scenario.mounts.find(path)
    return point is not None and point.local_root is None
