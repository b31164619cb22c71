"""The client against this broker's own listeners of every security protocol, right and wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, from_properties
from mpbroker.client.errors import ClientError
from mpbroker.client.producer import Producer
from mpbroker.protocol import messages as m
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench.brokers import HOST
from tests.support.real_brokers import served
from tests.support.secure_broker import PLAIN_PASSWORD, PROTOCOLS, REAUTH_MS, SecureBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


def config(broker: SecureBroker, protocol: str, **more: str) -> ClientConfig:
    properties = {
        "security.protocol": protocol,
        **{name.replace("_", "."): text for name, text in more.items()},
    }
    if protocol in ("SSL", "SASL_SSL"):
        properties.setdefault("ssl.truststore.location", str(broker.ca))
    if protocol.startswith("SASL"):
        properties = {
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": PLAIN_PASSWORD,
            **properties,
        }
    return from_properties(properties)[0]


def cluster(broker: SecureBroker, listener: str, **more: str) -> Cluster:
    settings = config(broker, more.pop("protocol", PROTOCOLS[listener]), **more)
    return Cluster([(HOST, broker.ports[listener])], settings)


@pytest.mark.parametrize("listener", ["OPEN", "TLS", "MUTUAL", "SASL", "BOTH"])
def test_writing_and_asking(broker: SecureBroker, listener: str) -> None:
    """Also what is larger than one TLS record and than the kernel's buffers."""
    own = {"ssl_keystore_location": str(broker.client_pem)} if listener == "MUTUAL" else {}
    made = cluster(broker, listener, **own)
    topic = f"written-over-{listener.lower()}"
    try:
        for _ in range(1000):
            if not made.refresh([topic], auto_create=True).topics[0].error_code:
                break
            made.client.poll(50)
        producer = Producer(
            made,
            acks=-1,
            codec=Codec.NONE,
            delivery_timeout_ms=20_000,
            trouble=pytest.fail,
        )
        for _ in range(8):
            producer.append(topic, 0, [NewRecord(value=bytes(900_000), key=None, timestamp=0)])
        producer.flush()
        leader = made.metadata.leader(topic, 0)
        assert leader is not None
        wanted = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
        request = m.FetchRequest(
            max_bytes=1 << 24,
            topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        )
        answer: m.FetchResponse = made.ask(leader.id, request)
        assert len(answer.responses[0].partitions[0].records or b"") > 8 * 900_000
    finally:
        made.close()


@pytest.mark.parametrize("listener", ["SHORT", "SHORTTLS"])
def test_a_connection_outlives_its_session(broker: SecureBroker, listener: str) -> None:
    """It authenticates again before the broker would end it."""
    made = cluster(broker, listener)
    try:
        for _ in range(3):
            made.ask_any(m.MetadataRequest(topics=[]))
            made.client.poll(REAUTH_MS - 100)
        made.ask_any(m.MetadataRequest(topics=[]))
        (node,) = made.metadata.nodes()
        assert made.client.failure(node.id) is None
    finally:
        made.close()


@pytest.mark.parametrize(
    ("listener", "protocol", "more", "expected"),
    [
        ("SASL", "SASL_PLAINTEXT", {"sasl_password": "wrong"}, r"Invalid username or password \(SASL_AUTH"),
        ("BOTH", "SASL_SSL", {"sasl_mechanism": "SCRAM-SHA-256"}, "SASL_AUTHENTICATION_FAILED"),
        ("SASL", "PLAINTEXT", {}, "is PLAINTEXT: does this listener want another"),
        ("TLS", "PLAINTEXT", {}, "it speaks TLS|is PLAINTEXT: does this listener want another"),
        ("OPEN", "SSL", {}, "if this listener has no TLS, set|is SSL: does this listener want another"),
        ("OPEN", "SASL_PLAINTEXT", {}, "this listener does not ask for SASL"),
        ("TLS", "SASL_SSL", {}, "this listener does not ask for SASL"),
        ("MUTUAL", "SSL", {}, "it refused the TLS handshake"),
    ],
)
def test_what_does_not_fit_is_said(
    broker: SecureBroker, listener: str, protocol: str, more: dict[str, str], expected: str
) -> None:
    made = cluster(broker, listener, protocol=protocol, **more)
    try:
        with pytest.raises(ClientError, match=expected):
            made.ask_any(m.MetadataRequest(topics=[]))
    finally:
        made.close()
