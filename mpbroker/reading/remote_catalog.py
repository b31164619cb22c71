"""Gets topics and offsets from brokers with the requests Metadata and ListOffsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.config import JAAS, ClientConfig, from_properties, parse_servers
from mpbroker.client.consumer import Consumer, Limits, fetch_request, fetched_of
from mpbroker.client.errors import ApiFailed, ClientConfigError, ClientError, ConnectionLost
from mpbroker.client.list_offsets import list_offsets
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from mpbroker.reading.connections import CONNECTIONS
from mpbroker.reading.errors import SERVERS_ADVICE, OptionError, SourceUnavailable
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.plan import Lineage, OffsetRange, PartitionBounds, RestoreHistory, TaskRange, by_offsets
from mpbroker.storage.leader_epochs import NO_EPOCH, NO_OFFSET

CONSUMER = -1
_LOOK_BACK_MS = 5000
CLIENT_ID = "mpbroker-spark"
RECEIVE_BUFFER_BYTES = 4 << 20
# Kafka's names of settings, by librdkafka's.
_KAFKAS = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}

_LOG = logging.getLogger("mpbroker.spark")
_T = TypeVar("_T")


def servers_of(text: str) -> list[tuple[str, int]]:
    """Parse `host:port,host:port`. Raises OptionError."""
    try:
        return parse_servers(text)
    except ClientConfigError as error:
        raise OptionError(f"kafka.bootstrap.servers: {error}") from error


class Brokers:
    """Sends requests to the brokers of a cluster.

    Methods raise ClientError; those that use `retried` raise SourceUnavailable. Connections and leaders
    may come from an earlier reader in this process (see `connections`).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        servers = servers_of(options.bootstrap_servers or "")
        try:
            self._lent = CONNECTIONS.take(servers, client_config(options, _base(options)), SERVERS_ADVICE)
        except ClientConfigError as error:
            raise OptionError(f"kafka.{error}") from error
        self.cluster = self._lent.cluster

    def close(self) -> None:
        CONNECTIONS.give_back(self._lent)

    @property
    def isolation_level(self) -> int:
        """Return the isolation level as a number: 0 for read_uncommitted, 1 for read_committed (KIP-98)."""
        return READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED

    def topics(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        """Return the metadata of these topics, or with None of all topics. Raises SourceUnavailable."""
        return self.retried(lambda: self._metadata(names))

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of the partition's leader. Raises ClientError."""
        return self.cluster.leader(topic, partition, lambda: self._metadata([topic]))

    def topic_id(self, topic: str) -> bytes | None:
        """Ask for the id of the topic that has the name now; None if brokers have no ids (before KIP-516)."""
        (found,) = self._metadata([topic])
        return _id_of(found)

    def consumer(self, topic: str, topic_id: bytes | None, limits: Limits) -> Consumer:
        """Return a consumer of the topic. `topic_id` is None if the brokers have no topic ids."""
        return Consumer(
            self.cluster,
            topic,
            lambda: self._metadata([topic]),
            topic_id=topic_id,
            isolation=self.isolation_level,
            limits=limits,
        )

    def retried(self, ask: Callable[[], _T], topics: Sequence[str] = ()) -> _T:
        """Call `ask`, and retry it up to fetchOffset.numRetries times after retriable errors.

        Refreshes the metadata of `topics` before each retry. Raises SourceUnavailable.
        """
        interval_ms = self._options.retry_interval_ms
        try:
            return self.cluster.patiently(
                ask,
                tries=self._options.retries + 1,
                backoff=ExponentialBackoff(interval_ms, interval_ms),
                before_retry=lambda: self.refresh(topics),
            )
        except ClientError as error:
            raise SourceUnavailable(str(error)) from error

    def refresh(self, topics: Sequence[str]) -> None:
        """Update the leaders of the topics. Only log a failure: the next request will report the cause."""
        if not topics:
            return
        try:
            self._metadata(topics)
        except (ConnectionLost, ApiFailed) as error:
            _LOG.warning("no metadata of %s: %s", ", ".join(topics), error)

    def _metadata(self, names: Sequence[str] | None) -> list[m.MetadataResponse.MetadataResponseTopic]:
        response = self.cluster.refresh(names)
        for topic in response.topics:
            if topic.error_code and names is not None:
                raise ApiFailed(f"topic {topic.name}", topic.error_code)
        return list(response.topics)


def _id_of(topic: m.MetadataResponse.MetadataResponseTopic) -> bytes | None:
    """Return the topic's id; None if the broker has none for it."""
    return topic.topic_id if topic.topic_id != m.ZERO_UUID else None


def client_config(options: ReadOptions, base: ClientConfig) -> ClientConfig:
    """Return `base` with the settings of a query. Raises ClientConfigError, SourceUnavailable."""
    if options.relay:
        if not Path(options.relay).exists():
            raise SourceUnavailable(
                "With this login Python connects by the JVM of Spark's driver, and that is not on this host. "
                "Let tasks read in the JVM, without valueFormat and accelerated=false, or log in by PLAIN or "
                "SCRAM, with PEM or PKCS12 stores"
            )
        settings = tuple(sorted(kafka_client_settings(options).items()))
        return structs.replace(base, relay=options.relay, relay_settings=settings)
    config, _ = from_properties(options.client, base)
    return config


def kafka_client_settings(options: ReadOptions) -> dict[str, str]:
    """Return the connection's settings, with names and values as Kafka's Java client expects them."""
    base = _base(options)
    given = {_KAFKAS.get(name, name): value for name, value in options.client.items()}
    user, password = (given.pop(name, "") for name in ("sasl.username", "sasl.password"))
    if user and JAAS not in given:
        module = "plain.Plain" if given.get("sasl.mechanism", "").upper() == "PLAIN" else "scram.Scram"
        user, password = (re.sub(r'(["\\])', r"\\\1", text) for text in (user, password))
        given[JAAS] = (
            f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{user}" password="{password}";'
        )
    # Python looks into a store, and needs no type.
    for store in ("ssl.truststore.", "ssl.keystore."):
        is_inline = f"{store}certificates" in given or f"{store}key" in given
        if is_inline or _is_pem(given.get(f"{store}location")):
            given[f"{store}type"] = "PEM"
    return {
        "client.id": base.client_id,
        "request.timeout.ms": str(base.request_timeout_ms),
        "receive.buffer.bytes": str(base.receive_buffer_bytes),
        **given,
    }


def _is_pem(location: str | None) -> bool:
    # Kafka's client says what is wrong with a file that is missing.
    path = Path(location) if location is not None else None
    return path is not None and path.is_file() and b"-----BEGIN " in path.read_bytes()


def _base(options: ReadOptions) -> ClientConfig:
    """Return the defaults of client settings, which the user's `kafka.` options override."""
    return ClientConfig(
        client_id=CLIENT_ID,
        request_timeout_ms=options.request_timeout_ms,
        receive_buffer_bytes=RECEIVE_BUFFER_BYTES,
    )


class RemoteCatalog:
    """The topics and offsets that brokers report. Raises SourceUnavailable, OptionError."""

    def __init__(self, options: ReadOptions, brokers: Brokers | None = None) -> None:
        self._brokers = brokers or Brokers(options)
        self._topic_ids: dict[str, bytes | None] = {}

    @property
    def restore_history(self) -> RestoreHistory | None:
        """Return what knows whether the broker was restored; None if nothing does."""
        return None

    def topics(self) -> Iterable[str]:
        return sorted(topic.name for topic in self._brokers.topics(None) if topic.name)

    def partitions(self, topic: str) -> Sequence[int]:
        (found,) = self._brokers.topics([topic])
        self._topic_ids[topic] = _id_of(found)
        return sorted(part.partition_index for part in found.partitions)

    def bounds(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, PartitionBounds]:
        # Ids are asked for first: if the offsets are another topic's by then, no task gets its records.
        ids = {topic: self._topic_id(topic) for topic, _ in wanted}
        starts = self._list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = self._list_offsets(dict.fromkeys(wanted, LATEST))
        return {one: PartitionBounds(starts[one], ends[one], ids[one[0]]) for one in wanted}

    def lineages(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Lineage]:
        topics = sorted({topic for topic, _ in epochs})
        found = self._brokers.topics(topics)
        now = {
            (one.name or "", part.partition_index): part.leader_epoch
            for one in found
            for part in one.partitions
        }
        ends = self._brokers.retried(lambda: self._epoch_ends(epochs), topics)
        past = {one: end for one, end in ends.items() if epochs[one] < now.get(one, NO_EPOCH) and end > 0}
        ends |= self._brokers.retried(lambda: self._committed_ends(past), topics)
        return {one: Lineage(now.get(one, NO_EPOCH), ends.get(one, NO_OFFSET)) for one in epochs}

    def ends(self, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offset of each partition, with one request to each leader."""
        return self._list_offsets(dict.fromkeys(wanted, LATEST))

    def await_records(self, ends: Mapping[TopicPartition, int], timeout_s: float) -> bool | None:
        """Send a fetch from these offsets to the leader of all partitions, and wait for the response.

        Returns True if there are records, or if the fetch failed (the next poll will report the error).
        Returns False after the timeout, and None at once if the partitions have no common leader.
        """
        leaders = {self._brokers.cluster.metadata.leader(topic, number) for topic, number in ends}
        if len(leaders) != 1 or (leader := leaders.pop()) is None:
            return None
        ids = {topic: self._topic_id(topic) for topic, _ in ends}
        limits = Limits(int(timeout_s * 1000), max_bytes=1, partition_max_bytes=1)
        request = fetch_request(ends, limits, self._brokers.isolation_level, ids)
        try:
            response: m.FetchResponse = self._brokers.cluster.ask(leader.id, request)
        except ClientError as error:
            _LOG.debug("a waiting fetch failed: %s", error)
            return True
        found = fetched_of(response)
        return bool(response.error_code) or any(part.error_code or part.records for part in found)

    def offsets_for_times(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found = self._list_offsets(wanted)
        return {one: None if offset < 0 else offset for one, offset in found.items()}

    def weight(self, wanted: OffsetRange) -> int:  # noqa: ARG002 - no request returns it
        """Return 0, which means unknown: brokers do not report how many bytes a range of offsets has."""
        return 0

    def tasks(self, wanted: OffsetRange, parts: int, max_records: int | None) -> list[TaskRange]:
        topic, number = wanted.topic_partition
        pieces = by_offsets(wanted.start, wanted.end, parts, max_records)
        topic_id = self._topic_id(topic)
        return [TaskRange(topic, number, start, end, topic_id) for start, end in pieces]

    def close(self) -> None:
        self._brokers.close()

    def _epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Ask each leader where these epochs end in its log. Raises ClientError."""
        by_leader: dict[int, dict[str, list[m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition]]] = {}
        for (topic, number), epoch in epochs.items():
            if epoch != NO_EPOCH:
                part = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(number, leader_epoch=epoch)
                mine = by_leader.setdefault(self._brokers.leader(topic, number), {})
                mine.setdefault(topic, []).append(part)
        found = {}
        for leader, mine in by_leader.items():
            wanted = [m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(*one) for one in mine.items()]
            request = m.OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=wanted)
            response: m.OffsetForLeaderEpochResponse = self._brokers.cluster.ask(leader, request)
            for topic, answer in ((one.topic, part) for one in response.topics for part in one.partitions):
                if answer.error_code:
                    raise ApiFailed(f"leader epochs of {topic}-{answer.partition}", answer.error_code)
                found[topic, answer.partition] = answer.end_offset
        return found

    def _committed_ends(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return these ends, or the start of the first transaction that was open there, unless committed.

        Raises ClientError.
        """
        if not self._brokers.isolation_level:
            return dict(ends)
        found = {}
        limits = Limits(_LOOK_BACK_MS, max_bytes=1, partition_max_bytes=1)
        for (topic, number), end in ends.items():
            before = {(topic, number): end - 1}
            ids = {topic: self._topic_id(topic)}
            request = fetch_request(before, limits, self._brokers.isolation_level, ids)
            response = self._brokers.cluster.ask(self._brokers.leader(topic, number), request)
            (part,) = fetched_of(response)
            is_gone = part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            if not is_gone and (part.error_code or (not part.records and part.last_stable_offset >= end)):
                code = part.error_code or ErrorCode.REQUEST_TIMED_OUT
                raise ApiFailed(f"transactions of {topic}-{number} at offset {end}", code)
            firsts = [] if is_gone else [first for _, first in part.aborted]
            stable = end if is_gone else part.last_stable_offset
            found[topic, number] = min(end, stable, *firsts)
        return found

    def _topic_id(self, topic: str) -> bytes | None:
        """Return the topic's id from the cache that `partitions` fills; call `partitions` if it is absent."""
        if topic not in self._topic_ids:
            self.partitions(topic)
        return self._topic_ids[topic]

    def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return each partition's offset for its timestamp (or EARLIEST, LATEST) in `wanted`, or -1."""
        topics = sorted({topic for topic, _ in wanted})
        return self._brokers.retried(lambda: self._list_offsets_once(wanted), topics)

    def _list_offsets_once(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for (topic, number), timestamp in wanted.items():
            by_leader.setdefault(self._brokers.leader(topic, number), {})[topic, number] = timestamp
        found = list_offsets(self._brokers.cluster, by_leader, self._brokers.isolation_level)
        return {place: one.offset for place, one in found.items()}
