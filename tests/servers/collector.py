"""An OpenTelemetry collector on loopback that keeps what it gets: OTLP over HTTP, as protobuf."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """A running one.

    Attributes:
        got: each request as it came.
    """

    url: str = ""
    got: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[Span]:
        """Return all spans so far."""
        return [
            span for each in self.got for part in each.resource_spans for scope in part.scope_spans for span in scope.spans
        ]


@contextmanager
def collector() -> Iterator[Collector]:
    """Run one until the block ends."""
    running = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            running.got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield running
        finally:
            server.shutdown()
            serving.join()
