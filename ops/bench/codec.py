"""What the codec costs: µs per call, the best of many rounds.

python -m ops.bench.codec [name ...]        # only the rows whose name contains one of the words
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpbroker.protocol import codec, headers
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.wire import Buffer
from ops.bench.timing import best_seconds

ROUND_S = 0.004
ROUNDS = 25
MIB = 1 << 20
TOPIC_ID = bytes(range(16))

Row = tuple[str, Callable[[], object]]


def produce_request(size: int) -> m.ProduceRequest:
    partition = m.ProduceRequest.PartitionProduceData(3, bytes(size))
    topic = m.ProduceRequest.TopicProduceData("orders", TOPIC_ID, [partition])
    return m.ProduceRequest(None, -1, 30000, [topic])


def fetch_request(partitions: int) -> m.FetchRequest:
    topic = m.FetchRequest.FetchTopic("orders", TOPIC_ID)
    cls = m.FetchRequest.FetchPartition
    topic.partitions = [cls(i, 5, 123456 + i, -1, -1, MIB) for i in range(partitions)]
    return m.FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def metadata_response() -> m.MetadataResponse:
    cls = m.MetadataResponse
    partitions = [cls.MetadataResponsePartition(0, i, 1, 0, [1], [1], []) for i in range(12)]
    topics = [cls.MetadataResponseTopic(0, f"topic-{i}", TOPIC_ID, False, partitions) for i in range(100)]
    return cls(0, [cls.MetadataResponseBroker(1, "localhost", 9092)], "cluster", 1, topics)


def produce_response() -> m.ProduceResponse:
    partition = m.ProduceResponse.PartitionProduceResponse(3, 0, 1234567, -1, 0)
    return m.ProduceResponse([m.ProduceResponse.TopicProduceResponse("orders", TOPIC_ID, [partition])])


def fetch_response(partitions: int, records: Buffer) -> m.FetchResponse:
    topic = m.FetchResponse.FetchableTopicResponse("orders", TOPIC_ID)
    topic.partitions = [
        m.FetchResponse.PartitionData(i, 0, 99999, 99999, 0, aborted_transactions=None, records=records)
        for i in range(partitions)
    ]
    return m.FetchResponse(0, 0, 77, [topic])


def offset_commit_request() -> m.OffsetCommitRequest:
    cls = m.OffsetCommitRequest
    partitions = [cls.OffsetCommitRequestPartition(i, 1000 + i, 3, "") for i in range(12)]
    topic = cls.OffsetCommitRequestTopic("orders", partitions=partitions)
    return cls("group-1", 5, "member-0123456789", topics=[topic])


def join_group_request() -> m.JoinGroupRequest:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", bytes(40))
    return m.JoinGroupRequest("group-1", 45000, 300000, "member-0123456789", None, "consumer", [protocol])


def join_group_response() -> m.JoinGroupResponse:
    members = [m.JoinGroupResponse.JoinGroupResponseMember(f"member-{i}", None, bytes(40)) for i in range(4)]
    return m.JoinGroupResponse(0, 0, 5, "consumer", "range", "member-0", False, "member-0", members)


def heartbeat_request() -> m.HeartbeatRequest:
    return m.HeartbeatRequest("group-1", 5, "member-0123456789")


def offset_commit_response() -> m.OffsetCommitResponse:
    cls = m.OffsetCommitResponse
    partitions = [cls.OffsetCommitResponsePartition(i) for i in range(12)]
    return cls(0, [cls.OffsetCommitResponseTopic("orders", partitions=partitions)])


def decode_rows() -> Iterator[Row]:
    def row(name: str, api_key: int, version: int, request: m.Message) -> Row:
        raw = codec.encode_bytes(codec.encode_request(api_key, version, request))
        return f"decode {name} v{version}", lambda: codec.decode_request(api_key, version, raw)

    header = headers.encode_request_header(headers.RequestHeader(ApiKey.FETCH, 16, 7, "rdkafka"))
    yield "decode RequestHeader v2", lambda: headers.decode_request_header(header)
    for version in (9, 11, 13):
        yield row("Produce 1x1 100 B", ApiKey.PRODUCE, version, produce_request(100))
    yield row("Produce 1x1 1 MiB", ApiKey.PRODUCE, 11, produce_request(MIB))
    for partitions in (1, 100):
        for version in (12, 16):
            yield row(f"Fetch {partitions}p", ApiKey.FETCH, version, fetch_request(partitions))
    metadata = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="orders")])
    yield row("Metadata", ApiKey.METADATA, 12, metadata)
    yield row("JoinGroup", ApiKey.JOIN_GROUP, 9, join_group_request())
    yield row("Heartbeat", ApiKey.HEARTBEAT, 4, heartbeat_request())
    yield row("OffsetCommit 12p", ApiKey.OFFSET_COMMIT, 8, offset_commit_request())
    raw = codec.encode_bytes(codec.encode_response(ApiKey.METADATA, 12, metadata_response()))
    yield "decode Metadata v12 response 100x12", lambda: codec.decode_response(ApiKey.METADATA, 12, raw)


def encode_rows() -> Iterator[Row]:
    def row(name: str, api_key: int, version: int, response: m.Message) -> Row:
        return f"encode {name} v{version}", lambda: codec.encode_response(api_key, version, response)

    for version in (9, 11):
        yield row("Produce", ApiKey.PRODUCE, version, produce_response())
    yield row("Fetch 1 MiB", ApiKey.FETCH, 16, fetch_response(1, bytes(MIB)))
    yield row("Fetch 100 empty partitions", ApiKey.FETCH, 16, fetch_response(100, b""))
    yield row("Metadata 100x12", ApiKey.METADATA, 12, metadata_response())
    yield row("JoinGroup 4 members", ApiKey.JOIN_GROUP, 9, join_group_response())
    yield row("Heartbeat", ApiKey.HEARTBEAT, 4, m.HeartbeatResponse())
    yield row("OffsetCommit 12p", ApiKey.OFFSET_COMMIT, 8, offset_commit_response())
    yield "build Produce response", produce_response


def cycle_rows() -> Iterator[Row]:
    """Header and body decoded, response built, encoded and framed; the request lies in a shared buffer."""

    def row(name: str, api_key: int, version: int, request: m.Message, respond: Callable[[Any], Any]) -> Row:
        header = headers.RequestHeader(api_key, version, 7, "rdkafka")
        frame = memoryview(codec.encode_bytes(headers.encode_request_frame(header, request)))[4:]

        def cycle() -> object:
            header, pos = headers.decode_request_header(frame)
            body, _ = codec.decode_request(header.api_key, header.api_version, frame, pos)
            return headers.encode_response_frame(
                header.api_key, header.api_version, header.correlation_id, respond(body)
            )

        return f"cycle {name} v{version}", cycle

    records = memoryview(bytes(MIB))
    metadata = metadata_response()
    yield row("Produce", ApiKey.PRODUCE, 11, produce_request(100), lambda _: produce_response())
    yield row("Produce 1 MiB", ApiKey.PRODUCE, 11, produce_request(MIB), lambda _: produce_response())
    yield row("Fetch 1 MiB", ApiKey.FETCH, 16, fetch_request(1), lambda _: fetch_response(1, records))
    yield row("Metadata 100x12", ApiKey.METADATA, 12, m.MetadataRequest(None), lambda _: metadata)
    yield row("Heartbeat", ApiKey.HEARTBEAT, 4, heartbeat_request(), lambda _: m.HeartbeatResponse())


if __name__ == "__main__":
    for name, call in [*decode_rows(), *encode_rows(), *cycle_rows()]:
        if len(sys.argv) == 1 or any(word in name for word in sys.argv[1:]):
            seconds = best_seconds(call, rounds=ROUNDS, round_s=ROUND_S)
            print(f"{name:42} {seconds * 1e6:10.2f} µs", flush=True)
