"""Slow operations as OpenTelemetry spans, for who has a collector. Needs `foremount[otel]`.

A thread of OpenTelemetry's sends them in batches. Nothing waits for it: what the collector does not take in time, or what
there is no room for, is lost.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vfs import __version__
from vfs.errors import Unavailable
from vfs.usage import Call

SEND_S = 5.0
"""For one batch. A collector that is slower counts as away."""
FLUSH_S = 1.0
"""At the end of the agent."""
_NS = 1_000_000_000


class Spans:
    """Sends spans to one collector.

    Attributes:
        counters: spans "ended", "sent", and "lost" by the collector; the rest waits, or found no room.
    """

    def __init__(self, endpoint: str, mountpoint: str, *, send_s: float = SEND_S) -> None:
        """Start the thread.

        Args:
            endpoint: URL that takes OTLP over HTTP, as "http://collector:4318/v1/traces".
        Raises:
            Unavailable: the libraries are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
        except ImportError as exc:
            raise Unavailable("admin.traces", f"{exc.name} is not installed", "pip install 'foremount[otel]'") from exc
        counters = self.counters = Counter[str]()

        class Counting(OTLPSpanExporter):
            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                try:
                    result = super().export(spans)
                except Exception:
                    counters["lost"] += len(spans)
                    raise
                counters["sent" if result is SpanExportResult.SUCCESS else "lost"] += len(spans)
                return result

        named = {"service.name": "foremount", "service.version": __version__, "host.name": socket.gethostname()}
        self._provider = TracerProvider(
            resource=Resource.create({**named, "foremount.mountpoint": mountpoint}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(Counting(endpoint, timeout=send_s), schedule_delay_millis=1000))
        self._tracer = self._provider.get_tracer("foremount", __version__)

    def add(self, call: Call) -> None:
        """Hand over an operation that has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self.counters["ended"] += 1
        began_ns = int(call.began_s * _NS)
        span = self._tracer.start_span(
            call.operation, kind=SpanKind.SERVER, attributes=attributes_of(call), start_time=began_ns
        )
        if call.error:
            span.set_status(Status(StatusCode.ERROR, call.error))
        span.end(began_ns + int(call.seconds * _NS))

    def facts(self) -> dict[str, Any]:
        """Return the counts for page, `top` and status."""
        return {name: self.counters[name] for name in ("ended", "sent", "lost")}

    def close(self) -> None:
        """Send what is left, for a second at most: a collector that hangs does not keep the agent."""
        flushing = threading.Thread(target=self._provider.force_flush, args=(int(FLUSH_S * 1000),), daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)


def attributes_of(call: Call) -> dict[str, str | int | float]:
    """Return what a span says of an operation, by the names of OpenTelemetry's conventions where there are any. Pure."""
    waited = {f"foremount.waited.{cause.value}": seconds for cause, seconds in call.causes.items()}
    return {
        "file.path": call.path,
        "process.pid": call.pid,
        "process.executable.name": call.command,
        "user.id": str(call.uid),
        **waited,
    }
