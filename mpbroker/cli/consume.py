"""`mpbroker consume`: prints records as they come, without a group and without committing offsets."""

import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from mpbroker.cli.client import PATIENCE_MS, Client, Fetched, Topic
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.template import Part, compile_template
from mpbroker.cli.where import Where
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import LOG_APPEND_TIME, Record

MAX_WAIT_MS = 500


class Settings(msgspec.Struct, frozen=True):
    """The flags of the command. A count of 0 has no end."""

    topic: str
    partition: int
    offset: str
    count: int
    exit_at_end: bool
    template: str
    as_json: bool


def consume(where: Where, settings: Settings) -> None:
    """Print records until there are enough, or until the end is reached if that was asked for."""
    render = _render_json if settings.as_json else compile_template(settings.template)
    start = parse_offset(settings.offset)
    with Client(where) as client:
        _print_all(Consumer(client, settings, start), render, sys.stdout.buffer)


def parse_offset(text: str) -> Callable[[int, int], int]:
    """Return a function from a partition's ends to a position.

    The text is `beginning`, `end`, an offset, or -N for the last N. Raises CliError.
    """
    match text:
        case "beginning" | "earliest":
            return lambda start, _end: start
        case "end" | "latest":
            return lambda _start, end: end
        case _ if text.isdecimal():
            return lambda _start, _end: int(text)
        case _ if text.startswith("-") and text[1:].isdecimal():
            return lambda start, end: max(start, end + int(text))
    raise CliError(f"-o is beginning, end, an offset or -N for the last N records, not '{text}'", USAGE_ERROR)


class Consumer:
    """Positions in the partitions of one topic, and the loop that moves them."""

    def __init__(self, client: Client, settings: Settings, where: Callable[[int, int], int]) -> None:
        self._client = client
        self._settings = settings
        self._topic = client.topic(settings.topic)
        self._positions = self._first_positions(where)

    def groups(self) -> Iterator[tuple[int, list[Record]]]:
        """Yield records with their partition, batch by batch.

        All small records of a fetch at once would fill the memory.
        """
        left = self._settings.count or None
        at_end: set[int] = set()
        while len(at_end) < len(self._positions):
            for fetched in self._fetch():
                for group in self._take(fetched):
                    yield fetched.partition, group[:left]
                    if left is not None:
                        left -= len(group)
                        if left <= 0:
                            return
                if (
                    self._settings.exit_at_end
                    and self._positions[fetched.partition] >= fetched.high_watermark
                ):
                    at_end.add(fetched.partition)

    @property
    def topic(self) -> Topic:
        return self._topic

    def _first_positions(self, where: Callable[[int, int], int]) -> dict[int, int]:
        indexes = [partition.index for partition in self._topic.partitions]
        if self._settings.partition >= 0:
            indexes = [self._settings.partition]
        starts = self._client.offsets(self._topic, EARLIEST, indexes)
        ends = self._client.offsets(self._topic, LATEST, indexes)
        return {index: where(starts[index], ends[index]) for index in indexes}

    def _fetch(self) -> list[Fetched]:
        """Fetch. After a retriable error look up the leaders and fetch again, which is harmless."""
        return self._client.cluster.patiently(
            self._fetch_once, timeout_ms=PATIENCE_MS, before_retry=self._look_up_leaders
        )

    def _fetch_once(self) -> list[Fetched]:
        fetched = self._client.fetch(self._topic, self._positions, MAX_WAIT_MS)
        for part in fetched:
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self._out_of_range(part.partition)
            if part.error_code == ErrorCode.CORRUPT_MESSAGE:
                # A retry does not mend that. Kafka's consumer stops there too.
                raise self._damaged(part.partition, "the broker cannot read it (CORRUPT_MESSAGE)")
            if part.error_code:
                raise ApiFailed(self._where(part.partition), part.error_code)
        return fetched

    def _look_up_leaders(self) -> None:
        self._topic = self._client.topic(self._settings.topic)

    def _out_of_range(self, partition: int) -> CliError:
        """Make an error that names the offsets there are.

        The user asked for another one, or retention has overtaken the reader.
        """
        (start,) = self._client.offsets(self._topic, EARLIEST, [partition]).values()
        (end,) = self._client.offsets(self._topic, LATEST, [partition]).values()
        return CliError(
            f"{self._where(partition)}: no such offset, it has {start} to {end}; "
            "try -o beginning, -o end or one of these"
        )

    def _take(self, fetched: Fetched) -> Iterator[list[Record]]:
        """Yield records from the position on. A batch may begin before it, and may have none left."""
        try:
            for batch in iterate_batches(fetched.records):
                if not batch.is_control:
                    position = self._positions[fetched.partition]
                    yield [record for record in batch.records() if record.offset >= position]
                self._positions[fetched.partition] = batch.last_offset + 1
        except CorruptBatch as error:
            raise self._damaged(fetched.partition, f"a damaged batch came back: {error}") from error

    def _damaged(self, partition: int, why: str) -> CliError:
        return CliError(
            f"{self._where(partition)}: {why}. On its host mpbroker log verify says where; "
            "-o OFFSET reads on behind them"
        )

    def _where(self, partition: int) -> str:
        return f"{self._topic.name}-{partition} at offset {self._positions[partition]}"


def _print_all(consumer: Consumer, render: Part, out: BinaryIO) -> None:
    for partition, group in consumer.groups():
        # Write once per batch, also when Python was told not to buffer.
        left = memoryview(b"".join([render(consumer.topic.name, partition, record) for record in group]))
        while left:
            # A stream without a buffer may write only a part.
            left = left[out.write(left) :]
        out.flush()


def _render_json(topic: str, partition: int, record: Record) -> bytes:
    document = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        "headers": [[name, _header_json(value)] for name, value in record.headers],
        **_field_json("key", record.key),
        **_field_json("value", record.value),
    }
    return msgspec.json.encode(document) + b"\n"


def _field_json(name: str, data: bytes | None) -> dict[str, str | bytes | None]:
    """Return text under its name, and other bytes in base64 under another name.

    Text would not restore those bytes.
    """
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        # msgspec writes bytes as base64 in JSON.
        return {f"{name}_base64": data}


def _header_json(data: bytes | None) -> str | dict[str, bytes] | None:
    """Return text, or an object with the bytes if they are no text."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": data or b""}
