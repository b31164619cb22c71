"""Quotas of clients that come with TLS and SASL: whose they are, and how such a connection pauses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpbroker.protocol.api_keys import ApiKey
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
