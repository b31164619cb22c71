"""Requests of a client whose quotas are altered."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    Message,
    ProduceRequest,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench.brokers import Broker
from ops.bench.frames import receive
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S

PRODUCE, DESCRIBE, ALTER = 0, 48, 49
# Versions that every Kafka since 2.7 serves; topics by name.
VERSIONS = {PRODUCE: 9, DESCRIBE: 1, ALTER: 1}
TIMEOUT_S = PATIENCE_S
SAMPLES, WINDOW_MS = 11, 1000
_numbers = itertools.count(1)

Entity = Sequence[tuple[str, str | None]]


class Peer:
    """A connection that speaks one request at a time, or several."""

    def __init__(self, broker: Broker, client: str) -> None:
        self.client = client
        self.socket = socket.create_connection(broker.address, timeout=TIMEOUT_S)
        self.asked: list[int] = []

    def send(self, api_key: int, body: Message) -> int:
        """Bytes of the request without its size field."""
        header = RequestHeader(api_key, VERSIONS[api_key], next(_numbers), self.client)
        frame = b"".join(bytes(segment) for segment in encode_request_frame(header, body))
        self.socket.sendall(frame)
        self.asked.append(api_key)
        return len(frame) - 4

    def receive(self) -> tuple[Any, int]:
        """The answer to the oldest request, and its size."""
        size = int.from_bytes(receive(self.socket, 4))
        api_key = self.asked.pop(0)
        _, response = decode_response_frame(api_key, VERSIONS[api_key], receive(self.socket, size))
        return response, size

    def ask(self, api_key: int, body: Message) -> Any:
        self.send(api_key, body)
        return self.receive()[0]


@contextlib.contextmanager
def peer(broker: Broker, client: str) -> Iterator[Peer]:
    made = Peer(broker, client)
    with made.socket:
        yield made


def ask(broker: Broker, client: str, api_key: int, body: Message) -> Any:
    """Ask on a connection of its own."""
    with peer(broker, client) as one:
        return one.ask(api_key, body)


def alter(broker: Broker, entity: Entity, **values: float | None) -> None:
    """Sets or removes (None) quotas."""
    ops = [
        AlterClientQuotasRequest.OpData(key, 0.0 if value is None else value, value is None)
        for key, value in values.items()
    ]
    named = [AlterClientQuotasRequest.EntityData(kind, name) for kind, name in entity]
    entry = AlterClientQuotasRequest.EntryData(named, ops)
    answer = ask(broker, "operator", ALTER, AlterClientQuotasRequest([entry]))
    assert [e.error_code for e in answer.entries] == [0], answer
    expected = {key: value for key, value in values.items() if value is not None}
    eventually(lambda: described(broker).get(frozenset(entity), {}) == expected, "the quota is there")


def described(broker: Broker) -> dict[frozenset[tuple[str, str | None]], dict[str, float]]:
    answer = ask(broker, "operator", DESCRIBE, DescribeClientQuotasRequest([], False))
    assert answer.error_code == 0, answer.error_message
    return {
        frozenset((e.entity_type, e.entity_name) for e in entry.entity): {
            v.key: v.value for v in entry.values
        }
        for entry in answer.entries
    }


def produce_request(topic: str, size: int, acks: int = -1) -> ProduceRequest:
    batch = bytes(build_batch([NewRecord(value=bytes(size), timestamp=time.time_ns() // 1_000_000)]))
    data = ProduceRequest.PartitionProduceData(0, batch)
    return ProduceRequest(None, acks, 30_000, [ProduceRequest.TopicProduceData(topic, partition_data=[data])])


def produced(broker: Broker, client: str, topic: str, size: int) -> tuple[int, int]:
    """(bytes of the request, pause in ms) of one produce on a connection of its own."""
    with peer(broker, client) as one:
        used = one.send(PRODUCE, produce_request(topic, size))
        answer, _ = one.receive()
    assert [p.error_code for t in answer.responses for p in t.partition_responses] == [0]
    return used, answer.throttle_time_ms


def assert_pause(throttle_ms: int, used: float, bound: float, began: float) -> None:
    """Within 10 % of the formula; samples are as long as Kafka's, the first began at `began`."""
    elapsed_ms = (time.monotonic() - began) * 1000
    missing = max(0, SAMPLES - 1 - int(elapsed_ms // WINDOW_MS))
    longest = elapsed_ms + missing * WINDOW_MS
    shortest = (SAMPLES - 1) * WINDOW_MS
    least, most = 1000 * used / bound - longest, 1000 * used / bound - shortest
    assert 0.9 * least <= throttle_ms <= 1.1 * most, (throttle_ms, least, most)
