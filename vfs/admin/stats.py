"""The facts of a running mount as typed records: what the API, the page, `foremount top` and the metrics show.

Collects from the rooms and keeps nothing. A room that wants its facts shown, and has no resource of its own, is added to
`rooms` in the agent's main: a name, and a function that returns a list of records (a table) or one record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from vfs.admin import why
from vfs.admin.policies import Policies
from vfs.admin.records import (
    CachedObjectFacts,
    CacheFacts,
    JobFacts,
    Jobs,
    Order,
    Overview,
    PolicyFacts,
    ReplicaFacts,
    Replicas,
    Rooms,
    Stats,
    StatusFacts,
    Transfers,
    Why,
    WhyQuery,
)
from vfs.admin.status import Status
from vfs.admin.transfers import transfers_of
from vfs.agent.accounts import Accounts
from vfs.agent.ledger import JobKey, Recent
from vfs.agent.reading.local import LocalCopies
from vfs.agent.rules import PathRules
from vfs.agent.writing.checkpoints import Checkpoints
from vfs.clock import Clock
from vfs.extents.fetch import Fetcher
from vfs.extents.store import Store
from vfs.foresight.board import Board
from vfs.model import LakePath
from vfs.namespace.mounts import MountTable
from vfs.policy.facts import Access
from vfs.policy.values import value_text
from vfs.units import encode_unit
from vfs.usage import Call, Cause, Source

if TYPE_CHECKING:
    from vfs.agent.samples.rooms import SampleRooms  # takes pyarrow along: for mounts with samples

Room = Callable[[], Any]
_SLOW_SHOWN = 50
_MINUTE_S = 60.0


class Facts:
    """Answers questions about this mount.

    Args:
        store: the cache.
    """

    def __init__(
        self,
        status: Status,
        policies: Policies,
        accounts: Accounts,
        fetcher: Fetcher,
        copies: LocalCopies,
        store: Store,
        mounts: MountTable,
        rules: PathRules,
        clock: Clock,
        rooms: Mapping[str, Room],
        checkpoints: Checkpoints,
    ) -> None:
        self._status = status
        self._policies = policies
        self._accounts = accounts
        self._fetcher = fetcher
        self._copies = copies
        self._store = store
        self._mounts = mounts
        self._rules = rules
        self._clock = clock
        self._rooms = rooms
        self.checkpoints = checkpoints
        self.samples: SampleRooms | None = None
        self.board: Callable[[], Awaitable[Board]] | None = None

    def _now_s(self) -> float:
        return self._clock.wall_ns() / 1e9

    def overview(self) -> Overview:
        """Return all that people look at first."""
        return Overview(
            self.status(), self.stats(), self.jobs(), self.replicas(), self.transfers(), self.policies(), self.rooms()
        )

    def status(self) -> StatusFacts:
        """Return the mount as `foremount status` shows it."""
        return msgspec.convert(self._status.facts(), StatusFacts)

    def policies(self) -> PolicyFacts:
        """Return the documents in force."""
        return msgspec.convert(self._policies.facts(), PolicyFacts)

    def stats(self) -> Stats:
        """Return sums and the last two minutes."""
        ledger = self._accounts.ledger
        return Stats(
            at_s=self._now_s(),
            rows=ledger.rows,
            causes=ledger.causes,
            moments=list(ledger.moments),
            slow=list(ledger.slow)[: -_SLOW_SHOWN - 1 : -1],
            waiting=ledger.waiting,
            lost_reports=ledger.lost,
            lines=self._fetcher.lines(),
        )

    def jobs(self) -> Jobs:
        """Return every job, those that waited most in the last minute first."""
        now_s = self._now_s()
        minutes: dict[JobKey, list[Recent]] = {}
        for entry in self._accounts.ledger.recent(now_s - _MINUTE_S):
            minutes.setdefault(entry.key, []).append(entry)
        found = [self._job(key, minutes.get(key, [])) for key in self._accounts.ledger.jobs]
        return Jobs(now_s, sorted(found, key=lambda job: (-job.wait_s_minute, -job.seen_s)))

    def _job(self, key: JobKey, minute: list[Recent]) -> JobFacts:
        totals = self._accounts.ledger.jobs[key]
        operations: dict[Source, int] = {}
        size: dict[Source, int] = {}
        for by_source in totals.rows.values():
            for source, row in by_source.items():
                operations[source] = operations.get(source, 0) + row.count
                size[source] = size.get(source, 0) + row.bytes
        processes = {entry.usage.pid for entry in minute}
        wait_s = sum(_waited_s(entry.usage.causes) for entry in minute)
        return JobFacts(
            job=key.job,
            uid=key.uid,
            cgroup=key.cgroup,
            commands=totals.commands,
            processes=len(processes),
            operations=operations,
            bytes=size,
            waits={cause: seconds for cause, seconds in totals.causes.items() if cause is not Cause.HERE},
            rows=totals.rows,
            bytes_minute=sum(row.bytes for entry in minute for rows in entry.usage.rows.values() for row in rows.values()),
            wait_s_minute=wait_s,
            stall=wait_s / _MINUTE_S / max(len(processes), 1),
            seen_s=totals.seen_s,
        )

    def why(self, query: WhyQuery) -> Why:
        """Return where the time of a process, a job or everybody went."""
        ledger = self._accounts.ledger
        since_s = self._now_s() - query.window
        entries = [entry for entry in ledger.recent(since_s) if _is_meant(query, entry)]
        pids = {entry.usage.pid for entry in entries} | ({query.pid} if query.pid else set())
        everybody = not query.pid and not query.job

        def of_subject(calls: Iterable[Call]) -> list[Call]:
            return [call for call in calls if everybody or call.pid in pids]

        subject = "all callers" if everybody else f"process {query.pid}" if query.pid else f"job {query.job}"
        slow = of_subject(call for call in ledger.slow if call.began_s + call.seconds > since_s)
        going_on = [self._with_state(call) for call in of_subject(ledger.waiting)]
        return why.explain(subject, entries, going_on, slow[-20:], self._in_force, window_s=query.window)

    def _with_state(self, call: Call) -> Call:
        """Return a call that goes on, with what its fetch waits for at the moment."""
        path = LakePath(call.path.strip("/"))
        point = self._mounts.find(path)
        if call.causes or point is None:
            return call
        states = [
            transfer.state
            for transfer in transfers_of(self._fetcher.going_on())
            if transfer.site == point.site and transfer.path == point.site_path(path) and transfer.readers
        ]
        return msgspec.structs.replace(call, causes={Cause(states[0]): call.seconds}) if states else call

    def _in_force(self, path: str, name: str) -> tuple[str, str]:
        access = Access.LIST if name == "listing_ttl" else Access.READ
        decision = self._rules.decision(LakePath(path.strip("/")), access)
        return value_text(getattr(decision.values, name)), str(decision.origins[name])

    def replicas(self) -> Replicas:
        """Return all places that may hold bytes, with their lines."""
        answers = self._status.site_facts()
        lines = {line.site: line.seen for line in self._fetcher.lines()}
        found = []
        for point in self._mounts.points:
            places = [(point.site, point.root, "origin")]
            places += [(replica.site, replica.root, "replica") for replica in point.replicas]
            for site, root, role in places:
                seen = lines.get(site)
                found.append(
                    ReplicaFacts(
                        prefix="/" + point.prefix,
                        site=site,
                        root=root,
                        role=role,
                        local=role == "origin" and point.local_root is not None,
                        answers=bool(answers.get(site, {}).get("answers", True)),
                        bytes_per_s=None if seen is None else seen.bytes_per_s,
                        ttfb_s=None if seen is None else seen.ttfb_s,
                        requests_in_flight=0 if seen is None else seen.in_flight,
                        failures_in_a_row=0 if seen is None else seen.failures_in_a_row,
                    )
                )
        return Replicas(found)

    def transfers(self) -> Transfers:
        """Return what is on its way."""
        requests = transfers_of(self._fetcher.going_on())
        orders = [
            Order(
                [f"/{path}" for path in run.paths],
                run.began_s,
                run.files_done,
                run.files_total,
                run.bytes_done,
                run.bytes_total,
                len(run.failed),
            )
            for run in self._copies.runs
        ]
        return Transfers(orders, requests[:200], max(len(requests) - 200, 0))

    def cache(self, below: str, limit: int) -> CacheFacts:
        """Return the stores and some objects of the cache. In a thread: it may look at many.

        Args:
            below: "site:path" that they lie below, "" for all.
        """
        site, _, path = below.partition(":")
        objects: list[CachedObjectFacts] = []
        for stored in self._store.objects():
            identity = stored.identity
            if below and (identity.site != site or not (identity.path + "/").startswith(path.strip("/"))):
                continue
            if len(objects) >= limit:
                return CacheFacts(self._status.store_facts(), objects, more=True)
            objects.append(
                CachedObjectFacts(
                    identity.site,
                    identity.path,
                    identity.version.size,
                    stored.present,
                    stored.used,
                    stored.sealed,
                    stored.held,
                )
            )
        return CacheFacts(self._status.store_facts(), objects, more=False)

    def rooms(self) -> Rooms:
        """Return what the other rooms want to have shown."""
        return Rooms({name: msgspec.to_builtins(room(), enc_hook=encode_unit) for name, room in self._rooms.items()})


def _waited_s(causes: Mapping[Cause, float]) -> float:
    return sum(seconds for cause, seconds in causes.items() if cause is not Cause.HERE)


def _is_meant(query: WhyQuery, entry: Recent) -> bool:
    if query.pid:
        return entry.usage.pid == query.pid
    return not query.job or entry.key.job == query.job
