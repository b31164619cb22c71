"""Whatever an API raises, its client hears of it at once, and nobody else does.

(Kafka: KafkaApis.handle and handleError; a thread that only logs what it caught leaves a client waiting.)
"""

from __future__ import annotations

import inspect
import random
import shlex
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER
from mpbroker.handlers.apis import all_apis
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import REQUESTS
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker, free_port
from tests.support import faulty_broker as faults
from tests.support.filled_requests import filled
from tests.support.forwarded_requests import errors_in
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.secure_broker import JAAS, RawClient

# Less than a hung handler has until it is replaced.
WITHIN_S = 20.0
HANG_TIMEOUT_MS = 2000
GIVEN_UP_WITHIN_S = 60
APIS = all_apis()
# log_questions, coordinator_questions
WHOM = ("owners", "workers", "all", "coordinator")
COMMAND = (
    f"{shlex.quote(sys.executable)} -m tests.support.faulty_broker serve --listeners PLAINTEXT://{HOST}:{{port}}"
    " --log-dirs {log_dir},{log_dir}-2 --processors 1 --handlers 2"
    f" -o authorizer.class.name={STANDARD_AUTHORIZER} -o super.users=User:ANONYMOUS"
)


@dataclass
class Faulty(Mpbroker):
    """Has a listener with SASL, too: elsewhere nobody may ask for delegation tokens.

    It has two log directories: with one no log worker is asked for moves.
    """

    sasl_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        file = self.directory / "server.properties"
        file.write_text(
            "delegation.token.secret.key=secret\n"
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={JAAS}\n"
        )
        listeners = f"{{port}},SASL_PLAINTEXT://{HOST}:{self.sasl_port}"
        self.template = COMMAND.replace("{port}", listeners) + f" --config {file}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with served(Faulty(tmp_path_factory.mktemp("broker"))) as made:
        yield made


def request_of(key: int, client_id: str, body: Any = None) -> bytes:
    if body is None:
        body = filled(REQUESTS[key])
        if key == ApiKey.PRODUCE:
            body.acks = -1
        if key == ApiKey.FETCH:
            body.session_epoch = -1
    return b"".join(encode_request_frame(RequestHeader(key, APIS[key].latest, 77, client_id), body))


def ask(connection: socket.socket, key: int, client_id: str, body: Any = None) -> Any:
    """The response, or None if the connection was closed; both in time."""
    connection.settimeout(WITHIN_S)
    connection.sendall(request_of(key, client_id, body))
    try:
        return receive(connection, key)
    except ConnectionError:
        return None


def receive(connection: socket.socket, key: int) -> Any:
    """Return the next response, which is one to a request of API `key`."""
    size = frames.receive(connection, 4)
    frame = frames.receive(connection, *struct.unpack(">i", size))
    correlation, response = decode_response_frame(key, APIS[key].latest, frame)
    assert correlation == 77
    return response


def others_are_served(broker: Mpbroker) -> bool:
    with frames.connected(broker.address) as connection:
        return ask(connection, ApiKey.METADATA, "good") is not None


@pytest.mark.parametrize("fault", [faults.RAISES, faults.ANSWERS_NONSENSE])
@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_what_an_api_raises_is_answered(broker: Mpbroker, key: int, fault: str) -> None:
    is_told_and_not_muted(broker, key, fault, None)


@pytest.mark.parametrize(
    ("request_frame", "said"),
    [
        (request_of(ApiKey.METADATA, faults.RAISES_IN_DECODING), "its request failed"),
        (
            struct.pack(">ihhih", 21, ApiKey.METADATA, 99, 77, 4) + b"good" + bytes(7),
            "API key 3 version 99 is not served",
        ),
    ],
    ids=["fails", "unknown version"],
)
def test_the_log_names_the_connection_as_the_processors_do(
    broker: Mpbroker, request_frame: bytes, said: str
) -> None:
    with frames.connected(broker.address) as connection:
        port = connection.getsockname()[1]
        connection.settimeout(WITHIN_S)
        connection.sendall(request_frame)
        assert connection.recv(1) == b""
    (line,) = [line for line in broker.output().splitlines() if f":{port}-" in line and said in line]
    host, served_port = broker.address
    assert f"closing connection {host}:{served_port}-{host}:{port}-" in line
    assert line.endswith(f" on PLAINTEXT: {said}")


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_one_whose_error_response_fails_too_is_closed(broker: Mpbroker, key: int) -> None:
    with frames.connected(broker.address) as connection:
        assert ask(connection, key, faults.RAISES_TWICE) is None
    assert others_are_served(broker)


