"""What a trace is played under: as it was recorded, under other policy documents, or under another configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from vfs import config
from vfs.agent.rules import PathRules
from vfs.config import Config, LocalSite, MemorySite
from vfs.errors import ForemountError
from vfs.extents.link import Bounds
from vfs.model import SiteName
from vfs.namespace.mounts import MountTable, build_mount_table
from vfs.policy.inforce import InForce, defaults_of, open_store
from vfs.policy.loader import Text, compile_rules, read
from vfs.policy.store import PolicySet
from vfs.traces.parquet import Trace
from vfs.traces.recording import Line


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is tried.

    Attributes:
        name: for people.
        lines: of every site that is an origin of a mount and not on this host.
        guessed: of them, those of which nothing was measured or stated.
    """

    name: str
    mounts: MountTable
    policy: PolicySet
    cache_size: int
    limits: config.Limits
    lines: Mapping[SiteName, Line]
    guessed: tuple[SiteName, ...] = ()

    def rules(self, trace: Trace) -> PathRules:
        """Return what the policy says on the host that recorded the trace."""
        return PathRules(InForce(_Fixed(self.policy), host=trace.meta.setting.host), self.mounts)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """One policy for good."""

    current: PolicySet


def recorded_mounts(trace: Trace) -> MountTable:
    """Return the mount table that the trace was recorded under."""
    return build_mount_table(_recorded(trace))


def as_recorded(trace: Trace, line: Line | None = None) -> Scenario:
    """Return the setting of the recorded run.

    Args:
        line: of every site, in place of what was measured.
    """
    texts = [Text(text.source, text.shipped, text.text) for text in trace.meta.setting.policies]
    return _scenario("replayed", trace, _recorded(trace), texts, line)


def under_policy(trace: Trace, sources: Sequence[str], line: Line | None = None) -> Scenario:
    """Return the setting of the recorded run with other documents in force.

    Raises:
        InvalidPolicy: they can't be used.
    """
    return _scenario(", ".join(sources), trace, _recorded(trace), read(list(sources)), line)


def under_config(trace: Trace, path: str, line: Line | None = None) -> Scenario:
    """Return another configuration with the documents that it names. Its sites are never asked.

    Raises:
        InvalidConfig, InvalidPolicy: it can't be used.
        ForemountError: none of its mounts holds what was recorded.
    """
    loaded = config.load(path)
    mounts = build_mount_table(loaded)
    if trace.files and not any(mounts.find(path) for path, _ in trace.files):
        raise ForemountError(path, "mounts nothing of what was recorded", "lake paths have to be the same as in the trace")
    return _scenario(path, trace, loaded, list(open_store(loaded, path).current.texts), line)


def _recorded(trace: Trace) -> Config:
    setting = trace.meta.setting
    local = set(setting.local_sites)
    return Config(
        sites={name: LocalSite("/") if name in local else MemorySite() for name in setting.sites},
        mounts=setting.mounts,
        cache=config.Cache(size=setting.cache_size),
        limits=setting.limits,
    )


def _scenario(name: str, trace: Trace, loaded: Config, texts: Iterable[Text], line: Line | None) -> Scenario:
    mounts = build_mount_table(loaded)
    rules = compile_rules(list(texts), None, defaults_of(loaded.limits))
    lines: dict[SiteName, Line] = {}
    guessed = []
    for point in mounts.points:
        if point.local_root is not None or point.site in lines:
            continue
        measured = line or trace.meta.lines.get(point.site)
        if measured is None:
            guessed.append(point.site)
            measured = Line(Bounds().ttfb_s, Bounds().bytes_per_s, Bounds().window_start)
        lines[point.site] = msgspec.structs.replace(measured, bytes_per_s=max(measured.bytes_per_s, 1.0))
    return Scenario(name, mounts, PolicySet(rules, "replay"), loaded.cache.size, loaded.limits, lines, tuple(guessed))
