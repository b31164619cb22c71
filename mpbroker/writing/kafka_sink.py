"""Stores a sink's intents and ends its transactions in a Kafka cluster, by Kafka's protocol alone.

An intent is the decision to commit a batch. The intents of all sinks are in one compacted topic, by sinkId. A
sink's driver writes each intent in a transaction, whose id fences the sink's earlier drivers. The decision is
made when that transaction is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from mpbroker.client.admin import Admin
from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.cluster import Cluster
from mpbroker.client.consumer import Consumer, Limits
from mpbroker.client.errors import ApiFailed, RequestTimedOut, without_leader
from mpbroker.client.producer import Producer
from mpbroker.client.topics import partition_for
from mpbroker.client.transactions import Transaction, TransactionFailed, Transactions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import READ_COMMITTED
from mpbroker.protocol.topic_names import SINK_TOPIC
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from mpbroker.writing.intents import Intent, Outcome, Prepared

_LOG = logging.getLogger("mpbroker.spark")

TOPIC: Final = SINK_TOPIC
PARTITIONS: Final = 16
# A driver that dies while it records holds up the others of its partition for this long.
RECORDING_TIMEOUT_MS: Final = 10_000
FETCH_BYTES: Final = 1 << 20
FETCH_WAIT_MS: Final = 100
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_UNENDED: Final = (
    "{}: a transaction of another sink's driver does not end, though it should time out after "
    f"{RECORDING_TIMEOUT_MS} ms. See the broker's log, then start the query again"
)
_ABORTING: Final = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")
# Timeout of transactions that are aborted as soon as they are found and need no time; any broker allows it
# (transaction.max.timeout.ms).
_STRAY_TIMEOUT_MS = 1_000


def partition_of(sink_id: str, partitions: int) -> int:
    """Return the partition of a sink's intents. It is below PARTITIONS, even if the topic has more by now."""
    return partition_for(sink_id.encode(), min(partitions, PARTITIONS))


def prefix_of(sink_id: str) -> str:
    """Return the prefix of a sink's transactional ids. No other sink's ids have it: sinkIds have no slash.

    The sink aborts any open transaction with this prefix.
    """
    return f"mpbroker-sink/{sink_id}/"


def begun(transactions: Transactions, name: str, timeout_ms: int) -> Transaction:
    """Begin a transaction; append "+" to its name as long as a transaction of that name is open.

    To begin an open transaction again would abort it. Spark counts attempts from 0 again when it retries a
    stage, and may use the results of the first try. Raises ClientError.
    """
    while _is_open(transactions, name):
        name += "+"
    return Transaction(transactions, name, timeout_ms)


def _is_open(transactions: Transactions, name: str) -> bool:
    try:
        return transactions.describe(name).state in ("Ongoing", "PrepareCommit")
    except TransactionFailed as failed:
        if not failed.is_over:
            raise
        return False


