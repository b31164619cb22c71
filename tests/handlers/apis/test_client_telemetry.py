"""GetTelemetrySubscriptions and PushTelemetry, through a handler whose peers are the test."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.client_metrics import Push
from mpbroker.ipc.metadata import MetadataDelta, SubscriptionImage
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from tests.support.handler_rig import HANDLER, Rig, request_frame, rig

FULL = Push(bytes(16), "c", "java", "4.3.0", "127.0.0.1", "User:a", 60_000, False, 0, bytes(1 << 10))
API_VERSIONS, GET, PUSH = 18, 71, 72


@pytest.fixture(name="telling")
def _telling() -> Iterator[Rig]:
    with rig(BrokerConfig(client_telemetry_enable=True, telemetry_max_bytes=1000)) as made:
        made.publish()
        configs = {"metrics": "*", "interval.ms": "1000", "match": "client_id=test"}
        news = MetadataDelta(2, subscriptions=[SubscriptionImage("s", configs)])
        made.bulletin.publish_delta(msgspec.msgpack.encode(news))
        made.turn()
        yield made


def test_a_client_gets_its_subscription_and_pushes(telling: Rig) -> None:
    got = telling.ask(GET, 0, GetTelemetrySubscriptionsRequest())
    assert (got.error_code, got.requested_metrics, got.push_interval_ms) == (0, ["*"], 1000)
    assert (got.accepted_compression_types, got.delta_temporality) == ([4, 3, 1, 2], True)
    assert got.telemetry_max_bytes == 1000
    assert telling.ask(GET, 0, GetTelemetrySubscriptionsRequest(got.client_instance_id)).error_code == (
        ErrorCode.THROTTLING_QUOTA_EXCEEDED
    )
    pushed = telling.ask(
        PUSH, 0, PushTelemetryRequest(got.client_instance_id, got.subscription_id, metrics=b"metrics")
    )
    assert pushed.error_code == 0
    taken = telling.memory.client_metrics(HANDLER).take()
    assert taken is not None
    assert (taken.client_instance_id, taken.client_id) == (got.client_instance_id, "test")
    assert (taken.principal, taken.metrics, taken.interval_ms) == ("User:ANONYMOUS", b"metrics", 1000)
    refused = telling.ask(PUSH, 0, PushTelemetryRequest(got.client_instance_id, got.subscription_id + 1))
    assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert telling.memory.client_metrics(HANDLER).take() is None


def test_what_finds_no_room_is_dropped_and_the_client_goes_on(telling: Rig) -> None:
    queue = telling.memory.client_metrics(HANDLER)
    got = telling.ask(GET, 0, GetTelemetrySubscriptionsRequest())
    while queue.put(FULL):
        pass
    dropped = queue.dropped
    push = PushTelemetryRequest(got.client_instance_id, got.subscription_id, metrics=bytes(900))
    assert telling.ask(PUSH, 0, push).error_code == 0
    assert queue.dropped == dropped + 1


@pytest.mark.parametrize("is_on", [False, True])
def test_only_a_broker_that_takes_pushes_has_the_apis(is_on: bool) -> None:
    with rig(BrokerConfig(client_telemetry_enable=is_on)) as made:
        made.publish()
        response = made.ask(API_VERSIONS, 4, ApiVersionsRequest("any", "1"))
        assert ({GET, PUSH} <= {one.api_key for one in response.api_keys}) is is_on
        made.processor.send(request_frame(GET, 0, GetTelemetrySubscriptionsRequest()))
        made.work_off()
        (reply,) = made.processor.replies()
        assert (reply.kind == SlotKind.CLOSE) is not is_on
