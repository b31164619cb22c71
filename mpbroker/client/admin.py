"""Reads and changes topics, their settings and their offsets in a cluster (Kafka: Admin)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from mpbroker.client.cluster import Cluster
from mpbroker.client.consumer import DEFAULT_LIMITS, PATIENCE_MS, Consumer, Limits
from mpbroker.client.errors import ApiFailed, ClientError, InvalidArgument, InvalidReceive, not_done
from mpbroker.client.list_offsets import OffsetAndTimestamp, list_offsets
from mpbroker.client.log_dirs import name_full_disks
from mpbroker.client.positions import Ends
from mpbroker.client.topics import Topic, by_leader, topic_of
from mpbroker.config import known
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST, READ_UNCOMMITTED, ConfigOperation, ConfigResourceType
from mpbroker.protocol.topic_names import problem_with

_Value = TypeVar("_Value")


class Admin:
    """Sends administrative requests. A `with` block closes the connections. Methods raise ClientError."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.cluster.close()

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers."""
        return sorted(broker.node_id for broker in self.cluster.refresh().brokers)

    def patiently(self, ask: Callable[[], _Value], patience_ms: int = PATIENCE_MS) -> _Value:
        """Call `ask`, and retry after retriable errors. The final ApiFailed also names full disks, if any."""
        try:
            return self.cluster.patiently(ask, timeout_ms=patience_ms)
        except ApiFailed as error:
            name_full_disks(self.cluster, error)
            raise

    def topics(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> list[Topic]:
        """Return the topics with these names, or all topics, sorted by name."""
        response = self.cluster.refresh(names, auto_create=auto_create)
        return sorted(map(topic_of, response.topics), key=lambda topic: topic.name)

    def topic(self, name: str, *, auto_create: bool = False) -> Topic:
        """Return one topic. Raises ApiFailed if the topic does not exist."""
        topic = only(self.topics([name], auto_create=auto_create), f"topic {name}")
        if topic.error_code:
            raise self.topic_failed(name, topic.error_code, guesses=not auto_create)
        return topic

    def topic_failed(
        self, name: str, code: int, message: str | None = None, *, guesses: bool = True
    ) -> ApiFailed:
        """Return the error for a topic. If the topic does not exist, the text suggests a similar name."""
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
        timeout_s: float | None = None,
    ) -> tuple[int, int]:
        """Create a topic; return its partition count and replication factor. Raises ApiFailed."""
        config = m.CreateTopicsRequest.CreatableTopicConfig
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[config(name=key, value=value) for key, value in configs.items()],
        )
        request = m.CreateTopicsRequest([topic])
        timeout_ms = None
        if timeout_s is not None:
            request.timeout_ms = timeout_ms = int(timeout_s * 1000)
        response: m.CreateTopicsResponse = self.cluster.ask_any(request, timeout_ms)
        result = only(response.topics, f"topic {name}")
        if result.error_code:
            raise ApiFailed(f"topic {name}", result.error_code, result.error_message)
        return result.num_partitions, result.replication_factor

    def delete_topics(self, names: list[str], timeout_s: float) -> dict[str, ApiFailed | None]:
        """Delete topics; return by topic name the error, or None for a topic that was deleted."""
        states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = m.DeleteTopicsRequest(topic_names=names, topics=states, timeout_ms=int(timeout_s * 1000))
        response: m.DeleteTopicsResponse = self.cluster.ask_any(request, timeout_s * 1000)
        return {
            name: self.topic_failed(name, result.error_code, result.error_message)
            if result.error_code
            else None
            for name, result in ((result.name or "", result) for result in response.responses)
        }

    def describe_configs(
        self, kind: ConfigResourceType, name: str, keys: Sequence[str] = (), *, details: bool = False
    ) -> m.DescribeConfigsResponse.DescribeConfigsResult:
        """Return a resource's settings: all or `keys`. `details` adds synonyms and documentation."""
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, list(keys) or None)
        request = m.DescribeConfigsRequest([resource], details, details)
        response: m.DescribeConfigsResponse = self._ask_owner(kind, name, request)
        return only(response.results, f"settings of {name}")

    def config_resources(self, kinds: Iterable[ConfigResourceType]) -> list[tuple[int, str]]:
        """Return type and name of the resources of these types that have settings. Raises ApiFailed.

        Version 0 of the request lists subscriptions to client metrics alone. So the brokers are asked for,
        too: a later version always lists one.
        """
        wanted = {*kinds}
        request = m.ListConfigResourcesRequest([*wanted | {ConfigResourceType.BROKER}])
        response: m.ListConfigResourcesResponse = self.cluster.ask_any(request)
        what, found = "resources with settings", response.config_resources
        if response.error_code:
            raise ApiFailed(what, response.error_code)
        if not any(one.resource_type == ConfigResourceType.BROKER for one in found):
            raise ApiFailed(what, ErrorCode.UNSUPPORTED_VERSION, "the broker is older than Kafka 4.1")
        return [(one.resource_type, one.resource_name) for one in found if one.resource_type in wanted]

    def topic_configs(self, name: str) -> list[m.DescribeConfigsResponse.DescribeConfigsResourceResult]:
        """Return the settings of one topic. Raises ApiFailed."""
        result = self.describe_configs(ConfigResourceType.TOPIC, name)
        if result.error_code:
            raise ApiFailed(f"settings of topic {name}", result.error_code, result.error_message)
        return result.configs

    def alter_configs(
        self,
        kind: ConfigResourceType,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
        """Set settings; reset those whose value is None. After an error no setting has changed."""
        operations = {False: ConfigOperation.SET, True: ConfigOperation.DELETE}
        wanted = [
            m.IncrementalAlterConfigsRequest.AlterableConfig(key, operations[value is None], value)
            for key, value in changes.items()
        ]
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(kind, name, wanted)
        request = m.IncrementalAlterConfigsRequest([resource], validate_only)
        response: m.IncrementalAlterConfigsResponse = self._ask_owner(kind, name, request)
        return only(response.responses, f"settings of {name}")

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set settings of a topic, or reset a setting whose value is None. Raises ApiFailed."""
        result = self.alter_configs(ConfigResourceType.TOPIC, name, changes)
        if result.error_code == ErrorCode.INVALID_CONFIG:
            error = ApiFailed(f"topic {name}", result.error_code, result.error_message)
            raise error.advised(known.hint(changes, TOPIC_KEYS))
        self._check_topic(name, result.error_code, result.error_message)

    def _ask_owner(self, kind: ConfigResourceType, name: str, request: m.Message) -> Any:
        """Send a request about one broker's settings to that broker, and any other request to any broker."""
        if name and kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
            return self.cluster.ask(int(name), request)
        return self.cluster.ask_any(request)

    def create_partitions(self, name: str, count: int, timeout_s: float) -> None:
        """Increase a topic's partitions to `count`. Raises ApiFailed."""
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name, count, None)
        timeout_ms = int(timeout_s * 1000)
        response: m.CreatePartitionsResponse = self.cluster.ask_any(
            m.CreatePartitionsRequest([topic], timeout_ms), timeout_ms
        )
        result = only(response.results, f"topic {name}")
        self._check_topic(name, result.error_code, result.error_message)

    def delete_records(
        self, topic: Topic, offsets: Mapping[int, int], timeout_s: float, failed: list[ClientError]
    ) -> dict[int, int]:
        """Delete records below each partition's offset; return log start offsets, add errors to `failed`."""
        starts: dict[int, int] = {}
        one = m.DeleteRecordsRequest.DeleteRecordsPartition
        timeout_ms = int(timeout_s * 1000)
        for leader, mine in by_leader(topic, offsets).items():
            wanted = m.DeleteRecordsRequest.DeleteRecordsTopic(
                topic.name, [one(*each) for each in mine.items()]
            )
            response: m.DeleteRecordsResponse = self.cluster.ask(
                leader, m.DeleteRecordsRequest([wanted], timeout_ms), timeout_ms
            )
            results = [result for answer in response.topics for result in answer.partitions]
            for result in sorted(results, key=lambda result: result.partition_index):
                number = result.partition_index
                if not result.error_code:
                    starts[number] = result.low_watermark
                elif result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    failed.append(self._out_of_range(topic, number, offsets[number]))
                else:
                    failed.append(ApiFailed(f"records of {topic.name}-{number}", result.error_code))
        return starts

    def _out_of_range(self, topic: Topic, partition: int, offset: int) -> InvalidArgument:
        (ends,) = self.ends(topic, [partition]).values()
        return InvalidArgument(
            f"{topic.name}-{partition}: no such offset {offset:,}, it has {ends.start:,} to {ends.end:,}"
        )

    def _check_topic(self, name: str, code: int, message: str | None) -> None:
        if code:
            raise self.topic_failed(name, code, message)

    def list_offsets(
        self,
        topic: Topic,
        timestamps: Mapping[int, int],
        isolation: int = READ_UNCOMMITTED,
        failed: list[ClientError] | None = None,
    ) -> dict[int, OffsetAndTimestamp]:
        """Return each partition's offset for its timestamp. Errors are raised unless `failed` takes them."""
        split = {
            leader: {(topic.name, number): at for number, at in mine.items()}
            for leader, mine in by_leader(topic, timestamps).items()
        }
        found = list_offsets(self.cluster, split, isolation, failed)
        return {number: one for (_, number), one in found.items()}

    def ends(
        self,
        topic: Topic,
        partitions: Sequence[int],
        time_ms: int | None = None,
        isolation: int = READ_UNCOMMITTED,
    ) -> dict[int, Ends]:
        """Return partitions' start and end offsets, and the first offset at or after `time_ms`."""
        starts = self.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
        ends = self.list_offsets(topic, dict.fromkeys(partitions, LATEST), isolation)
        times = {} if time_ms is None else self.list_offsets(topic, dict.fromkeys(partitions, time_ms))
        return {
            number: Ends(
                starts[number].offset,
                ends[number].offset,
                times[number].offset if number in times and times[number].offset >= 0 else None,
            )
            for number in partitions
        }

    def consumer(
        self, topic: str, isolation: int, *, expected: Collection[int] = (), limits: Limits = DEFAULT_LIMITS
    ) -> Consumer:
        """Return a consumer of a topic, which gets the partitions' leaders from this client."""
        look_up = partial(self.topic, topic)
        return Consumer(self.cluster, topic, look_up, isolation=isolation, expected=expected, limits=limits)


def only(answers: list[_Value], what: str) -> _Value:
    """Return the only answer. Raises InvalidReceive unless `answers` has exactly one element."""
    if len(answers) != 1:
        raise InvalidReceive(f"{what}: the broker gave {len(answers)} answers to one question")
    return answers[0]
