"""The scrubber process: reads all sealed segments from time to time, and finds damaged ones.

It reads with the lowest priority, and writes one file in each log directory (`mpbroker.storage.damage`), with
its findings and its position, from which a pass continues after a restart. No process waits for the scrubber.
Beside each slot of the partition table is a *word of damage*, 64 bits that only the scrubber writes. The word
is not 0 while ranges of the partition are damaged. A handler that sees this reads the ranges from the file,
so the file is written before the word. A successor of the scrubber writes all words again.

(Kafka has no scrubber: consumers find damage, and followers copy it.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import IDLE_SLEEP_MS, ProcessContext
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely, version_of, word_of
from mpbroker.ipc.topology import slots_given
from mpbroker.log.io.pace import Pace
from mpbroker.log.partition.partition_log import wall_ms
from mpbroker.log.partition.transaction_index_rebuild import expected, problem
from mpbroker.log.scrub.scrubber import ColdFile, SegmentReplaced, SegmentScrub
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs, read_topic_id
from mpbroker.storage.damage import Damage, FileIdentity, Pass, Place, Scrubbed, read_scrubbed, write_scrubbed
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    NOT_PARTITIONS,
    TXN_INDEX_SUFFIX,
    NotAPartition,
    PartitionName,
    parse_partition,
    segment_name,
)
from mpbroker.storage.segments import segments_of
from shm import linux

NICENESS = 19
# How often findings are compared with the files, and how often the position of a pass is saved.
TEND_EVERY_S = 2.0
SAVE_EVERY_S = 10.0
# The words of `scrub_asked`: how many scrubs were asked for, how many began, whether a pass is under way.
ASKED, BEGUN, GOES_ON = 0, 1, 2
LARGEST_VERSION = 0xFFFFFFFF
Found = frozenset[Damage]


def run(context: ProcessContext) -> int:
    """Scrub until ordered to stop."""
    os.nice(NICENESS)
    linux.set_io_priority(linux.IOPRIO_CLASS_IDLE, 0)
    return ScrubProcess(context).serve()


class Abandoned(Exception):
    """Raised when the process is to stop, or scrubbing was turned off."""


class ScrubbedDir:
    """The `number`-th entry of log.dirs: its known damage, and the file that keeps it."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.known = Scrubbed()
        self.problem = ""

    def load(self) -> str:
        """Read `known` from the file; return "". If that fails, empty `known` and return the error."""
        try:
            self.known = read_scrubbed(self.path)
        except (CheckpointCorrupt, OSError) as error:
            self.known = Scrubbed()
            return str(error)
        return ""

    def save(self) -> None:
        """Write `known` to the file, durably. Raises OSError."""
        write_scrubbed(self.path, self.known)

    def partitions(self) -> dict[str, PartitionName]:
        """Map the directory names of partitions to parsed names, in the order of a pass. Raises OSError."""
        found = {}
        for entry in sorted(os.scandir(self.path), key=lambda one: one.name):
            try:
                name = parse_partition(entry.name)
            except NotAPartition:
                continue
            if entry.name not in NOT_PARTITIONS and not name.suffix and entry.is_dir():
                found[entry.name] = name
        return found

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether a pass is under way or due. If the clock was set back, a pass is due."""
        known = self.known
        if known.current is not None or known.last is None:
            return True
        return not 0 <= now_ms - known.last.began_ms < interval_ms


class ScrubProcess:
    """The loop of the scrubber: orders, findings and passes."""

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.table = context.memory.table()
        self.damaged = context.memory.words("damaged")
        self.asked = context.memory.words("scrub_asked")
        self.dirs = [ScrubbedDir(number, Path(name)) for number, name in enumerate(context.config.log_dirs)]
        # The damages that the words stand for, by slot.
        self._published: dict[int, Found] = {}
        self._next_tend = 0.0
        self._next_save = 0.0
        self._first_at = time.monotonic() + context.config.log_initial_task_delay_ms / 1000
        self._pace = Pace(lambda: context.config.log_scrub_max_bytes_per_second)
        # The problems logged in the last pass of each log directory.
        self._said: set[tuple[Path, Path | int]] = set()
        self._places: dict[tuple[bytes, int], tuple[int, Partition]] = {}
        self._places_until = 0.0

    def serve(self) -> int:
        self.start()
        while not self.context.must_stop():
            self.context.obey_settings()
            try:
                log_dir = self._due()
                if log_dir is not None:
                    self.scrub(log_dir)
                else:
                    self.give_way()
                    self.context.wait(lambda: self._is_asked, IDLE_SLEEP_MS)
            except Abandoned:
                continue
        self.stop()
        return 0

    def start(self) -> None:
        for log_dir in self.dirs:
            if problem := log_dir.load():
                self.context.log.warning(
                    "%s. Earlier findings in %s are lost; it is scrubbed again", problem, log_dir.path
                )
        # Every word of a predecessor is written again.
        self._published = {slot: frozenset() for slot in range(self.damaged.count) if self.damaged.load(slot)}
        self.tend()
        self.context.counters.set_status("waiting")
        self.context.ready()

    def stop(self) -> None:
        for log_dir in self.dirs:
            if log_dir.known.current is not None:
                self._save(log_dir)
        self.context.stopped()

    # ---- orders ----

    def give_way(self) -> None:
        """Report a heartbeat, apply settings, and call `tend` if due. Raises Abandoned if ordered to stop."""
        self.context.counters.beat()
        self.context.obey_settings()
        if time.monotonic() >= self._next_tend:
            self.tend()
        if self.context.must_stop():
            raise Abandoned

    @property
    def _is_asked(self) -> bool:
        return self.asked.load(ASKED) != self.asked.load(BEGUN)

    def _due(self) -> ScrubbedDir | None:
        """Begin requested passes. Return a directory to scrub now, or None; publish whether there is one."""
        asked = self.asked.load(ASKED)
        if asked != self.asked.load(BEGUN):
            self._first_at = 0
            for one in self.dirs:
                if one.known.current is None and not self._has_failed(one):
                    one.known.current = Pass(wall_ms())
                    # Saved before it begins: after a kill a successor has only the file.
                    self._save(one)
        log_dir = self._next()
        # In this order: until the scrub is over, a client sees it either asked for or under way.
        self.asked.store(GOES_ON, int(log_dir is not None))
        self.asked.store(BEGUN, asked)
        return log_dir

    def _next(self) -> ScrubbedDir | None:
        if not self.context.config.log_scrub_max_bytes_per_second or time.monotonic() < self._first_at:
            return None
        now_ms, interval_ms = wall_ms(), self._interval_ms
        due = (one for one in self.dirs if one.is_due(now_ms, interval_ms) and not self._has_failed(one))
        return next(due, None)

    def _has_failed(self, log_dir: ScrubbedDir) -> bool:
        """Return whether a log process has found the directory broken, and logged that."""
        return bool(self.context.memory.failed_dirs() >> log_dir.number & 1)

    @property
    def _interval_ms(self) -> int:
        return self.context.config.log_scrub_interval_ms

    # ---- findings ----

    def tend(self) -> None:
        """Drop findings about deleted files, and publish the others."""
        self._next_tend = time.monotonic() + TEND_EVERY_S
        for log_dir in self.dirs:
            known = log_dir.known
            void = [one for one in known.all_damages() if not one.is_there(log_dir.path)]
            if not void:
                continue
            for one in void:
                self.context.log.info("%s: %s was repaired or deleted", log_dir.path, one)
            known.damages = [one for one in known.damages if one not in void]
            if known.at is not None:
                known.at.found = [one for one in known.at.found if one not in void]
            self._save(log_dir)
        self.publish()

    def publish(self) -> None:
        """Write each partition's word of damage. If a damaged partition is unreadable, clear no word."""
        is_sure = True
        wanted: dict[int, tuple[int, Found]] = {}
        damages = [(log_dir, one) for log_dir in self.dirs for one in log_dir.known.all_damages()]
        for log_dir, one in damages:
            directory = log_dir.path / one.partition
            try:
                found = self._place_of(directory)
            except (CheckpointCorrupt, OSError) as error:
                self._cannot_read(log_dir, directory, error)
                is_sure = False
                continue
            if found is not None:
                slot, now = found
                wanted[slot] = now.generation, wanted.get(slot, (0, frozenset()))[1] | {one}
        unsaid = {slot: found for slot, found in self._published.items() if slot not in wanted}
        for slot in (*wanted, *(unsaid if is_sure else ())):
            self._publish(slot, *wanted.get(slot, (0, frozenset())))
        self._published = {} if is_sure else unsaid
        self._published |= {slot: found for slot, (_, found) in wanted.items()}
        self.context.counters.set(Counter.COUNT_SCRUB_FINDINGS, len(damages))

    def _publish(self, slot: int, generation: int, found: Found) -> None:
        word = self.damaged.load(slot)
        version = version_of(word, generation)
        if not found:
            if word:
                self.damaged.store(slot, 0)
        elif not version or self._published.get(slot) != found:
            # A handler must not have seen this version with other ranges, from this process or a predecessor.
            self.damaged.store(slot, word_of(generation, (word & LARGEST_VERSION) % LARGEST_VERSION + 1))

    def _place_of(self, directory: Path) -> tuple[int, Partition] | None:
        """Return (slot, table entry) of a live partition, or None. Raises CheckpointCorrupt, OSError."""
        now = time.monotonic()
        if now >= self._places_until:
            self._places_until = now + TEND_EVERY_S
            self._places = dict(self._read_places())
        return self._places.get(_key_of(directory))

    def _read_places(self) -> Iterator[tuple[tuple[bytes, int], tuple[int, Partition]]]:
        given = slots_given(self.table, self.context.memory.sizes.log_workers)
        for slot in (METADATA_SLOT, *given):
            # A partition that was left out would lose its word of damage.
            now = read_partition_surely(self.table, slot)
            if now.generation and now.flags & PartitionFlag.PARTITION_LIVE:
                yield (now.topic_id, now.partition), (slot, now)

    def _save(self, log_dir: ScrubbedDir) -> None:
        """Save findings and position. Log an error unless it was logged before; a later save retries."""
        self._next_save = time.monotonic() + SAVE_EVERY_S
        if self._has_failed(log_dir):
            return
        try:
            log_dir.save()
            log_dir.problem = ""
        except OSError as error:
            if str(error) != log_dir.problem:
                log_dir.problem = str(error)
                self.context.log.error("%s: cannot save the scrub's progress: %s", log_dir.path, error)

    # ---- a pass ----

    def scrub(self, log_dir: ScrubbedDir) -> None:
        """Make or continue a pass over one directory. Raises Abandoned."""
        known = log_dir.known
        current = known.current = known.current or Pass(wall_ms())
        counters = self.context.counters
        self._said = {one for one in self._said if one[0] != log_dir.path}
        try:
            counters.set(Counter.COUNT_SCRUB_PASS_BYTES, current.bytes)
            names = log_dir.partitions()
            total = sum(_sealed_bytes(log_dir.path / name) for name in names)
            counters.set(Counter.COUNT_SCRUB_PASS_TOTAL, total)
            self._save(log_dir)
            for name in names:
                if self._has_failed(log_dir):
                    break
                if known.at is None or name >= known.at.partition:
                    self._scrub_partition(log_dir, name)
            is_done = not self._has_failed(log_dir)
        except OSError as error:
            is_done = False
            self._cannot_read(log_dir, log_dir.path, error)
        if is_done:
            self.context.log.info(
                "%s is scrubbed: %d batches, %d bytes; damaged ranges: %d",
                log_dir.path,
                current.batches,
                current.bytes,
                len(known.all_damages()),
            )
        self._end(log_dir, current)

    def _end(self, log_dir: ScrubbedDir, current: Pass) -> None:
        known, counters = log_dir.known, self.context.counters
        known.damages, known.at = known.all_damages(), None
        current.ended_ms = wall_ms()
        known.current, known.last = None, current
        self._save(log_dir)
        counters.set(Counter.COUNT_SCRUB_PASS_TOTAL, 0)
        counters.set(Counter.COUNT_SCRUB_PASS_BYTES, 0)
        counters.add(Counter.COUNT_SCRUB_PASSES)
        counters.set(Counter.COUNT_SCRUB_PASS_ENDED_MS, current.ended_ms)
        counters.set_status("waiting")

    def _scrub_partition(self, log_dir: ScrubbedDir, name: str) -> None:
        """Scrub a partition's sealed segments that the pass has not scrubbed yet. Raises Abandoned."""
        directory = log_dir.path / name
        self.context.counters.set_status(f"scrubbing {directory}")
        try:
            sealed = self._sealed(directory)
            for base, next_base in sealed:
                at = log_dir.known.at
                if at is None or (name, base) >= (at.partition, at.base):
                    self._scrub_segment(log_dir, name, base, next_base)
        except (SegmentReplaced, FileNotFoundError, NotADirectoryError):
            return
        except (CheckpointCorrupt, OSError) as error:
            self._cannot_read(log_dir, directory, error)

    def _sealed(self, directory: Path) -> list[tuple[int, int]]:
        """List (base, next base) of the sealed segments. Raises CheckpointCorrupt, OSError."""
        found = self._place_of(directory)
        if found is None:
            return []
        bases = [base for base in segments_of(directory) if base <= found[1].high_watermark_segment]
        return list(pairwise(bases))

    def _scrub_segment(self, log_dir: ScrubbedDir, name: str, base: int, next_base: int) -> None:
        known = log_dir.known
        try:
            file = ColdFile(log_dir.path / name / segment_name(base))
        except SegmentReplaced:
            return
        try:
            at = known.at
            if at is None or (at.partition, at.base, at.file) != (name, base, file.identity):
                known.damages, at = known.all_damages(), Place(name, base, file.identity)
                known.at = at
            work = SegmentScrub(file, at, next_base, wall_ms, _epochs_of(log_dir.path / name))
            found, batches, position = len(at.found), 0, at.position
            for count in work.run():
                self._count(log_dir, count, at.position - position, work.batches - batches)
                batches, position = work.batches, at.position
                if len(at.found) != found or time.monotonic() >= self._next_save:
                    self._save(log_dir)
                if len(at.found) != found:
                    found = len(at.found)
                    self.publish()
                self._wait(count)
            self._count(log_dir, 0, at.position - position, work.batches - batches)
            self._scrub_transactions(log_dir, at, next_base)
            self._end_segment(log_dir, at, is_news=len(at.found) != found)
        except SegmentReplaced:
            # Nothing is known yet of the file that now has its name.
            known.at = Place(name, base, FileIdentity(0, 0, 0))
        finally:
            file.close()

    def _scrub_transactions(self, log_dir: ScrubbedDir, at: Place, next_base: int) -> None:
        """Check the segment's `.txnindex` against its records. Raises Abandoned, OSError."""
        directory = log_dir.path / at.partition
        path = directory / segment_name(at.base, TXN_INDEX_SUFFIX)
        try:
            identity = FileIdentity.of(path.stat())
        except FileNotFoundError:
            return
        reading = expected(directory, at.base, leaves_cache=True)
        while True:
            try:
                count = next(reading)
            except StopIteration as end:
                reason = problem(directory, at.base, end.value)
                break
            self._count(log_dir, count, 0, 0)
            self._wait(count)
        found = Damage(
            at.partition,
            at.base,
            0,
            identity.size,
            at.base,
            next_base,
            reason,
            identity,
            wall_ms(),
            TXN_INDEX_SUFFIX,
        )
        if reason and found.is_there(log_dir.path):
            at.found.append(found)
            self.context.log.error(
                "%s: %s. Fetches of committed records are answered with CORRUPT_MESSAGE there. Stop the "
                "broker and delete it and %s beside it: both are rebuilt",
                log_dir.path,
                found,
                segment_name(at.base, INDEX_SUFFIX),
            )

    def _end_segment(self, log_dir: ScrubbedDir, at: Place, *, is_news: bool) -> None:
        """Drop the segment's old findings. Save and publish if it had any, or has new ones (`is_news`)."""
        known = log_dir.known
        before = [one for one in known.damages if (one.partition, one.base) == (at.partition, at.base)]
        if not before and not is_news:
            return
        known.damages = [one for one in known.damages if one not in before]
        for one in before:
            if (one.suffix, one.position, one.end) not in {(n.suffix, n.position, n.end) for n in at.found}:
                self.context.log.info("%s: finding is void: %s", log_dir.path, one)
        self._save(log_dir)
        self.publish()

    def _count(self, log_dir: ScrubbedDir, read: int, passed: int, batches: int) -> None:
        """Count progress: bytes read, including repeated reads; bytes that the pass has covered; batches."""
        current, counters = log_dir.known.current, self.context.counters
        assert current is not None
        current.bytes += passed
        current.batches += batches
        counters.add(Counter.COUNT_SCRUB_BYTES, read)
        counters.add(Counter.COUNT_SCRUB_BATCHES, batches)
        counters.set(Counter.COUNT_SCRUB_PASS_BYTES, current.bytes)

    def _wait(self, count: int) -> None:
        """Wait as log.scrub.max.bytes.per.second demands after `count` bytes. Raises Abandoned."""
        mark = self._pace.take(count)
        while True:
            self.give_way()
            if not self.context.config.log_scrub_max_bytes_per_second:
                raise Abandoned
            if (left_s := self._pace.left_s(mark)) <= 0:
                return
            self.context.wait(lambda: False, max(1, round(left_s * 1000)))

    def _cannot_read(self, log_dir: ScrubbedDir, path: Path, error: Exception) -> None:
        """Log `error`, each errno once per log directory. Only the log process takes a directory offline."""
        code = error.errno if isinstance(error, OSError) else None
        problem = (log_dir.path, path if code is None else code)
        if problem in self._said or self._has_failed(log_dir):
            return
        self._said.add(problem)
        others = "" if code is None else f". Others in {log_dir.path} with this error are not listed"
        self.context.log.error("%s cannot be scrubbed: %s%s", path, error, others)


def _key_of(directory: Path) -> tuple[bytes, int]:
    """Return (topic id, partition) of a directory, b"" without an id. Raises CheckpointCorrupt, OSError."""
    return read_topic_id(directory) or b"", parse_partition(directory.name).partition


def _epochs_of(directory: Path) -> Epochs:
    """Read a partition's epochs; return () if the file is corrupt. Raises OSError."""
    try:
        return read_epochs(directory)
    except CheckpointCorrupt:
        return ()


def _sealed_bytes(directory: Path) -> int:
    """Return about how many bytes a pass reads of a partition: all segments but the last. Raises OSError."""
    try:
        bases = segments_of(directory)[:-1]
        return sum((directory / segment_name(base)).stat().st_size for base in bases)
    except (FileNotFoundError, NotADirectoryError):
        return 0
