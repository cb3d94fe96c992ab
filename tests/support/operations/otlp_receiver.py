"""A tiny receiver of OTLP over HTTP, which keeps what it is sent."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received:
    """Requests as they came. `arrived` is set by each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self.metrics: dict[str, Any] = {}
        """Latest message of each metric, by its name."""
        self.services: set[str] = set()
        self.spans: list[Any] = []
        self.arrived = threading.Event()

    def take(self, path: str, body: bytes) -> None:
        """One request."""
        self.bodies.append(body)
        asked: Any = ExportMetricsServiceRequest if path == "/v1/metrics" else ExportTraceServiceRequest
        message = asked.FromString(body)
        for group in getattr(message, "resource_metrics", ()) or message.resource_spans:
            self.services |= {one.value.string_value for one in group.resource.attributes if one.key == "service.name"}
            for scope in getattr(group, "scope_metrics", ()) or group.scope_spans:
                if path == "/v1/metrics":
                    self.metrics |= {metric.name: metric for metric in scope.metrics}
                else:
                    self.spans += scope.spans
        self.arrived.set()


@contextmanager
def receiver() -> Iterator[Received]:
    """On a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is told."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Received(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
