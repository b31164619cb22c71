"""A receiver of metrics by OTLP over HTTP that keeps what it gets, and fails when it is told to."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

HOST = "127.0.0.1"


class Received(NamedTuple):
    """A request: its path, its headers in lower case, and what it says."""

    path: str
    headers: dict[str, str]
    request: ExportMetricsServiceRequest

    @property
    def resource(self) -> dict[str, str]:
        return {
            one.key: one.value.string_value for one in self.request.resource_metrics[0].resource.attributes
        }

    @property
    def metrics(self) -> dict[str, Metric]:
        return {one.name: one for one in self.request.resource_metrics[0].scope_metrics[0].metrics}

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a gauge or sum; None if there is none with this name and these labels."""
        metric = self.metrics.get(name)
        if metric is None:
            return None
        for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points:
            if {one.key: one.value.string_value for one in point.attributes} == labels:
                return float(point.as_int or point.as_double)
        return None


class OtlpReceiver:
    """Use it as a context manager. `status` is what it answers; it holds answers while `held` is set."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[Received] = []
        self.attempts = 0
        self._goes_on = threading.Event()
        self._goes_on.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.attempts += 1
                receiver._goes_on.wait()
                if receiver.status == 200:
                    receiver._take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def hold(self) -> None:
        """Let whoever sends wait for an answer."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.received.append(Received(path, headers, ExportMetricsServiceRequest.FromString(body)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
