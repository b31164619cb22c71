"""`mpbroker produce`: each line of standard input becomes a record.

The lines of one read become one batch per partition, so that typed lines are sent at once, and a file in
large pieces. A thread reads a little ahead, while the main thread builds batches and sends them. With
acks=all a batch is sent again after its connection was lost, and is still written only once.
"""

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, with_advice
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.records.line_records import Format, LineRecords
from mpbroker.cli.text.interrupt import Interrupt
from mpbroker.client.admin import Admin
from mpbroker.client.consumer import PATIENCE_MS
from mpbroker.client.errors import ApiFailed, ClientError, RequestTimedOut, without_leader
from mpbroker.client.producer import Producer
from mpbroker.client.topics import Topic, no_partition, partition_for, partitions_of
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.compression import Codec
from mpbroker.records.record import Header, NewRecord

READ_BYTES = 512 << 10
# Below max.message.bytes, which is 1 MiB by default; the producer splits what is too large.
BATCH_BYTES_MAX = 768 << 10
# The most that a record's lengths, deltas and attributes take, and the lengths of each header.
RECORD_OVERHEAD_BYTES = 24
HEADER_OVERHEAD_BYTES = 10
# No broker takes a larger request (socket.request.max.bytes).
LINE_BYTES_MAX = 100 << 20
GROUPS_AHEAD = 4
# After a signal, lines that were read are written for this long.
FLUSH_AFTER_INTERRUPT_S = 2.0
CODECS = {codec.name.lower(): codec for codec in Codec}
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
# At least this many lines without a key go to a partition before others go to the next one.
STICKY_LINES_MIN = 10
# Names that -X takes: how Kafka's and librdkafka's producers call the two settings that `produce` has.
PROPERTIES = {
    "acks": "acks",
    "request.required.acks": "acks",
    "compression.type": "compression",
    "compression.codec": "compression",
}


class Settings(msgspec.Struct, frozen=True):
    """The flags of `mpbroker produce`."""

    topic: str
    partition: int
    acks: str
    compression: str
    form: Format


def parse_headers(texts: Sequence[str]) -> tuple[Header, ...]:
    """Parse NAME=VALUE texts. A header without = has a null value, as in kcat. Raises CliError."""
    headers: list[Header] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise CliError(f"-H {text}: this is not NAME=VALUE", USAGE_ERROR)
        headers.append((name, value.encode() if equals else None))
    return tuple(headers)


def produce(where: ClusterAddress, settings: Settings, properties: Sequence[str] = ()) -> None:
    """Send the lines of standard input until it ends. After Ctrl-C, send only the lines read so far."""
    settings = check(with_properties(settings, properties))
    with open_admin(where) as client:
        reader = Reader(sys.stdin.fileno(), client.cluster.client.wakeup)
        reader.start()
        if not _is_there(client, settings.topic) and not reader.has_lines():
            reader.join()
            return
        lines = Lines(client, settings)
        with Interrupt(client.cluster.client.wakeup) as interrupt:
            _produce(lines, reader, interrupt)


def _produce(lines: "Lines", reader: "Reader", interrupt: Interrupt) -> None:
    """Send all lines. For a user at a terminal, print how to end, and the number of records."""
    is_typed = sys.stdin.isatty() and sys.stderr.isatty()
    if is_typed:
        _say("each line is a record; Ctrl-D ends")
    try:
        _send_all(lines, reader, interrupt)
    except ClientError as error:
        advice = _why(lines) if isinstance(error, RequestTimedOut) else ""
        failed = with_advice(error, f"; {_written(lines)}{advice}")
        if interrupt.came:
            failed.exit_code = interrupt.exit_code
        raise failed from error
    except CliError as error:
        _flush(lines.producer, interrupt)
        raise with_advice(error, f"; {_written(lines)}") from error
    if warning := lines.warning():
        _say(warning)
    if interrupt.came:
        late = lines.producer.unacknowledged
        left = f", {late:,} not acknowledged{_why(lines)}" if late else ""
        raise CliError(f"interrupted; {_written(lines)}{left}", interrupt.exit_code)
    if is_typed:
        _say(_written(lines))


def _send_all(lines: "Lines", reader: "Reader", interrupt: Interrupt) -> None:
    while not reader.ended and not interrupt.came:
        while lines.producer.has_room and (group := reader.take()):
            lines.append(group)
        if not reader.ended:
            lines.producer.poll()
    if reader.ended:
        reader.join()
    _flush(lines.producer, interrupt)


