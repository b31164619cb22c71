"""Reads records of a topic: sends Fetch requests to the partitions' leaders, and yields the batches.

(Kafka: Fetcher, CompletedFetch)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from mpbroker.client.cluster import Asked, Cluster
from mpbroker.client.errors import ApiFailed, BadText
from mpbroker.protocol import messages as m
from mpbroker.protocol.numbers import READ_COMMITTED, READ_UNCOMMITTED
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.protocol.wire import Buffer
from mpbroker.records.aborted import from_fetch
from mpbroker.records.iterate import Batch, iterate_batches

LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
MAX_WAIT_MS = 500
# For how long a fetch is tried again after errors that may pass.
PATIENCE_MS = 30_000
FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 4 << 20


def parse_isolation(text: str) -> int:
    """Return the number that Fetch and ListOffsets have for an isolation.level. Raises BadText."""
    if text not in LEVELS:
        raise BadText(f"a level is one of {', '.join(LEVELS)}")
    return LEVELS[text]


class Limits(msgspec.Struct, frozen=True):
    """The limits of one fetch. A leader answers with at most `max_bytes`, or with one larger batch."""

    max_wait_ms: int = MAX_WAIT_MS
    max_bytes: int = FETCH_BYTES_MAX
    partition_max_bytes: int = PARTITION_BYTES_MAX


DEFAULT_LIMITS = Limits()


class Fetched(msgspec.Struct, frozen=True):
    """The result of a fetch for one partition.

    `aborted` has the producer id and first offset of each aborted transaction, for read_committed.
    `topic` is empty if the request named the topic by its id.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    records: Buffer
    topic: str = ""

    def end(self, isolation: int) -> int:
        """Return the offset at which a reader with this isolation level must stop."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark

    def batches(self) -> Iterator[tuple[Batch, bool]]:
        """Yield each batch, and False if it is a control batch or aborted, else True. Raises CorruptBatch."""
        aborted = from_fetch(self.records, self.aborted)
        for batch in iterate_batches(self.records):
            yield batch, not batch.is_control and not aborted.is_aborted(batch)


def fetch_request(
    positions: Mapping[TopicPartition, int],
    limits: Limits,
    isolation: int,
    topic_ids: Mapping[str, bytes | None],
) -> m.FetchRequest:
    """Return a Fetch request from these offsets. The broker waits for records, up to `limits.max_wait_ms`."""
    topics: dict[str, m.FetchRequest.FetchTopic] = {}
    for (name, number), offset in positions.items():
        if name not in topics:
            topics[name] = m.FetchRequest.FetchTopic(name, topic_ids.get(name) or m.ZERO_UUID)
        topics[name].partitions.append(
            m.FetchRequest.FetchPartition(
                partition=number, fetch_offset=offset, partition_max_bytes=limits.partition_max_bytes
            )
        )
    return m.FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=1,
        max_bytes=limits.max_bytes,
        isolation_level=isolation,
        topics=list(topics.values()),
    )


def fetched_of(response: m.FetchResponse) -> list[Fetched]:
    """Return the result of each partition in a response."""
    return [
        Fetched(
            part.partition_index,
            part.error_code,
            part.high_watermark,
            part.last_stable_offset,
            # The list is null for read_uncommitted.
            [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()],
            part.records or b"",
            answer.topic,
        )
        for answer in response.responses
        for part in answer.partitions
    ]


class Consumer:
    """Fetches records of one topic. The caller keeps the positions. Methods raise ClientError.

    `look_up` requests the partitions' leaders, and raises ClientError if the topic does not exist. `fetch`
    returns a partition's error if its code is in `expected`, and raises any other.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        look_up: Callable[[], object],
        *,
        topic_id: bytes | None = None,
        isolation: int = READ_UNCOMMITTED,
        expected: Collection[int] = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.isolation = isolation
        self._cluster = cluster
        self._topic = topic
        self._topic_ids = {topic: topic_id}
        self._look_up = look_up
        self._expected = expected
        self._limits = limits

    def fetch(self, positions: Mapping[int, int], timeout_ms: float = PATIENCE_MS) -> list[Fetched]:
        """Fetch from all leaders at once and wait for every response; retry after retriable errors."""
        return self._cluster.patiently(
            lambda: self._fetch(positions), timeout_ms=timeout_ms, before_retry=self._look_up
        )

    def start(self, positions: Mapping[int, int]) -> list[Asked]:
        """Send a fetch to each leader and return at once; `finish` takes the responses."""
        split: dict[int, dict[TopicPartition, int]] = {}
        for number, offset in positions.items():
            leader = self._cluster.leader(self._topic, number, self._look_up)
            split.setdefault(leader, {})[self._topic, number] = offset
        return [
            self._cluster.start(leader, fetch_request(mine, self._limits, self.isolation, self._topic_ids))
            for leader, mine in split.items()
        ]

    def finish(self, asked: list[Asked]) -> list[Fetched]:
        """Wait for the responses; return the partitions' results. A partition's error code is not raised."""
        fetched: list[Fetched] = []
        for one in asked:
            response: m.FetchResponse = self._cluster.finish(one)
            if response.error_code:
                raise ApiFailed(f"fetching {self._topic}", response.error_code)
            fetched += fetched_of(response)
        return fetched

    def _fetch(self, positions: Mapping[int, int]) -> list[Fetched]:
        fetched = self.finish(self.start(positions))
        for one in fetched:
            if one.error_code and one.error_code not in self._expected:
                place = f"{self._topic}-{one.partition} at offset {positions.get(one.partition)}"
                raise ApiFailed(place, one.error_code)
        return fetched
