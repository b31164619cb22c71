"""What the codec promises beyond agreeing with others: tags, nulls, defaults, copies, versions."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.protocol import codec, messages, schema
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    ProduceRequest,
)
from mpbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record
from mpbroker.protocol.wire import MalformedMessage, RecordsSlice, UnsupportedVersion, uvarint

HEARTBEAT_V4 = b"\x02g" + bytes(4) + b"\x02m\x00"


def tagged(*fields: tuple[int, bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(v)) + v for tag, v in fields)


MANY_TAGS = [(1, b"q")] * 200


@pytest.mark.parametrize("fields", [[(0, b"")], [(7, b"abc")], [(0, b"x" * 300), (9000, b"yz")], MANY_TAGS])
def test_unknown_tags_are_skipped(fields: list[tuple[int, bytes]]) -> None:
    raw = HEARTBEAT_V4 + tagged(*fields)
    request, end = codec.decode_request(ApiKey.HEARTBEAT, 4, raw + b"behind")
    assert request == HeartbeatRequest("g", 0, "m")
    assert end == len(raw)


def fetch_with_tags(*fields: tuple[int, bytes]) -> bytes:
    raw = codec.encode_bytes(codec.encode_request(ApiKey.FETCH, 15, FetchRequest()))
    assert raw.endswith(b"\0")
    return raw[:-1] + tagged(*fields)


def test_known_tags_are_read_among_unknown_ones() -> None:
    raw = fetch_with_tags((0, b"\x03id"), (1, bytes(3) + b"\x05" + bytes(8) + b"\0"), (77, b"new"))
    request, end = codec.decode_request(ApiKey.FETCH, 15, raw)
    assert (request.cluster_id, request.replica_state.replica_id, end) == ("id", 5, len(raw))


@pytest.mark.parametrize("value", [b"\x03idx", b"\x04id", b""])
def test_a_known_tag_has_exactly_the_size_it_says(value: bytes) -> None:
    with pytest.raises(MalformedMessage, match="tagged field 0 does not have its given size"):
        codec.decode_request(ApiKey.FETCH, 15, fetch_with_tags((0, value), (99, b"more")))
    with pytest.raises(MalformedMessage, match="tagged field 0 does not have its given size"):
        codec.decode_request(ApiKey.FETCH, 15, fetch_with_tags((0, value)) + bytes(100))


def test_tags_are_written_in_ascending_order_and_not_if_default() -> None:
    request = FetchRequest()
    assert fetch_with_tags() == codec.encode_bytes(codec.encode_request(ApiKey.FETCH, 15, request))
    request.cluster_id, request.replica_state.replica_id = "id", 5
    expected = fetch_with_tags((0, b"\x03id"), (1, bytes(3) + b"\x05" + b"\xff" * 8 + b"\0"))
    assert codec.encode_bytes(codec.encode_request(ApiKey.FETCH, 15, request)) == expected


def test_a_nullable_struct_is_one_byte_if_null() -> None:
    response = ConsumerGroupHeartbeatResponse(member_id="m", assignment=None)
    raw = codec.encode_bytes(codec.encode_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, response))
    assert raw.endswith(b"\xff\0")
    response.assignment = ConsumerGroupHeartbeatResponse.Assignment()
    there = codec.encode_bytes(codec.encode_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, response))
    assert there == raw[:-2] + b"\x01\x01\x00\x00"
    for body in (raw, there):
        decoded, _ = codec.decode_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, body)
        assert codec.encode_bytes(codec.encode_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, decoded)) == body


def produce(records: Any) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(0, records)
    return ProduceRequest(topic_data=[ProduceRequest.TopicProduceData("t", partition_data=[partition])])


@pytest.mark.parametrize("size", [100, 100_000])
def test_decoded_records_are_a_view_of_the_frame(size: int) -> None:
    frame = bytearray(codec.encode_bytes(codec.encode_request(ApiKey.PRODUCE, 9, produce(b"r" * size))))
    request, _ = codec.decode_request(ApiKey.PRODUCE, 9, memoryview(frame))
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records == b"r" * size
    frame[frame.index(b"r")] = ord("R")
    assert records[0] == ord("R")


def fetch(records: Any) -> FetchResponse:
    partition = FetchResponse.PartitionData(records=records)
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse("t", partitions=[partition])])


def test_large_records_are_passed_on_and_not_copied() -> None:
    records = memoryview(bytes(5000))
    segments = codec.encode_response(ApiKey.FETCH, 12, fetch(records))
    assert len(segments) == 3
    assert segments[1] is records
    assert len(codec.encode_response(ApiKey.FETCH, 12, fetch(b"small"))) == 1


@pytest.mark.parametrize("version", [11, 16])
@pytest.mark.parametrize("size", [10, 5000])
def test_a_slice_of_records_counts_like_its_bytes(version: int, size: int) -> None:
    marker = RecordsSlice(size)
    segments: list[Any] = [*codec.encode_response(ApiKey.FETCH, version, fetch(marker))]
    assert segments[1] is marker
    filled = b"".join(bytes(size) if s is marker else s for s in segments)
    whole = codec.encode_response(ApiKey.FETCH, version, fetch(bytes(size)))
    assert filled == codec.encode_bytes(whole)


def test_null_and_empty_records_differ() -> None:
    for version in (11, 16):
        for records in (None, b""):
            raw = codec.encode_bytes(codec.encode_response(ApiKey.FETCH, version, fetch(records)))
            decoded, _ = codec.decode_response(ApiKey.FETCH, version, raw)
            assert decoded.responses[0].partitions[0].records == records


def test_a_field_that_the_version_lacks_reads_as_its_default() -> None:
    request = FetchRequest(session_id=9, rack_id="r")
    decoded, _ = codec.decode_request(ApiKey.FETCH, 6, codec.encode_request(ApiKey.FETCH, 6, request)[0])
    assert (decoded.session_id, decoded.session_epoch, decoded.rack_id) == (0, -1, "")


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 14), (0, -1), (4, 0), (999, 0), (1, 65536 + 4)])
def test_versions_outside_the_schema(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(api_key, version, bytes(100))
    with pytest.raises(UnsupportedVersion):
        codec.encode_response(api_key, version, FetchResponse())


def test_prepare_compiles_what_a_request_will_need() -> None:
    codec.prepare(ApiKey.LIST_GROUPS)
    assert (ApiKey.LIST_GROUPS, 5) in codec._request_decoders
    assert ("response", ApiKey.LIST_GROUPS, 5) in codec._encoders


# Values as Kafka's MetadataRecordSerde writes them.
METADATA_RECORDS = [
    (messages.TopicRecord("foo", bytes(range(16))), 0, "01020004666f6f" + bytes(range(16)).hex() + "00"),
    (
        messages.PartitionRecord(1, bytes(16), [1], [1], [], [], 1, 0, 5, 6),
        0,
        "010300"
        + "00000001"
        + "00" * 16
        + "0200000001" * 2
        + "01" * 2
        + "00000001"
        + "00000005"
        + "00000006"
        + "00",
    ),
    (
        messages.PartitionRecord(1, bytes(16), [], [], [], [], 1, 1, 5, 6, [b"d" * 16], [], None),
        2,
        "010302"
        + "00000001"
        + "00" * 16
        + "01" * 4
        + "00000001"
        + "00000005"
        + "00000006"
        + "02"
        + "64" * 16
        + "02"
        + "000101"
        + "010101",
    ),
    (messages.ConfigRecord(2, "foo", "k", None), 0, "0104000204666f6f026b0000"),
    (messages.RemoveTopicRecord(b"i" * 16), 0, "010900" + "69" * 16 + "00"),
    (messages.FeatureLevelRecord("kraft.version", 29), 0, "010c000e6b726166742e76657273696f6e001d00"),
    (messages.ProducerIdsRecord(1, -1, 1000), 0, "010f0000000001ffffffffffffffff00000000000003e800"),
]


@pytest.mark.parametrize(("record", "version", "expected"), METADATA_RECORDS)
def test_metadata_records(record: messages.Message, version: int, expected: str) -> None:
    value = encode_metadata_record(record, version)
    assert value.hex() == expected
    assert decode_metadata_record(value) == record
    assert codec.decode_data(type(record), version, value, 3) == (record, len(value))
    for size in range(len(value)):
        with pytest.raises(MalformedMessage):
            decode_metadata_record(value[:size])
    with pytest.raises(MalformedMessage):
        decode_metadata_record(value + b"\0")


@pytest.mark.parametrize("value", ["", "020200", "01e60700", "010263"])
def test_unknown_metadata_records_are_refused(value: str) -> None:
    with pytest.raises(MalformedMessage, match="metadata record"):
        decode_metadata_record(bytes.fromhex(value) + bytes(20) * bool(value))


def test_every_nested_struct_has_its_class() -> None:
    for message in schema.load():
        cls = getattr(messages, message.name)
        assert [f.name for f in message.fields] == list(cls.__struct_fields__)
        for name, struct in message.structs.items():
            assert [f.name for f in struct.fields] == list(getattr(cls, name).__struct_fields__)


def smallest(value: Any, struct: schema.StructType, cls: Any, version: int) -> Any:
    """Every array with many elements of the least possible size."""
    for f in (f for f in struct.fields if version in f.versions):
        if version in f.nullable and not f.is_array:
            setattr(value, f.name, None)
        elif f.is_array and f.struct is not None:
            element = smallest(getattr(cls, f.struct.name)(), f.struct, cls, version)
            setattr(value, f.name, [element] * 3)
        elif f.is_array:
            zero = {"string": "", "uuid": bytes(16), "bytes": b"", "bool": False}.get(f.type, 0)
            setattr(value, f.name, [zero] * 3)
    return value


@pytest.mark.parametrize("message", schema.load(), ids=lambda m: m.name)
def test_the_bound_of_a_count_lets_the_smallest_elements_pass(message: schema.Message) -> None:
    cls = getattr(messages, message.name)
    for version in message.valid:
        value = smallest(cls(), message, cls, version)
        encode = codec.encoder_for(message.kind, message.api_key, version)
        raw = codec.encode_bytes(encode(value, bytearray()))
        assert codec.decode_message(message.kind, message.api_key, version, raw) == (value, len(raw))