def _flush(producer: Producer, interrupt: Interrupt) -> None:
    """Wait until all records are acknowledged, after a signal only briefly. Raises ClientError."""
    deadline = math.inf
    while not producer.idle and time.monotonic() < deadline:
        if interrupt.came and deadline == math.inf:
            deadline = time.monotonic() + FLUSH_AFTER_INTERRUPT_S
        producer.poll()


def with_properties(settings: Settings, properties: Sequence[str]) -> Settings:
    """Return the settings, with values replaced by the -X properties. Raises CliError."""
    for text in properties:
        name, _equals, value = text.partition("=")
        if name not in PROPERTIES:
            raise CliError(f"-X knows no {name}; it has {', '.join(PROPERTIES)}", USAGE_ERROR)
        settings = msgspec.structs.replace(settings, **{PROPERTIES[name]: value})
    return settings


def check(settings: Settings) -> Settings:
    """Check that codec and acks are known, and return the settings. Raises CliError."""
    if settings.compression not in CODECS:
        raise CliError(
            f"compression is one of {', '.join(CODECS)}, not '{settings.compression}'", USAGE_ERROR
        )
    if settings.acks not in ACKS:
        raise CliError(f"acks is one of {', '.join(ACKS)}, not '{settings.acks}'", USAGE_ERROR)
    return settings


def read_lines(descriptor: int, size: int = READ_BYTES) -> Iterator[list[bytes]]:
    """Yield groups of lines as they arrive, without newlines. The last line may lack a newline."""
    rest: list[bytes] = []
    rest_bytes = 0
    while chunk := os.read(descriptor, size):
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest, rest_bytes = [], 0
            yield lines
        rest.append(last)
        rest_bytes += len(last)
        if rest_bytes > LINE_BYTES_MAX:
            raise CliError(f"a line is longer than {LINE_BYTES_MAX} bytes: no broker takes such a record")
    if tail := b"".join(rest):
        yield [tail]


class Reader(threading.Thread):
    """A thread that reads up to GROUPS_AHEAD groups of lines ahead, so that sending need not wait."""

    def __init__(self, descriptor: int, wakeup: Callable[[], None]) -> None:
        # The command must be able to end while this thread waits for a terminal.
        super().__init__(daemon=True, name="stdin")
        self.ended = False
        self._descriptor = descriptor
        self._wakeup = wakeup
        self._groups: queue.Queue[list[bytes] | BaseException] = queue.Queue(GROUPS_AHEAD)
        self._has_begun = threading.Event()
        self._is_empty = False

    def run(self) -> None:
        try:
            for group in read_lines(self._descriptor):
                self._put(group)
        except (OSError, CliError) as error:
            self._put(error)
        self._put([])

    def has_lines(self) -> bool:
        """Wait for the first line, an error or the end; return whether a line or an error came."""
        self._has_begun.wait()
        return not self._is_empty

    def take(self) -> list[bytes] | None:
        """Return the next group of lines, None if none has come, [] at the end. Raises errors of reading."""
        try:
            group = self._groups.get_nowait()
        except queue.Empty:
            return None
        if isinstance(group, OSError):
            raise CliError(f"cannot read standard input: {group.strerror}") from group
        if isinstance(group, BaseException):
            raise group
        self.ended = not group
        return group

    def _put(self, group: list[bytes] | BaseException) -> None:
        self._groups.put(group)
        self._is_empty = group == [] and not self._has_begun.is_set()
        self._has_begun.set()
        self._wakeup()