def test_no_process_died_of_it(broker: Mpbroker) -> None:
    for key in APIS:
        with frames.connected(broker.address) as connection:
            ask(connection, key, faults.RAISES)
    assert "was replaced" not in broker.output()


# What these ask for, the log process or the coordinator answers, and the handler goes on then.
UPSERT = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion("ann", 1, 4096, b"salt", bytes(32))
QUOTA = m.AlterClientQuotasRequest.EntryData(
    [m.AlterClientQuotasRequest.EntityData("user", "a")],
    [m.AlterClientQuotasRequest.OpData("producer_byte_rate", 1e9, False)],
)
RECORDS = m.DeleteRecordsRequest.DeleteRecordsTopic(
    "plain", [m.DeleteRecordsRequest.DeleteRecordsPartition(0, 0)]
)
MARKER = m.WriteTxnMarkersRequest.WritableTxnMarker(
    7, 0, False, [m.WriteTxnMarkersRequest.WritableTxnMarkerTopic("plain", [0])]
)
OF_TOPIC = m.IncrementalAlterConfigsRequest.AlterConfigsResource(2, "plain")
MORE = m.CreatePartitionsRequest.CreatePartitionsTopic("plain", 2, None)
ASK_OTHERS: dict[int, Any] = {
    ApiKey.METADATA: m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="made")], True),
    ApiKey.OFFSET_COMMIT: None,
    ApiKey.OFFSET_FETCH: None,
    ApiKey.JOIN_GROUP: None,
    ApiKey.HEARTBEAT: None,
    ApiKey.LEAVE_GROUP: None,
    ApiKey.SYNC_GROUP: m.SyncGroupRequest("g", 1, "member", protocol_type="consumer", protocol_name="range"),
    ApiKey.DESCRIBE_GROUPS: None,
    ApiKey.LIST_GROUPS: None,
    ApiKey.DELETE_GROUPS: None,
    ApiKey.OFFSET_DELETE: None,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: None,
    ApiKey.CONSUMER_GROUP_DESCRIBE: None,
    ApiKey.ADD_PARTITIONS_TO_TXN: None,
    ApiKey.ADD_OFFSETS_TO_TXN: None,
    ApiKey.END_TXN: None,
    ApiKey.TXN_OFFSET_COMMIT: None,
    ApiKey.DESCRIBE_TRANSACTIONS: None,
    ApiKey.LIST_TRANSACTIONS: None,
    ApiKey.CREATE_TOPICS: m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic("late", 1, 1)]),
    ApiKey.DELETE_TOPICS: m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState("doomed")]),
    ApiKey.DELETE_RECORDS: m.DeleteRecordsRequest([RECORDS], 30_000),
    ApiKey.INIT_PRODUCER_ID: m.InitProducerIdRequest(None, 1),
    ApiKey.WRITE_TXN_MARKERS: m.WriteTxnMarkersRequest([MARKER]),
    ApiKey.DESCRIBE_PRODUCERS: m.DescribeProducersRequest(
        [m.DescribeProducersRequest.TopicRequest("plain", [0])]
    ),
    ApiKey.CREATE_ACLS: m.CreateAclsRequest(
        [m.CreateAclsRequest.AclCreation(2, "plain", 3, "User:ann", "*", 3, 3)]
    ),
    ApiKey.DELETE_ACLS: m.DeleteAclsRequest(
        [m.DeleteAclsRequest.DeleteAclsFilter(2, "other", 3, None, None, 1, 1)]
    ),
    ApiKey.ALTER_CONFIGS: m.AlterConfigsRequest([m.AlterConfigsRequest.AlterConfigsResource(2, "plain")]),
    ApiKey.DESCRIBE_CONFIGS: m.DescribeConfigsRequest(
        [m.DescribeConfigsRequest.DescribeConfigsResource(ConfigResourceType.GROUP, "g", None)]
    ),
    ApiKey.LIST_CONFIG_RESOURCES: m.ListConfigResourcesRequest([ConfigResourceType.GROUP]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: m.IncrementalAlterConfigsRequest([OF_TOPIC]),
    ApiKey.CREATE_PARTITIONS: m.CreatePartitionsRequest([MORE], 30_000),
    ApiKey.ALTER_CLIENT_QUOTAS: m.AlterClientQuotasRequest([QUOTA], False),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: m.DescribeUserScramCredentialsRequest(None),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: m.AlterUserScramCredentialsRequest([], [UPSERT]),
}


