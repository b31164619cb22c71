"""`mpbroker consume`: prints records as they come, of all partitions or of those that a group assigns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import msgspec

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.records import json_lines
from mpbroker.cli.records.template import Part, compile_template
from mpbroker.cli.registry_flags import failures
from mpbroker.cli.text.interrupt import Interrupt
from mpbroker.client.admin import Admin
from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.consumer import MAX_WAIT_MS, PATIENCE_MS, Consumer, Fetched
from mpbroker.client.consumer_group_member import ConsumerGroupMember
from mpbroker.client.errors import ApiFailed
from mpbroker.client.group_member import AnyMember, GroupMember, quietly_leave
from mpbroker.client.log_dirs import name_full_disks
from mpbroker.client.positions import Ends, Start
from mpbroker.client.topics import Topic, partitions_of
from mpbroker.protocol.consumer_protocol import CLASSIC, CONSUMER
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.printable import printable
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.record import Record
from mpbroker.registry.json_values import Decoder

MEMBERS: Mapping[str, type[AnyMember]] = {CLASSIC: GroupMember, CONSUMER: ConsumerGroupMember}
# Default of Kafka's consumer (auto.commit.interval.ms).
COMMIT_MS = 5_000


class Settings(msgspec.Struct, frozen=True):
    """The parsed flags. `count` 0: no limit. `until_ms`: stop at records of that time or later."""

    topic: str
    partition: int
    start: Start
    until_ms: int | None
    count: int
    exit_at_end: bool
    template: str
    as_json: bool
    isolation: int
    group: str | None = None
    group_protocol: str = CLASSIC


def consume(where: ClusterAddress, settings: Settings, decoder: Decoder | None = None) -> None:
    """Print records until the count, end or time in the settings is reached.

    Keys and values are printed as JSON if `decoder` knows their schema.
    """
    render = json_lines.render if settings.as_json else compile_template(settings.template)
    if decoder is not None:
        render = _decoded(decoder, None if settings.as_json else render)
    with open_admin(where) as client:
        reader = Reader(client, settings)
        if settings.start.kind == "end" and not settings.exit_at_end and _is_watched():
            said = "new records; --from-beginning shows those that are there, Ctrl-C ends"
            print(f"mpbroker: waiting for {said}", file=sys.stderr)
        if settings.group is None:
            reader.begin(reader.first_positions(settings.start))
            _print_all(reader, render, sys.stdout.buffer)
        else:
            _print_share(client, settings, settings.group, reader, render)


def _decoded(decoder: Decoder, render: Part | None) -> Part:
    """Return a function that decodes a record, then formats it by `render` (None: as a line of JSON)."""

    def printed(topic: str, partition: int, record: Record) -> bytes:
        with failures():
            key = decoder.shown(record.key, record.headers, is_key=True)
            value = decoder.shown(record.value, record.headers)
        if render is None:
            return json_lines.render(topic, partition, record, key, value)
        shown = {name: one.json for name, one in (("key", key), ("value", value)) if one is not None}
        return render(topic, partition, msgspec.structs.replace(record, **shown))

    return printed


def _is_watched() -> bool:
    return sys.stdout.isatty() and sys.stderr.isatty()


def _print_share(client: Admin, settings: Settings, group: str, reader: Reader, render: Part) -> None:
    """Print records of the partitions that the group assigns. Commit printed records, also after an error."""
    member = MEMBERS[settings.group_protocol](client.cluster, group, settings.topic, PATIENCE_MS)
    with Interrupt(client.cluster.client.wakeup) as interrupt:
        share = Share(member, reader, settings.start, interrupt)
        try:
            while not (reader.is_done or interrupt.came):
                share.join()
                _print_all(reader, render, sys.stdout.buffer, share.must_stop)
                share.commit()
        except ApiFailed as error:
            name_full_disks(client.cluster, error)
            raise
        finally:
            try:
                share.commit()
            finally:
                quietly_leave(member)
        if interrupt.came:
            raise SystemExit(interrupt.exit_code)


class Share:
    """The partitions that a group has assigned to this consumer, and their committed offsets."""

    def __init__(self, member: AnyMember, reader: Reader, start: Start, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._member = member
        self._reader = reader
        self._start = start
        self._committed: dict[int, int] = {}
        self._commit_due_ms = 0.0

    def join(self) -> None:
        """Join the group and wait for partitions. Each begins at its committed offset, else where -o says."""
        self._interrupt.raises = True
        assigned = self._member.join()
        self._interrupt.raises = False
        indexes = [number for topic, number in assigned if topic == self._reader.topic.name]
        known = {number: offset for (_, number), offset in self._member.committed().items()}
        new = [number for number in indexes if number not in known]
        positions = {number: known[number] for number in indexes if number in known}
        self._reader.begin(positions | self._reader.first_positions(self._start, new))
        self._committed = dict(positions)
        self._commit_due_ms = monotonic_ms() + COMMIT_MS

    def must_stop(self) -> bool:
        """Commit if a commit is due. Return whether reading must stop because of a rebalance or a signal."""
        if monotonic_ms() >= self._commit_due_ms:
            self.commit()
        return self._interrupt.came or self._member.must_rejoin()

    def commit(self) -> None:
        """Commit per partition the offset that follows the last printed record, if it has changed."""
        self._commit_due_ms = monotonic_ms() + COMMIT_MS
        printed = self._reader.printed
        changed = {number: at for number, at in printed.items() if self._committed.get(number) != at}
        if changed:
            self._member.commit({(self._reader.topic.name, number): at for number, at in changed.items()})
            self._committed |= changed


class Reader:
    """Reads partitions of one topic, and keeps the position in each of them."""

    def __init__(self, client: Admin, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._topic = client.topic(settings.topic)
        expected = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE)
        self._consumer = Consumer(
            client.cluster,
            settings.topic,
            self._look_up_leaders,
            isolation=settings.isolation,
            expected=expected,
        )
        self._positions: dict[int, int] = {}
        self._stops: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._has_begun = False
        self._left = settings.count or None
        # The offset after the last record of each partition that has been printed.
        self.printed: dict[int, int] = {}

    @property
    def topic(self) -> Topic:
        return self._topic

    @property
    def is_done(self) -> bool:
        """Return whether `count` records were read, or each partition has reached the wanted end."""
        wants_end = self._settings.exit_at_end or self._settings.until_ms is not None
        at_end = self._has_begun and self._at_end >= self._positions.keys()
        return self._left == 0 or (wants_end and at_end)

    def begin(self, positions: Mapping[int, int]) -> None:
        """Set the partitions to read, with the first offset to read of each."""
        self._has_begun = True
        self._positions = dict(positions)
        self.printed = {}
        self._stops = {}
        self._at_end = set()
        if self._settings.until_ms is not None and positions:
            places = self._ends(list(positions), self._settings.until_ms)
            self._stops = {number: Start("time").within(ends) for number, ends in places.items()}
            self._at_end = {number for number, at in self._positions.items() if at >= self._stops[number]}

    def first_positions(self, start: Start, indexes: list[int] | None = None) -> dict[int, int]:
        """Return each partition's first offset to read. `indexes` None: the flags' partition, or all."""
        if indexes is None:
            wanted = self._settings.partition
            indexes = [wanted] if wanted >= 0 else partitions_of(self._topic)
        if not indexes:
            return {}
        return {number: start.within(ends) for number, ends in self._ends(indexes, start.time_ms).items()}

    def _ends(self, indexes: list[int], time_ms: int | None) -> dict[int, Ends]:
        return self._client.ends(self._topic, indexes, time_ms, self._settings.isolation)

    def groups(self, must_stop: Callable[[], bool]) -> Iterator[tuple[int, list[Record]]]:
        """Yield (partition, records of a batch) until this reader is done, or `must_stop` returns true.

        One batch at a time saves memory: small records take far more as Python objects than in a batch.
        """
        while not self.is_done and not must_stop():
            for fetched in self._fetch():
                for group in self._take(fetched):
                    mine = group[: self._left]
                    if mine:
                        yield fetched.partition, mine
                        self.printed[fetched.partition] = mine[-1].offset + 1
                    if self._left is not None:
                        self._left -= len(mine)
                        if self._left <= 0:
                            return
                position = self._positions[fetched.partition]
                self.printed[fetched.partition] = min(position, self._stops.get(fetched.partition, position))
                if self._is_at_end(fetched):
                    self._at_end.add(fetched.partition)

    def _is_at_end(self, fetched: Fetched) -> bool:
        position = self._positions[fetched.partition]
        if (stop := self._stops.get(fetched.partition)) is not None:
            return position >= stop
        return self._settings.exit_at_end and position >= fetched.end(self._settings.isolation)

    def _fetch(self) -> list[Fetched]:
        wanted = {
            number: at
            for number, at in self._positions.items()
            if number not in self._at_end or not self._stops
        }
        if not wanted:
            # A group may have more members than partitions.
            self._client.cluster.rest(MAX_WAIT_MS)
            return []
        served = []
        for part in self._consumer.fetch(wanted):
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                if self._settings.group is None:
                    raise self._out_of_range(part.partition)
                self._reset(part.partition)
                continue
            if part.error_code == ErrorCode.CORRUPT_MESSAGE:
                # A retry does not mend that. Kafka's consumer stops there too.
                raise self._damaged(part.partition, "the broker cannot read it (CORRUPT_MESSAGE)")
            served.append(part)
        return served

    def _look_up_leaders(self) -> None:
        self._topic = self._client.topic(self._settings.topic)

    def _reset(self, partition: int) -> None:
        """Continue at the offset that -o means, as Kafka's consumers do by auto.offset.reset.

        Called when retention has removed the record that the group would read next.
        """
        start = self._settings.start
        was = self._where(partition)
        self._positions |= self.first_positions(start, [partition])
        told = (
            f"{was}: this offset no longer exists; group {self._settings.group} continues at "
            f"the {start.kind}, offset {self._positions[partition]} (-o beginning or end)"
        )
        print(f"mpbroker: {printable(told)}", file=sys.stderr)

    def _out_of_range(self, partition: int) -> CliError:
        """Return an error that names the existing offsets.

        The user asked for an offset that does not exist, or retention deleted the next record to read.
        """
        (ends,) = self._ends([partition], None).values()
        was_asked_for = self._settings.start == Start("offset", self._positions[partition])
        return CliError(
            f"{self._where(partition)}: no such offset, it has {ends.start} to {ends.end}; "
            "try -o beginning, -o end or one of these",
            USAGE_ERROR if was_asked_for else RUNTIME_ERROR,
        )

    def _take(self, fetched: Fetched) -> Iterator[list[Record]]:
        """Yield the records of each batch from the position on. A batch may begin before the position."""
        stop = self._stops.get(fetched.partition)
        try:
            for batch, is_read in fetched.batches():
                position = self._positions[fetched.partition]
                if is_read:
                    records = [record for record in batch.records() if record.offset >= position]
                    yield records if stop is None else [one for one in records if one.offset < stop]
                self._positions[fetched.partition] = batch.last_offset + 1
        except CorruptBatch as error:
            raise self._damaged(fetched.partition, f"a damaged batch came back: {error}") from error

    def _damaged(self, partition: int, why: str) -> CliError:
        return CliError(
            f"{self._where(partition)}: {why}. On its host mpbroker log verify shows where; "
            "-o OFFSET continues after them"
        )

    def _where(self, partition: int) -> str:
        return f"{self._topic.name}-{partition} at offset {self._positions[partition]}"


def _print_all(
    reader: Reader, render: Part, out: BinaryIO, must_stop: Callable[[], bool] = lambda: False
) -> None:
    for partition, group in reader.groups(must_stop):
        # Write once per batch, also when Python was told not to buffer.
        left = memoryview(b"".join([render(reader.topic.name, partition, record) for record in group]))
        while left:
            # A stream without a buffer may write only a part.
            left = left[out.write(left) :]
        out.flush()
