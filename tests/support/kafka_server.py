"""A Kafka broker of one thread and few words, which answers as the test tells it to: faults on demand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_request_header, encode_response_frame
from tests.support.threaded_server import HOST, ThreadedServer

APIS = {
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
}


class HangUp(Exception):
    """Raised by a test's fault: the connection is closed without an answer."""


class Unanswered(Exception):
    """Raised by a test's fault: no answer comes, and the connection stays."""


@dataclass
class KafkaServer(ThreadedServer):
    """One topic with one partition, whose batches are (base offset, next offset, bytes)."""

    topic: str
    batches: list[tuple[int, int, bytes]]
    log_start: int = 0
    topic_id: bytes = b"an id of a topic"
    # The highest version of Fetch; from 13 on topics are named by id.
    fetch_max: int = 18
    aborted: list[tuple[int, int]] = field(default_factory=list)
    connections: int = 0
    asked: list[ApiKey] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    fault: Callable[[int, int], ErrorCode | None] = lambda _nth, _offset: None
    # Which fetches are answered without an error and without records.
    is_empty: Callable[[int], bool] = lambda _nth: False
    # Which fetches a leader answers that does not know its high watermark yet.
    is_late: Callable[[int], bool] = lambda _nth: False

    def talk(self, connection: socket.socket) -> None:
        self.connections += 1
        try:
            with connection.makefile("rb") as requests:
                while len(size := requests.read(4)) == 4:
                    frame = requests.read(struct.unpack(">i", size)[0])
                    header, position = decode_request_header(frame)
                    request, _ = decode_request(header.api_key, header.api_version, frame, position)
                    self.asked.append(ApiKey(header.api_key))
                    try:
                        answer = self._answer(header.api_key, request)
                    except Unanswered:
                        continue
                    for segment in encode_response_frame(
                        header.api_key, header.api_version, header.correlation_id, answer
                    ):
                        connection.sendall(segment)
        except (HangUp, OSError):
            return

    def _answer(self, api_key: int, request: Any) -> m.Message:
        if api_key == ApiKey.API_VERSIONS:
            version = m.ApiVersionsResponse.ApiVersion
            return m.ApiVersionsResponse(
                api_keys=[
                    version(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in (APIS | {ApiKey.FETCH: (4, self.fetch_max)}).items()
                ]
            )
        if api_key == ApiKey.METADATA:
            return self._metadata(request)
        return self._list_offsets(request) if api_key == ApiKey.LIST_OFFSETS else self._fetch(request)

    def _metadata(self, request: m.MetadataRequest) -> m.MetadataResponse:
        names = (
            [self.topic, "__consumer_offsets"] if request.topics is None else [t.name for t in request.topics]
        )
        part = m.MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=7)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return m.MetadataResponse(
            brokers=[m.MetadataResponse.MetadataResponseBroker(node_id=7, host=HOST, port=self.port)],
            topics=[
                m.MetadataResponse.MetadataResponseTopic(
                    error_code=0 if name in (self.topic, "__consumer_offsets") else unknown,
                    name=name,
                    topic_id=self.topic_id,
                    is_internal=name == "__consumer_offsets",
                    partitions=[part],
                )
                for name in names
            ],
        )

    def _list_offsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        (topic,) = request.topics
        (part,) = topic.partitions
        offset = {-2: self.log_start, -1: self.batches[-1][1]}.get(part.timestamp, -1)
        answer = m.ListOffsetsResponse.ListOffsetsPartitionResponse(offset=offset)
        found = m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[answer])
        return m.ListOffsetsResponse(topics=[found])

    def _fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        (topic,) = request.topics
        (part,) = topic.partitions
        offset = part.fetch_offset
        self.fetches.append(offset)
        error = self.fault(len(self.fetches), offset)
        by_id = self.fetch_max >= 13 and any(topic.topic_id)
        if error is None and by_id and topic.topic_id != self.topic_id:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        if error is None and not self.log_start <= offset <= self.batches[-1][1]:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        is_late = self.is_late(len(self.fetches))
        is_empty = error is not None or is_late or self.is_empty(len(self.fetches))
        records = b"" if is_empty else b"".join(data for _, end, data in self.batches if end > offset)
        if len(records) > part.partition_max_bytes:
            first = next(data for _, end, data in self.batches if end > offset)
            records = records[: max(part.partition_max_bytes, len(first))]
        answer = m.FetchResponse.PartitionData(
            error_code=error or 0,
            high_watermark=self.log_start if is_late else self.batches[-1][1],
            records=records,
            aborted_transactions=[
                m.FetchResponse.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in self.aborted
                if request.isolation_level
            ],
        )
        found = m.FetchResponse.FetchableTopicResponse(
            topic=topic.topic, topic_id=topic.topic_id, partitions=[answer]
        )
        return m.FetchResponse(responses=[found])
