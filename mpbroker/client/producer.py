"""Batches written once and in order, also when connections break (Kafka: Sender, RecordAccumulator, KIP-98).

With acks=all the producer has an id and every batch a sequence, by which the broker recognises duplicates.
After a retriable error a batch waits until nothing of its partition is in flight; then it and the later
batches are sent again in order. Without a producer id, a lost connection is an error: the batch may be in the
log, and the broker could not recognise a second copy.

The broker refuses a batch that is larger than the topic's max.message.bytes. The producer halves the refused
batch until the pieces fit, each with the sequences of its records (Kafka: Sender.reenqueueSplitBatches,
KAFKA-3995). After that the producer halves every batch that is at least as large as the smallest refused one.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.cluster import Cluster
from mpbroker.client.connection import ClientRequest, ClientResponse
from mpbroker.client.errors import (
    ApiFailed,
    ClientConfigError,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
    without_leader,
)
from mpbroker.client.metadata import Node
from mpbroker.client.transactions import Transaction
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.protocol.wire import Buffer
from mpbroker.records.batch import assign_producer
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord

ALL = -1
# The number of batches that the broker remembers of a producer and partition (Kafka: ProducerStateEntry).
IN_FLIGHT_MAX_WITH_ID = 5
BUFFERED_BYTES_MAX = 8 << 20
REQUEST_BYTES_MAX = 1 << 20
SEQUENCE_MODULUS = 1 << 31
WAIT_MS = 1000.0
# A new partition has a leader within this time; a partition without one for longer is reported.
LEADERLESS_MS = 1000.0
# An error text shows at most this many bytes of a record.
SHOWN_BYTES = 40


@dataclass(slots=True, eq=False)
class Batch:
    """The unit that is sent to one partition; its bytes do not change after its sequence is set."""

    data: bytearray
    records: int
    sequence: int
    deadline_ms: float
    in_flight: bool = False


@dataclass(slots=True)
class PartitionQueue:
    """Batches of one partition that are not acknowledged, the oldest first."""

    batches: deque[Batch] = field(default_factory=deque)
    next_sequence: int = 0
    # A batch failed: nothing is sent before all that is in flight has come back, nor before `retry_at_ms`.
    draining: bool = False
    retry_at_ms: float = 0.0
    attempts: int = 0
    # The log has a batch of this producer. The log takes any sequence as the first of a producer that it does
    # not know: if it refused the first batch, a later one in flight would take its place.
    is_known: bool = False

    def next_unsent(self) -> Batch | None:
        return next((batch for batch in self.batches if not batch.in_flight), None)

    def in_flight(self) -> int:
        return sum(batch.in_flight for batch in self.batches)


class Producer:
    """Sends batches to topics, in `transaction` if given. `trouble` gets each retried error's text."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int,
        codec: Codec,
        delivery_timeout_ms: float,
        trouble: Callable[[str], None],
        transaction: Transaction | None = None,
    ) -> None:
        self.acknowledged = 0
        self._cluster = cluster
        self._transaction = transaction
        self._acks = acks
        self._codec = codec
        self._delivery_timeout_ms = delivery_timeout_ms
        self._trouble = trouble
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._buffered_bytes = 0
        # The smallest batch that each topic has refused as too large.
        self._too_large_bytes: dict[str, int] = {}
        self._failed: ClientError | None = None
        self._last_problem: ClientError | None = None
        self._reported: set[str] = set()
        self._per_partition_max = 1
        self._producer_id, self._producer_epoch = -1, -1
        if transaction is not None and acks != ALL:
            raise ClientConfigError("acks: a transaction needs acks=all")
        if acks == ALL:
            self._become_idempotent()

    @property
    def has_room(self) -> bool:
        return self._buffered_bytes < BUFFERED_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Return whether all batches are acknowledged."""
        return self._buffered_bytes == 0

    @property
    def unacknowledged(self) -> int:
        """Return how many records the broker has not acknowledged yet."""
        return sum(batch.records for queue in self._queues.values() for batch in queue.batches)

    def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
        """Queue records as one batch for the next poll."""
        self.append_batch(topic, partition, build_batch(records, codec=self._codec), len(records))

    def append_batch(self, topic: str, partition: int, data: bytearray, records: int) -> None:
        """Queue a sealed batch for the next poll; write producer id and sequence into it."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[topic, partition] = PartitionQueue()
            self._cluster.metadata.track(topic, auto_create=True)
            if self._transaction is not None:
                self._transaction.add([(topic, partition)])
        deadline_ms = monotonic_ms() + self._delivery_timeout_ms
        queue.batches.extend(self._fitting(topic, data, records, queue.next_sequence, deadline_ms))
        queue.next_sequence = (queue.next_sequence + records) % SEQUENCE_MODULUS

    def poll(self, timeout_ms: float = WAIT_MS) -> None:
        """Send what can be sent, then wait for events. Raises ClientError if a batch is lost."""
        now_ms = monotonic_ms()
        timeout_ms = min(timeout_ms, self._send(now_ms))
        self._cluster.client.poll(timeout_ms)
        self._check_failures()
        self._expire(monotonic_ms())
        if self._failed is not None:
            raise self._failed

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all batches are acknowledged. Raises ClientError, RequestTimedOut after `timeout_ms`."""
        deadline_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        while not self.idle:
            if deadline_ms is not None and monotonic_ms() >= deadline_ms:
                raise RequestTimedOut("not everything was acknowledged in time")
            self.poll()

    def _fitting(
        self, topic: str, data: bytearray, records: int, sequence: int, deadline_ms: float
    ) -> Iterator[Batch]:
        """Yield the records as one batch, or as several if the topic has refused a batch of this size."""
        if len(data) < self._too_large_bytes.get(topic, sys.maxsize) or records == 1:
            in_transaction = self._transaction is not None
            base_sequence = sequence if self._producer_id >= 0 else -1
            assign_producer(data, self._producer_id, self._producer_epoch, base_sequence, in_transaction)
            self._buffered_bytes += len(data)
            yield Batch(data, records, sequence, deadline_ms)
            return
        content, half = _records(data), records // 2
        for first, piece in ((0, content[:half]), (half, content[half:])):
            built = build_batch(piece, codec=self._codec)
            base = (sequence + first) % SEQUENCE_MODULUS
            yield from self._fitting(topic, built, len(piece), base, deadline_ms)

    def _become_idempotent(self) -> None:
        if self._cluster.config.max_in_flight_requests_per_connection > IN_FLIGHT_MAX_WITH_ID:
            raise ClientConfigError(
                f"max.in.flight.requests.per.connection: with acks=all the most is {IN_FLIGHT_MAX_WITH_ID}"
            )
        self._per_partition_max = IN_FLIGHT_MAX_WITH_ID
        if self._transaction is not None:
            self._producer_id, self._producer_epoch = self._transaction.producer
            return
        self._producer_id, self._producer_epoch = self._cluster.patiently(
            self._init_producer_id, timeout_ms=self._delivery_timeout_ms
        )

    def _init_producer_id(self) -> tuple[int, int]:
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response: m.InitProducerIdResponse
        try:
            response = self._cluster.ask_any(request)
        except ConnectionLost:
            # A standby ends the connection: the broker that leads gives out ids.
            response = self._cluster.ask(self._cluster.refresh().controller_id, request)
        if response.error_code:
            raise ApiFailed("getting a producer id", response.error_code)
        return response.producer_id, response.producer_epoch

    def _send(self, now_ms: float) -> float:
        """Send at most one request to each ready leader; return the milliseconds until the next call."""
        wait_ms = WAIT_MS
        by_leader: dict[Node, list[TopicPartition]] = {}
        for partition, queue in self._queues.items():
            if queue.draining and not queue.in_flight():
                wait_ms = min(wait_ms, max(1.0, queue.retry_at_ms - now_ms))
                queue.draining = now_ms < queue.retry_at_ms
            most = self._per_partition_max if queue.is_known else 1
            if queue.draining or queue.next_unsent() is None or queue.in_flight() >= most:
                continue
            leader = self._cluster.metadata.leader(*partition)
            if leader is None:
                self._cluster.metadata.request_update()
                self._has_no_leader(partition, queue, now_ms)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            if self._cluster.client.ready(leader):
                self._send_to(leader, partitions)
                wait_ms = 0.0 if self._cluster.client.is_ready(leader.id) else wait_ms
            elif delay_ms := self._cluster.client.connection_delay_ms(leader.id):
                wait_ms = min(wait_ms, max(1.0, delay_ms))
        return wait_ms

    def _has_no_leader(self, partition: TopicPartition, queue: PartitionQueue, now_ms: float) -> None:
        """Keep the error of a leaderless partition; report it once the oldest batch is LEADERLESS_MS old."""
        error = without_leader(*partition)
        since_ms = queue.batches[0].deadline_ms - self._delivery_timeout_ms
        if now_ms - since_ms >= LEADERLESS_MS:
            self._problem(error)
        self._last_problem = self._last_problem or error

    def _send_to(self, leader: Node, partitions: list[TopicPartition]) -> None:
        chosen: dict[TopicPartition, Batch] = {}
        size = 0
        for partition in partitions:
            batch = self._queues[partition].next_unsent()
            assert batch is not None, "only partitions with something to send are asked"
            if chosen and size + len(batch.data) > REQUEST_BYTES_MAX:
                continue
            size += len(batch.data)
            batch.in_flight = True
            chosen[partition] = batch
        timeout_ms = self._cluster.config.request_timeout_ms
        request = m.ProduceRequest(
            transactional_id=self._transaction.transactional_id if self._transaction else None,
            acks=self._acks,
            timeout_ms=timeout_ms,
            topic_data=_topic_data(chosen),
        )
        done = partial(self._completed, leader, chosen)
        self._cluster.client.send(ClientRequest(leader.id, request, timeout_ms, done))

    def _completed(self, leader: Node, sent: dict[TopicPartition, Batch], response: ClientResponse) -> None:
        for batch in sent.values():
            batch.in_flight = False
        if isinstance(response.error, UnsupportedByBroker):
            self._fail(response.error)
        elif response.error is not None:
            # The end of the connection is the cause of the request's error.
            self._lost(self._cluster.client.failure(leader.id) or response.error, sent)
        elif response.body is None:
            for partition, batch in sent.items():
                self._acknowledged(partition, batch)
        else:
            self._answered(response.body, sent)

    def _lost(self, error: ClientError, sent: dict[TopicPartition, Batch]) -> None:
        """Retry the batches. Without a producer id, fail instead: the batches may be in the log already."""
        if self._producer_id < 0:
            self._fail(error)
        for partition in sent:
            self._retry(partition, error)

    def _answered(self, body: m.ProduceResponse, sent: dict[TopicPartition, Batch]) -> None:
        answers = {
            (topic.name, part.index): part for topic in body.responses for part in topic.partition_responses
        }
        for partition, batch in sent.items():
            what = _named(partition)
            answer = answers.get(partition)
            if answer is None:
                self._fail(ClientError(f"{what}: the broker's response to a produce lacks this partition"))
                continue
            code = error_code(answer.error_code)
            queue = self._queues[partition]
            # An earlier batch failed and this one came too early; or it is in the log, its answer lost.
            too_early = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.batches[0] is not batch
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acknowledged(partition, batch)
            elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.records > 1:
                self._split(partition[0], queue, batch)
            elif code is ErrorCode.MESSAGE_TOO_LARGE:
                self._fail(ApiFailed(what, answer.error_code, _too_large(batch)))
            elif too_early:
                # The response to the earlier batch decides how long to wait.
                queue.draining = True
            elif code.retriable:
                self._retry(partition, ApiFailed(what, answer.error_code, answer.error_message))
            else:
                self._fail(ApiFailed(what, answer.error_code, answer.error_message))

    def _acknowledged(self, partition: TopicPartition, batch: Batch) -> None:
        queue = self._queues[partition]
        queue.batches.remove(batch)
        queue.is_known = True
        queue.attempts = 0
        self._buffered_bytes -= len(batch.data)
        self.acknowledged += batch.records
        self._last_problem = None
        self._reported.clear()

    def _split(self, topic: str, queue: PartitionQueue, refused: Batch) -> None:
        """Split the refused batch and every unsent batch that is too large. None of these is in the log."""
        too_large = min(self._too_large_bytes.get(topic, sys.maxsize), len(refused.data))
        self._too_large_bytes[topic] = too_large
        batches = list(queue.batches)
        queue.batches.clear()
        for batch in batches:
            if batch.in_flight or batch.records == 1 or len(batch.data) < too_large:
                queue.batches.append(batch)
                continue
            self._buffered_bytes -= len(batch.data)
            pieces = self._fitting(topic, batch.data, batch.records, batch.sequence, batch.deadline_ms)
            queue.batches.extend(pieces)
        # The later batches in flight come too early.
        queue.draining, queue.retry_at_ms = True, 0.0

    def _retry(self, partition: TopicPartition, error: ClientError) -> None:
        queue = self._queues[partition]
        queue.draining = True
        queue.retry_at_ms = monotonic_ms() + self._cluster.retry_backoff.after(queue.attempts)
        queue.attempts += 1
        self._problem(error)
        self._cluster.metadata.request_update()

    def _check_failures(self) -> None:
        """Report why a leader cannot be reached. Fail the producer if the error is not retriable."""
        for leader in set(self._leaders()):
            failure = self._cluster.client.failure(leader.id)
            if failure is None:
                continue
            if failure.retriable:
                self._problem(failure)
            else:
                self._fail(failure)

    def _leaders(self) -> Iterator[Node]:
        for partition, queue in self._queues.items():
            leader = self._cluster.metadata.leader(*partition)
            if queue.batches and leader is not None:
                yield leader

    def _problem(self, error: ClientError) -> None:
        self._last_problem = error
        if str(error) not in self._reported:
            self._reported.add(str(error))
            self._trouble(f"{error}; trying again")

    def _expire(self, now_ms: float) -> None:
        """Fail if a partition's oldest batch has timed out and no batch of this partition is in flight."""
        for partition, queue in self._queues.items():
            if queue.batches and now_ms >= queue.batches[0].deadline_ms and not queue.in_flight():
                seconds = self._delivery_timeout_ms / 1000
                reason = f": {self._last_problem}" if self._last_problem else ""
                self._fail(
                    RequestTimedOut(
                        f"{_named(partition)}: not written within {seconds:g} s (delivery.timeout.ms){reason}"
                    )
                )

    def _fail(self, error: ClientError) -> None:
        self._failed = self._failed or error


