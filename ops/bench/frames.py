"""Raw Kafka requests for the load generator, written with nothing but `struct`.

The load generator must not depend on the broker's codec: it measures any server, and a mistake in the codec
would be made on both sides and stay unnoticed. Only old, non-flexible versions are used, which Kafka 4.3
still serves: ApiVersions 0, CreateTopics 2, DeleteTopics 1, Produce 3 and 7, Fetch 4, Metadata 4,
OffsetCommit 2, FindCoordinator 0, AlterClientQuotas 0 (Kafka's message definitions of those names).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import cramjam
import crc32c

Address = tuple[str, int]

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
ALTER_REPLICA_LOG_DIRS: Final = 34
ALTER_CLIENT_QUOTAS: Final = 49

CORRELATION_ID: Final = 7
CLIENT_ID: Final = "bench"
TIMEOUT_MS: Final = 30_000
CREATE_TIME_MS: Final = 1_700_000_000_000
ZSTD: Final = 4
# Lower ones overlook what repeats at some distance.
ZSTD_LEVEL: Final = 19


@dataclass(frozen=True)
class Request:
    """A whole frame, size first. `error_at`: position of the error code in the response frame.

    `partition_at`: position of the partition's number in a Produce. `digits_at`: position of the last eight
    bytes of the group's name in an OffsetCommit, which are its number. Both are 0 in other requests.
    """

    frame: bytes
    error_at: int
    response_bytes_min: int = 0
    partition_at: int = 0
    digits_at: int = 0

    def for_partition(self, partition: int) -> Request:
        """Return the same Produce request for another partition."""
        at = self.partition_at
        return replace(self, frame=self.frame[:at] + struct.pack(">i", partition) + self.frame[at + 4 :])


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def frame(api_key: int, version: int, body: bytes, client_id: str = CLIENT_ID) -> bytes:
    payload = struct.pack(">hhi", api_key, version, CORRELATION_ID) + _string(client_id) + body
    return struct.pack(">i", len(payload)) + payload


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def record_batch(records: int, value_bytes: int, value: bytes = b"", *, zstd: bool = False) -> bytes:
    """Return one batch, magic 2, of records without key and headers. Default value: "x" * value_bytes."""
    body = b""
    value = value or b"x" * value_bytes
    for offset_delta in range(records):
        content = _varint(-1) + _varint(len(value)) + value + _varint(0)
        record = b"\0" + _varint(0) + _varint(offset_delta) + content
        body += _varint(len(record)) + record
    times = (CREATE_TIME_MS, CREATE_TIME_MS)
    if zstd:
        body = bytes(cramjam.zstd.compress(body, ZSTD_LEVEL))
    checked = struct.pack(">hiqqqhii", ZSTD if zstd else 0, records - 1, *times, -1, -1, -1, records) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


def produce(
    topic: str, records: int, value_bytes: int, *, acks: int = -1, client_id: str = CLIENT_ID
) -> Request:
    """Return a Produce of one batch to partition 0, version 3."""
    return _produce(topic, record_batch(records, value_bytes), acks, client_id)


def produce_value(topic: str, value: bytes, *, zstd: bool = False) -> Request:
    """Return a Produce of one record, version 7, the first that allows zstd."""
    return _produce(topic, record_batch(1, 0, value, zstd=zstd), version=7 if zstd else 3)


def produce_batch(topic: str, batch: bytes | bytearray) -> Request:
    return _produce(topic, batch)


def _produce(
    topic: str, batch: bytes | bytearray, acks: int = -1, client_id: str = CLIENT_ID, *, version: int = 3
) -> Request:
    body = struct.pack(">hhii", -1, acks, TIMEOUT_MS, 1) + _string(topic)
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    error_at = 4 + 4 + 4 + len(_string(topic)) + 4 + 4
    whole = frame(PRODUCE, version, body, client_id)
    return Request(whole, error_at, partition_at=len(whole) - len(batch) - 8)


def fetch(
    topic: str, offset: int, bytes_max: int, response_bytes_max: int = 50 << 20, *, client_id: str = CLIENT_ID
) -> Request:
    """Return a Fetch from partition 0, version 4. A response below 31/32 of `bytes_max` is an error."""
    body = struct.pack(">iiiibi", -1, 500, 1, response_bytes_max, 0, 1) + _string(topic)
    body += struct.pack(">iiqi", 1, 0, offset, bytes_max)
    error_at = 4 + 4 + 4 + 4 + len(_string(topic)) + 4 + 4
    return Request(frame(FETCH, 4, body, client_id), error_at, response_bytes_min=bytes_max - bytes_max // 32)


def offset_commit(topic: str, group: int = 0) -> Request:
    """Return an OffsetCommit for partition 0, version 2, of a group without members."""
    name = f"group-{group:08d}"
    body = _string(name) + struct.pack(">i", -1) + _string("") + struct.pack(">qi", -1, 1)
    body += _string(topic) + struct.pack(">iiq", 1, 0, 1) + _string("")
    whole = frame(OFFSET_COMMIT, 2, body)
    digits_at = len(whole) - len(body) + len(_string(name)) - 8
    return Request(whole, 4 + 4 + 4 + len(_string(topic)) + 4 + 4, digits_at=digits_at)


def find_coordinator(group: str) -> Request:
    """Return a FindCoordinator, version 0, upon which a broker makes the topic of groups."""
    return Request(frame(FIND_COORDINATOR, 0, _string(group)), 4 + 4)


def metadata(client_id: str = CLIENT_ID) -> Request:
    """Return a Metadata of all topics, version 4.

    Its response has no error code: `error_at` is the upper half of throttle_time_ms, which is 0.
    """
    return Request(frame(METADATA, 4, struct.pack(">ib", -1, 0), client_id), 4 + 4)


def set_quota(client_id: str, key: str, value: float) -> Request:
    """Return an AlterClientQuotas, version 0, that sets one quota."""
    body = struct.pack(">ii", 1, 1) + _string("client-id") + _string(client_id)
    body += struct.pack(">i", 1) + _string(key) + struct.pack(">dbb", value, 0, 0)
    return Request(frame(ALTER_CLIENT_QUOTAS, 0, body), 4 + 4 + 4 + 4)


def create_topic(
    topic: str, partitions: int, configs: Mapping[str, str] | None = None, *, timeout_ms: int = TIMEOUT_MS
) -> Request:
    settings = configs or {}
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", partitions, 1, 0, len(settings))
    body += b"".join(_string(key) + _string(value) for key, value in settings.items())
    body += struct.pack(">ib", timeout_ms, 0)
    return Request(frame(CREATE_TOPICS, 2, body), 4 + 4 + 4 + 4 + len(_string(topic)))


def create_topics(topics: Sequence[str], partitions: int, *, timeout_ms: int = TIMEOUT_MS) -> Request:
    """Return a CreateTopics for topics whose names all have the same length.

    The error that the caller sees is that of the first topic in the response.
    """
    each = (_string(topic) + struct.pack(">ihii", partitions, 1, 0, 0) for topic in topics)
    body = struct.pack(">i", len(topics)) + b"".join(each) + struct.pack(">ib", timeout_ms, 0)
    return Request(frame(CREATE_TOPICS, 2, body), 4 + 4 + 4 + 4 + len(_string(topics[0])))


def delete_topics(topics: Sequence[str], *, timeout_ms: int = TIMEOUT_MS) -> Request:
    """Return a DeleteTopics for topics whose names all have the same length.

    The error that the caller sees is that of the first topic in the response.
    """
    body = struct.pack(">i", len(topics)) + b"".join(map(_string, topics)) + struct.pack(">i", timeout_ms)
    return Request(frame(DELETE_TOPICS, 1, body), 4 + 4 + 4 + 4 + len(_string(topics[0])))


def delete_topic(topic: str) -> Request:
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", TIMEOUT_MS)
    return Request(frame(DELETE_TOPICS, 1, body), 4 + 4 + 4 + 4 + len(_string(topic)))


def alter_replica_log_dir(directory: str, topic: str, partition: int) -> Request:
    body = struct.pack(">i", 1) + _string(directory) + struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">ii", 1, partition)
    return Request(frame(ALTER_REPLICA_LOG_DIRS, 1, body), 4 + 4 + 4 + 4 + len(_string(topic)) + 4 + 4)


def api_versions() -> Request:
    return Request(frame(API_VERSIONS, 0, b""), 4 + 4)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return exactly `size` received bytes."""
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return bytes(received)


