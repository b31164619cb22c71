"""Metrics that real clients push: on the page for Prometheus, and at a receiver of OTLP."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

import pytest
from confluent_kafka import Consumer, Producer

from mpbroker.testing import Broker
from tests.exporter.conftest import Http
from tests.support.client_tools import java_command, kafka_tool
from tests.support.http_broker import HTTP, replace
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.polling import until

CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
VERIFIABLE = "org.apache.kafka.tools.VerifiableProducer"
INFO = "kafka_client_info"
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


def samples(http: Http) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return a scrape; nothing if the exporter is replaced meanwhile, as it may be at any time."""
    try:
        return http.samples()
    except (OSError, HTTPException):
        return {}


def labels_of(http: Http, name: str, client_id: str) -> dict[str, str]:
    """Return the labels of a client's series; none while there is no such series."""
    found = (dict(labels) for known, labels in samples(http) if known == name)
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
            known = {name for name, labels in samples(http) if ("client_id", "rd-consumer") in labels}
            told = any(name.startswith("kafka_client_consumer_") for name in known)
            return told and bool(labels_of(http, LIBRDKAFKAS, "rd-producer"))

        until(pushed, "both have pushed")
        about = until(lambda: labels_of(http, INFO, "rd-producer"), "its info is there")
        assert about["client_software_name"] == "confluent-kafka-python"
        assert (about["client_source_address"], about["principal"]) == ("127.0.0.1", "User:ANONYMOUS")
        labels = until(lambda: labels_of(http, LIBRDKAFKAS, "rd-producer"), "its labels are there")
        assert labels["client_instance_id"] == about["client_instance_id"]
        until(
            lambda: any(one.value(LIBRDKAFKAS, **labels) is not None for one in receiver.received),
            "a receiver of OTLP has it, too",
        )
        producer.flush()
        consumer.close()
    until(lambda: result(http, "taken") is not None, "pushes are counted")
    assert not result(http, "malformed")
    assert not result(http, "dropped")


def result(http: Http, name: str) -> float | None:
    return samples(http).get(("mpbroker_client_metrics_pushes_total", frozenset({("result", name)})))


def test_a_producer_of_java_and_a_new_exporter(broker: Broker, http: Http) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--throughput", "20")
    with subscribed(broker, "producer-.*"):
        command = java_command(VERIFIABLE, *server)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as java:
            try:
                labels = until(lambda: labels_of(http, JAVAS, "producer-1"), "it has pushed")
                sent = (JAVAS, frozenset(labels.items()))
                until(lambda: samples(http).get(sent, 0) > 5, "deltas are added up")
                about = until(lambda: labels_of(http, INFO, "producer-1"), "its info is there")
                assert about["client_software_name"] == "apache-kafka-java"
                # What was pushed is gone with its exporter; the client goes on.
                replace(broker, "exporter")
                until(lambda: samples(http).get(sent, 0) > 0, "it has pushed to the successor")
            finally:
                java.terminate()
    assert not samples(http).get(("mpbroker_client_metrics_left_out_total", frozenset()), 0)