def _named(partition: TopicPartition) -> str:
    return f"partition {partition[0]}-{partition[1]}"


def _topic_data(chosen: dict[TopicPartition, Batch]) -> list[m.ProduceRequest.TopicProduceData]:
    """Group the batches by topic, as a request has them."""
    topics: dict[str, list[m.ProduceRequest.PartitionProduceData]] = {}
    for (topic, index), batch in chosen.items():
        data = m.ProduceRequest.PartitionProduceData(index=index, records=batch.data)
        topics.setdefault(topic, []).append(data)
    return [
        m.ProduceRequest.TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
    ]


def _records(data: Buffer) -> list[NewRecord]:
    return [
        NewRecord(value=one.value, key=one.key, timestamp=one.timestamp, headers=one.headers)
        for built in iterate_batches(data)
        for one in built.records()
    ]


def _too_large(batch: Batch) -> str:
    """Return a text that identifies the batch's only record, which is too large."""
    (record,) = _records(batch.data)
    how = "with key" if record.key is not None else "that begins with"
    shown = (record.value if record.key is None else record.key) or b""
    return (
        f"the record {how} {shown[:SHOWN_BYTES].decode(errors='replace')!r} takes {len(batch.data)} bytes, "
        "more than the topic allows: leave it out, or raise the topic's max.message.bytes"
    )
