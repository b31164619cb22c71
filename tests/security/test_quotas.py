"""Quotas of clients that come with TLS and SASL: whose they are, and how such a connection pauses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import MetadataRequest
from tests.support.quota_client import PRODUCE, VERSIONS, alter, produce_request
from tests.support.real_brokers import create_topic
from tests.support.secure_broker import RawClient, SecureBroker

BOUND = 1000.0


@contextlib.contextmanager
def limited(broker: SecureBroker, *entity: tuple[str, str | None]) -> Iterator[None]:
    alter(broker, entity, producer_byte_rate=BOUND)
    try:
        yield
    finally:
        alter(broker, entity, producer_byte_rate=None)


def test_a_quota_is_for_the_mapped_name(broker: SecureBroker) -> None:
    create_topic(broker.bootstrap, "limited", 1)

    def pause_ms(client: RawClient) -> int:
        answer = client.ask(ApiKey.PRODUCE, VERSIONS[PRODUCE], produce_request("limited", 15_000))
        assert [p.error_code for t in answer.responses for p in t.partition_responses] == [0]
        return int(answer.throttle_time_ms)

    with (
        limited(broker, ("user", "client")),
        broker.connect("TLS") as nobody,
        broker.connect("TLS", own=True) as client,
        broker.connect("MUTUAL", own=True) as whole,
    ):
        assert pause_ms(client) > 1000
        assert pause_ms(nobody) == 0
        assert pause_ms(whole) == 0, "it is somebody else there"


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_a_throttled_connection_answers_and_reads_on_later(broker: SecureBroker, listener: str) -> None:
    """What is pipelined behind it is decrypted with it, and waits nevertheless."""
    topic = f"paused-{listener}"
    create_topic(broker.bootstrap, topic, 1)
    # What other tests have used of the user's quotas would make the pause longer.
    with (
        limited(broker, ("user", "ann"), ("client-id", topic)),
        broker.connect(listener) as client,
    ):
        client.client_id = topic
        assert client.plain().error_code == 0
        begun = time.monotonic()
        client.send(
            client.frame(ApiKey.PRODUCE, VERSIONS[PRODUCE], produce_request(topic, 13_000))
            + client.frame(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        )
        throttle_s = client.answer(ApiKey.PRODUCE, VERSIONS[PRODUCE]).throttle_time_ms / 1000
        assert throttle_s > 1
        assert len(client.answer(ApiKey.METADATA, 12).brokers) == 1
        assert time.monotonic() - begun >= throttle_s