@contextmanager
def connected(address: Address, timeout_s: float = 60) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def exchange(connection: socket.socket, request: Request) -> tuple[int, bytes]:
    """Send one request; return the error code and the whole response frame."""
    connection.sendall(request.frame)
    return answer(connection, request)


def answer(connection: socket.socket, request: Request) -> tuple[int, bytes]:
    """Receive the response to a request that was sent before; return its error code and whole frame."""
    size = receive(connection, 4)
    response = size + receive(connection, int.from_bytes(size, "big"))
    (correlation_id,) = struct.unpack_from(">i", response, 4)
    if correlation_id != CORRELATION_ID:
        raise ConnectionError(f"a response has correlation id {correlation_id}, expected {CORRELATION_ID}")
    (error_code,) = struct.unpack_from(">h", response, request.error_at)
    return error_code, response


def advertised_apis(address: Address, timeout_s: float = 60) -> dict[int, tuple[int, int]]:
    """Return the lowest and the highest version of each API key, by ApiVersions."""
    with connected(address, timeout_s) as connection:
        error_code, response = exchange(connection, api_versions())
    if error_code:
        raise ConnectionError(f"ApiVersions was answered with error code {error_code}")
    (count,) = struct.unpack_from(">i", response, 10)
    rows = struct.iter_unpack(">hhh", response[14 : 14 + 6 * count])
    return {key: (lowest, highest) for key, lowest, highest in rows}
