"""Turns rows of Arrow batches into records: chooses partitions, encodes, compresses and sends batches."""

from __future__ import annotations

import array
import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import parse_servers
from mpbroker.client.errors import ApiFailed, without_leader
from mpbroker.client.producer import Producer
from mpbroker.client.transactions import Transaction
from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.errors import SERVERS_ADVICE, OptionError
from mpbroker.records.batch import BATCH_HEADER_BYTES
from mpbroker.records.builder import with_records
from mpbroker.records.compression import Codec, compress
from mpbroker.records.encode import NO_TOPIC, Encoded, Encoder, assign_targets
from mpbroker.records.stream import seal
from mpbroker.writing.options import WriteOptions

if TYPE_CHECKING:
    from mpbroker.records.addresses import Binary, Headers, Numbers

NULL_TOPIC: Final = "null topic present in the data. Use the topic option for setting a topic."
# After this many answers that a topic does not exist, the broker does not create topics.
CREATION_ATTEMPTS: Final = 5

_LOG = logging.getLogger("mpbroker.spark")

_SMALL = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def open_cluster(options: WriteOptions) -> Cluster:
    """Return a cluster, which connects on the first request. Raises ClientConfigError."""
    return Cluster(parse_servers(options.bootstrap_servers), options.client_config(), SERVERS_ADVICE)


@dataclass(frozen=True)
class Target:
    """A partition of a topic. The encoder names it by its index in `Topics.targets`."""

    topic: str
    partition: int


class Topics:
    """Gives numbers to topics, and to their partitions across all topics, for the encoder."""

    def __init__(self, cluster: Cluster, start: int) -> None:
        self.targets: list[Target] = []
        self.first_targets = array.array("i")
        self.counts = array.array("i")
        self.keyless = array.array("i")
        self._cluster = cluster
        self._start = start
        self._numbers: dict[str, int] = {}
        # For each topic, its partitions one after the other, without end.
        self._turns: list[Iterator[int]] = []

    def number(self, name: str) -> int:
        """Return the number that the encoder uses for a topic. Look up a new topic; the broker may create it.

        Raises ClientError.
        """
        number = self._numbers.get(name)
        if number is None:
            count = self._partitions(name)
            number = self._numbers[name] = len(self.counts)
            self.first_targets.append(len(self.targets))
            self.counts.append(count)
            self.keyless.append(self._start % count)
            self._turns.append(itertools.cycle([(self._start + n) % count for n in range(count)]))
            self.targets += [Target(name, partition) for partition in range(count)]
        return number

    def in_turn(self, numbers: Iterable[int], given: pa.Array | None) -> pa.Array:
        """Return each row's partition: the `given` one, else its topic's next. `numbers`: each row's topic.

        (Kafka: RoundRobinPartitioner.)
        """
        turns = self._turns
        made = pa.array([next(turns[number]) for number in numbers], pa.int32())
        return made if given is None else pc.coalesce(given, made)

    def next_keyless(self) -> None:
        """Choose each topic's next partition for records without a key."""
        for number, count in enumerate(self.counts):
            self.keyless[number] = (self.keyless[number] + 1) % count

    def _partitions(self, name: str) -> int:
        """Return a topic's number of partitions. Wait up to delivery.timeout.ms until all have a leader."""
        attempts = itertools.count(1)
        return self._cluster.patiently(lambda: self._led_partitions(name, next(attempts)))

    def _led_partitions(self, name: str, attempt: int) -> int:
        (topic,) = self._cluster.refresh([name], auto_create=True).topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempt > CREATION_ATTEMPTS:
            raise TopicMissing(f"topic {name}", topic.error_code)
        if topic.error_code or not topic.partitions:
            raise ApiFailed(f"topic {name}", topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE)
        for partition in topic.partitions:
            if partition.leader_id < 0:
                raise without_leader(name, partition.partition_index)
        return len(topic.partitions)


class TopicMissing(ApiFailed):
    """The broker has not created the topic after repeated requests for it."""

    @property
    def retriable(self) -> bool:
        return False


