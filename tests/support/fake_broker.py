"""A broker for commands: it answers what it was told to."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.codec import decode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_request_header, encode_response_frame
from mpbroker.records.batch import assign_offset_and_epoch, frame_at
from tests.support.polling import PATIENCE_S
from tests.support.threaded_server import ThreadedServer

NODE_ID = 7


SPOKEN = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
)


class FakeBroker(ThreadedServer):
    """Partitions are lists of batches. `refuse` makes the next requests of an API fail.

    `faults` does so by turns: "hang up" at once, or "swallow" the answer of what was done. Sequences of
    producers are checked as a broker does.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[bytearray]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.max_message_bytes = 1 << 20
        self.refuse: dict[ApiKey, list[ErrorCode]] = {}
        self.faults: dict[ApiKey, list[str]] = {}
        self.offline: set[tuple[str, int]] = set()
        # The port that metadata tells clients; its own if 0.
        self.advertised_port = 0
        self.silent: list[ApiKey] = []
        self._came = threading.Condition()
        self.next_sequence: dict[tuple[str, int, int], int] = {}
        self.requests: list[tuple[ApiKey, int]] = []
        self._handlers: dict[ApiKey, Callable[[Any], m.Message]] = {
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.METADATA: self._metadata,
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _no_such_user,
            ApiKey.INIT_PRODUCER_ID: lambda _request: m.InitProducerIdResponse(producer_id=4711),
        }

    def wait_for(self, key: ApiKey) -> None:
        """Wait until such a request has come."""
        with self._came:
            assert self._came.wait_for(lambda: key in [seen for seen, _ in self.requests], timeout=PATIENCE_S)

    def end_offset(self, topic: str, partition: int) -> int:
        log = self.topics[topic][partition]
        end = position = 0
        while (header := frame_at(log, position)) is not None:
            end = header.base_offset + header.last_offset_delta + 1
            position += header.length
        return end

    def talk(self, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection.makefile("rb") as stream:
            self._answer_all(connection, stream)

    def _answer_all(self, connection: socket.socket, stream: BinaryIO) -> None:
        while len(head := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">i", head)[0])
            header, position = decode_request_header(frame)
            key = ApiKey(header.api_key)
            with self._came:
                self.requests.append((key, header.api_version))
                self._came.notify_all()
            if key in self.silent:
                continue
            fault = self._fault(key)
            if fault == "hang up":
                return
            version = header.api_version
            request, _end = decode_request(key, version, frame, position)
            response = self._handlers[key](request)
            if key is ApiKey.PRODUCE and request.acks == 0:
                continue
            if fault == "swallow":
                return
            for segment in encode_response_frame(key, version, header.correlation_id, response):
                connection.sendall(segment)

    def _refused(self, key: ApiKey) -> ErrorCode:
        codes = self.refuse.get(key)
        return codes.pop(0) if codes else ErrorCode.NONE

    def _fault(self, key: ApiKey) -> str:
        """Return the fault for the next request of an API: "", "hang up", or "swallow" the answer."""
        faults = self.faults.get(key)
        return faults.pop(0) if faults else ""

    def _api_versions(self, _request: Any) -> m.Message:
        api = m.ApiVersionsResponse.ApiVersion
        return m.ApiVersionsResponse(
            api_keys=[
                api(api_key=key, min_version=valid_versions(key)[0], max_version=valid_versions(key)[-1])
                for key in SPOKEN
            ]
        )

    def _metadata(self, request: m.MetadataRequest) -> m.Message:
        code = self._refused(ApiKey.METADATA)
        names = (
            list(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        )
        for name in names:
            if name not in self.topics and request.allow_auto_topic_creation:
                self.topics[name] = [bytearray()]
        part = m.MetadataResponse.MetadataResponsePartition
        return m.MetadataResponse(
            brokers=[
                m.MetadataResponse.MetadataResponseBroker(
                    node_id=NODE_ID, host="127.0.0.1", port=self.advertised_port or self.port
                )
            ],
            topics=[
                m.MetadataResponse.MetadataResponseTopic(
                    name=name,
                    error_code=code or (0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    partitions=[
                        part(
                            error_code=ErrorCode.LEADER_NOT_AVAILABLE if (name, i) in self.offline else 0,
                            partition_index=i,
                            leader_id=-1 if (name, i) in self.offline else NODE_ID,
                            replica_nodes=[NODE_ID],
                            isr_nodes=[NODE_ID],
                        )
                        for i in range(len(self.topics.get(name, [])))
                    ],
                )
                for name in names
            ],
        )

    def _create_topics(self, request: m.CreateTopicsRequest) -> m.Message:
        (topic,) = request.topics
        result = m.CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_message=None)
        if code := self._refused(ApiKey.CREATE_TOPICS):
            result.error_code = code
        elif topic.name in self.topics:
            result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
            result.error_message = f"Topic '{topic.name}' already exists."
        else:
            self.topics[topic.name] = [bytearray() for _ in range(max(topic.num_partitions, 1))]
            self.configs[topic.name] = {config.name: config.value or "" for config in topic.configs}
            result.num_partitions, result.replication_factor = len(self.topics[topic.name]), 1
        return m.CreateTopicsResponse(topics=[result])

    def _delete_topics(self, request: m.DeleteTopicsRequest) -> m.Message:
        names = [topic.name or "" for topic in request.topics] or request.topic_names
        results = [
            m.DeleteTopicsResponse.DeletableTopicResult(
                name=name,
                error_code=0 if self.topics.pop(name, None) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for name in names
        ]
        return m.DeleteTopicsResponse(responses=results)

    def _describe_configs(self, request: m.DescribeConfigsRequest) -> m.Message:
        (resource,) = request.resources
        entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult
        own = self.configs.get(resource.resource_name, {})
        configs = [entry(name=name, value=value, config_source=1) for name, value in own.items()]
        configs.append(entry(name="preallocate", value="false", config_source=5))
        result = m.DescribeConfigsResponse.DescribeConfigsResult(
            error_message=None, resource_type=2, resource_name=resource.resource_name, configs=configs
        )
        return m.DescribeConfigsResponse(results=[result])

    def _list_offsets(self, request: m.ListOffsetsRequest) -> m.Message:
        (topic,) = request.topics
        part = m.ListOffsetsResponse.ListOffsetsPartitionResponse
        found = [
            part(
                partition_index=wanted.partition_index,
                error_code=self._refused(ApiKey.LIST_OFFSETS),
                offset=0 if wanted.timestamp == -2 else self.end_offset(topic.name, wanted.partition_index),
            )
            for wanted in topic.partitions
        ]
        answer = m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=found)
        return m.ListOffsetsResponse(topics=[answer])

    def _produce(self, request: m.ProduceRequest) -> m.Message:
        (topic,) = request.topic_data
        results = []
        for data in topic.partition_data:
            code = self._refused(ApiKey.PRODUCE)
            result = m.ProduceResponse.PartitionProduceResponse(index=data.index, error_code=code)
            if not code:
                assert data.records is not None
                result.error_code = self._append(topic.name, data.index, bytearray(data.records))
            results.append(result)
        answer = m.ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=results)
        return m.ProduceResponse(responses=[answer])

    def _append(self, topic: str, partition: int, batch: bytearray) -> ErrorCode:
        header = frame_at(batch, 0)
        assert header is not None
        if len(batch) > self.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        if header.producer_id >= 0:
            key = (topic, partition, header.producer_id)
            expected = self.next_sequence.get(key, 0)
            if header.base_sequence != expected:
                known = header.base_sequence < expected
                return (
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER if known else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                )
            self.next_sequence[key] = expected + header.last_offset_delta + 1
        assign_offset_and_epoch(batch, self.end_offset(topic, partition), 0)
        self.topics[topic][partition] += batch
        return ErrorCode.NONE

    def _fetch(self, request: m.FetchRequest) -> m.Message:
        (topic,) = request.topics
        results = []
        for wanted in topic.partitions:
            log = self.topics[topic.topic][wanted.partition]
            end = self.end_offset(topic.topic, wanted.partition)
            part = m.FetchResponse.PartitionData(
                partition_index=wanted.partition,
                error_code=self._refused(ApiKey.FETCH),
                high_watermark=end,
                records=bytes(_from_offset(log, wanted.fetch_offset)),
            )
            results.append(part)
        answer = m.FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=results)
        return m.FetchResponse(responses=[answer])


def _no_such_user(request: m.DescribeUserScramCredentialsRequest) -> m.Message:
    result = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    answers = [
        result(user=wanted.name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message="does not exist")
        for wanted in request.users or []
    ]
    return m.DescribeUserScramCredentialsResponse(error_message=None, results=answers)


def _from_offset(log: bytearray, offset: int) -> bytearray:
    """The batch that holds the offset, and one more if there is one: fetches come in whole batches."""
    position = 0
    while (header := frame_at(log, position)) is not None:
        if header.base_offset + header.last_offset_delta >= offset:
            following = frame_at(log, position + header.length)
            return log[position : position + header.length + (following.length if following else 0)]
        position += header.length
    return bytearray()
