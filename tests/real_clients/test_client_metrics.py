"""Metrics that real clients push: on the page for Prometheus, and at a receiver of OTLP."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from mpbroker.testing import Broker
from tests.exporter.conftest import Http
from tests.support.client_tools import java_command, kafka_tool
from tests.support.http_broker import HTTP, replace
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.polling import until

CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
PERFORMANCE = "org.apache.kafka.tools.VerifiableProducer"
LIBRDKAFKAS = "kafka_client_producer_connection_creation_total"
JAVAS = "kafka_client_producer_record_send_total"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def broker(receiver: OtlpReceiver) -> Iterator[Broker]:
    sends = {"otlp.endpoint": receiver.url, "otlp.export.interval.ms": "1000"}
    with Broker({**HTTP, **sends, "client.telemetry.enable": "true", "num.io.threads": "2"}) as running:
        running.create_topic("t")
        yield running


@pytest.fixture(scope="module")
def http(broker: Broker) -> Http:
    return Http(broker)


@contextmanager
def subscribed(broker: Broker, client_id: str) -> Iterator[None]:
    """Have clients push all that they have, ten times a second."""
    of = ("--bootstrap-server", broker.bootstrap_servers, "--name", client_id)
    what = ("--metrics", "*", "--interval", "100", "--match", f"client_id={client_id}")
    kafka_tool(CLIENT_METRICS, *of[:2], "--alter", *of[2:], *what)
    yield
    kafka_tool(CLIENT_METRICS, *of[:2], "--delete", *of[2:])


def labels_of(http: Http, name: str, client_id: str) -> dict[str, str]:
    """Return the labels of a client's series; none while there is no such series."""
    found = (dict(labels) for known, labels in http.samples() if known == name)
    return next((labels for labels in found if labels["client_id"] == client_id), {})


def test_producer_and_consumer_of_librdkafka(broker: Broker, http: Http, receiver: OtlpReceiver) -> None:
    server = {"bootstrap.servers": broker.bootstrap_servers}
    with subscribed(broker, "rd-.*"):
        producer = Producer({**server, "client.id": "rd-producer"})
        reads = {"group.id": "rd-group", "auto.offset.reset": "earliest"}
        consumer = Consumer({**server, **reads, "client.id": "rd-consumer"})
        consumer.subscribe(["t"])

        def pushed() -> bool:
            producer.produce("t", b"value")
            producer.poll(0.05)
            consumer.poll(0.05)
            known = {name for name, labels in http.samples() if ("client_id", "rd-consumer") in labels}
            told = any(name.startswith("kafka_client_consumer_") for name in known)
            return told and bool(labels_of(http, LIBRDKAFKAS, "rd-producer"))

        until(pushed, "both have pushed")
        about = labels_of(http, "kafka_client_info", "rd-producer")
        assert about["client_software_name"] == "confluent-kafka-python"
        assert (about["client_source_address"], about["principal"]) == ("127.0.0.1", "User:ANONYMOUS")
        labels = labels_of(http, LIBRDKAFKAS, "rd-producer")
        assert labels["client_instance_id"] == about["client_instance_id"]
        until(
            lambda: any(one.value(LIBRDKAFKAS, **labels) is not None for one in receiver.received),
            "a receiver of OTLP has it, too",
        )
        producer.flush()
        consumer.close()
    assert http.value("mpbroker_client_metrics_pushes_total", result="malformed") == 0
    assert http.value("mpbroker_client_metrics_pushes_total", result="dropped") == 0


def test_a_producer_of_java_and_a_new_exporter(broker: Broker, http: Http) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--throughput", "20")
    with subscribed(broker, "producer-.*"):
        command = java_command(PERFORMANCE, *server)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as java:
            try:
                until(lambda: bool(labels_of(http, JAVAS, "producer-1")), "it has pushed")
                labels = labels_of(http, JAVAS, "producer-1")
                until(lambda: (http.value(JAVAS, **labels) or 0) > 5, "deltas are added up")
                about = labels_of(http, "kafka_client_info", "producer-1")
                assert about["client_software_name"] == "apache-kafka-java"
                # What was pushed is gone with its exporter; the client goes on.
                replace(broker, "exporter")
                until(lambda: (http.value(JAVAS, **labels) or 0) > 0, "it has pushed to the successor")
            finally:
                java.terminate()
    assert http.value("mpbroker_client_metrics_left_out_total") == 0
