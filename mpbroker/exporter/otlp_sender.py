"""Sends metrics by OTLP over HTTP with OpenTelemetry's exporter, from a thread of the exporter process.

Unsent metrics are dropped: metrics are cumulative, so the next ones include them. An endpoint that is down or
slow delays only this thread. The thread also imports OpenTelemetry, which takes half a second.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpbroker.config.otlp import Destination
from mpbroker.config.version import VERSION
from mpbroker.exporter.exposition import Page

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

    from mpbroker.exporter.otlp_points import Starts
    from mpbroker.exporter.otlp_session import BoundedSession

SERVICE: Final = "mpbroker"
_THEIRS: Final = "opentelemetry"
_MESSAGES_MAX: Final = 16
_ERRNO: Final = re.compile(r"""\[Errno -?\d+\] ([^"')]+)""")

log = logging.getLogger("mpbroker.exporter")


class Origin(NamedTuple):
    """The broker whose metrics are sent, and the time when its counters were 0 (ns since 1970)."""

    cluster_id: str
    node_id: int
    began_ns: int

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes of the OpenTelemetry resource that stands for the broker."""
        return {
            "service.name": SERVICE,
            "service.instance.id": f"{self.cluster_id}/{self.node_id}",
            "service.version": VERSION,
        }


class Sender:
    """The sending thread. `collect`, awaited in `loop`, returns a page, or None if it cannot be made."""

    def __init__(
        self,
        destination: Destination,
        origin: Origin,
        collect: Callable[[], Coroutine[Any, Any, Page | None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._destination = destination
        self._origin = origin
        self._collect = collect
        self._loop = loop
        self._fails = False
        self._over = threading.Event()
        self._reasons = _Messages()
        self._session: BoundedSession | None = None
        self._starts: Starts | None = None

    def start(self) -> None:
        # A stop does not wait for an endpoint that does not answer.
        threading.Thread(target=self._run, name="otlp", daemon=True).start()

    def stop(self) -> None:
        """Make the thread send nothing more. Call this before the event loop ends."""
        self._over.set()

    def _run(self) -> None:
        try:
            exporter, resource = self._exporter(), self._resource()
        except Exception as error:  # noqa: BLE001 - the SDK may raise anything about its variables
            log.error("metrics are not sent to %s: %s", self._destination.url, error)
            return
        due = time.monotonic()
        while not self._over.wait(max(due - time.monotonic(), 0)):
            try:
                self._report(self._send(exporter, resource))
            except CancelledError:
                return  # the loop has ended
            except Exception as error:
                if self._over.is_set():
                    return
                # Earlier versions of the exporter raise errors that they do not retry.
                self._report(cause_in(str(error)) or type(error).__name__)
                log.debug("metrics by OTLP", exc_info=True)
            due = max(due + self._destination.interval_s, time.monotonic())

    def _exporter(self) -> MetricExporter:
        """Return OpenTelemetry's exporter. Environment variables set its headers, certificates, timeout."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from mpbroker.exporter.otlp_session import BoundedSession

        # It logs each failure, and each attempt; here an outage is logged once.
        theirs = logging.getLogger(_THEIRS)
        theirs.propagate = False
        theirs.addHandler(self._reasons)
        self._session = BoundedSession()
        return OTLPMetricExporter(endpoint=self._destination.url, session=self._session)

    def _resource(self) -> Resource:
        """Return the broker's resource. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES change its attributes."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        return Resource.create({**self._origin.attributes, **OTELResourceDetector().detect().attributes})

    def _send(self, exporter: MetricExporter, resource: Resource) -> str:
        """Send the current metrics. Return the reason why they did not arrive, or ""."""
        from opentelemetry.sdk.metrics.export import (
            MetricExportResult,
            MetricsData,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from mpbroker.exporter.otlp_points import Points, Starts

        page = asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result()
        if page is None:
            return ""  # which is logged
        if self._starts is None:
            self._starts = Starts(self._origin.began_ns)
        metrics = Points(self._origin.began_ns, time.time_ns(), self._starts).metrics(page)
        scope = ScopeMetrics(InstrumentationScope(SERVICE, VERSION), metrics, "")
        self._reasons.texts.clear()
        result = exporter.export(MetricsData([ResourceMetrics(resource, [scope], "")]))
        if result is MetricExportResult.SUCCESS:
            return ""
        if self._session is not None and self._session.problem:
            return self._session.problem
        # The first one has the cause; the last one may only report a timeout.
        return cause_in(next(iter(self._reasons.texts), "the exporter gives no reason"))

    def _report(self, problem: str) -> None:
        """Log once that an outage begins (with the problem), and once that it ends (if `problem` is "")."""
        if self._fails and not problem:
            log.info("metrics arrive at %s again", self._destination.url)
        elif problem and not self._fails:
            log.warning(
                "metrics do not arrive at %s: %s. Retrying every %g s, without further messages",
                self._destination.url,
                problem,
                self._destination.interval_s,
            )
        self._fails = bool(problem)


def cause_in(text: str) -> str:
    """Return the message of the system error that is quoted in `text`, else `text`."""
    found = _ERRNO.search(text)
    return found[1] if found else text.rstrip(".")


class _Messages(logging.Handler):
    """A log handler that keeps OpenTelemetry's messages, because a failed export returns no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < _MESSAGES_MAX:
            self.texts.append(record.getMessage())
