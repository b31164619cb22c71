"""Topics as brokers tell of them over the Kafka protocol: Metadata and ListOffsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from spark_integration.connection import Connection, ConnectionLost
from spark_integration.errors import OptionError, SourceUnavailable
from spark_integration.options import EARLIEST, LATEST, ReadOptions, TopicPartition
from spark_integration.plan import OffsetRange, TaskRange, by_offsets

_CODES = {int(code): code for code in ErrorCode}
_CONSUMER = -1
_READ_UNCOMMITTED = 0
_T = TypeVar("_T")


class ApiFailed(SourceUnavailable):
    """A broker answered with an error code."""

    def __init__(self, what: str, number: int) -> None:
        self.code = _CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
        super().__init__(f"{what}: {self.code.message} ({self.code.name}, {number})")


def parse_servers(text: str) -> list[tuple[str, int]]:
    """`host:port,…`, IPv6 hosts in brackets. Raises OptionError."""
    found = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        host, _, port = part.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"kafka.bootstrap.servers: '{part}' is not host:port")
        found.append((host, int(port)))
    if not found:
        raise OptionError(f"kafka.bootstrap.servers names no server in '{text}'")
    return found


class Cluster:
    """Connections to the leaders of partitions, made when they are needed and again when they break."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._servers = parse_servers(options.bootstrap_servers or "")
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget(self) -> None:
        """Drops connections and what is known of leaders; both are found anew when they are needed."""
        self.close()
        self._leaders.clear()

    def topics(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        """These topics, or all. Raises SourceUnavailable."""
        return self.retried(lambda: self._metadata(names))

    def leader(self, topic: str, partition: int) -> Connection:
        """A connection to the partition's leader. Raises SourceUnavailable."""
        if (topic, partition) not in self._leaders:
            self._metadata([topic])
        node = self._leaders.get((topic, partition), -1)
        if node not in self._brokers:
            raise ApiFailed(f"{topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE)
        return self._connection(self._brokers[node])

    def retried(self, ask: Callable[[], _T]) -> _T:
        """Leaders move, connections break: asks again, with fresh metadata, fetchOffset.numRetries times."""
        for tries_left in range(self._options.retries, -1, -1):
            try:
                return ask()
            except (ConnectionLost, ApiFailed) as error:
                retriable = isinstance(error, ConnectionLost) or error.code.retriable
                if not retriable or not tries_left:
                    raise
            self.forget()
            time.sleep(self._options.retry_interval_ms / 1000)
        raise AssertionError("the last try returns or raises")

    def _metadata(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        wanted = m.MetadataRequest.MetadataRequestTopic
        request = m.MetadataRequest(
            topics=None if names is None else [wanted(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response: m.MetadataResponse = self._any().call(request)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            if topic.error_code and names is not None:
                raise ApiFailed(f"topic {topic.name}", topic.error_code)
            for part in topic.partitions:
                self._leaders[topic.name or "", part.partition_index] = part.leader_id
        return list(response.topics)

    def _any(self) -> Connection:
        known = next(iter(self._connections.values()), None)
        if known is not None:
            return known
        for server in self._servers[:-1]:
            try:
                return self._connection(server)
            except ConnectionLost:
                continue
        return self._connection(self._servers[-1])

    def _connection(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(*address, self._options.request_timeout_ms / 1000)
        return self._connections[address]


class RemoteCatalog:
    """All that a plan wants to know, asked of brokers. Raises SourceUnavailable, OptionError."""

    def __init__(self, options: ReadOptions) -> None:
        self._cluster = Cluster(options)

    def topics(self) -> Iterable[str]:
        return sorted(
            topic.name for topic in self._cluster.topics(None) if topic.name and not topic.is_internal
        )

    def partitions(self, topic: str) -> Sequence[int]:
        (found,) = self._cluster.topics([topic])
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
        self._cluster.close()

    def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """One request per leader; EARLIEST and LATEST are what the protocol calls them too."""
        return self._cluster.retried(lambda: self._list_offsets_once(wanted))

    def _list_offsets_once(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        by_leader: dict[Connection, dict[str, dict[int, int]]] = {}
        for (topic, number), timestamp in wanted.items():
            topics = by_leader.setdefault(self._cluster.leader(topic, number), {})
            topics.setdefault(topic, {})[number] = timestamp
        found: dict[TopicPartition, int] = {}
        for connection, topics in by_leader.items():
            response: m.ListOffsetsResponse = connection.call(_list_offsets_request(topics))
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
