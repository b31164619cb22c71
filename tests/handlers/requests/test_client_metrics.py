"""Client instances: whom a subscription is for, when a client may get and push, which error comes first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import msgpack, structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.requests import client_metrics
from mpbroker.handlers.requests.client_metrics import NO_ID, Client, ClientMetricsManager, Instance
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.ipc.client_metrics import Push
from mpbroker.ipc.metadata import MetadataBase, MetadataDelta, SubscriptionImage
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import PushTelemetryRequest
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.compression import Codec, compress

NONE, INVALID, THROTTLED = ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.THROTTLING_QUOTA_EXCEEDED
UNKNOWN, UNSUPPORTED = ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
TOO_LARGE, INVALID_RECORD = ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.INVALID_RECORD
ID = bytes(range(16))
CLIENT = Client("orders-7", "apache-kafka-java", "4.3.0", "10.0.0.5", 5000)
MAX_BYTES = 1000
INTERVAL_MS = 1000


class Party:
    """A handler's manager, with the test as its clock, its coordinator and its clients."""

    def __init__(self) -> None:
        self.now_ms = 1
        self.pushed: list[Push] = []
        self.metadata = Metadata(BrokerConfig(), TopicTable(1))
        self.metadata.apply([msgpack.encode(MetadataBase(1, "c", 1, []))])
        self.manager = ClientMetricsManager(self.metadata, MAX_BYTES, self.pushed.append, lambda: self.now_ms)

    def subscribe(self, name: str, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.metadata.apply(
            [msgpack.encode(MetadataDelta(2, subscriptions=[SubscriptionImage(name, named)]))]
        )

    def get(self, instance_id: bytes = ID, client: Client = CLIENT) -> tuple[ErrorCode, bytes, Instance]:
        return self.manager.get(instance_id, client)

    def push(self, **changed: Any) -> ErrorCode:
        """Push as the client does that has got its subscription, but for what is `changed`."""
        known = self.manager._instances.get(ID)
        request = PushTelemetryRequest(ID, known.subscription_id if known else 0, metrics=b"metrics")
        return self.manager.push(structs.replace(request, **changed), CLIENT, "User:a")


@pytest.fixture
def party() -> Party:
    made = Party()
    made.subscribe("s", metrics="org.apache.kafka.", interval_ms=str(INTERVAL_MS))
    return made


def test_without_a_subscription_nothing_is_wanted() -> None:
    error, _, instance = Party().get()
    assert (error, instance.metrics, instance.interval_ms) == (NONE, [], 300_000)


def test_all_matching_subscriptions_are_merged(party: Party) -> None:
    party.subscribe("other", metrics="b, a,org.apache.kafka.", interval_ms="60000")
    party.subscribe("foreign", metrics="c", match="client_id=other.*", interval_ms="100")
    _, _, instance = party.get()
    assert (instance.metrics, instance.interval_ms) == (["a", "b", "org.apache.kafka."], INTERVAL_MS)
    party.subscribe("all", metrics="z,*")
    assert party.get()[2].metrics == ["*"]


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("client_id=orders-.*", True),
        ("client_id=orders", False),
        (f"client_instance_id={uuid_text(ID)}", True),
        ("client_software_name=apache-kafka-java,client_software_version=4\\..*", True),
        ("client_software_name=apache-kafka-java,client_software_version=3\\..*", False),
        ("client_source_address=10\\.0\\.0\\.\\d+, client_source_port = 5000", True),
        ("client_source_port=500", False),
        ("", True),
    ],
)
def test_a_subscription_is_for_the_clients_that_match_it_all(match: str, matches: bool) -> None:
    party = Party()
    party.subscribe("s", metrics="a", match=match)
    assert party.get()[2].metrics == (["a"] if matches else [])


