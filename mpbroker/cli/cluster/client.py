"""Requests that several commands make to a cluster: topics, offsets, records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.cluster.command_config import read_entries
from mpbroker.cli.cluster.isolation import READ_COMMITTED, READ_UNCOMMITTED
from mpbroker.cli.cluster.positions import Ends
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, from_properties, known_names, parse_servers
from mpbroker.client.errors import ApiFailed, ConfigError, InvalidReceive, not_done, without_leader
from mpbroker.config import known
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST, ResourceType
from mpbroker.protocol.topic_names import INTERNAL_TOPICS, problem_with
from mpbroker.protocol.wire import Buffer

REQUEST_TIMEOUT_MS = 30_000
# The time for retries after errors that may pass.
PATIENCE_MS = 30_000
ADVICE = "does the broker run there? (--bootstrap-server)"
FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 4 << 20

# Somebody waits for a command: where no connection is made, it says so within seconds.
OF_COMMANDS = ClientConfig(
    client_id="mpbroker-cli",
    retries_advertised=False,
    socket_connection_setup_timeout_ms=5_000,
)

_Value = TypeVar("_Value")


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


class Found(NamedTuple):
    """An offset and the timestamp (ms) of its record; -1 for what there is not."""

    offset: int
    timestamp: int


class Fetched(msgspec.Struct, frozen=True):
    """The result of a fetch for one partition.

    `aborted` has the producer id and first offset of each aborted transaction in it, for committed reads.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    records: Buffer

    def end(self, isolation: int) -> int:
        """Return where a reader of this isolation level ends."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark


def read_config(path: Path | None, base: ClientConfig = OF_COMMANDS) -> ClientConfig:
    """Read the settings of --command-config, which Kafka's tools understand too. Raises ConfigError.

    `base` has what the file does not say.
    """
    entries = read_entries(path)
    lines = {entry.key: entry.line for entry in entries}
    try:
        config, unknown = from_properties({entry.key: entry.value for entry in entries}, base)
    except ConfigError as error:
        line = f":{lines[error.name]}" if error.name else ""
        raise ConfigError(f"--command-config {path}{line}: {error}") from error
    for name in unknown:
        guess = known.hint([name], known_names())
        print(f"mpbroker: {path}:{lines[name]}: warning: {name} is ignored{guess}", file=sys.stderr)
    return config


class Client:
    """A client of one cluster. Use it as a context manager; it connects at the first request."""

    def __init__(self, where: ClusterAddress, base: ClientConfig = OF_COMMANDS) -> None:
        self.config = read_config(where.command_config, base)
        self.cluster = Cluster(parse_servers(where.bootstrap), self.config, ADVICE)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.cluster.close()

    def topics(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> list[Topic]:
        """Return the topics of these names, or all topics, by name."""
        wanted = m.MetadataRequest.MetadataRequestTopic
        request = m.MetadataRequest(
            topics=None if names is None else [wanted(name=name) for name in names],
            allow_auto_topic_creation=auto_create,
        )
        response = self.cluster.refresh(request)
        return sorted((_topic(topic) for topic in response.topics), key=lambda topic: topic.name)

    def topic(self, name: str, *, auto_create: bool = False) -> Topic:
        """Return one topic. Raises ApiFailed if it does not exist."""
        topic = only(self.topics([name], auto_create=auto_create), f"topic {name}")
        if topic.error_code:
            raise self.topic_failed(name, topic.error_code, guesses=not auto_create)
        return topic

    def topic_failed(
        self, name: str, code: int, message: str | None = None, *, guesses: bool = True
    ) -> ApiFailed:
        """Make an error about a topic: with our own text about a wrong name, and which one may be meant."""
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and guesses:
            guess = known.hint([name], [one.name for one in self.topics()])
            return ApiFailed(f"topic {name}", code, f"does not exist{guess}")
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            message = problem_with(name) or message
        return not_done(f"topic {name}", code, message)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        timeout_s: float,
    ) -> tuple[int, int]:
        """Create a topic; return the number of partitions and replicas that it got. Raises ApiFailed."""
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
            timeout_ms=int(timeout_s * 1000),
        )
        response: m.CreateTopicsResponse = self.cluster.ask_any(request, timeout_s * 1000)
        result = only(response.topics, f"topic {name}")
        if result.error_code:
            raise ApiFailed(f"topic {name}", result.error_code, result.error_message)
        return result.num_partitions, result.replication_factor

    def delete_topics(self, names: list[str], timeout_s: float) -> dict[str, ApiFailed | None]:
        """Delete topics; return the error of each, None for a deleted one.

        A broker deletes its own topics, too, as Kafka's does: no command asks for that. Raises CliError.
        """
        if own := sorted(INTERNAL_TOPICS.intersection(names)):
            raise CliError(
                f"{own[0]} is the broker's own topic: without it all groups' offsets or all transactions "
                "are gone. Nothing was deleted",
                USAGE_ERROR,
            )
        states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = m.DeleteTopicsRequest(topic_names=names, topics=states, timeout_ms=int(timeout_s * 1000))
        response: m.DeleteTopicsResponse = self.cluster.ask_any(request, timeout_s * 1000)
        return {
            name: self.topic_failed(name, result.error_code, result.error_message)
            if result.error_code
            else None
            for name, result in ((result.name or "", result) for result in response.responses)
        }

    def topic_configs(self, name: str) -> list[m.DescribeConfigsResponse.DescribeConfigsResourceResult]:
        """Return the settings of one topic (DescribeConfigs). Raises ApiFailed."""
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None
        )
        response: m.DescribeConfigsResponse = self.cluster.ask_any(
            m.DescribeConfigsRequest(resources=[resource])
        )
        result = only(response.results, f"topic {name}")
        if result.error_code:
            raise ApiFailed(f"settings of topic {name}", result.error_code, result.error_message)
        return result.configs

    def offsets(self, topic: Topic, timestamp: int, partitions: Iterable[int]) -> dict[int, int]:
        """Return the first (EARLIEST) or next (LATEST) offset of each partition. Raises ApiFailed."""
        found = self.offsets_at(topic, dict.fromkeys(partitions, timestamp))
        return {partition: one.offset for partition, one in found.items()}

    def offsets_at(
        self,
        topic: Topic,
        timestamps: Mapping[int, int],
        isolation: int = READ_UNCOMMITTED,
        failed: list[Exception] | None = None,
    ) -> dict[int, Found]:
        """Return the offset of each partition that its timestamp asks for. Raises ApiFailed.

        With `failed` the error of a partition is added there, and the partition left out.
        """
        wanted = m.ListOffsetsRequest.ListOffsetsPartition
        found: dict[int, Found] = {}
        for leader, mine in by_leader(topic, timestamps).items():
            request = m.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    m.ListOffsetsRequest.ListOffsetsTopic(
                        name=topic.name,
                        partitions=[
                            wanted(partition_index=index, timestamp=timestamp)
                            for index, timestamp in mine.items()
                        ],
                    )
                ],
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            response: m.ListOffsetsResponse = self.cluster.ask(leader, request)
            for result in (part for one in response.topics for part in one.partitions):
                if result.error_code:
                    error = ApiFailed(f"offsets of {topic.name}-{result.partition_index}", result.error_code)
                    if failed is None:
                        raise error
                    failed.append(error)
                    continue
                found[result.partition_index] = Found(result.offset, result.timestamp)
        return found

    def ends(
        self,
        topic: Topic,
        partitions: Sequence[int],
        time_ms: int | None = None,
        isolation: int = READ_UNCOMMITTED,
    ) -> dict[int, Ends]:
        """Return where partitions begin and end, and their first offset from a time on. Raises ApiFailed."""
        starts = self.offsets(topic, EARLIEST, partitions)
        ends = self.offsets_at(topic, dict.fromkeys(partitions, LATEST), isolation)
        times = {} if time_ms is None else self.offsets(topic, time_ms, partitions)
        return {
            number: Ends(starts[number], ends[number].offset, at if at >= 0 else None)
            for number in partitions
            for at in (times.get(number, -1),)
        }

    def fetch(
        self,
        topic: Topic,
        positions: Mapping[int, int],
        max_wait_ms: int,
        isolation: int = READ_UNCOMMITTED,
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> list[Fetched]:
        """Fetch records from these positions on, from all leaders at once.

        Wait for the first byte of each. A leader answers with at most `max_bytes`, or one larger batch.
        """
        asked = [
            self.cluster.start(leader, _fetch_request(topic, mine, max_wait_ms, isolation, max_bytes))
            for leader, mine in by_leader(topic, positions).items()
        ]
        fetched: list[Fetched] = []
        for one in asked:
            response: m.FetchResponse = self.cluster.finish(one)
            if response.error_code:
                raise ApiFailed(f"fetching {topic.name}", response.error_code)
            fetched += [
                Fetched(
                    part.partition_index,
                    part.error_code,
                    part.high_watermark,
                    part.last_stable_offset,
                    [(one.producer_id, one.first_offset) for one in part.aborted_transactions or []],
                    part.records or b"",
                )
                for answer in response.responses
                for part in answer.partitions
            ]
        return fetched


def no_partition(topic: Topic, number: int) -> str:
    """Say that a topic has no such partition, and which it has."""
    return f"topic {topic.name} has no partition {number}, only 0 to {len(topic.partitions) - 1}"


def partitions_of(topic: Topic, wanted: Sequence[int] | None = None) -> list[int]:
    """Return the partitions that are wanted, by default all. Raises CliError if the topic lacks one."""
    there = [partition.index for partition in topic.partitions]
    if missing := [number for number in wanted or () if number not in there]:
        raise CliError(no_partition(topic, missing[0]), USAGE_ERROR)
    return there if wanted is None else list(wanted)


def only(answers: list[_Value], what: str) -> _Value:
    """Return the answer for the one topic or group that was asked about. Raises InvalidReceive."""
    if len(answers) != 1:
        raise InvalidReceive(f"{what}: the broker gave {len(answers)} answers to one question")
    return answers[0]


def _fetch_request(
    topic: Topic, positions: Mapping[int, int], max_wait_ms: int, isolation: int, max_bytes: int
) -> m.FetchRequest:
    partitions = [
        m.FetchRequest.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX
        )
        for index, offset in positions.items()
    ]
    return m.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[m.FetchRequest.FetchTopic(topic=topic.name, partitions=partitions)],
    )


def _topic(topic: m.MetadataResponse.MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes, part.error_code)
        for part in topic.partitions
    ]
    partitions.sort(key=lambda partition: partition.index)
    return Topic(topic.name or "", topic.is_internal, partitions, topic.error_code)


def led(topic: Topic, partitions: Iterable[int], failed: list[Exception]) -> list[int]:
    """Return those partitions that have a leader; add an error for each of the others.

    One that is offline hides no other then, nor is it left out unsaid. One that is not there stays.
    """
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    offline = [number for number in partitions if leaders.get(number, 0) < 0]
    failed += [without_leader(topic.name, number) for number in offline]
    return [number for number in partitions if number not in offline]


def by_leader(topic: Topic, values: Mapping[int, _Value]) -> dict[int, dict[int, _Value]]:
    """Split values known per partition by the broker that leads it."""
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    split: dict[int, dict[int, _Value]] = {}
    for index, value in values.items():
        leader = leaders.get(index)
        if leader is None:
            raise CliError(no_partition(topic, index), USAGE_ERROR)
        if leader < 0:
            raise without_leader(topic.name, index)
        split.setdefault(leader, {})[index] = value
    return split
