"""What a node has done, as facts and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vfs.samples.admission import stop
from vfs.samples.node.conductor import Conductor
from vfs.samples.operators.registry import Registry
from vfs.samples.sandbox.messages import Confinement

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTERS = {
    "transformed": "samples sent transformed",
    "made_bytes": "bytes that transforms made",
    "sent_bytes": "bytes of samples sent, transformed and raw",
    "cpu_s": "CPU seconds of transforms",
    "unused_bytes": "bytes made and never fetched",
    "unused_cpu_s": "CPU seconds of what was never fetched",
}
_BY_REASON = {
    "raw": "samples sent raw, by reason",
    "aborted": "transforms that were aborted, by reason",
}
_GAUGES = {
    "consumed": "step being consumed, -1 before the first",
    "queued_bytes": "bytes in the queue",
    "step_s": "seconds that steps last lately",
    "cpus": "cores that its transforms take on average",
    "hit_ratio": "samples sent transformed, as a share of those that have an operator",
    "lead_s": "seconds from the last transform of a group to the beginning of its step, on average",
}


def facts(conductor: Conductor, registry: Registry, confinement: Confinement) -> dict[str, Any]:
    """Return what `/v1/status` shows."""
    queue, load = conductor.queue, conductor.load
    return {
        "jobs": {name: _job(state) for name, state in queue.jobs.items()},
        "queue": {
            "bytes": queue.queued,
            "bound": queue.bounds.queue,
            "groups": len(queue.groups),
            "held": dict(queue.held()),
        },
        "running": conductor.running,
        "load": {
            "cpus": load.cpus,
            "others_cpus": round(load.others_cpus, 3),
            "memory_free": round(load.memory_free, 3),
            "egress": round(load.egress),
            "stopped_by": stop(load, queue.bounds),
        },
        "cost_error": round(conductor.costs.error, 4),
        "faults": dict(conductor.faults),
        "operators": {name: operator.signer or "built in" for name, operator in sorted(registry.operators.items())},
        "refused_operators": registry.refused,
        "sandbox": {"by": list(confinement.by), "missing": list(confinement.missing)},
    }


def exposition(seen: dict[str, Any]) -> bytes:
    """Return the facts in the text format of Prometheus. Pure."""
    registry = CollectorRegistry()
    registry.register(_Collector(seen))
    return generate_latest(registry)


class _Collector:
    def __init__(self, seen: dict[str, Any]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        jobs = self._seen["jobs"]
        for name, about in _COUNTERS.items():
            counter = CounterMetricFamily(f"foremount_node_{name}", about, labels=["job"])
            for job, state in jobs.items():
                counter.add_metric([job], state[name])
            yield counter
        for name, about in _BY_REASON.items():
            counter = CounterMetricFamily(f"foremount_node_{name}", about, labels=["job", "reason"])
            for job, state in jobs.items():
                for reason, count in state[name].items():
                    counter.add_metric([job, reason], count)
            yield counter
        for name, about in _GAUGES.items():
            gauge = GaugeMetricFamily(f"foremount_node_{name}", about, labels=["job"])
            for job, state in jobs.items():
                gauge.add_metric([job], state[name])
            yield gauge
        error = "mean of |predicted - taken| / taken of CPU seconds"
        yield GaugeMetricFamily("foremount_node_cost_error", error, value=self._seen["cost_error"])
        yield GaugeMetricFamily("foremount_node_running", "transforms under way", value=self._seen["running"])
        others = self._seen["load"]["others_cpus"]
        yield GaugeMetricFamily("foremount_node_others_cpus", "cores that others keep busy", value=others)


def _job(state: Any) -> dict[str, Any]:
    totals = state.totals
    return {
        "consumed": state.consumed,
        "queued_bytes": state.queued,
        "step_s": round(state.step_s, 3),
        "cpus": round(state.cpus, 6),
        "hit_ratio": round(totals.hit_ratio, 4),
        "lead_s": round(totals.lead_s / totals.lead_groups, 3) if totals.lead_groups else 0.0,
        **{name: dict(getattr(totals, name)) for name in _BY_REASON},
        **{name: getattr(totals, name) for name in _COUNTERS},
    }