class Lines:
    """Makes batches for a topic from lines, and sends them."""

    def __init__(self, client: Admin, settings: Settings) -> None:
        self._settings = settings
        self._records = LineRecords(settings.form)
        topic = _find_topic(client, settings.topic)
        self._topic = topic
        self._partitions = len(topic.partitions)
        if settings.partition >= 0:
            partitions_of(topic, [settings.partition])
        # Lines without a key go to partitions that can be written.
        self._keyless = [part.index for part in topic.partitions if part.leader >= 0] or [0]
        self._next_keyless = 0
        self.producer = Producer(
            client.cluster,
            acks=ACKS[settings.acks],
            codec=CODECS[settings.compression],
            delivery_timeout_ms=client.cluster.config.delivery_timeout_ms,
            trouble=self._retried,
        )

    def append(self, lines: list[bytes]) -> None:
        """Send lines as one batch per partition. At a wrong line, send those before it and raise CliError.

        -p names the partition, or else the line does, or else the key decides. Of lines without a key, a few
        go to one partition, and the next few to the next one (Kafka: the sticky partitioner, KIP-480).
        """
        now_ms = time.time_ns() // 1_000_000
        if self._records.is_plain and self._settings.partition >= 0:
            self._send({self._settings.partition: self._records.plain(lines, now_ms)})
            return
        share = max(STICKY_LINES_MIN, -(-len(lines) // len(self._keyless)))
        distributed: dict[int, list[NewRecord]] = {}
        try:
            for first in range(0, len(lines), share):
                keyless = self._keyless[self._next_keyless % len(self._keyless)]
                self._next_keyless += 1
                self._distribute(lines[first : first + share], keyless, now_ms, distributed)
        finally:
            self._send(distributed)

    def _distribute(
        self, lines: list[bytes], keyless: int, now_ms: int, distributed: dict[int, list[NewRecord]]
    ) -> None:
        if self._records.is_plain:
            distributed.setdefault(keyless, []).extend(self._records.plain(lines, now_ms))
            return
        for line in lines:
            if (parsed := self._records.parse(line, now_ms)) is not None:
                record, named = parsed
                distributed.setdefault(self._partition(record, named, keyless), []).append(record)

    def _send(self, distributed: Mapping[int, list[NewRecord]]) -> None:
        for partition, records in distributed.items():
            for batch in _cut(records):
                self.producer.append(self._topic.name, partition, batch)

    def _partition(self, record: NewRecord, named: int | None, keyless: int) -> int:
        """Return the partition: -p, else `named`, else the key's, else `keyless`. Raises CliError."""
        if self._settings.partition >= 0:
            return self._settings.partition
        if named is None:
            by_key = record.key is not None
            return partition_for(record.key or b"", self._partitions) if by_key else keyless
        if not 0 <= named < self._partitions:
            raise CliError(
                f"line {self._records.number:,}: {no_partition(self._topic, named)}: --ignore-partition "
                "sends lines by their keys, -p N all to one partition",
                USAGE_ERROR,
            )
        return named

    def _retried(self, text: str) -> None:
        """Print why a batch is sent again; after KAFKA_STORAGE_ERROR, also which command checks the disk."""
        storage = ErrorCode.KAFKA_STORAGE_ERROR.name in text
        disk = f". Its disk is full or broken: mpbroker why {self.topic} says which" if storage else ""
        _say(f"{text}{disk}")

    @property
    def topic(self) -> str:
        return self._topic.name

    def warning(self) -> str:
        return self._records.warning()


def _cut(records: list[NewRecord]) -> Iterator[list[NewRecord]]:
    """Yield batches of up to BATCH_BYTES_MAX, which brokers accept by default, or of one larger record."""
    first = size = 0
    for index, record in enumerate(records):
        own = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            own += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"")
        if index > first and size + own > BATCH_BYTES_MAX:
            yield records[first:index]
            first, size = index, 0
        size += own
    yield records[first:]


def _is_there(client: Admin, name: str) -> bool:
    """Return False if the topic does not exist, True if it does, and True after any other error."""
    try:
        client.topic(name)
    except ApiFailed as error:
        return error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return True


def _find_topic(client: Admin, name: str) -> Topic:
    """Return the topic. If it is missing, request its creation and wait until all partitions have leaders."""
    topic = client.cluster.patiently(partial(_existing, client, name), timeout_ms=PATIENCE_MS)
    if topic is None:
        topic = client.cluster.patiently(partial(_created, client, name), timeout_ms=PATIENCE_MS)
        count = len(topic.partitions)
        _say(f"topic {name} did not exist; the broker created it with {count} partition(s)")
    return topic


def _existing(client: Admin, name: str) -> Topic | None:
    try:
        return client.topic(name)
    except ApiFailed as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return None


def _created(client: Admin, name: str) -> Topic:
    """Have the broker create the topic, and return it. Raises ApiFailed while a partition has no leader."""
    topic = client.topic(name, auto_create=True)
    for partition in topic.partitions:
        if partition.leader < 0:
            raise without_leader(topic.name, partition.index)
    return topic


def _say(text: str) -> None:
    print(f"mpbroker: {text}", file=sys.stderr)


def _why(lines: "Lines") -> str:
    return f"; mpbroker why {lines.topic} says what holds them up"


def _written(lines: "Lines") -> str:
    count = lines.producer.acknowledged
    return "1 record is written" if count == 1 else f"{count:,} records are written"
