"""A small synchronous Kafka client for the commands of this package.

It finds the leader of each partition through metadata, keeps one connection per broker, and turns error
codes into `KafkaError`. No consumer groups, no transactions, no idempotence.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from mpbroker.cli.connection import Connection
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.wire import Buffer

EARLIEST = -2
LATEST = -1
TOPIC_RESOURCE = 2
REQUEST_TIMEOUT_MS = 30_000
FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 4 << 20

_Value = TypeVar("_Value")


_CODES = {int(code): code for code in ErrorCode}


def error_code(number: int) -> ErrorCode:
    """The named code; a newer broker may have one that has no name here."""
    return _CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


class KafkaError(CliError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        self.code = error_code(code)
        super().__init__(f"{what}: {message or self.code.message} ({self.code.name})")


class Partition(msgspec.Struct, frozen=True):
    """One partition as metadata has it."""

    index: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error_code: int


class Topic(msgspec.Struct, frozen=True):
    """One topic as metadata has it, its partitions in order."""

    name: str
    internal: bool
    partitions: list[Partition]
    error_code: int


class Fetched(msgspec.Struct, frozen=True):
    """What a fetch brought for one partition."""

    partition: int
    error_code: int
    high_watermark: int
    records: Buffer


def parse_address(address: str) -> tuple[str, int]:
    """`host:port`, IPv6 hosts in brackets; without a port it is Kafka's 9092."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address.strip(), "9092"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CliError(f"'{address}' is not HOST:PORT", USAGE_ERROR)
    return host, int(port)


