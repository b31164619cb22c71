"""What a running broker sends by OTLP, to endpoints that answer, fail, and do not answer."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult

from mpbroker.config.otlp import Destination
from mpbroker.exporter.exposition import Page
from mpbroker.exporter.otlp_sender import Origin, Sender, cause_in
from mpbroker.testing import Broker
from tests.exporter.conftest import SETTINGS, Http
from tests.support.group_members import commit
from tests.support.http_broker import replace
from tests.support.otlp_receiver import OtlpReceiver, Received
from tests.support.polling import until
from tests.support.produced import produce
from tests.support.programs import loaded


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def sending(receiver: OtlpReceiver) -> Iterator[Broker]:
    settings = {**SETTINGS, "otlp.endpoint": receiver.url, "otlp.export.interval.ms": "1000"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
        patch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=mine")
        with Broker(settings) as broker:
            yield broker


def latest(receiver: OtlpReceiver) -> Received:
    """What is sent from now on."""
    seen = len(receiver.received)
    until(lambda: len(receiver.received) > seen, "the next metrics are sent")
    return receiver.received[-1]


def test_it_sends_what_a_scrape_has(sending: Broker, receiver: OtlpReceiver) -> None:
    topic = sending.create_topic()
    produce(sending.bootstrap_servers, topic, ["v"] * 7)
    commit(sending.bootstrap_servers, "sent", topic, {0: 2})
    place = {"topic": topic, "partition": "0"}
    until(
        lambda: latest(receiver).value("kafka_consumergroup_lag", consumergroup="sent", **place) == 5,
        "the lag is sent",
    )
    found = latest(receiver)
    assert found.path == "/v1/metrics"
    assert (found.headers["api-key"], found.headers["content-encoding"]) == ("secret", "gzip")
    cluster = sending.control("status")["cluster_id"]
    service = {"service.name": "mpbroker", "service.instance.id": f"{cluster}/1"}
    service |= {"service.version": "mine", "deployment.environment": "test"}
    assert found.resource.items() >= service.items()
    assert found.value("kafka_topic_partition_current_offset", **place) == 7
    assert found.value("kafka_server_brokertopicmetrics_messagesin_total", topic=topic) == 7
    assert found.value("mpbroker_ready") == 1
    page = Http(sending).get("/metrics").text
    # A histogram and a summary are one family there.
    of_page = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE))
    kinds = {name: one.WhichOneof("data") for name, one in found.metrics.items()}
    sums = {
        f"{name}_{part}" for name, kind in of_page.items() if kind == "summary" for part in ("count", "sum")
    }
    assert kinds.keys() - sums == of_page.keys()
    expected = {"counter": "sum", "gauge": "gauge", "histogram": "histogram", "summary": "gauge"}
    assert all(kinds[name] == expected[kind] for name, kind in of_page.items())
    (point, *_) = found.metrics["mpbroker_log_commit_duration_seconds"].histogram.data_points
    assert point.count == sum(point.bucket_counts) > 0


def test_an_exporter_that_dies_counts_on(sending: Broker, receiver: OtlpReceiver) -> None:
    def began(found: Received) -> int:
        (point,) = found.metrics["mpbroker_restarts_total"].sum.data_points
        return point.start_time_unix_nano

    before = latest(receiver)
    replace(sending, "exporter")
    after = latest(receiver)
    assert began(after) == began(before) < time.time_ns()
    restarts = [one.value("mpbroker_restarts_total") for one in (before, after)]
    assert restarts[1] == (restarts[0] or 0) + 1


@pytest.mark.parametrize("status", [400, 302])
def test_an_outage_is_said_once_and_loses_nothing_else(
    sending: Broker, receiver: OtlpReceiver, status: int
) -> None:
    latest(receiver)
    before = len(sending.logs())
    receiver.status = status
    tried = receiver.attempts
    until(lambda: receiver.attempts > tried + 1, "it tries again and again")
    receiver.status = 200
    again = f"metrics arrive at {receiver.url}/v1/metrics again"
    until(lambda: again in sending.logs()[before:], "it is said that they arrive")
    said = [line for line in sending.logs()[before:].splitlines() if receiver.url in line]
    assert len(said) == 2, said
    assert "WARNING" in said[0]
    assert "metrics do not arrive" in said[0]
    assert str(status) in said[0]
    assert "opentelemetry" not in sending.logs()


def test_an_endpoint_that_does_not_answer_keeps_nobody_waiting(
    sending: Broker, receiver: OtlpReceiver
) -> None:
    http = Http(sending)
    receiver.hold()
    tried = receiver.attempts
    until(lambda: receiver.attempts > tried, "it waits for an answer")
    try:
        for path in ("/metrics", "/readyz", "/healthz"):
            assert http.get(path).status == 200
        assert sending.control("status")["processes"]
    finally:
        receiver.go_on()
    assert latest(receiver).value("mpbroker_ready") == 1


def test_variables_are_enough_and_http_is_not_needed(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    with Broker() as broker:
        until(
            lambda: any(one.resource["service.name"] == "orders" for one in receiver.received),
            "the first metrics are sent",
        )
        receiver.hold()
        # A stop waits for no endpoint.
        broker.stop()
        assert "OTLP" not in broker.logs()
    receiver.go_on()


class Exporter:
    """Does one thing after the other, and then always the last."""

    def __init__(self, *results: MetricExportResult | Exception) -> None:
        self.results = list(results)
        self.calls = 0

    def export(self, _data: object) -> MetricExportResult:
        self.calls += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (MetricExportResult.FAILURE, "the exporter gives no reason"),
        (
            OSError("HTTPConnectionPool(host='h'): (Caused by X(\"h: [Errno 111] Connection refused\"))"),
            "Conn",
        ),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_failure_of_any_kind_is_an_outage(
    failure: MetricExportResult | Exception,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = Exporter(failure, failure, MetricExportResult.SUCCESS)
    monkeypatch.setattr(Sender, "_exporter", lambda _: exporter)

    async def collect() -> Page:
        return Page()

    async def main() -> None:
        place = Destination("http://h/v1/metrics", 0.001, "")
        sender = Sender(place, Origin("c", 1, 0), collect, asyncio.get_running_loop())
        sender.start()
        while exporter.calls < 5:
            await asyncio.sleep(0)
        sender.stop()

    with caplog.at_level(logging.INFO, "mpbroker.exporter"):
        asyncio.run(main())
    begins, ends = (record for record in caplog.records if record.levelno >= logging.INFO)
    assert begins.getMessage().startswith(f"metrics do not arrive at http://h/v1/metrics: {reason}")
    assert (begins.levelname, ends.levelname) == ("WARNING", "INFO")
    assert ends.getMessage() == "metrics arrive at http://h/v1/metrics again"


def test_the_cause_is_told_without_its_wrapping() -> None:
    refused = "[Errno 111] Connection refused"
    wrapped = f'Transient error Pool(port=9): (Caused by New("{refused}")) encountered, retrying in 1.09s.'
    assert cause_in(wrapped) == "Connection refused"
    assert cause_in("Failed to export metrics batch code: 400, reason: Bad.") == (
        "Failed to export metrics batch code: 400, reason: Bad"
    )


def test_nothing_of_it_is_loaded_unless_it_sends() -> None:
    code = "from mpbroker.exporter import process; from mpbroker.supervisor import main"
    assert loaded(code, "opentelemetry", "google", "requests") == []
