"""What no good client sends is answered at once, with Kafka's error or a close, and harms nobody else."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import Message
from ops.bench import frames
from ops.bench.brokers import Broker
from tests.support.client_adapters import confluent_write
from tests.support.client_samples import CREATE_TIME_MS, Record
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker
from tests.support.socket_client import SocketClient, frame_of

METADATA, UNKNOWN_API = 3, 999
OFFSET_OUT_OF_RANGE, UNSUPPORTED_VERSION = 1, 35

REQUEST_BYTES_MAX = 100 << 20
TLS_CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(506)

ONE_RECORD = Record(0, None, b"good", (), CREATE_TIME_MS)


def request(api_key: int, version: int, body: bytes = b"") -> bytes:
    """Frame a request with the oldest header and no client id."""
    payload = struct.pack(">hhih", api_key, version, 7, -1) + body
    return struct.pack(">i", len(payload)) + payload


@contextmanager
def sent(broker: Broker, data: bytes, *, is_all: bool = False) -> Iterator[socket.socket]:
    """A connection on which a client has sent this, and ends if it `is_all`."""
    with frames.connected(broker.address, PATIENCE_S) as connection:
        connection.sendall(data)
        if is_all:
            connection.shutdown(socket.SHUT_WR)
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the broker ends the connection without a word; raises TimeoutError when it says nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def still_served(broker: Broker) -> Callable[[], bool]:
    return lambda: frames.PRODUCE in frames.advertised_apis(broker.address, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative-size"),
        pytest.param(struct.pack(">i", REQUEST_BYTES_MAX + 1), id="one-byte-too-large"),
        pytest.param(struct.pack(">i", (1 << 31) - 1), id="largest-size"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="http"),
        pytest.param(TLS_CLIENT_HELLO, id="tls-hello"),
        pytest.param(struct.pack(">i", 64) + b"\xa5" * 64, id="garbage"),
        pytest.param(struct.pack(">ii", 4, 0), id="half-a-header"),
        pytest.param(request(UNKNOWN_API, 0), id="unknown-api"),
        pytest.param(request(METADATA, 99), id="unknown-version"),
        pytest.param(request(METADATA, 1), id="no-body"),
        pytest.param(request(METADATA, 1, struct.pack(">i", (1 << 31) - 1)), id="endless-array"),
        pytest.param(request(METADATA, 1, struct.pack(">ih", 1, -2)), id="negative-string"),
    ],
)
def test_the_connection_is_closed(broker: Broker, still_served: Callable[[], bool], data: bytes) -> None:
    with sent(broker, data) as connection:
        assert is_closed(connection)
    assert still_served()


@pytest.mark.parametrize("data", [b"", struct.pack(">i", 100) + b"\0\3"], ids=["nothing", "half-a-frame"])
def test_a_client_that_ends_is_let_go(broker: Broker, data: bytes) -> None:
    """Also when its end comes together with its last bytes."""
    with sent(broker, data, is_all=True) as connection:
        assert is_closed(connection)


def test_a_request_of_a_client_that_ends_is_still_answered(broker: Broker) -> None:
    with sent(broker, request(METADATA, 1, struct.pack(">i", -1)), is_all=True) as connection:
        assert len(connection.recv(4)) == 4


def test_random_frames_harm_nobody(broker: Broker, still_served: Callable[[], bool]) -> None:
    """Behind the header of every API that is served, in its highest version."""
    for api_key, (_, highest) in frames.advertised_apis(broker.address).items():
        for size in (0, 1, 7, 300):
            with sent(broker, request(api_key, highest, os.urandom(size)), is_all=True) as connection:
                while not is_closed(connection):
                    pass
    assert still_served()


def test_an_unknown_version_of_api_versions_is_answered(broker: Broker) -> None:
    """In version 0, so that a client of the future can find out what it may say."""
    with sent(broker, request(frames.API_VERSIONS, 99, b"\0")) as connection:
        size, correlation, error = struct.unpack(">iih", connection.recv(10, socket.MSG_WAITALL))
        assert (correlation, error) == (7, UNSUPPORTED_VERSION)
        assert size > 6


def error_code(broker: Broker, asked: frames.Request) -> int:
    with frames.connected(broker.address, PATIENCE_S) as connection:
        return frames.exchange(connection, asked)[0]


@pytest.mark.parametrize("offset", [-5, 2, 1 << 62])
def test_offsets_outside_of_the_log(broker: Broker, new_topic: TopicMaker, offset: int) -> None:
    topic = new_topic(1)
    confluent_write(broker.bootstrap, topic, [ONE_RECORD], "none")
    assert error_code(broker, frames.fetch(topic, offset, 1000)) == OFFSET_OUT_OF_RANGE


def ask(broker: Broker, api_key: ApiKey, version: int, body: Message) -> Any:
    """Ask with bytes that are no UTF-8 where the request, or its client id, has a "#"."""
    with SocketClient(broker) as client:
        client.socket.sendall(frame_of(api_key, version, body, "client#").replace(b"#", b"\xe9"))
        return decode_response_frame(api_key, version, client.receive())[1]


def test_names_of_other_bytes(broker: Broker, new_topic: TopicMaker) -> None:
    """They are served, and echoed with U+FFFD; the name of a topic may have no such character."""
    topic, name = new_topic(1), "caf#"
    named = m.MetadataRequest.MetadataRequestTopic
    (found,) = ask(broker, ApiKey.METADATA, 8, m.MetadataRequest([named(name="#")], True)).topics
    assert (found.error_code, found.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "\ufffd")
    produced = m.ProduceRequest.TopicProduceData
    topics = [produced("#", partition_data=[m.ProduceRequest.PartitionProduceData(0, None)])]
    (refused,) = ask(broker, ApiKey.PRODUCE, 9, m.ProduceRequest(None, 1, 1000, topics)).responses
    assert (refused.name, refused.partition_responses[0].error_code) == (
        "\ufffd",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )

    def has_coordinator(kind: int) -> bool:
        body = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        (found,) = ask(broker, ApiKey.FIND_COORDINATOR, 4, body).coordinators
        assert found.key == "caf\ufffd"
        return bool(found.error_code == ErrorCode.NONE)

    eventually(lambda: has_coordinator(0) and has_coordinator(1), "there are coordinators")
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, 5, committed_metadata="it#")
    commit = m.OffsetCommitRequest(
        name, topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=[partition])]
    )

    def committed() -> int:
        answer = ask(broker, ApiKey.OFFSET_COMMIT, 8, commit)
        return int(answer.topics[0].partitions[0].error_code)

    eventually(lambda: committed() == ErrorCode.NONE, "the offset is committed")
    wanted = [m.OffsetFetchRequest.OffsetFetchRequestTopic(topic, [0])]
    (fetched,) = ask(broker, ApiKey.OFFSET_FETCH, 7, m.OffsetFetchRequest(name, wanted)).topics
    assert (fetched.partitions[0].committed_offset, fetched.partitions[0].metadata) == (5, "it\ufffd")
    groups = ask(broker, ApiKey.LIST_GROUPS, 4, m.ListGroupsRequest()).groups
    assert "caf\ufffd" in [each.group_id for each in groups]
    init = m.InitProducerIdRequest(name, 60_000)

    def is_producer() -> bool:
        return bool(ask(broker, ApiKey.INIT_PRODUCER_ID, 4, init).error_code == ErrorCode.NONE)

    eventually(is_producer, "there is a producer")
    listed = ask(broker, ApiKey.LIST_TRANSACTIONS, 0, m.ListTransactionsRequest()).transaction_states
    assert "caf\ufffd" in [each.transactional_id for each in listed]
    described = m.DescribeConfigsRequest.DescribeConfigsResource(2, "#")
    (refused,) = ask(broker, ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest([described])).results
    assert (refused.error_code, refused.resource_name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "\ufffd")
