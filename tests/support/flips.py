"""One flipped bit anywhere in a log directory: it is found, or it is harmless.

    python -m tests.support.flips --seeds 5000 --first 0

A trial is a number: which image, which file, which bit. The log room is started on the flipped copy,
retention looks at it, the scrubber reads it, and a client reads all records as Kafka's clients do: with the
CRC of each batch, and an offset at a time behind what is refused. Then every record is either what it was, or
was refused, and what was refused is what the bit was in.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError, ProcessContext
from mpbroker.ipc.table import Partition, PartitionFlag, version_of
from mpbroker.ipc.topology import SCRUBBER
from mpbroker.log.scrub.scrub_process import ASKED, ScrubProcess
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.records.record import NewRecord, Record
from mpbroker.storage.names import LOG_STARTS
from mpbroker.storage.reader import Bound, OffsetOutOfRange, PartitionReader, RangeDamaged, SegmentGone
from mpbroker.storage.transaction_index import AbortedTransaction, TransactionIndexCorrupt
from tests.support.flipped_bits import flip
from tests.support.log_rig import TOPIC_ID, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.stepped_log import Broker, settle

PARTITIONS = 4
TRANSACTIONAL = 3
RECORDS = 3
LOG_START = 7
# Of the journal's file most is zeros that mean nothing.
JOURNAL = "mpbroker.journal"
JOURNAL_BYTES = 20_000
FETCH_BYTES = 3000
# Retention keeps what is of today, and nothing that a flipped bit makes older.
NOW = time.time_ns() // 1_000_000
# Key, value, timestamp, and the leader epoch of the batch.
Records = dict[int, tuple[bytes | None, bytes | None, int, int]]

# By their paths below the log directory.
Segments = dict[str, bytes]


@dataclass
class Image:
    """A log directory, and what clients read of each of its partitions, also of those that want no others
    than committed records.
    """

    directory: Path
    records: list[Records] = field(default_factory=list)
    committed: list[Records] = field(default_factory=list)


@dataclass
class Read:
    """What a client has got of a partition, and the offsets that it was refused; the same of one that reads
    what is committed.
    """

    records: Records = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    committed: Records = field(default_factory=dict)
    kept_back: set[int] = field(default_factory=set)
    offline: str = ""


@dataclass
class Outcome:
    """`fatal`: the broker does not start, and says why."""

    partitions: list[Read] = field(default_factory=list)
    fatal: str = ""


# ---- images ----


def make_images(scratch: Path) -> list[Image]:
    """The same log as a clean stop leaves it, and as a crash does."""
    data = scratch / "data"
    data.mkdir()
    rig = Rig(data, scratch / "region", {"log_scrub_max_bytes_per_second": 1 << 40})
    try:
        broker = Broker(rig, PARTITIONS)
        manager = broker.process.manager
        while manager.journals.awaited:
            broker.process.work(1)
            broker.process._do_housekeeping()
        for log in manager.logs.values():
            log.apply_config(replace(log.config, segment_bytes=4096, index_interval_bytes=300))
        fill(broker, 30)
        log = manager.logs[broker.targets[0][0]]
        log.move_start(LOG_START)
        log.state.publish(manager.table)
        scrub(rig)
        manager.checkpoints.write_high_watermarks()
        manager.checkpoints.write_recovery_points()
        manager.checkpoints.write_all_log_starts()
        for _ in manager.io_thread.catching_up():
            broker.process.work(1)
        fill(broker, 4)
        crashed, stopped = Image(scratch / "crashed"), Image(scratch / "stopped")
        shutil.copytree(data, crashed.directory)
        settle(broker.process)
        manager.close_cleanly()
        shutil.copytree(data, stopped.directory)
        broker.process.turn.close()
    finally:
        rig.processes.clear()
        rig.memory.close()
    for image in (crashed, stopped):
        work = scratch / "baseline"
        shutil.copytree(image.directory, work)
        outcome = run(work, scratch)
        assert not outcome.fatal, outcome.fatal
        image.records = [one.records for one in outcome.partitions]
        image.committed = [one.committed for one in outcome.partitions]
        assert all(not one.offline and not one.refused for one in outcome.partitions)
        assert all(len(one) > 50 for one in image.records)
        shutil.rmtree(work)
    return [crashed, stopped]


def fill(broker: Broker, rounds: int) -> None:
    for number in range(rounds):
        at = NOW + number
        broker.produce(bytes(make_batch(RECORDS, size=40, timestamp=at)))
        broker.produce(compressed(number), partition=1)
        broker.produce(bytes(make_batch(1 + number % 5, size=10 * (number % 7), timestamp=at)), partition=2)
    transact(broker, rounds)


def transact(broker: Broker, rounds: int) -> None:
    """Write transactions of two producers in turn.

    Every third one is aborted, and the last ones stay open.
    """
    for number in range(rounds):
        producer, sequence = 7 + number % 2, number // 2
        broker.produce(bytes(of_transaction(producer, sequence)), partition=TRANSACTIONAL)
        broker.produce(bytes(make_batch(2, timestamp=NOW)), partition=TRANSACTIONAL)
        if number >= 2:
            ends, kind = 7 + (number - 1) % 2, ABORT if number % 3 == 0 else COMMIT
            broker.produce(bytes(marker(ends, kind)), partition=TRANSACTIONAL)


def of_transaction(producer: int, sequence: int) -> bytearray:
    return build_batch(
        [NewRecord(b"%d" % sequence, b"x" * 150, NOW)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
        leader_epoch=0,
    )


def marker(producer: int, kind: int) -> bytearray:
    return build_transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
    )


def compressed(number: int) -> bytes:
    records = [NewRecord(b"key%d" % number, b"value%d" % i * 20, NOW + number) for i in range(RECORDS)]
    return bytes(build_batch(records, codec=Codec(number % len(Codec)), leader_epoch=0))


# ---- a broker's life on a directory ----


def run(directory: Path, scratch: Path, *, stops: bool = False) -> Outcome:
    """`stops`: cleanly, otherwise it is killed."""
    try:
        rig = Rig(directory, scratch / "region", {"log_scrub_max_bytes_per_second": 1 << 40})
    except FatalError as error:
        return Outcome(fatal=str(error))
    try:
        process = rig.in_process()
        rig.call(ensure(PARTITIONS))
        settle(process)
        answer = rig.take_answer()
        assert isinstance(answer, calls.EnsuredTopic), answer
        # The scrubber reads what is written no more, and the client what there is by now.
        for log in process.manager.logs.values():
            if log.topic == "t" and not log.state.flags & PartitionFlag.PARTITION_OFFLINE and log.state.size:
                process.manager.roll(log)
        for one in answer.partitions:
            if not one.error:
                rig.job([((one.slot, one.slot_generation, 5), bytes(make_batch(1, timestamp=NOW)))])
        rig.call(calls.Recovered({"t": TOPIC_ID}))
        settle(process)
        rig.take_answer()
        for _ in process.deletion.deleting_expired():
            process.work(0)
        found = [read(rig, one) for one in sorted(answer.partitions, key=lambda one: one.partition)]
        if stops:
            assert process._stop() == 0
            rig.processes.clear()
        return Outcome(found)
    except FatalError as error:
        return Outcome(fatal=str(error))
    finally:
        for process in rig.processes:
            process.io_thread.close()
        rig.close()


def scrub(rig: Rig) -> None:
    process = ScrubProcess(ProcessContext(SCRUBBER, rig.memory, rig.config))
    words = rig.memory.words("scrub_asked")
    words.store(ASKED, words.load(ASKED) + 1)
    process.start()
    while (log_dir := process._due()) is not None:
        process.scrub(log_dir)
    process.stop()


def read(rig: Rig, opened: calls.EnsuredPartition) -> Read:
    """Read as a client does, once the scrubber has looked."""
    if opened.error:
        return Read(offline=opened.message or "without a word")
    if rig.memory.words("scrub_asked").load(ASKED) == 0:
        scrub(rig)
    found, now = Read(), rig.partition(opened.slot)
    reader = PartitionReader(rig.directory / f"t-{opened.partition}")
    reader.load_damages(version_of(rig.memory.words("damaged").load(opened.slot), now.generation))
    bound = Bound(now.high_watermark, now.high_watermark_segment, now.high_watermark_position)
    offset = now.log_start_offset
    while offset < bound.offset:
        offset = fetch(reader, offset, bound, found)
    read_committed(reader, now, found)
    reader.close()
    return found


def read_committed(reader: PartitionReader, now: Partition, found: Read) -> None:
    bound = Bound(now.last_stable_offset, now.last_stable_segment, now.last_stable_position)
    offset, aborting = now.log_start_offset, set[int]()
    while offset < bound.offset:
        try:
            piece = reader.fetch_slice(offset, FETCH_BYTES, bound)
            if piece is None:
                return
            aborted = reader.aborted(offset, piece, bound, now.aborted_end)
            data = reader.read(piece)
        except (RangeDamaged, CorruptBatch, TransactionIndexCorrupt):
            found.kept_back.add(offset)
            offset += 1
            continue
        start, waiting = offset, sorted(aborted, key=lambda one: one.first_offset)
        aborting.clear()
        with suppress(CorruptBatch):
            for batch in iterate_batches(data):
                records = committed_of(batch, waiting, aborting)
                found.committed |= {r.offset: told(r, batch) for r in records if r.offset >= start}
                offset = max(offset, batch.last_offset + 1)
        if offset == start:
            found.kept_back.add(offset)
            offset += 1


def committed_of(batch: Batch, waiting: list[AbortedTransaction], aborting: set[int]) -> list[Record]:
    """Return what is committed, by what the response says of aborted transactions, as a client does."""
    while waiting and waiting[0].first_offset <= batch.last_offset:
        aborting.add(waiting.pop(0).producer_id)
    producer = batch.header.producer_id
    if batch.is_control:
        aborting -= {producer} if marker_of(batch.bytes) == (ABORT, 0) else set()
        return []
    return [] if batch.is_transactional and producer in aborting else batch.records()


def told(record: Record, batch: Batch) -> tuple[bytes | None, bytes | None, int, int]:
    return record.key, record.value, record.timestamp, batch.header.leader_epoch


def fetch(reader: PartitionReader, offset: int, bound: Bound, found: Read) -> int:
    """-> where the client goes on: behind what it got, or, when it was refused, one further."""
    try:
        piece = reader.fetch_slice(offset, FETCH_BYTES, bound)
        data = reader.read(piece) if piece is not None else b""
    except (RangeDamaged, CorruptBatch):
        found.refused.add(offset)
        return offset + 1
    except SegmentGone:
        reader.segments()
        piece = reader.fetch_slice(offset, FETCH_BYTES, bound)
        data = reader.read(piece) if piece is not None else b""
    except OffsetOutOfRange:
        return bound.offset
    if piece is None:
        return bound.offset
    start = offset
    with suppress(CorruptBatch):
        for batch in iterate_batches(data):
            for record in batch.records():
                if record.offset >= start:
                    found.records[record.offset] = told(record, batch)
            offset = max(offset, batch.last_offset + 1)
    if offset == start:
        # Not one whole batch: a client says so, as it does with a wrong CRC.
        found.refused.add(offset)
        return offset + 1
    return offset


# ---- a trial ----


@dataclass(frozen=True)
class Flip:
    seed: int
    image: Image
    file: str
    at: int
    mask: int

    def __str__(self) -> str:
        file = f"{self.image.directory.name}/{self.file}"
        return f"seed {self.seed}: {file}, byte {self.at}, mask {self.mask:#04x}"


def choose(images: list[Image], seed: int) -> Flip:
    chance = random.Random(seed)
    image = chance.choice(images)
    files = sorted(
        str(path.relative_to(image.directory))
        for path in image.directory.rglob("*")
        if path.is_file() and path.stat().st_size
    )
    file = chance.choice(files)
    size = (image.directory / file).stat().st_size
    at = chance.randrange(min(size, JOURNAL_BYTES) if file == JOURNAL else size)
    return Flip(seed, image, file, at, 1 << chance.randrange(8))


def trial(images: list[Image], seed: int, scratch: Path) -> str:
    """-> what came of it, in a word. Raises AssertionError that names the flip."""
    one = choose(images, seed)
    try:
        outcome, segments, lines = life(one, scratch)
        judge(one, outcome, segments, lines)
    except Exception as error:
        raise AssertionError(f"{one}: {error!r}") from error
    if outcome.fatal:
        return "fatal"
    if any(each.offline for each in outcome.partitions):
        return "offline"
    return "refused" if any(each.refused for each in outcome.partitions) else "harmless"


def life(one: Flip, scratch: Path) -> tuple[Outcome, tuple[Segments, Segments], list[str]]:
    """Run a broker on a flipped copy. Returns the outcome, segments before and after, and the log."""
    work = scratch / "work"
    shutil.copytree(one.image.directory, work)
    try:
        flip(work / one.file, one.at, one.mask)
        flipped = logs_of(work)
        with said() as lines:
            outcome = run(work, scratch)
        return outcome, (flipped, logs_of(work)), lines
    finally:
        shutil.rmtree(work)


def judge(one: Flip, outcome: Outcome, segments: tuple[Segments, Segments], lines: list[str]) -> None:
    before, after = segments
    if outcome.fatal:
        assert after == before, "a start that is refused changes nothing"
        assert one.file in outcome.fatal, outcome.fatal
        return
    original = logs_of(one.image.directory)
    for number, (wanted, got) in enumerate(zip(one.image.records, outcome.partitions, strict=True)):
        if got.offline:
            own = {name for name in before if name.startswith(f"t-{number}/")}
            assert own == {name for name in after if name.startswith(f"t-{number}/")}, "a segment has gone"
            assert all(after[name] in (before[name], original[name]) for name in own), "a segment has changed"
            continue
        if one.file == LOG_STARTS and any(LOG_STARTS in line for line in lines):
            # What had been deleted is there again, and it was said why.
            got.records = {offset: record for offset, record in got.records.items() if offset in wanted}
        for offset, record in got.records.items():
            assert wanted.get(offset) == record, f"t-{number}: the record at {offset} is another one"
        silent = wanted.keys() - got.records.keys() - got.refused
        assert not silent, f"t-{number}: no word of the records at {sorted(silent)[:5]}; {lines}"
        committed = one.image.committed[number]
        visible = {offset for offset in got.committed if offset in wanted}
        assert visible <= committed.keys(), f"t-{number}: {visible - committed.keys()} not committed"
        assert all(got.committed[offset] == committed[offset] for offset in visible)
        hidden = committed.keys() - got.committed.keys() - got.kept_back
        assert not hidden, f"t-{number}: no word of what is committed at {sorted(hidden)[:5]}; {lines}"
        if got.refused:
            assert one.file.startswith(f"t-{number}/"), "another partition suffers"
            assert one.file.endswith(".log"), "what can be made anew costs records"
            assert len(got.refused) <= 2 * 5, f"{len(got.refused)} offsets are refused"


def logs_of(directory: Path) -> Segments:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.glob("t-*/*.log")
        if path.parent.name.count(".") == 0
    }


@contextmanager
def said() -> Iterator[list[str]]:
    """Collect what is logged as a warning or worse."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, listener = logging.getLogger("mpbroker"), Listener(logging.WARNING)
    log.addHandler(listener)
    try:
        yield lines
    finally:
        log.removeHandler(listener)


@contextmanager
def workplace() -> Iterator[tuple[Path, list[Image]]]:
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        yield scratch, make_images(scratch)
    finally:
        shutil.rmtree(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description="one flipped bit anywhere in a log directory")
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("mpbroker").propagate = False
    counts: dict[str, int] = {}
    failed: list[str] = []
    with workplace() as (scratch, images):
        for seed in range(asked.first, asked.first + asked.seeds):
            try:
                came = trial(images, seed, scratch)
            except AssertionError as error:
                came = "failed"
                failed.append(str(error))
                print(error, flush=True)
            counts[came] = counts.get(came, 0) + 1
    print(", ".join(f"{count} {came}" for came, count in sorted(counts.items())))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