class RowWriter:
    """Writes the rows of one task. Raises ClientError, OptionError, ValueError."""

    def __init__(
        self, cluster: Cluster, options: WriteOptions, start: int, transaction: Transaction | None = None
    ) -> None:
        self.rows = 0
        self._options = options
        self._topics = Topics(cluster, start)
        self._encoder = Encoder(options.batch_bytes)
        self._transaction = transaction
        self._producer = Producer(
            cluster,
            acks=options.acks,
            codec=options.codec,
            delivery_timeout_ms=cluster.config.delivery_timeout_ms,
            trouble=_LOG.warning,
            transaction=transaction,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode the rows and send full record batches. Other rows wait for more rows, or for `flush`."""
        if not batch.num_rows:
            return
        columns = {name: plain(batch.column(name)) for name in batch.schema.names}
        targets = self._targets(columns, batch.num_rows)
        key, value = columns.get("key"), columns["value"]
        found, _kept = headers(columns.get("headers"))
        times = numbers(columns.get("timestamp"))
        now_ms = time.time_ns() // 1_000_000
        full = self._encoder.append(targets, binary(key), binary(value), times, now_ms, found)
        self._topics.next_keyless()
        self.rows += batch.num_rows
        self._send(full)

    def flush(self) -> None:
        """Send the remaining rows, and return when all records are acknowledged."""
        self._send(self._encoder.finish())
        self._producer.flush()

    def _send(self, encoded: list[Encoded]) -> None:
        targets = self._topics.targets
        if self._transaction is not None and encoded:
            self._transaction.add(
                (targets[one.target].topic, targets[one.target].partition) for one in encoded
            )
        for one in encoded:
            target = targets[one.target]
            while not self._producer.has_room:
                self._producer.poll()
            self._producer.append_batch(target.topic, target.partition, self._sealed(one), one.records)
            self._producer.poll(0)

    def _sealed(self, one: Encoded) -> bytearray:
        data, codec = one.data, self._options.codec
        if codec is not Codec.NONE:
            data = with_records(compress(codec, memoryview(data)[BATCH_HEADER_BYTES:]))
        seal(
            data,
            base_offset=0,
            leader_epoch=-1,
            attributes=codec,
            last_offset_delta=one.records - 1,
            base_timestamp=one.base_timestamp,
            max_timestamp=one.max_timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=one.records,
        )
        return data

    def _targets(self, columns: dict[str, pa.Array], rows: int) -> memoryview:
        topics = self._topic_numbers(columns)
        if self._options.in_turn:
            of_rows = itertools.repeat(0, rows) if topics is None else topics.to_pylist()
            columns["partition"] = self._topics.in_turn(of_rows, columns.get("partition"))
        targets = memoryview(bytearray(4 * rows)).cast("i")
        bad = assign_targets(
            rows,
            numbers(topics),
            self._topics.first_targets,
            self._topics.counts,
            self._topics.keyless,
            None if self._options.ignore_keys else binary(columns.get("key")),
            numbers(columns.get("partition")),
            targets,
        )
        if bad >= 0:
            self._refuse(columns, topics, bad, targets[bad])
        return targets

    def _topic_numbers(self, columns: dict[str, pa.Array]) -> pa.Array | None:
        """Return the encoder's number of each row's topic, or None if all rows have the first topic."""
        if self._options.topic is not None:
            self._topics.number(self._options.topic)
            return None
        encoded = columns["topic"].dictionary_encode()
        if encoded.null_count:
            raise OptionError(NULL_TOPIC)
        known = pa.array([self._topics.number(name) for name in encoded.dictionary.to_pylist()], pa.int32())
        return known.take(encoded.indices)

    def _refuse(self, columns: dict[str, pa.Array], topics: pa.Array | None, row: int, why: int) -> None:
        if why == NO_TOPIC:
            raise OptionError(NULL_TOPIC)
        number = 0 if topics is None else topics[row].as_py()
        name = self._topics.targets[self._topics.first_targets[number]].topic
        partition = columns["partition"][row].as_py()
        raise ValueError(
            f"Invalid partition given with record: {partition} is not in the range "
            f"[0...{self._topics.counts[number]}) of topic {name}"
        )


def write_all(writer: RowWriter, batches: Iterator[pa.RecordBatch]) -> int:
    """Write every batch, wait for the acknowledgements, and return the number of rows."""
    for batch in batches:
        writer.write(batch)
    writer.flush()
    return writer.rows


def plain(column: pa.Array) -> pa.Array:
    """Return the column in an Arrow type with 32-bit offsets.

    Spark sends such types unless spark.sql.execution.arrow.useLargeVarTypes is on.
    """
    if column.type in _SMALL:
        return column.cast(_SMALL[column.type])
    if pa.types.is_large_list(column.type) or pa.types.is_list(column.type):
        return column if column.type.equals(HEADERS) else column.cast(HEADERS)
    return column


def binary(column: pa.Array | None) -> Binary | None:
    """Return the addresses of a column of bytes or text, valid as long as the caller keeps the column."""
    if column is None or pa.types.is_null(column.type):
        return None
    validity, offsets, data = column.buffers()
    return _address(validity), _address(offsets), _address(data), column.offset


def numbers(column: pa.Array | None) -> Numbers | None:
    """Return the addresses of a column of numbers or times, valid as long as the caller keeps the column."""
    if column is None or pa.types.is_null(column.type):
        return None
    validity, data = column.buffers()
    return _address(validity), _address(data), column.offset


def headers(column: pa.Array | None) -> tuple[Headers | None, list[pa.Array]]:
    """Return the addresses of a column of headers, and the arrays that keep these addresses valid."""
    if column is None or pa.types.is_null(column.type):
        return None, []
    validity, lists = column.buffers()[:2]
    entries = column.values
    keys, values = entries.field(0), entries.field(1)
    key, value = binary(keys), binary(values)
    assert key is not None
    assert value is not None
    entry_validity = _address(entries.buffers()[0])
    found = (_address(validity), _address(lists), column.offset, entry_validity, entries.offset, key, value)
    return found, [entries, keys, values]


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.address