@pytest.fixture(scope="module", name="topic")
def _topic(broker: Mpbroker) -> bytes:
    """The id of a topic to write to and to read from."""
    names = ("plain", "doomed")
    made = m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic(name, 1, 1) for name in names])
    with frames.connected(broker.address) as connection:
        answer = ask(connection, ApiKey.CREATE_TOPICS, "good", made)
        assert [one.error_code for one in answer.topics] == [0, 0]
        # The first request about a group waits for the topic of its offsets, which takes its time.
        connection.settimeout(PATIENCE_S)
        connection.sendall(request_of(ApiKey.OFFSET_COMMIT, "good"))
        frames.receive(connection, *struct.unpack(">i", frames.receive(connection, 4)))
    return bytes(answer.topics[0].topic_id)


def produce(topic: bytes, codec: Codec, acks: int = -1, size: int = 10) -> m.ProduceRequest:
    data = bytes(build_batch([NewRecord(random.Random(1).randbytes(size))], codec=codec))
    of_topic = m.ProduceRequest.TopicProduceData(
        "plain", topic, [m.ProduceRequest.PartitionProduceData(0, data)]
    )
    return m.ProduceRequest(None, acks, 30_000, [of_topic])


def fetch(topic: bytes, wait_ms: int) -> m.FetchRequest:
    wanted = m.FetchRequest.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    of_topic = m.FetchRequest.FetchTopic("plain", topic, [wanted])
    return m.FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1 << 20, max_bytes=1 << 20, session_epoch=-1, topics=[of_topic]
    )


def is_told_and_not_muted(broker: Mpbroker, key: int, client_id: str, body: Any) -> None:
    with frames.connected(broker.address) as connection:
        hears_of_it(connection, key, client_id, body)
    assert others_are_served(broker)


def hears_of_it(connection: socket.socket, key: int, client_id: str, body: Any) -> None:
    response = ask(connection, key, client_id, body)
    if response is not None:
        assert ErrorCode.UNKNOWN_SERVER_ERROR in errors_in(response)
        # The channel is not muted: the next request on it is served.
        assert ask(connection, ApiKey.METADATA, "good") is not None


@pytest.mark.parametrize("key", ASK_OTHERS, ids=lambda key: APIS[key].name)
def test_what_goes_wrong_after_others_have_answered_is_answered(
    broker: Mpbroker, topic: bytes, key: int
) -> None:
    assert topic
    is_told_and_not_muted(broker, key, faults.RAISES_LATER, ASK_OTHERS[key])


ABOUT_TOKENS: dict[int, Any] = {
    ApiKey.CREATE_DELEGATION_TOKEN: m.CreateDelegationTokenRequest(max_lifetime_ms=-1),
    ApiKey.RENEW_DELEGATION_TOKEN: m.RenewDelegationTokenRequest(b"nobody's", -1),
    ApiKey.EXPIRE_DELEGATION_TOKEN: m.ExpireDelegationTokenRequest(b"nobody's", -1),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: m.DescribeDelegationTokenRequest(None),
}


@pytest.mark.parametrize("key", ABOUT_TOKENS, ids=lambda key: APIS[key].name)
def test_what_goes_wrong_after_the_coordinator_has_told_of_tokens_is_answered(
    broker: Faulty, key: int
) -> None:
    with frames.connected((HOST, broker.sasl_port)) as connection:
        assert RawClient(connection).plain().error_code == 0
        hears_of_it(connection, key, faults.RAISES_LATER, ABOUT_TOKENS[key])
    assert others_are_served(broker)


def about_moves(log_dir: Path) -> dict[int, Any]:
    """Return requests about moves, with a log directory that exists: only then log workers are asked."""
    named = m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic("plain", [0])
    moves = m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(str(log_dir), [named])
    return {
        ApiKey.ALTER_REPLICA_LOG_DIRS: m.AlterReplicaLogDirsRequest([moves]),
        ApiKey.DESCRIBE_LOG_DIRS: m.DescribeLogDirsRequest(None),
    }


@pytest.mark.parametrize("key", about_moves(Path()), ids=lambda key: APIS[key].name)
def test_what_goes_wrong_after_log_workers_have_told_of_moves_is_answered(
    broker: Mpbroker, topic: bytes, key: int
) -> None:
    assert topic
    is_told_and_not_muted(broker, key, faults.RAISES_LATER, about_moves(broker.log_dir)[key])


