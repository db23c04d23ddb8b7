"""Slow operations as spans: what a collector gets, and that one that is away keeps nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.lake import wait_until
from vfs.usage import Call, Cause

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'foremount[otel]'")

from tests.servers.collector import Collector, collector
from vfs.admin.spans import Spans

CALL = Call("read", "/ckpt/model.safetensors", 77, 1000, "python", 1_796_000_000.5, 2.25, {Cause.LATENCY: 2.0})


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as running:
        yield running


def test_slow_operation_is_a_span_with_its_times_and_causes(receiver: Collector) -> None:
    spans = Spans(receiver.url, "/mnt/lake")
    spans.add(CALL)
    spans.close()
    wait_until(lambda: spans.counters["sent"] == 1, "the span to be sent")
    (resource,) = receiver.got[0].resource_spans
    assert {"foremount", "/mnt/lake"} <= {each.value.string_value for each in resource.resource.attributes}
    (span,) = resource.scope_spans[0].spans
    assert span.name == "read"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_796_000_000_500_000_000, 1_796_000_002_750_000_000)
    attributes = {each.key: each.value for each in span.attributes}
    assert attributes["file.path"].string_value == "/ckpt/model.safetensors"
    assert attributes["process.pid"].int_value == 77
    assert attributes["foremount.waited.latency"].double_value == 2.0


def test_collector_that_takes_nothing_keeps_nobody_waiting_and_the_lost_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        spans = Spans(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", "/mnt/lake", send_s=0.5)
        for _ in range(5000):
            spans.add(CALL)
        spans.close()
    wait_until(lambda: spans.counters["lost"] > 0, "spans to be given up")
    assert spans.facts()["ended"] == 5000
    assert spans.facts()["sent"] == 0