class KafkaIntentLog:
    """The durable log of one sink's intents. Raises ClientError."""

    def __init__(self, cluster: Cluster, sink_id: str) -> None:
        self._cluster = cluster
        self._sink_id = sink_id
        self._driver = f"{prefix_of(sink_id)}driver"
        # The transaction of the latest fence: a driver that was fenced since can record nothing.
        self._transaction: Transaction | None = None
        self._producer: Producer | None = None

    def fence(self) -> None:
        """Fence the sink's earlier drivers: they can record no more. Create the intents' topic if missing."""
        if not self._partitions():
            self._create()
        self._transaction = Transaction(Transactions(self._cluster), self._driver, RECORDING_TIMEOUT_MS)
        self._producer = Producer(
            self._cluster,
            acks=-1,
            # The intent of thousands of tasks has some hundred kilobytes, nearly all of it one prefix.
            codec=Codec.GZIP,
            delivery_timeout_ms=self._cluster.config.delivery_timeout_ms,
            trouble=_LOG.warning,
            transaction=self._transaction,
        )

    def latest(self, *, all_of_it: bool = True) -> Intent | None:
        """Return the sink's last intent; None if it has none.

        Wait for the end of other sinks' transactions in the log, unless `all_of_it` is false.
        """
        found: bytes | None = None
        count = self._partitions()
        if not count:
            return None
        partition = partition_of(self._sink_id, count)
        limits = Limits(FETCH_WAIT_MS, partition_max_bytes=FETCH_BYTES)
        consumer = Consumer(self._cluster, TOPIC, self._partitions, isolation=READ_COMMITTED, limits=limits)
        offset, target = 0, None
        deadline_ms = monotonic_ms() + self._cluster.config.delivery_timeout_ms
        while target is None or offset < target:
            (part,) = consumer.fetch({partition: offset}, deadline_ms - monotonic_ms())
            if target is None:
                target = part.high_watermark if all_of_it else part.last_stable_offset
            for batch, is_read in part.batches():
                offset = batch.last_offset + 1
                for record in batch.records() if is_read else ():
                    found = record.value if record.key == self._sink_id.encode() else found
            if monotonic_ms() >= deadline_ms:
                raise RequestTimedOut(_UNENDED.format(f"{TOPIC}-{partition}"))
        return None if found is None else Intent.from_json(found)

    def record(self, intent: Intent) -> None:
        """Record the intent. On return it is durable and visible. After an error it may be missing."""
        assert self._transaction is not None, "only who has fenced the others records"
        assert self._producer is not None
        key = self._sink_id.encode()
        partition = partition_of(self._sink_id, self._partitions())
        self._transaction.add([(TOPIC, partition)])
        record = NewRecord(intent.to_json(), key, time.time_ns() // 1_000_000)
        self._producer.append(TOPIC, partition, [record])
        self._producer.flush()
        self._transaction.end(committed=True)

    def _partitions(self) -> int:
        (topic,) = self._cluster.refresh([TOPIC]).topics
        if topic.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
            raise ApiFailed(f"topic {TOPIC}", topic.error_code)
        return len(topic.partitions)

    def _create(self) -> None:
        try:
            Admin(self._cluster).create_topic(TOPIC, PARTITIONS, -1, _CONFIGS)
        except ApiFailed as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._cluster.patiently(self._check_that_it_is_made)

    def _check_that_it_is_made(self) -> None:
        if not self._partitions():
            raise without_leader(TOPIC, 0)


class KafkaEnds:
    """Ends the transactions of one sink's tasks. Raises ClientError."""

    def __init__(self, cluster: Cluster, sink_id: str) -> None:
        self._prefix = prefix_of(sink_id)
        self._transactions = Transactions(cluster)

    def commit(self, transaction: Prepared) -> Outcome:
        """Commit the transaction and return the outcome. The call may be repeated."""
        name, producer = transaction.transactional_id, transaction.producer
        try:
            self._transactions.end(name, producer, committed=True)
        except TransactionFailed as failed:
            if not failed.is_over:
                raise
            return Outcome.ABORTED if self._state(transaction) in _ABORTING else Outcome.UNKNOWN
        return Outcome.COMMITTED

    def abort(self, transactions: Iterable[Prepared]) -> None:
        for one in transactions:
            try:
                self._transactions.end(one.transactional_id, one.producer, committed=False)
            except TransactionFailed as failed:
                if not failed.is_over:
                    raise

    def closed(self, transactions: Iterable[Prepared]) -> list[Prepared]:
        """Return the transactions that are no longer open."""
        return [one for one in transactions if self._state(one, of_it_alone=True) != "Ongoing"]

    def abort_all(self) -> None:
        """Abort all open transactions of the sink."""
        for name in self._transactions.ongoing(self._prefix):
            self._transactions.init(name, _STRAY_TIMEOUT_MS)

    def _state(self, transaction: Prepared, *, of_it_alone: bool = False) -> str:
        """Return the transaction's state at its coordinator.

        Return "" if the coordinator does not know the id. With `of_it_alone`, return "" also if another
        producer has the id now.
        """
        try:
            found = self._transactions.describe(transaction.transactional_id)
        except TransactionFailed as failed:
            if not failed.is_over:
                raise
            return ""
        return "" if of_it_alone and found.producer != transaction.producer else found.state