def test_every_api_that_asks_others_is_among_them() -> None:
    helpers = ("forwarding.", "pass_on_commit(", "forward_allowed(", "alter(", "change_token(")
    words = (".later(", ".wait(", *helpers, *(f"ask_{whom}(" for whom in WHOM))
    asking = {key for key in APIS if any(word in source_of(key) for word in words)}
    assert asking - {ApiKey.PRODUCE} == {*ASK_OTHERS, *ABOUT_TOKENS, *about_moves(Path())}


def source_of(key: int) -> str:
    return inspect.getsource(inspect.getmodule(APIS[key].handle))  # type: ignore[arg-type]


def test_what_goes_wrong_after_an_append_is_answered(broker: Mpbroker, topic: bytes) -> None:
    is_told_and_not_muted(broker, ApiKey.PRODUCE, faults.RAISES_LATER, produce(topic, Codec.GZIP))


@pytest.mark.parametrize("fault", [faults.RAISES_AT_A_LOOK, faults.RAISES_AT_THE_END])
def test_a_fetch_that_fails_while_it_waits_is_answered(broker: Mpbroker, topic: bytes, fault: str) -> None:
    is_told_and_not_muted(broker, ApiKey.FETCH, fault, fetch(topic, 300))


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_a_request_that_cannot_be_decoded_ends_its_connection_alone(broker: Mpbroker, key: int) -> None:
    with frames.connected(broker.address) as connection:
        response = ask(connection, key, faults.RAISES_IN_DECODING)
        if APIS[key].is_forwarded and response is not None:
            # It is the coordinator that could not; the error response needs nothing of the request.
            assert ErrorCode.UNKNOWN_SERVER_ERROR in errors_in(response)
        else:
            assert response is None
    assert others_are_served(broker)


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_piece_of_a_heavy_request_that_fails_is_answered(broker: Mpbroker, topic: bytes, acks: int) -> None:
    body = produce(topic, Codec.GZIP, acks, 300_000)
    with frames.connected(broker.address) as connection:
        response = ask(connection, ApiKey.PRODUCE, faults.RAISES_IN_A_PIECE, body)
        assert (response is None) == (acks == 0)
        if response is not None:
            assert ErrorCode.UNKNOWN_SERVER_ERROR in errors_in(response)
            assert ask(connection, ApiKey.METADATA, "good") is not None
    assert others_are_served(broker)


def test_a_pipelined_request_behind_one_that_fails_is_served(broker: Mpbroker) -> None:
    with frames.connected(broker.address) as connection:
        connection.settimeout(WITHIN_S)
        connection.sendall(
            request_of(ApiKey.METADATA, faults.RAISES) + request_of(ApiKey.DESCRIBE_CLUSTER, "good")
        )
        assert ErrorCode.UNKNOWN_SERVER_ERROR in errors_in(receive(connection, ApiKey.METADATA))
        assert set(errors_in(receive(connection, ApiKey.DESCRIBE_CLUSTER))) == {ErrorCode.NONE}


@pytest.mark.parametrize(
    ("fault", "said"), [(faults.HANGS, "has not moved for"), (faults.DIES, "was killed by SIGKILL")]
)
def test_whoever_takes_a_handler_along_is_given_up_after_the_second(
    tmp_path: Path, fault: str, said: str
) -> None:
    """Check that a request that hangs or crashes a handler goes to one more handler, and not to all."""
    with served(
        Mpbroker(tmp_path, template=f"{COMMAND} -o handler.hang.timeout.ms={HANG_TIMEOUT_MS}")
    ) as broker:
        with frames.connected(broker.address) as connection:
            connection.settimeout(GIVEN_UP_WITHIN_S)
            connection.sendall(request_of(ApiKey.METADATA, fault))
            with pytest.raises(ConnectionError):
                frames.receive(connection, 4)
        assert broker.output().count(said) == 2
        until(lambda: broker.output().count("was replaced") >= 2, "both handlers are replaced")
        assert others_are_served(broker)


def test_a_fatal_error_stops_the_broker_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mpbroker(tmp_path / "broker", template=COMMAND)
    try:
        broker.start()
        members = broker.tree().members()
        with frames.connected(broker.address) as connection:
            assert ask(connection, ApiKey.METADATA, faults.IS_FATAL) is None
        assert broker.process is not None
        assert broker.process.wait(PATIENCE_S) == faults.FATAL_STATUS, broker.output()
        for member in members:
            member.wait(PATIENCE_S)
        assert "the planet is gone. Find another" in broker.output()
        assert "process cannot go on; its message above says why" in broker.output()
    finally:
        broker.kill()
