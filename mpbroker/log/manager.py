"""Which partitions lie below the log directories, and the slot of each in the table (Kafka: LogManager)."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, TopicConfigError, resolve
from mpbroker.ipc.calls import EnsuredPartition, EnsuredTopic, EnsureTopic
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.log import names
from mpbroker.log.append import KAFKA_STORAGE_ERROR
from mpbroker.log.checkpoints import (
    CheckpointCorrupt,
    TopicPartition,
    read_epochs,
    read_offsets,
    read_topic_id,
    write_offsets,
)
from mpbroker.log.helper import Helper
from mpbroker.log.log_dir import prepare_log_dirs, take_clean_shutdown, write_clean_shutdown
from mpbroker.log.partition_log import PartitionLog
from mpbroker.log.recovery import Known, PartitionDamaged, load
from mpbroker.log.turn import Turn
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from shm.table import SlotTable

INVALID_CONFIG = 40
_log = logging.getLogger("mpbroker")


def _read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """What cannot be read is as if it were not there: recovery then looks at more than it had to."""
    try:
        return read_offsets(path)
    except (CheckpointCorrupt, OSError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return {}


def _remove_tree(directory: Path) -> None:
    """Whoever removed the deleted topic's files before us did no harm to the log directory."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


class LogDir:
    """One entry of log.dirs: what its files said at the start, and whether it still works."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.failed = False
        self.clean = take_clean_shutdown(path)
        self.recovery_points = _read_checkpoint(path / names.RECOVERY_POINTS)
        self.high_watermarks = _read_checkpoint(path / names.HIGH_WATERMARKS)
        self.log_starts = _read_checkpoint(path / names.LOG_STARTS)
        self.written: dict[str, dict[TopicPartition, int]] = {}


class LogManager:
    def __init__(
        self, config: BrokerConfig, table: SlotTable, turn: Turn, helper: Helper, say: Callable[[str], None]
    ) -> None:
        self.config = config
        self.table = table
        self.turn = turn
        self.helper = helper
        self.say = say
        self.group = config.log_flush_policy == "group"
        self.identity = prepare_log_dirs(config)
        self.dirs = [LogDir(number, Path(name)) for number, name in enumerate(config.log_dirs)]
        self.logs: dict[int, PartitionLog] = {}
        self.slot_of: dict[tuple[bytes, int], int] = {}
        self._deletions: list[tuple[float, int, Path]] = []
        self._rolled: dict[int, tuple[int, int]] = {}
        self._earlier: dict[tuple[bytes, int], tuple[int, Partition]] = {}
        self._free: list[tuple[int, int]] = []
        self._unused = METADATA_SLOT + 1
        self._read_table()
        self._queue_old_deletions()

    def _read_table(self) -> None:
        """After a crash of this process alone the table still says which slot was whose and what was seen."""
        for slot in range(self.table.slots):
            found = read_partition(self.table, slot)
            if found.generation == 0:
                if slot != METADATA_SLOT:
                    self._unused = slot
                    return
            elif found.flags & PartitionFlag.PARTITION_DELETED:
                self._free.append((slot, found.generation))
            else:
                self._earlier[found.topic_id, found.partition] = (slot, found)
        self._unused = self.table.slots

    # ---- opening ----

    def open_metadata(self) -> None:
        """`__cluster_metadata-0`, before anybody can ask for anything. Raises FatalError."""
        topic = EnsureTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [0])
        opened = self.ensure(topic).partitions[0]
        if opened.error:
            raise FatalError(f"{METADATA_TOPIC}-0 cannot be opened: {opened.message}")

    def ensure(self, topic: EnsureTopic) -> EnsuredTopic:
        """Opens or creates the partitions, or brings open ones up to date."""
        steps = self.ensuring(topic)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                ensured: EnsuredTopic = end.value
                return ensured

    def ensuring(self, topic: EnsureTopic) -> Generator[None, None, EnsuredTopic]:
        """`ensure` in steps, one per partition to be opened: in between the log goes on appending."""
        try:
            config = resolve(self.config, topic.configs)
        except TopicConfigError as problem:
            failed = [
                EnsuredPartition(p, error=INVALID_CONFIG, message=str(problem)) for p in topic.partitions
            ]
            return EnsuredTopic(topic.topic_id, failed)
        done = []
        for number in topic.partitions:
            is_open = (topic.topic_id, number) in self.slot_of
            try:
                log = self._ensure_partition(topic, number, config)
                error, message = self._offline_error(log)
                done.append(
                    EnsuredPartition(number, log.state.table_slot, log.state.generation, error, message)
                )
            except (OSError, PartitionDamaged, CheckpointCorrupt) as failure:
                _log.error("%s-%d is offline: %s", topic.name, number, failure)
                log = self._offline(topic, number, config)
                slot, generation = log.state.table_slot, log.state.generation
                done.append(EnsuredPartition(number, slot, generation, KAFKA_STORAGE_ERROR, str(failure)))
            if not is_open:
                yield
        return EnsuredTopic(topic.topic_id, done)

    def _offline_error(self, log: PartitionLog) -> tuple[int, str | None]:
        if log.state.flags & PartitionFlag.PARTITION_OFFLINE:
            return KAFKA_STORAGE_ERROR, f"{log.directory} is offline"
        return 0, None

    def _ensure_partition(self, topic: EnsureTopic, number: int, config: TopicConfig) -> PartitionLog:
        slot = self.slot_of.get((topic.topic_id, number))
        if slot is not None:
            log = self.logs[slot]
            log.apply_config(config)
            log.state.config_version = topic.config_version
            log.state.publish(self.table)
            return log
        self.say(f"opening {topic.name}-{number}")
        earlier = self._earlier.get((topic.topic_id, number))
        if earlier is not None and earlier[1].flags & PartitionFlag.PARTITION_OFFLINE:
            raise OSError(
                f"the log directory of {topic.name}-{number} failed; "
                "it stays offline until the broker is restarted"
            )
        found = self._find(topic, number)
        home = found or self._emptiest()
        directory = home.path / names.partition_name(topic.name, number)
        if found is None:
            if earlier is not None and earlier[1].high_watermark > 0:
                raise PartitionDamaged(f"{directory} is gone. Restore it, or delete the topic")
            log = PartitionLog.create(directory, topic.name, number, topic.topic_id, config)
            epoch = 0
        else:
            epochs = read_epochs(directory)
            epoch = epochs[-1][0] if epochs else 0
            known = self._known(home, topic.name, number, earlier[1] if earlier else None)
            log = load(directory, topic.name, number, topic.topic_id, config, known, self.say)
        self._place(log, home, topic, epoch)
        log.state.all_is_durable()
        log.state.flags = PartitionFlag.PARTITION_LIVE
        self.turn.attach(log.state, topic.name)
        return log

    def _known(self, home: LogDir, name: str, number: int, earlier: Partition | None) -> Known:
        key = (name, number)
        recovery_point = home.recovery_points.get(key, 0)
        # Without group commit the high watermark outlives a crash of the process, but not one of the machine.
        durable = max(home.high_watermarks.get(key, 0), recovery_point) if self.group else recovery_point
        if earlier is not None:
            durable = max(durable, earlier.high_watermark)
        return Known(
            clean=home.clean and earlier is None,
            recovery_point=recovery_point,
            durable=durable,
            log_start=home.log_starts.get(key, 0),
            producer_expiration_ms=self.config.producer_id_expiration_ms,
        )

    def _find(self, topic: EnsureTopic, number: int) -> LogDir | None:
        """The log directory that has the partition; another topic's of that name is moved out of the way."""
        holders = []
        for home in self.dirs:
            directory = home.path / names.partition_name(topic.name, number)
            if home.failed or not directory.is_dir():
                continue
            topic_id = read_topic_id(directory)
            if topic_id is None and not any(directory.glob(f"*{names.LOG_SUFFIX}")):
                # A creation that was cut short; nothing was ever appended.
                shutil.rmtree(directory)
            elif topic_id == topic.topic_id:
                holders.append(home)
            else:
                self._rename(directory, names.STRAY_SUFFIX)
        if len(holders) > 1:
            raise FatalError(
                f"{topic.name}-{number} is in {holders[0].path} and in {holders[1].path}. "
                "Move one of them away"
            )
        return holders[0] if holders else None

    def _emptiest(self) -> LogDir:
        counts = dict.fromkeys((home.number for home in self.dirs if not home.failed), 0)
        for log in self.logs.values():
            if log.state.log_dir in counts:
                counts[log.state.log_dir] += 1
        return self.dirs[min(counts, key=lambda number: (counts[number], number))]

    def _place(self, log: PartitionLog, home: LogDir, topic: EnsureTopic, epoch: int) -> None:
        """Gives the partition its slot: the one it had before, if any."""
        key = (topic.topic_id, log.partition)
        if key == (METADATA_TOPIC_ID, 0):
            slot, generation = METADATA_SLOT, 1
        elif key in self._earlier:
            slot, generation = self._earlier[key][0], self._earlier[key][1].generation
        elif self._unused < self.table.slots:
            slot, generation = self._unused, 1
            self._unused += 1
        elif self._free:
            slot, generation = self._free.pop(0)
            generation += 1
        else:
            raise OSError(f"the partition table is full: {self.table.slots} partitions")
        log.state.describe(
            slot,
            topic.topic_id,
            log.partition,
            generation,
            topic.config_version,
            epoch,
            home.number,
            log.log_start,
        )
        self._earlier.pop(key, None)
        self.logs[slot] = log
        self.slot_of[key] = slot

    def _offline(self, topic: EnsureTopic, number: int, config: TopicConfig) -> PartitionLog:
        """A partition that cannot be opened has a slot that says so."""
        home = self.dirs[0]
        log = PartitionLog(home.path, topic.name, number, topic.topic_id, config)
        self._place(log, home, topic, 0)
        log.state.flags = PartitionFlag.PARTITION_OFFLINE
        self.turn.attach(log.state, topic.name)
        return log

    # ---- removal ----

    def remove(self, name: str, topic_id: bytes) -> None:
        """Unreachable at once; the files go after file.delete.delay.ms."""
        delay_ms = self.config.log_segment_delete_delay_ms
        for key in [k for k in self.slot_of if k[0] == topic_id]:
            slot = self.slot_of.pop(key)
            log = self.logs.pop(slot)
            delay_ms = log.config.file_delete_delay_ms
            log.state.flags = PartitionFlag.PARTITION_DELETED
            log.state.publish(self.table)
            self._free.append((slot, log.state.generation))
            self.turn.detach(log.state)
        for key in [k for k in self._earlier if k[0] == topic_id]:
            slot, found = self._earlier.pop(key)
            self._free.append((slot, found.generation))
        for home in self.dirs:
            for directory in self._directories(home):
                parsed = names.parse_partition(directory.name)
                if parsed.topic == name and not parsed.suffix and read_topic_id(directory) == topic_id:
                    gone = self._rename(directory, names.DELETE_SUFFIX)
                    self._deletions.append((time.monotonic() + delay_ms / 1000, home.number, gone))

    def set_strays_aside(self) -> None:
        """Every topic that exists has been ensured: what else looks like a partition is not one of ours."""
        known = {(log.topic, log.partition) for log in self.logs.values()}
        for home in self.dirs:
            for directory in self._directories(home):
                parsed = names.parse_partition(directory.name)
                if not parsed.suffix and (parsed.topic, parsed.partition) not in known:
                    renamed = self._rename(directory, names.STRAY_SUFFIX)
                    _log.warning("%s belongs to no topic; it is %s now", directory, renamed.name)

    def _directories(self, home: LogDir) -> list[Path]:
        if home.failed:
            return []
        return [e for e in home.path.iterdir() if e.is_dir() and e.name not in names.NOT_PARTITIONS]

    def _rename(self, directory: Path, suffix: str) -> Path:
        parsed = names.parse_partition(directory.name)
        renamed = directory.with_name(names.renamed(parsed.topic, parsed.partition, uuid.uuid4().hex, suffix))
        return directory.rename(renamed)

    def _queue_old_deletions(self) -> None:
        for home in self.dirs:
            for directory in self._directories(home):
                if names.parse_partition(directory.name).suffix == names.DELETE_SUFFIX:
                    self._deletions.append((0.0, home.number, directory))

    def delete_due(self, now: float) -> None:
        due = [entry for entry in self._deletions if entry[0] <= now]
        self._deletions = [entry for entry in self._deletions if entry[0] > now]
        for _, number, directory in due:
            self.helper.submit(partial(_remove_tree, directory), number)

    # ---- checkpoints ----

    def note_roll(self, log: PartitionLog, commit_round: int) -> None:
        """Everything below the new segment is on disk once that commit round is done."""
        self._rolled[log.state.table_slot] = (commit_round, log.state.segment_base)

    def checkpoint_high_watermarks(self) -> None:
        self._checkpoint(names.HIGH_WATERMARKS, {s: log.state.high_watermark for s, log in self._online()})

    def checkpoint_recovery_points(self) -> None:
        """With group commit all below the high watermark is durable; else all below the last synced roll."""
        for slot, log in self._online():
            if self.group:
                log.recovery_point = max(log.recovery_point, log.state.high_watermark)
            elif slot in self._rolled and self.turn.commit_rounds >= self._rolled[slot][0]:
                log.recovery_point = max(log.recovery_point, self._rolled.pop(slot)[1])
        self._checkpoint(names.RECOVERY_POINTS, {s: log.recovery_point for s, log in self._online()})
        starts = {s: log.log_start for s, log in self._online() if log.log_start > 0}
        self._checkpoint(names.LOG_STARTS, starts)

    def _online(self) -> list[tuple[int, PartitionLog]]:
        return [
            (slot, log)
            for slot, log in self.logs.items()
            if not log.state.flags & PartitionFlag.PARTITION_OFFLINE
        ]

    def _checkpoint(self, name: str, by_slot: dict[int, int]) -> None:
        for home in self.dirs:
            if home.failed:
                continue
            offsets = {
                (self.logs[slot].topic, self.logs[slot].partition): offset
                for slot, offset in by_slot.items()
                if self.logs[slot].state.log_dir == home.number
            }
            if home.written.get(name) != offsets:
                home.written[name] = offsets
                self.helper.submit(partial(write_offsets, home.path / name, offsets), home.number)

    def write_again(self, number: int) -> None:
        """A checkpoint may not be on disk, although its directory works: the next one is written anyway."""
        self.dirs[number].written.clear()

    # ---- the end ----

    def dir_failed(self, number: int, error: int) -> None:
        """Raises FatalError when the broker cannot go on without it."""
        home = self.dirs[number]
        home.failed = True
        text = (
            f"log directory {home.path} failed: {os.strerror(error)}. "
            "Its partitions are offline until the broker is restarted"
        )
        _log.error(text)
        metadata = self.logs.get(METADATA_SLOT)
        if all(d.failed for d in self.dirs) or (metadata is not None and metadata.state.log_dir == number):
            raise FatalError(text + "; it held the metadata, so the broker stops. Repair or replace the disk")

    def close_cleanly(self) -> None:
        """All flushed, closed and marked; the turn must be settled. A directory that fails gets no mark."""
        for _, log in self._online():
            home = self.dirs[log.state.log_dir]
            try:
                log.close_cleanly()
            except OSError as error:
                _log.error("%s cannot be closed cleanly: %s", log.directory, error)
                home.failed = True
        self._final_checkpoints()
        self.helper.close()
        for number, problem in self.helper.failures():
            _log.error("%s: %s", self.dirs[number].path, problem)
            self.dirs[number].failed = True
        for home in self.dirs:
            if not home.failed:
                write_clean_shutdown(home.path)

    def _final_checkpoints(self) -> None:
        ends = {slot: log.state.log_end for slot, log in self._online()}
        self._checkpoint(names.HIGH_WATERMARKS, ends)
        self._checkpoint(names.RECOVERY_POINTS, ends)
        self._checkpoint(
            names.LOG_STARTS, {s: log.log_start for s, log in self._online() if log.log_start > 0}
        )