def test_a_subscription_of_kafka_that_cannot_be_read_is_for_nobody(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    party.subscribe("java", metrics="b", match="client_id=\\p{Alpha}+")
    assert party.get()[2].metrics == ["org.apache.kafka."]
    assert caplog.messages == [
        "the subscription java to client metrics has no effect: "
        "Illegal client matching pattern: client_id=\\p{Alpha}+"
    ]


def test_a_client_without_an_id_gets_one(party: Party) -> None:
    ids = {party.get(NO_ID)[1] for _ in range(50)}
    assert len(ids) == 50
    assert not [one for one in ids if uuid_text(one).startswith("-") or one == NO_ID]
    assert party.get(ID)[1] == ID


def test_the_id_of_subscriptions_depends_on_them_and_on_the_instance_alone(party: Party) -> None:
    again = Party()
    again.subscribe("other name", metrics="org.apache.kafka.", interval_ms=str(INTERVAL_MS))
    wanted = party.get()[2].subscription_id
    assert again.get()[2].subscription_id == wanted
    assert party.get(bytes(16)[:-1] + b"\xff")[2].subscription_id != wanted
    party.subscribe("s", metrics="org.apache.kafka.", interval_ms="999")
    assert party.get()[2].subscription_id != wanted
    assert -(1 << 31) <= wanted < 1 << 31
    # Another handler takes the client's push as well.
    assert again.push(subscription_id=wanted) is NONE


def test_a_push_is_passed_on(party: Party) -> None:
    party.get()
    data = compress(Codec.ZSTD, b"metrics")
    assert party.push(metrics=data, compression_type=Codec.ZSTD) is NONE
    about = ("orders-7", "apache-kafka-java", "4.3.0", "10.0.0.5", "User:a")
    assert party.pushed == [Push(ID, *about, INTERVAL_MS, False, Codec.ZSTD, data)]
    party.now_ms += INTERVAL_MS
    assert party.push(metrics=b"") is NONE
    assert len(party.pushed) == 1


def test_who_comes_before_the_interval_is_over_is_throttled(party: Party) -> None:
    assert party.get()[0] is NONE
    assert party.get()[0] is THROTTLED
    # The first push after a get comes at any time.
    assert party.push() is NONE
    assert party.push() is THROTTLED
    assert party.get()[0] is THROTTLED
    party.now_ms += INTERVAL_MS - 1
    assert (party.push(), party.get()[0]) == (THROTTLED, THROTTLED)
    party.now_ms += 1
    assert (party.push(), party.push()) == (NONE, THROTTLED)
    assert party.push(terminating=True) is NONE


@pytest.mark.parametrize(
    ("changed", "error"), [({"subscription_id": 5}, UNKNOWN), ({"compression_type": 9}, UNSUPPORTED)]
)
def test_a_get_that_an_error_asks_for_is_answered_at_once(
    party: Party, changed: dict[str, int], error: ErrorCode
) -> None:
    party.get()
    assert party.push(**changed) is error
    assert party.get()[0] is NONE
    assert party.get()[0] is THROTTLED


def test_changed_subscriptions_are_seen_by_the_next_push(party: Party) -> None:
    before = party.get()[2].subscription_id
    party.subscribe("s", metrics="other", interval_ms=str(INTERVAL_MS))
    assert party.push(subscription_id=before) is UNKNOWN
    error, _, instance = party.get()
    assert (error, instance.metrics) == (NONE, ["other"])
    party.now_ms += INTERVAL_MS
    assert party.push() is NONE
    party.now_ms += INTERVAL_MS
    party.subscribe("s")
    assert party.push() is UNKNOWN
    assert party.get()[2].metrics == []


@pytest.mark.parametrize("reserved", [0, 1, 99])
def test_reserved_ids_push_nothing(party: Party, reserved: int) -> None:
    assert party.push(client_instance_id=reserved.to_bytes(16)) is INVALID


def test_the_errors_of_a_push_have_kafkas_order(party: Party) -> None:
    party.get()
    wrong: dict[str, Any] = {"subscription_id": 5, "compression_type": 9, "metrics": bytes(MAX_BYTES + 1)}
    assert party.push(**wrong) is UNKNOWN
    assert party.push(**wrong) is THROTTLED
    del wrong["subscription_id"]
    party.now_ms += INTERVAL_MS
    assert party.push(**wrong) is UNSUPPORTED
    for codec in (-1, 5):
        party.now_ms += INTERVAL_MS
        assert party.push(compression_type=codec) is UNSUPPORTED
    wrong["compression_type"] = Codec.GZIP
    party.now_ms += INTERVAL_MS
    assert party.push(**wrong) is TOO_LARGE
    wrong["metrics"] = bytes(MAX_BYTES)
    party.now_ms += INTERVAL_MS
    assert party.push(**wrong) is INVALID_RECORD
    assert party.pushed == []


def test_nothing_follows_the_last_push(party: Party) -> None:
    party.get()
    assert party.push(terminating=True) is NONE
    party.now_ms += INTERVAL_MS
    assert party.push() is INVALID
    # As in Kafka, the flag is that of the last request.
    party.now_ms += INTERVAL_MS
    assert party.push() is NONE


def test_a_bomb_is_refused(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "DECOMPRESSED_BYTES_MAX", 100_000)
    party.get()
    for codec, size, error in ((Codec.ZSTD, 100_001, INVALID_RECORD), (Codec.GZIP, 100_000, NONE)):
        party.now_ms += INTERVAL_MS
        data = compress(codec, bytes(size))
        assert party.push(metrics=data, compression_type=codec) is error


def test_instances_are_forgotten_in_time_and_bounded_in_number(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.subscribe("s", metrics="a", interval_ms="600000")
    party.get()
    # A known instance is of the client that has made it, also when subscriptions change.
    party.subscribe("t", metrics="b", match="client_id=other")
    party.now_ms += 3 * 300_000
    assert party.get(client=CLIENT._replace(client_id="other"))[2].metrics == ["a"]
    party.now_ms += 3 * 300_000 + 1
    assert party.get(client=CLIENT._replace(client_id="other"))[2].metrics == ["a", "b"]
    monkeypatch.setattr(client_metrics, "INSTANCES_MAX", 10)
    made = [party.get(NO_ID)[1] for _ in range(11)]
    assert list(party.manager._instances) == made[1:]
    assert party.get(made[1])[0] is THROTTLED
    party.get(NO_ID)
    assert made[1] in party.manager._instances
    assert made[2] not in party.manager._instances
