"""Topics as brokers tell of them over the Kafka protocol: Metadata and ListOffsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mpbroker.client.cluster import Asked, Cluster
from mpbroker.client.config import ClientConfig, from_properties, parse_servers
from mpbroker.client.errors import ApiFailed, ClientError, ConfigError, ConnectionLost
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST
from spark_integration.errors import OptionError, SourceUnavailable
from spark_integration.options import ReadOptions, TopicPartition
from spark_integration.plan import OffsetRange, TaskRange, by_offsets

CLIENT_ID = "mpbroker-spark"
RECEIVE_BUFFER_BYTES = 4 << 20
ADVICE = "check kafka.bootstrap.servers and the broker's advertised.listeners"

_LOG = logging.getLogger("mpbroker.spark")
_CONSUMER = -1
_READ_UNCOMMITTED = 0
_T = TypeVar("_T")


def servers_of(text: str) -> list[tuple[str, int]]:
    """Raises OptionError."""
    try:
        return parse_servers(text)
    except ConfigError as error:
        raise OptionError(f"kafka.bootstrap.servers: {error}") from error


class Brokers:
    """The brokers of a cluster, asked with patience. Raises ClientError until `retried` has given up."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        servers = servers_of(options.bootstrap_servers or "")
        try:
            config, _ = from_properties(options.client, _base(options))
            self._cluster = Cluster(servers, config, ADVICE)
        except ConfigError as error:
            raise OptionError(f"kafka.{error}") from error

    def close(self) -> None:
        self._cluster.close()

    def topics(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        """These topics, or all. Raises SourceUnavailable."""
        return self.retried(lambda: self._metadata(names))

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads the partition."""
        node = self._cluster.metadata.leader(topic, partition)
        if node is None:
            self._metadata([topic])
            node = self._cluster.metadata.leader(topic, partition)
        if node is None:
            raise ApiFailed(f"{topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE)
        return node.id

    def start(self, node: int, request: m.Message) -> Asked:
        """Sends a request; other things may be done before `finish`."""
        return self._cluster.start(node, request)

    def finish(self, asked: Asked) -> Any:
        """The response."""
        return self._cluster.finish(asked)

    def ask(self, node: int, request: m.Message) -> Any:
        return self._cluster.ask(node, request)

    def retried(self, ask: Callable[[], _T], topic: str | None = None) -> _T:
        """Leaders move, connections break: asks again, fetchOffset.numRetries times, of who leads then."""
        for tries_left in range(self._options.retries, -1, -1):
            try:
                return ask()
            except ClientError as error:
                if not error.retriable or not tries_left:
                    raise SourceUnavailable(str(error)) from error
            time.sleep(self._options.retry_interval_ms / 1000)
            self.look_again(topic)
        raise AssertionError("the last try returns or raises")

    def look_again(self, topic: str | None) -> None:
        """Who leads the topic now; if nobody says, the next question finds out why."""
        if topic is None:
            return
        try:
            self._metadata([topic])
        except (ConnectionLost, ApiFailed) as error:
            _LOG.warning("no metadata of %s: %s", topic, error)

    def _metadata(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        wanted = m.MetadataRequest.MetadataRequestTopic
        request = m.MetadataRequest(
            topics=None if names is None else [wanted(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response = self._cluster.refresh(request)
        for topic in response.topics:
            if topic.error_code and names is not None:
                raise ApiFailed(f"topic {topic.name}", topic.error_code)
        return list(response.topics)


def _base(options: ReadOptions) -> ClientConfig:
    """What holds unless the user set it by its Kafka name."""
    return ClientConfig(
        client_id=CLIENT_ID,
        request_timeout_ms=options.request_timeout_ms,
        receive_buffer_bytes=RECEIVE_BUFFER_BYTES,
    )


class RemoteCatalog:
    """All that a plan wants to know, asked of brokers. Raises SourceUnavailable, OptionError."""

    def __init__(self, options: ReadOptions) -> None:
        self._brokers = Brokers(options)

    def topics(self) -> Iterable[str]:
        return sorted(
            topic.name for topic in self._brokers.topics(None) if topic.name and not topic.is_internal
        )

    def partitions(self, topic: str) -> Sequence[int]:
        (found,) = self._brokers.topics([topic])
        return sorted(part.partition_index for part in found.partitions)

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        starts = self._list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = self._list_offsets(dict.fromkeys(wanted, LATEST))
        return {one: (starts[one], ends[one]) for one in wanted}

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found = self._list_offsets(wanted)
        return {one: None if offset < 0 else offset for one, offset in found.items()}

    def weight(self, wanted: OffsetRange) -> int:  # noqa: ARG002 - no request tells
        """Unknown: no request of the protocol tells."""
        return 0

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        topic, number = wanted.topic_partition
        pieces = by_offsets(wanted.start, wanted.end, parts, max_records)
        return [TaskRange(topic, number, start, end) for start, end in pieces]

    def close(self) -> None:
        self._brokers.close()

    def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """One request per leader; EARLIEST and LATEST are what the protocol calls them too."""
        return self._brokers.retried(lambda: self._list_offsets_once(wanted))

    def _list_offsets_once(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        by_leader: dict[int, dict[str, dict[int, int]]] = {}
        for (topic, number), timestamp in wanted.items():
            topics = by_leader.setdefault(self._brokers.leader(topic, number), {})
            topics.setdefault(topic, {})[number] = timestamp
        found: dict[TopicPartition, int] = {}
        for leader, topics in by_leader.items():
            response: m.ListOffsetsResponse = self._brokers.ask(leader, _list_offsets_request(topics))
            for topic_answer in response.topics:
                for part in topic_answer.partitions:
                    if part.error_code:
                        raise ApiFailed(
                            f"offsets of {topic_answer.name}-{part.partition_index}", part.error_code
                        )
                    found[topic_answer.name, part.partition_index] = part.offset
        return found


def _list_offsets_request(topics: Mapping[str, Mapping[int, int]]) -> m.ListOffsetsRequest:
    partition = m.ListOffsetsRequest.ListOffsetsPartition
    return m.ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=_READ_UNCOMMITTED,
        timeout_ms=30_000,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[partition(partition_index=number, timestamp=at) for number, at in parts.items()],
            )
            for topic, parts in topics.items()
        ],
    )
