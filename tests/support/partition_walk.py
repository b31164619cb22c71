"""Histories of a partition, walked by a log process with real files: every reader is compared with the model.

A history is a list of steps, so it can be written down as an example, and steps can be left out of it. Any
list is a history: a step that has nothing to do does nothing.

    ("compare",)                    everything that can be read, in all ways
    ("put", producer, key, count)   a batch of records; producer 0: plain, 1-3: transactional, 4: idempotent;
                                    3 has another epoch after each transaction (KIP-890)
    ("remove", producer, key)       a tombstone
    ("again", producer)             the producer's last batch once more
    ("commit" or "abort", producer) a marker
    ("roll",)                       the next batch begins a segment
    ("read", reader, batches)       a reader that keeps its position reads on, a batch at a time
    ("delete", eighths)             DeleteRecords, up to so much of what is there
    ("retain",), ("clean",), ("wait", ms)
    ("unlink",), ("forget",)        files that were set aside are removed; handlers close deleted files
    ("stop",), ("kill", is checkpointed), ("succeed",), ("cut", seed)   restarts; the last one loses what was
                                    not synced
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.table import Partition
from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.log.compaction.offset_map import OffsetMap
from mpbroker.log.process import LogProcess
from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.columns import SCHEMA, Columns
from mpbroker.records.aborted import from_fetch
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from mpbroker.storage.checkpoints import read_offsets
from mpbroker.storage.names import HIGH_WATERMARKS, INDEX_SUFFIXES, LOG_SUFFIX, segment_name
from tests.support import handler_rig
from tests.support.fetching_handler import Fetcher
from tests.support.log_node import Journaled, wait_for_io
from tests.support.log_rig import TOPIC_ID, Rig
from tests.support.log_writer import T0
from tests.support.partition_model import Pair, PartitionModel, pairs_of
from tests.support.reading_queries import UNCOMMITTED, planned, query
from tests.support.reading_rows import rows_of
from tests.support.spark_logs import FakeBroker
from tests.support.stepped_log import settle

Step: TypeAlias = tuple[Any, ...]
Row: TypeAlias = tuple[int, bytes, bytes | None]

KEYS = 5
BUMPED, IDEMPOTENT = 3, 4
READERS = 4
SEGMENT_MS = 1000
DELETE_RETENTION_MS = 60_000
RETENTION_MS = 3_600_000
CONFIGS = {
    "segment.ms": str(SEGMENT_MS),
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "retention.ms": str(RETENTION_MS),
    "min.cleanable.dirty.ratio": "0",
    "index.interval.bytes": "100",
    "file.delete.delay.ms": "3600000",
}


class Disagreement(AssertionError):
    """A reader and the model differ."""


class OutOfOrder(Disagreement):
    """A batch was refused with OUT_OF_ORDER_SEQUENCE_NUMBER."""


class WatchedCleaner(Cleaner):
    """Keeps the offset map, which is otherwise gone when `run` ends."""

    offsets: OffsetMap

    def _map(self, *arguments: Any) -> OffsetMap:
        self.offsets = super()._map(*arguments)
        return self.offsets


@dataclass
class Reader:
    """A consumer that reads now and then."""

    isolation: int
    position: int = 0


class Content:
    """What keys and values of a history become. Subclasses compare what reads them from the log, too."""

    has_transactional_tombstones = True

    def encode(self, key: int, value: int | None) -> Pair:
        return b"k%d" % key, None if value is None else b"v%d" % value

    def compare(self, log: bytes, model: PartitionModel) -> None:
        """Compare what is read from all batches of a log with the model. Raises Disagreement."""

    def compare_elsewhere(self, log_dir: Path, published: Partition, model: PartitionModel) -> None:
        """Compare what is read of the partition in other places than its broker. Raises Disagreement."""


class Walk:
    """One history under way. `policy` is the topic's cleanup.policy."""

    def __init__(
        self,
        node: Journaled,
        fetches: Fetcher,
        policy: str,
        content: Content,
    ) -> None:
        self.node = node
        self.log_dir = node.dirs[0]
        self.model = PartitionModel()
        self.fetches = fetches
        self._content, self._encode = content, content.encode
        self._configs = CONFIGS | {"cleanup.policy": policy}
        self._is_compacted = "compact" in policy
        self._now_ms = T0
        self._values = 0
        self._started_end = 0
        self._has_restarted = False
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        # The last batch of each producer: base offset and arguments of `_send`.
        self._last: dict[int, tuple[int, list[Pair], int]] = {}
        self._readers = [Reader(number % 2) for number in range(READERS)]
        self.node.boot()
        self.fetches.log_process_dies()
        self._open()

    def take(self, step: Step) -> None:
        """Do a step, and compare. Raises Disagreement."""
        name, *arguments = step
        getattr(self, f"_{name}")(*arguments)
        if self.node.process:
            self._publish()

    # ---- steps: records ----

    def _put(self, producer: int, key: int, count: int) -> None:
        pairs = []
        for number in range(count):
            self._values += 1
            pairs.append(self._encode((key + number) % KEYS, self._values))
        self._append(producer, pairs)

    def _remove(self, producer: int, key: int) -> None:
        if self._content.has_transactional_tombstones or not 0 < producer < IDEMPOTENT:
            self._append(producer, [self._encode(key % KEYS, None)])

    def _append(self, producer: int, pairs: list[Pair]) -> None:
        sequence = self._sequences.get(producer, 0)
        try:
            base = self._send(producer, pairs, sequence)
        except OutOfOrder:
            # What a producer had may have been deleted, and then a recovery finds nothing of it.
            if producer not in self._last or self._last[producer][0] >= self.model.log_start:
                raise
            base = self._send(producer, pairs, sequence := 0)
        is_transactional = 0 < producer < IDEMPOTENT
        wanted = self.model.append(pairs, self._now_ms, producer_id=producer, transactional=is_transactional)
        self._same("the base offset of a batch", base, wanted)
        if producer:
            self._sequences[producer] = sequence + len(pairs)
            self._last[producer] = base, pairs, sequence

    def _again(self, producer: int) -> None:
        if producer != IDEMPOTENT or producer not in self._last:
            return  # of a transactional one that has ended its transaction it is a batch of another one
        base, pairs, sequence = self._last[producer]
        if base >= self.model.log_start:
            self._same("the offset of a batch that came twice", self._send(producer, pairs, sequence), base)

    def _send(self, producer: int, pairs: Sequence[Pair], sequence: int) -> int:
        return self._produce(
            build_batch(
                [NewRecord(key=key, value=value, timestamp=self._now_ms) for key, value in pairs],
                producer_id=producer or -1,
                producer_epoch=self._epochs.get(producer, 0) if producer else -1,
                base_sequence=sequence if producer else -1,
                transactional=0 < producer < IDEMPOTENT,
            )
        )

    def _commit(self, producer: int) -> None:
        self._end(producer, COMMIT)

    def _abort(self, producer: int) -> None:
        self._end(producer, ABORT)

    def _end(self, producer: int, kind: int) -> None:
        if producer == BUMPED:
            self._epochs[producer] = self._epochs.get(producer, 0) + 1
            self._sequences[producer] = 0
        offset = self._produce(
            build_transaction_marker(
                kind,
                producer_id=producer,
                producer_epoch=self._epochs.get(producer, 0),
                coordinator_epoch=0,
                timestamp=self._now_ms,
            )
        )
        wanted = self.model.end_transaction(producer, commits=kind == COMMIT)
        self._same("the offset of a marker", offset, wanted)

    def _produce(self, batch: bytes | bytearray) -> int:
        self.node.rig.job([((self._target.slot, self._target.slot_generation, 5), bytes(batch))])
        settle(self._process)
        ((result,),) = [reply.results for reply in self.node.rig.replies()]
        if result.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise OutOfOrder
        assert result.error == 0, ErrorCode(result.error).name
        return result.base_offset

    def _roll(self) -> None:
        self._wait(SEGMENT_MS + 1)

    def _wait(self, pause_ms: int) -> None:
        self._now_ms += pause_ms
        self._process.turn.for_tests(fixed_now_ms=self._now_ms)

    # ---- steps: what goes ----

    def _delete(self, eighths: int) -> None:
        start, end = self.model.log_start, self.model.end
        offset = start + (end - start) * eighths // 8
        wanted = calls.DeleteBefore(self._target.slot, self._target.slot_generation, offset)
        answer = self._done(self._process.deletion.deleting(calls.DeleteRecords([wanted])))
        assert answer.partitions == [calls.DeletedBefore(0, offset)]
        self.model.start_at(offset)

    def _retain(self) -> None:
        """Time passes, and retention looks. It may delete segments whose records have all expired."""
        self._wait(RETENTION_MS // 2)
        bases = [*self._bases(), self.model.end]
        self._done(self._process.deletion.deleting_expired())
        settle(self._process)
        start = self.node.rig.partition(self._target.slot).log_start_offset
        if start == self.model.log_start:
            return
        expired_ms = self._now_ms - RETENTION_MS
        young = [one for one in self.model.entries.values() if one.timestamp_ms > expired_ms]
        if start not in bases or start > min((one.offset for one in young), default=self.model.end):
            raise Disagreement(f"retention deleted up to {start}; segments: {bases}, not expired: {young}")
        self.model.start_at(start)

    def _clean(self) -> None:
        """Compact what is due, as the cleaner's process does."""
        if not self._is_compacted:
            return
        granted = self._done(self._process.compaction.choosing())
        if isinstance(granted, calls.NothingToClean):
            return
        assert isinstance(granted, calls.ToClean)
        cleaner = WatchedCleaner(granted, Buffers(dedupe_bytes=1 << 16, io_bytes=1 << 14))
        for new in cleaner.run():
            swap = calls.SwapSegments(granted.ticket, new.bases, new.size, new.largest_ms, new.first_ms)
            assert self._done(self._process.compaction.swapping(swap)) == calls.Swapped(True)
        self._process.compaction.ended(calls.CleaningEnded(granted.ticket, cleaner.end))
        wait_for_io(self._process)
        latest = self.model.clean(granted.first_dirty, cleaner.end, self._now_ms, DELETE_RETENTION_MS)
        keys = [self._encode(number, None)[0] for number in range(KEYS)]
        found = {key: cleaner.offsets.get(key) for key in keys}
        self._same("the offset map of a cleaning", found, {key: latest.get(key, -1) for key in keys})

    def _unlink(self) -> None:
        """Remove the files that wait for their deletion."""
        self._process.manager.removal.deletions.begin_due(float("inf"))
        wait_for_io(self._process)

    def _forget(self) -> None:
        self.fetches.forget_deleted()

    # ---- steps: restarts ----

    def _stop(self) -> None:
        self.node.stop()
        self._restart(self.node.boot)

    def _kill(self, is_checkpointed: bool) -> None:
        if is_checkpointed:
            self.node.checkpoint()
        self.node.crash()
        self._restart(self.node.boot)

    def _succeed(self) -> None:
        self._restart(self.node.succeed, at_rest=False)

    def _cut(self, seed: int) -> None:
        """The power fails: files that were not synced may lose any part. The journal has their records."""
        draw = random.Random(seed)
        log = self._process.manager.logs[self._target.slot]
        # A start syncs what it finds in the journal, and does not count that as synced.
        synced = max(self._process.manager.checkpoints.recovery_point(log), self._started_end)
        directory = log.directory
        bases = self._bases()
        self.node.crash()
        for base, following in zip(bases, [*bases[1:], self.model.end + 1], strict=True):
            if following <= synced:
                continue
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                path = directory / segment_name(base, suffix)
                if path.exists() and base >= synced:
                    os.truncate(path, draw.randint(0, path.stat().st_size))
        self._restart(self.node.boot, at_rest=False)

    def _restart(self, boot: Callable[[], object], *, at_rest: bool = True) -> None:
        if at_rest:
            self._compare_at_rest()
        boot()
        self._has_restarted = True
        self.fetches.log_process_dies()
        self._open()
        self._started_end = self.model.end

    def _open(self) -> None:
        self._process.turn.for_tests(fixed_now_ms=self._now_ms)
        topic = calls.EnsureTopic("t", TOPIC_ID, [0], self._configs, 5)
        (self._target,) = self.node.open(topic)
        assert self._target.error == 0, self._target
        now = self.node.rig.partition(self._target.slot)
        self._same("log start and end", (now.log_start_offset, now.log_end_offset), self._span)
        self._publish()

    @property
    def _span(self) -> tuple[int, int]:
        return self.model.log_start, self.model.end

    # ---- readers ----

    def _publish(self) -> None:
        now = self.node.rig.partition(self._target.slot)
        self.fetches.publish(now)
        if self._has_restarted and now.last_stable_offset != self.model.stable():
            self.model.forget_deleted()
        marks = now.log_start_offset, now.high_watermark, now.last_stable_offset
        self._same(
            "log start, high watermark and last stable offset", marks, (*self._span, self.model.stable())
        )

    def _read(self, number: int, batches: int) -> None:
        reader = self._readers[number]
        for _ in range(batches):
            if reader.position < self.model.log_start:
                reader.position = self.model.log_start
            at = reader.position
            rows, reader.position = self._fetched(at, reader.isolation, 1)
            if reader.position == at:
                return
            self._whole(f"reader {number}", rows, at, reader.position, reader.isolation)

    def _compare(self) -> None:
        """Compare what all readers beside the broker get."""
        model = self.model
        for isolation, entries in ((0, model.records()), (1, model.committed())):
            for max_bytes in (1 << 20, 200):
                rows, at = [], model.log_start
                while True:
                    found, behind = self._fetched(at, isolation, max_bytes)
                    if behind == at:
                        break
                    rows, at = rows + found, behind
                self._same(f"fetches of {max_bytes} bytes, isolation {isolation}", rows, pairs_of(entries))
        log, at = b"", model.log_start
        while part := bytes(self.fetches.fetch(at, 0, 1 << 20).records or b""):
            log += part
            at = [batch.last_offset + 1 for batch in iterate_batches(part)][-1]
        self._content.compare(log, model)
        broker = FakeBroker(self.log_dir)
        try:
            broker.publish_slot(self.node.rig.partition(self._target.slot))
            self._in_place("beside the broker", model.end)
        finally:
            broker.stop()
        self._content.compare_elsewhere(self.log_dir, self.node.rig.partition(self._target.slot), model)

    def _compare_at_rest(self) -> None:
        """Compare what is read in place without a broker: what lies below the checkpointed high watermark."""
        checkpointed: int = read_offsets(self.log_dir / HIGH_WATERMARKS).get(("t", 0), 0)
        self._in_place("at rest", max(checkpointed, self.model.log_start))

    def _in_place(self, where: str, high_watermark: int) -> None:
        rows, model = read(self.log_dir), self.model
        behind = max(model.stable(high_watermark), rows[-1][0] + 1 if rows else 0)
        if behind > model.stable(high_watermark, is_cleaned=True):
            raise Disagreement(f"{where}, a transaction is open, and records behind it are read: {rows}")
        self._same(f"committed, {where}", rows, pairs_of(model.committed(behind)))
        rows = read(self.log_dir, **UNCOMMITTED)
        self._same(f"uncommitted, {where}", rows, pairs_of(model.records(high_watermark)))

    def _fetched(self, offset: int, isolation: int, max_bytes: int) -> tuple[list[Row], int]:
        """Fetch once; return the records that the console and Spark's reader take, and where to go on."""
        part = self.fetches.fetch(offset, isolation, max_bytes)
        if part.error_code:
            raise Disagreement(f"a fetch at {offset} of {self._span}: {ErrorCode(part.error_code).name}")
        records = bytes(part.records or b"")
        named = [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
        if unknown := [one for one in named if not self.model.was_aborted(*one)]:
            raise Disagreement(f"a fetch at {offset} names as aborted: {unknown}")
        aborted = from_fetch(records, named)
        rows, behind = [], offset
        for batch in iterate_batches(records):
            behind = batch.last_offset + 1
            if not batch.is_control and not aborted.is_aborted(batch):
                rows += [(r.offset, r.key, r.value) for r in batch.records() if r.offset >= offset]
        columns = Columns(SCHEMA, "t", 0, check_crcs=True)
        decoded = [
            (row["offset"], row["key"], row["value"])
            for found in columns.decode(records, 0, len(records), offset, behind, aborted)
            for row in found.to_pylist()
        ]
        self._same("Arrow's decoder and the walk over batches", decoded, rows)
        return rows, behind

    def _whole(self, who: str, rows: list[Row], start: int, end: int, isolation: int) -> None:
        """Check what a reader got for [start, end): it may have a file that was compacted since."""
        wanted = self.model.committed() if isolation else self.model.records()
        missed = {one.offset for one in wanted if start <= one.offset < end} - {row[0] for row in rows}
        odd = [row for row in rows if row not in pairs_of([self.model.ever[row[0]]])]
        aborted = [row for row in rows if isolation and self.model.hides(row[0])]
        if missed or odd or aborted:
            raise Disagreement(f"{who} at {start} to {end}: missed {missed}, got {odd}, aborted {aborted}")

    # ---- tools ----

    @property
    def _process(self) -> LogProcess:
        return self.node.process

    def _bases(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.log_dir / "t-0").glob("*.log"))

    def _done(self, steps: Generator[None, None, Any]) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                wait_for_io(self._process)
                return end.value
            wait_for_io(self._process)

    def _same(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise Disagreement(f"{what}: {found}, and by the model {wanted}")


def read(log_dir: Path, **options: object) -> list[Row]:
    """Read topic t in place."""
    found = query(log_dir, **options)
    return [(row["offset"], row["key"], row["value"]) for row in rows_of(planned(found), found)]


def history(
    seed: int,
    length: int = 60,
    *,
    policies: Sequence[str] = ("compact", "compact", "delete", "compact,delete"),
    producers: Sequence[int] = range(IDEMPOTENT + 1),
    without: Collection[str] = (),
) -> tuple[str, list[Step]]:
    """Return a cleanup.policy, and the steps of a random history."""
    draw = random.Random(seed)
    policy = draw.choice(policies)
    producers = draw.sample(producers, draw.randint(min(2, len(producers)), len(producers)))
    weights = {name: draw.random() ** 2 * one for name, one in _WEIGHTS.items() if name not in without}
    weights["put"] = 10.0
    names = draw.choices(list(weights), list(weights.values()), k=length)
    return policy, [_drawn(name, draw, producers) for name in names]


_WEIGHTS = {
    "put": 10,
    "remove": 3,
    "again": 1,
    "commit": 5,
    "abort": 5,
    "roll": 8,
    "read": 12,
    "delete": 1,
    "retain": 1,
    "clean": 4,
    "wait": 2,
    "unlink": 1,
    "forget": 1,
    "compare": 3,
    "stop": 0.5,
    "kill": 0.7,
    "succeed": 0.5,
    "cut": 0.7,
}


def _drawn(name: str, draw: random.Random, producers: Sequence[int]) -> Step:
    if name == "put":
        return name, draw.choice(producers), draw.randrange(KEYS), draw.choice((1, 1, 1, 2, 4))
    if name == "remove":
        return name, draw.choice(producers), draw.randrange(KEYS)
    if name in ("again", "commit", "abort"):
        return name, draw.choice([one for one in producers if one] or [1])
    if name == "read":
        return name, draw.randrange(READERS), draw.choice((1, 1, 2, 5, 20))
    if name == "delete":
        return name, draw.choice((2, 4, 6, 8))
    if name == "wait":
        return name, draw.choice((DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS))
    if name == "kill":
        return name, draw.random() < 0.5
    if name == "cut":
        return name, draw.randrange(1000)
    return (name,)


CONTENT = Content()


@dataclass
class Walker:
    """Walks one history after the other, in the same directory.

    `public` is a directory on a tmpfs, for shared memory.
    """

    directory: Path
    public: Path
    fetches: Fetcher

    def walk(self, policy: str, steps: Sequence[Step], content: Content = CONTENT) -> PartitionModel:
        """Walk a history, and leave its files at rest. Raises Disagreement, or what a reader raises."""
        rigs: list[Rig] = []

        def make(_: str, **options: object) -> Rig:
            while rigs:
                rigs.pop().close()
            rigs.append(Rig(self.directory / LOG_DIR, self.public / "region", options))
            return rigs[0]

        shutil.rmtree(self.directory / LOG_DIR, ignore_errors=True)
        node = Journaled(make, self.directory)
        try:
            walk = Walk(node, self.fetches, policy, content)
            for step in [*steps, ("compare",), ("stop",)]:
                walk.take(step)
            return walk.model
        finally:
            node.crash()
            for rig in rigs:
                rig.close()

    def fails(self, policy: str, steps: Sequence[Step], content: Content = CONTENT) -> str:
        """Walk a history; return what fails, empty if nothing does."""
        try:
            self.walk(policy, steps, content)
        except Exception as error:  # noqa: BLE001 - a reader may raise anything
            return f"{type(error).__name__}: {error}"
        return ""

    def shrunk(self, policy: str, steps: Sequence[Step], content: Content = CONTENT) -> list[Step]:
        """Return a shorter history that still fails: drop steps, within SHRINKING_WALKS attempts."""
        left, size, walks = list(steps), len(steps) // 2, 0
        while size:
            at = 0
            while at < len(left):
                if walks == SHRINKING_WALKS:
                    return left
                walks += 1
                fewer = left[:at] + left[at + size :]
                if self.fails(policy, fewer, content):
                    left = fewer
                else:
                    at += size
            size //= 2
        return left

    def check(self, seeds: Iterable[int], content: Content = CONTENT, **how: Any) -> None:
        """Walk random histories. Raises Disagreement with the first that fails, without needless steps."""
        for seed in seeds:
            policy, steps = history(seed, **how)
            if why := self.fails(policy, steps, content):
                left = self.shrunk(policy, steps, content)
                why += f"\nwithout needless steps: {self.fails(policy, left, content)}\n{policy!r}, {left}"
                raise Disagreement(f"history {seed}: {why}")


LOG_DIR = "data0"
# Histories between two lines of `make histories`.
SAID_EVERY = 100
# Histories between two collections of garbage.
COLLECTED_EVERY = 5
SHRINKING_WALKS = 100


@contextmanager
def walker(directory: Path) -> Iterator[Walker]:
    log_dir = directory / LOG_DIR
    config = BrokerConfig(log_dirs=(str(log_dir),))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public, handler_rig.rig(config) as made:
        yield Walker(directory, Path(public), Fetcher(made))


def main() -> None:
    parser = argparse.ArgumentParser(description="random histories of a partition, read in every way")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=int(time.time()))
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, walker(Path(directory)) as made:
        for seed in range(asked.first, asked.first + asked.seeds):
            try:
                made.check([seed])
            except Disagreement as error:
                failed += 1
                print(error, flush=True)
            if (walked := seed - asked.first + 1) % COLLECTED_EVERY == 0:
                # A process that crashed in a history has its files open, and their memory, until then.
                gc.collect()
            if walked % SAID_EVERY == 0 or walked == asked.seeds:
                print(f"{walked} histories, seeds {asked.first} to {seed}, {failed} failed", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