class Client:
    """Use it as a context manager; it connects when it is first asked something."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = [parse_address(address) for address in bootstrap.split(",")]
        self._connections: dict[int, Connection] = {}
        self._any: Connection | None = None
        self._brokers: dict[int, tuple[str, int]] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Forgets all connections; the next question makes new ones."""
        for connection in [*self._connections.values(), *filter(None, [self._any])]:
            connection.close()
        self._connections.clear()
        self._any = None

    def topics(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> list[Topic]:
        """The topics of these names, or all, by name."""
        wanted = m.MetadataRequest.MetadataRequestTopic
        request = m.MetadataRequest(
            topics=None if names is None else [wanted(name=name) for name in names],
            allow_auto_topic_creation=auto_create,
        )
        response: m.MetadataResponse = self._ask_any(request)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        return sorted((_topic(topic) for topic in response.topics), key=lambda topic: topic.name)

    def topic(self, name: str, *, auto_create: bool = False) -> Topic:
        """One topic; KafkaError if it is not there."""
        (topic,) = self.topics([name], auto_create=auto_create)
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(f"topic {name}", topic.error_code, "does not exist")
        if topic.error_code:
            raise KafkaError(f"topic {name}", topic.error_code)
        return topic

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> tuple[int, int]:
        """Number of partitions and replicas that the topic got."""
        request = m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=[
                        m.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        response: m.CreateTopicsResponse = self._ask_any(request)
        (result,) = response.topics
        if result.error_code:
            raise KafkaError(f"topic {name}", result.error_code, result.error_message)
        return result.num_partitions, result.replication_factor

    def delete_topics(self, names: list[str]) -> dict[str, KafkaError | None]:
        """What became of each topic: None for a deleted one."""
        states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = m.DeleteTopicsRequest(topic_names=names, topics=states, timeout_ms=REQUEST_TIMEOUT_MS)
        response: m.DeleteTopicsResponse = self._ask_any(request)
        return {
            result.name or "": KafkaError(f"topic {result.name}", result.error_code, result.error_message)
            if result.error_code
            else None
            for result in response.responses
        }

    def topic_configs(self, name: str) -> list[Any]:
        """DescribeConfigs of one topic."""
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        response: m.DescribeConfigsResponse = self._ask_any(m.DescribeConfigsRequest(resources=[resource]))
        (result,) = response.results
        if result.error_code:
            raise KafkaError(f"settings of topic {name}", result.error_code, result.error_message)
        return result.configs

    def offsets(self, topic: Topic, timestamp: int, partitions: Iterable[int]) -> dict[int, int]:
        """First (EARLIEST) or next (LATEST) offset of each partition."""
        wanted = m.ListOffsetsRequest.ListOffsetsPartition
        found: dict[int, int] = {}
        for leader, indexes in _by_leader(topic, dict.fromkeys(partitions, None)).items():
            request = m.ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    m.ListOffsetsRequest.ListOffsetsTopic(
                        name=topic.name,
                        partitions=[wanted(partition_index=index, timestamp=timestamp) for index in indexes],
                    )
                ],
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            response: m.ListOffsetsResponse = self._ask(leader, request)
            for result in (part for one in response.topics for part in one.partitions):
                if result.error_code:
                    raise KafkaError(f"offsets of {topic.name}-{result.partition_index}", result.error_code)
                found[result.partition_index] = result.offset
        return found

    def produce(self, topic: Topic, batches: Mapping[int, Buffer], acks: int) -> dict[int, KafkaError | None]:
        """Sends one batch per partition; what became of each. The caller decides about another try."""
        data = m.ProduceRequest.PartitionProduceData
        results: dict[int, KafkaError | None] = {}
        for leader, mine in _by_leader(topic, batches).items():
            request = m.ProduceRequest(
                acks=acks,
                timeout_ms=REQUEST_TIMEOUT_MS,
                topic_data=[
                    m.ProduceRequest.TopicProduceData(
                        name=topic.name,
                        partition_data=[data(index=index, records=batch) for index, batch in mine.items()],
                    )
                ],
            )
            response: m.ProduceResponse | None = self._ask(leader, request)
            if response is None:
                results.update(dict.fromkeys(mine, None))
                continue
            for part in (part for one in response.responses for part in one.partition_responses):
                what = f"partition {topic.name}-{part.index}"
                failed = KafkaError(what, part.error_code, part.error_message) if part.error_code else None
                results[part.index] = failed
        return results

    def fetch(self, topic: Topic, positions: Mapping[int, int], max_wait_ms: int) -> list[Fetched]:
        """Records from these positions on; waits for the first byte if there is none."""
        by_leader = _by_leader(topic, positions)
        fetched: list[Fetched] = []
        for leader, mine in by_leader.items():
            partitions = [
                m.FetchRequest.FetchPartition(
                    partition=index, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX
                )
                for index, offset in mine.items()
            ]
            request = m.FetchRequest(
                max_wait_ms=max_wait_ms // len(by_leader),
                min_bytes=1,
                max_bytes=FETCH_BYTES_MAX,
                topics=[m.FetchRequest.FetchTopic(topic=topic.name, partitions=partitions)],
            )
            response: m.FetchResponse = self._ask(leader, request)
            if response.error_code:
                raise KafkaError(f"fetching {topic.name}", response.error_code)
            fetched += [
                Fetched(part.partition_index, part.error_code, part.high_watermark, part.records or b"")
                for one in response.responses
                for part in one.partitions
            ]
        return fetched

    def _ask(self, node_id: int, request: m.Message) -> Any:
        connection = self._connections.get(node_id)
        if connection is None:
            connection = self._connections[node_id] = Connection(*self._brokers[node_id])
        return connection.call(request)

    def _ask_any(self, request: m.Message) -> Any:
        if self._any is None:
            self._any = self._first_that_answers()
        return self._any.call(request)

    def _first_that_answers(self) -> Connection:
        for host, port in self._bootstrap[:-1]:
            try:
                return Connection(host, port)
            except CliError:
                continue
        return Connection(*self._bootstrap[-1])


def _topic(topic: m.MetadataResponse.MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes, part.error_code)
        for part in topic.partitions
    ]
    partitions.sort(key=lambda partition: partition.index)
    return Topic(topic.name or "", topic.is_internal, partitions, topic.error_code)


def _by_leader(topic: Topic, values: Mapping[int, _Value]) -> dict[int, dict[int, _Value]]:
    """Splits something that is known per partition by the broker that leads it."""
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    split: dict[int, dict[int, _Value]] = {}
    for index, value in values.items():
        leader = leaders.get(index)
        if leader is None:
            raise CliError(
                f"topic {topic.name} has no partition {index}, only 0 to {len(leaders) - 1}", USAGE_ERROR
            )
        if leader < 0:
            raise KafkaError(f"partition {topic.name}-{index}", ErrorCode.LEADER_NOT_AVAILABLE)
        split.setdefault(leader, {})[index] = value
    return split
