"""Metrics for Prometheus: one table, which is also the documentation (docs/metrics.md) and the source of the dashboard.

Pure: no I/O, no clock. Values are read out of the records that the API shows; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vfs.admin.records import JobFacts, Overview
from vfs.usage import Cause, Row, Source

Sample = tuple[tuple[str, ...], float]
Reader = Callable[[Overview], Iterator[Sample]]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text format that every Prometheus reads."""


@dataclass(frozen=True)
class Line:
    """One metric.

    Attributes:
        name: a counter's without "_total", which the format adds.
        read: yields label values and number.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str
    read: Reader

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _by_row(number: str) -> Reader:
    def read(seen: Overview) -> Iterator[Sample]:
        for operation, by_source in seen.stats.rows.items():
            for source, row in by_source.items():
                yield (operation, source), getattr(row, number)

    return read


def _by_job(number: str) -> Reader:
    def read(seen: Overview) -> Iterator[Sample]:
        for job in seen.jobs.jobs:
            sums: dict[Source, Row] = {}
            for by_source in job.rows.values():
                for source, row in by_source.items():
                    sums.setdefault(source, Row()).add(row)
            for source, row in sums.items():
                yield (*_job(job), source), getattr(row, number)

    return read


def _job(job: JobFacts) -> tuple[str, str, str]:
    return job.job, str(job.uid), job.cgroup


def _job_waits(seen: Overview) -> Iterator[Sample]:
    for job in seen.jobs.jobs:
        for cause, seconds in job.waits.items():
            yield (*_job(job), cause), seconds


def _waits(seen: Overview) -> Iterator[Sample]:
    for cause, seconds in seen.stats.causes.items():
        if cause is not Cause.HERE:
            yield (cause,), seconds


def _one(read: Callable[[Overview], Any]) -> Reader:
    return lambda seen: iter([((), float(read(seen)))])


def _fetches(*names: str) -> Reader:
    def read(seen: Overview) -> Iterator[Sample]:
        for name in names:
            yield (name.removesuffix("_bytes"),) if len(names) > 1 else (), float(seen.status.fetches.get(name, 0))

    return read


def _stores(name: str) -> Reader:
    def read(seen: Overview) -> Iterator[Sample]:
        for store, facts in seen.status.stores.items():
            if isinstance(facts.get(name), (int, float)):
                yield (store,), float(facts[name])

    return read


def _lines(read_line: Callable[[Any], float]) -> Reader:
    def read(seen: Overview) -> Iterator[Sample]:
        for line in seen.stats.lines:
            yield (line.site,), float(read_line(line))

    return read


def _sites(seen: Overview) -> Iterator[Sample]:
    for site, facts in seen.status.sites.items():
        yield (site,), float(bool(facts.get("answers", True)))


def _requests(seen: Overview) -> Iterator[Sample]:
    for request, count in seen.status.worker.counters.items():
        yield (request,), count


_JOB = ("job", "uid", "cgroup")


def _uploads(*keys: str) -> Reader:
    """Read a number of the uploads; nothing where no remote origin is writable."""

    def read(seen: Overview) -> Iterator[Sample]:
        found: Any = seen.rooms.rooms.get("uploads")
        if found is not None:
            for key in keys:
                found = found.get(key, 0)
            yield (), found

    return read


def _samples(key: str) -> Reader:
    """Read a number of each job at `.jobs`; nothing where there are none."""

    def read(seen: Overview) -> Iterator[Sample]:
        for row in seen.rooms.rooms.get("samples", ()):
            if key in row:
                yield (row["job"],), row[key]

    return read


def _raw_samples(seen: Overview) -> Iterator[Sample]:
    for row in seen.rooms.rooms.get("samples", ()):
        for reason, count in row.get("raw", {}).items():
            yield (row["job"], reason), count


METRICS = [
    Line("foremount_info", "gauge", ("version", "policy"), "1; version of the package and of the policy in force",
         lambda seen: iter([((seen.status.version, seen.status.policies.version), 1.0)])),
    Line("foremount_healthy", "gauge", (), "1 where nothing is wrong that `foremount status` would name",
         _one(lambda seen: seen.status.health.verdict == "serving")),
    Line("foremount_operations", "counter", ("operation", "source"),
         "operations of callers; reads in passthrough and from the page cache are not seen, their opens are",
         _by_row("count")),
    Line("foremount_bytes", "counter", ("operation", "source"), "bytes that callers read and wrote through the worker",
         _by_row("bytes")),
    Line("foremount_operation_seconds", "counter", ("operation", "source"),
         "from the kernel's request to its answer, added up over callers", _by_row("seconds")),
    Line("foremount_wait_seconds", "counter", ("cause",), "seconds that callers waited, by cause", _waits),
    Line("foremount_job_operations", "counter", (*_JOB, "source"), "operations of a job; the 256 latest jobs",
         _by_job("count")),
    Line("foremount_job_bytes", "counter", (*_JOB, "source"), "bytes of a job", _by_job("bytes")),
    Line("foremount_job_wait_seconds", "counter", (*_JOB, "cause"), "seconds that a job waited, by cause", _job_waits),
    Line("foremount_job_stall_ratio", "gauge", _JOB, "part of the last minute that a job's processes waited, on average",
         lambda seen: (((*_job(job),), job.stall) for job in seen.jobs.jobs)),
    Line("foremount_waiting_operations", "gauge", (), "operations that have been going on for 0.1 s or more",
         _one(lambda seen: len(seen.stats.waiting))),
    Line("foremount_lost_reports", "counter", (), "reports of the worker that came faster than they could be added up",
         _one(lambda seen: seen.stats.lost_reports)),
    Line("foremount_kernel_requests", "counter", ("request",),
         "requests of the kernel to the worker by kind, `failed` ones beside them", _requests),
    Line("foremount_worker_connected", "gauge", (), "1 while the worker has a line to the agent",
         _one(lambda seen: seen.status.worker.connected)),
    Line("foremount_passthrough", "gauge", (), "1 where the kernel reads local files alone",
         _one(lambda seen: seen.status.worker.passthrough)),
    Line("foremount_open_objects", "gauge", (), "objects that are open and filled by the agent",
         _one(lambda seen: seen.status.open_objects)),
    Line("foremount_fetches", "counter", (), "requests to sites, retries and hedges included", _fetches("fetches")),
    Line("foremount_fetched_bytes", "counter", ("asked",), "bytes from sites: foreground, prefetched, background or copied",
         _fetches("foreground_bytes", "prefetched_bytes", "background_bytes", "copied_bytes")),
    Line("foremount_fetch_retries", "counter", (), "requests sent again after a transient failure", _fetches("retries")),
    Line("foremount_fetch_failovers", "counter", (), "requests sent to another replica than the one before",
         _fetches("failovers")),
    Line("foremount_fetch_hedges", "counter", (), "second requests because the first was slow", _fetches("hedges")),
    Line("foremount_fetch_stalls", "counter", (), "connections that stayed open and sent nothing", _fetches("stalls")),
    Line("foremount_fetch_failures", "counter", (), "fetches given up: their callers got an error", _fetches("failures")),
    Line("foremount_cache_bypasses", "counter", (), "objects moved to memory because the cache could not take them",
         _fetches("bypasses")),
    Line("foremount_store_used_bytes", "gauge", ("store",), "on the disk, or in memory", _stores("used")),
    Line("foremount_store_size_bytes", "gauge", ("store",), "that it may use", _stores("cap")),
    Line("foremount_store_disk_free_bytes", "gauge", ("store",), "left on its file system", _stores("disk_free")),
    Line("foremount_store_objects", "gauge", ("store",), "objects in it", _stores("objects")),
    Line("foremount_store_held_objects", "gauge", ("store",), "objects that may not be evicted", _stores("held")),
    Line("foremount_store_evicted_bytes", "counter", ("store",), "that made room", _stores("evicted_bytes")),
    Line("foremount_store_broken_blocks", "counter", ("store",), "that failed their digest and were dropped",
         _stores("blocks_broken")),
    Line("foremount_site_answers", "gauge", ("site",), "1 where it answered when it was asked last", _sites),
    Line("foremount_site_first_byte_seconds", "gauge", ("site",), "time to first byte of the unloaded line",
         _lines(lambda line: line.seen.ttfb_s)),
    Line("foremount_site_bytes_per_second", "gauge", ("site",), "what the line carries when it is full",
         _lines(lambda line: line.seen.bytes_per_s)),
    Line("foremount_site_requests_in_flight", "gauge", ("site",), "right now", _lines(lambda line: line.seen.in_flight)),
    Line("foremount_site_requests_waiting", "gauge", ("site",), "for their turn", _lines(lambda line: line.waiting)),
    Line("foremount_policy_refused", "gauge", (), "1 while documents can't be used and an older set stays in force",
         _one(lambda seen: seen.policies.error is not None)),
    Line("foremount_uploads_behind_files", "gauge", (), "staged here that their origins don't have as they are now",
         _uploads("behind", "files")),
    Line("foremount_uploads_behind_bytes", "gauge", (), "of these files", _uploads("behind", "bytes")),
    Line("foremount_uploads_behind_seconds", "gauge", (), "since the oldest of them was complete",
         _uploads("behind", "seconds")),
    Line("foremount_uploads_failing_files", "gauge", (), "whose last try failed", _uploads("states", "failed")),
    Line("foremount_uploaded_files", "counter", (), "that origins have, verified", _uploads("uploaded", "files")),
    Line("foremount_uploaded_bytes", "counter", (), "that origins took", _uploads("uploaded", "bytes")),
    Line("foremount_upload_failures", "counter", (), "tries that failed", _uploads("uploaded", "failures")),
    Line("foremount_orders", "gauge", (), "`foremount fetch` orders that go on",
         _one(lambda seen: len(seen.transfers.orders))),
    Line("foremount_samples_step", "gauge", ("job",), "the step of a job at .jobs that this host reads", _samples("step")),
    Line("foremount_samples_ready", "counter", ("job",), "samples that were transformed when they were read",
         _samples("ready")),
    Line("foremount_samples_raw", "counter", ("job", "reason"), "samples that were given raw, by reason", _raw_samples),
    Line("foremount_samples_lead_seconds", "gauge", ("job",), "from a group's being ready to its rank's coming, on average",
         _samples("lead_s")),
    Line("foremount_samples_wait_seconds", "counter", ("job",), "that readers waited for the agent", _samples("waited_s")),
    Line("foremount_samples_prepared_bytes", "counter", ("job",), "that were prepared before their step",
         _samples("prepared_bytes")),
    Line("foremount_samples_unused_bytes", "counter", ("job",), "that were prepared and whose step was never read here",
         _samples("unused_bytes")),
    Line("foremount_samples_cpu_seconds", "counter", ("job",), "of operators on this host", _samples("cpu_s")),
]  # fmt: skip


class _Table:
    """Yields the table's metrics as prometheus-client wants them."""

    def __init__(self, seen: Overview) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        for line in METRICS:
            kind = CounterMetricFamily if line.kind == "counter" else GaugeMetricFamily
            family = kind(line.name, line.about, labels=line.labels)
            for labels, value in line.read(self._seen):
                family.add_metric(labels, value)
            yield family


def exposition(seen: Overview) -> bytes:
    """Return all metrics in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Table(seen))
    return generate_latest(registry)


def reference() -> str:
    """Return the table as documentation for people: docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated from the table in `vfs/admin/metrics.py` (`python -m vfs.admin.document`). Served as `/metrics` by the",
        "admin API, for Prometheus; `mount_scripts/grafana/foremount.json` is a dashboard. What the kernel reads alone, in",
        "passthrough and from its page cache, is not counted anywhere: only the opens are.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{line.shown}` | {line.kind} | {', '.join(line.labels)} | {line.about} |" for line in METRICS]
    return "\n".join(lines) + "\n"
