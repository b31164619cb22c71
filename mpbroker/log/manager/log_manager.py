"""The partitions in the log directories, and the slot of each in the table (Kafka: LogManager)."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, TopicConfigError, resolve
from mpbroker.ipc.calls import EnsuredPartition, EnsuredTopic, EnsureTopic
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.append.relocation import relocate
from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.append.turn_partitions import ship_rest
from mpbroker.log.directories import future_replica
from mpbroker.log.directories.journal_set import Journals
from mpbroker.log.directories.log_directory import ALONE, LogDirectory, LogWorker, StartupState
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.manager.checkpointing import Checkpointing
from mpbroker.log.manager.creation import Creation, is_unused
from mpbroker.log.manager.directory_selection import DirectorySelection
from mpbroker.log.manager.open_partitions import OpenPartitions
from mpbroker.log.manager.opening import Opened, PartitionOpening
from mpbroker.log.manager.refusals import WaitingPartitions
from mpbroker.log.manager.removal import Removal
from mpbroker.log.manager.slot_allocator import SlotAllocator
from mpbroker.log.manager.tiering import tiering
from mpbroker.log.partition.partition_log import PartitionLog, SyncFailed
from mpbroker.log.recovery import clean_stop
from mpbroker.log.recovery.log_loader import PartitionDamaged
from mpbroker.log.recovery.scheduler import RecoveryScheduler
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.storage import names
from mpbroker.storage.checkpoints import CheckpointCorrupt, PartitionMap, read_topic_id
from mpbroker.storage.directory_layout import write_clean_shutdown
from mpbroker.storage.disk_errors import PASSING
from mpbroker.storage.strict_stat import is_directory
from shm.table import SlotTable

_log = logging.getLogger("mpbroker.log")


def _checks(config: TopicConfig) -> tuple[str, bool]:
    """Return the settings that affect how batches are checked and timestamped."""
    return config.message_timestamp_type, "compact" in config.cleanup_policy


class Unusable(Exception):
    """Raised when a topic cannot be opened because of its settings, whatever the state of its files."""


class LogManager:
    """The partitions of one log worker. `is_first_life`: the worker has not died since the broker started."""

    def __init__(
        self,
        config: BrokerConfig,
        table: SlotTable,
        turn: AppendTurn,
        io_thread: IoThread,
        say: Callable[[str], None],
        recovery_scheduler: RecoveryScheduler,
        startup_state: StartupState,
        worker: LogWorker = ALONE,
        *,
        is_first_life: bool = True,
    ) -> None:
        self.config = config
        self.recovery_scheduler = recovery_scheduler
        self.table = table
        self.turn = turn
        self.io_thread = io_thread
        self.say = say
        self.worker = worker
        self.group = config.log_flush_policy == "group"
        # Directories that failed under a predecessor stay failed: after a failed fsync a file's bytes may not
        # be on disk.
        failed = turn.failed_dirs
        self.dirs = [
            LogDirectory(
                number,
                Path(name),
                group=self.group,
                failed=bool(failed >> number & 1),
                worker=worker,
                reserve_bytes=config.log_reserve_bytes // worker.count,
            )
            for number, name in enumerate(config.log_dirs)
        ]
        self.journals = Journals(config, self.dirs, turn, io_thread)
        self._take_over(startup_state, is_first_life=is_first_life)
        future_replica.settle(self.dirs)
        self.directory_selection = DirectorySelection(self.dirs, worker)
        self.open_partitions = OpenPartitions(turn, io_thread)
        self.logs: dict[int, PartitionLog] = {}
        # Whether retention should move a log start soon.
        self.awaits_retention = False
        self.slot_of: PartitionMap[bytes] = PartitionMap()
        self.checkpoints = Checkpointing(
            self.dirs, self.logs, turn, self.journals, io_thread, say, self.group
        )
        self.creation = Creation(
            self.dirs, self.logs, io_thread, turn.storage_failed, config.log_segment_delete_delay_ms
        )
        self._slots = SlotAllocator(table, worker)
        self.removal = Removal(
            self.dirs, self.logs, turn, io_thread, self._slots, self.checkpoints, self.open_partitions
        )
        self.partition_opening = PartitionOpening(
            config,
            self.dirs,
            self._slots,
            self.directory_selection,
            recovery_scheduler,
            self.checkpoints,
            say,
            self.group,
        )
        self._last_resolved: tuple[Mapping[str, str], tuple[TopicConfig, str | None]] | None = None
        self.waiting = WaitingPartitions([log_dir.path for log_dir in self.dirs], config)
        recovery_scheduler.found(self.dirs, is_successor=not is_first_life)

    def _take_over(self, startup_state: StartupState, *, is_first_life: bool) -> None:
        if not startup_state.is_done:
            self.journals.take_over(self.say, is_successor=False)
            startup_state.done(self.dirs)
            return
        self.journals.take_over(self.say, is_successor=True)
        for log_dir in self.dirs:
            # Another worker did the take-over, and this one has no predecessor that opened files since.
            if is_first_life and not self.worker.is_first:
                log_dir.clean = startup_state.was_clean(log_dir)

    # ---- opening ----

    def open_metadata(self) -> None:
        """Open `__cluster_metadata-0`, before the first request. Raises FatalError on failure."""
        topic = EnsureTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [0])
        opened = self.ensure(topic).partitions[0]
        if opened.error:
            raise FatalError(f"{METADATA_TOPIC}-0 cannot be opened: {opened.message}")

    def ensure(self, topic: EnsureTopic) -> EnsuredTopic:
        """Open or create the topic's partitions, and apply the settings to those already open."""
        steps = self.ensuring(topic)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                for number, error in self.creation.finish():
                    self.turn.storage_failed(number, error.errno or errno.EIO)
                ensured: EnsuredTopic = end.value
                return ensured

    def ensuring(self, topic: EnsureTopic) -> Generator[None, None, EnsuredTopic]:
        """Do `ensure` in steps, one per partition, so that the log can append in between.

        New partitions are on disk only when `creation.is_unsynced` returns False for the topic.
        """
        config, problem = self._resolved(topic.configs)
        done = []
        for number in (one for one in topic.partitions if self.worker.owns(topic.name, one)):
            done.append((yield from self._ensured(topic, number, config, problem)))
            yield
        return EnsuredTopic(topic.topic_id, done)

    def _resolved(self, configs: Mapping[str, str]) -> tuple[TopicConfig, str | None]:
        """Return (settings, problem) of a topic whose own settings are `configs`; None: no problem.

        With a problem, the settings are the broker's defaults. The last result is kept, since topics that are
        opened together often have the same settings of their own.
        """
        if self._last_resolved is None or self._last_resolved[0] != configs:
            try:
                self._last_resolved = configs, (resolve(self.config, configs), None)
            except TopicConfigError as error:
                self._last_resolved = configs, (resolve(self.config, {}), str(error))
        return self._last_resolved[1]

    def follow_settings(self) -> None:
        """Apply changed broker settings to the topics that do not override them."""
        self._last_resolved = None
        own = {id(log.overrides): log.overrides for log in self.logs.values()}
        resolved = {which: self._resolved(overrides)[0] for which, overrides in own.items()}
        for log in self.logs.values():
            log.apply_config(resolved[id(log.overrides)])
            before = log.state.tiering
            log.state.tiering = tiering(log.topic, log.config, self.config)
            if log.state.tiering != before:
                log.state.publish(self.table)

    def _ensured(
        self, topic: EnsureTopic, number: int, config: TopicConfig, problem: str | None
    ) -> Generator[None, None, EnsuredPartition]:
        """Open a partition; return its part of the answer. A temporary error leaves the table unchanged."""
        code = ErrorCode.KAFKA_STORAGE_ERROR
        try:
            if (topic.topic_id, number) not in self.slot_of:
                self._slots.check_for_one((topic.topic_id, number))
            if problem is not None:
                code = ErrorCode.INVALID_CONFIG
                raise Unusable(problem)
            log = yield from self._opening(topic, number, config)
            self.waiting.end(topic, number)
            error, message = self._offline_error(log)
        except (OSError, PartitionDamaged, CheckpointCorrupt, Unusable) as failure:
            error, message = code, str(failure)
            if isinstance(failure, OSError) and failure.errno in PASSING:
                self.waiting.begin(topic, number, failure)
                return EnsuredPartition(number, 0, 0, error, message)
            _log.error("%s-%d is offline: %s", topic.name, number, message)
            log = self._offline(topic, number, config)
            if isinstance(failure, SyncFailed):
                self.turn.storage_failed(log.state.log_dir, failure.errno or errno.EIO)
        return EnsuredPartition(number, log.state.table_slot, log.state.generation, error, message)

    def _offline_error(self, log: PartitionLog) -> tuple[int, str | None]:
        if log.state.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory} is offline"
        return 0, None

    def _opening(
        self, topic: EnsureTopic, number: int, config: TopicConfig
    ) -> Generator[None, None, PartitionLog]:
        slot = self.slot_of.get((topic.topic_id, number))
        if slot is not None:
            log = self.logs[slot]
            log.overrides = topic.configs
            self._alter(log, config, topic.config_version)
            return log
        log, log_dir, is_on_disk = yield from self._recovered(topic, number, config)
        epoch = log.epochs[-1][0]
        earlier = self._slots.before((topic.topic_id, number))
        self._place(log, log_dir, topic, epoch)
        log.state.all_is_durable(log.recovery_point)
        if self.turn.ships and earlier is not None:
            # What there was at the broker's start is in the first cut; a predecessor has appended the rest.
            log.state.is_shipped_below(*earlier[8:11])
        log.state.flags = PartitionFlag.PARTITION_LIVE
        self.open_partitions.begin(log)
        if log.state.high_watermark < log.state.log_end:
            ship_rest(self.turn, log.state)
        if not is_on_disk:
            self.creation.add(log)
        self.recovery_scheduler.count(log_dir.number)
        return log

    def _recovered(
        self, topic: EnsureTopic, number: int, config: TopicConfig
    ) -> Generator[None, None, Opened]:
        """Return the partition: opened by a recovery worker, loaded here, or created."""
        by_worker = yield from self.recovery_scheduler.result((topic.topic_id, number))
        if by_worker is not None:
            return self.partition_opening.adopt(by_worker, topic, number, config)
        self.say(f"opening {names.partition_name(topic.name, number)}")
        yield from self._set_others_aside(topic, number)
        return (yield from self.partition_opening.load_or_create(topic, number, config, self.logs.values()))

    def prefetch(self, topic: EnsureTopic) -> None:
        """Let the recovery workers start on the topic's partitions before `ensuring` reaches the topic."""
        config, problem = self._resolved(topic.configs)
        if problem is None:
            unopened = (n for n in topic.partitions if (topic.topic_id, n) not in self.slot_of)
            known = self.partition_opening.known
            self.recovery_scheduler.begin(topic, unopened, config, lambda where, n: known(where, topic, n))

    def _alter(self, log: PartitionLog, config: TopicConfig, version: int) -> None:
        """Apply new settings to an open log.

        If the new settings require different checks, batches that were checked under earlier settings are
        refused, and clients must send them again. Otherwise such batches are still appended.
        """
        if version == log.state.config_version:
            return
        before = log.config
        log.apply_config(config)
        log.state.config_version = version
        log.state.tiering = tiering(log.topic, config, self.config)
        is_remote_deleted = log.state.tiering & PartitionFlag.PARTITION_REMOTE_DELETED
        if is_remote_deleted and log.local_start > log.log_start:
            # A move has its own log start at this moment, and a store may have to have it first.
            self.awaits_retention |= self.turn.ships
            if not (log.is_paused or self.turn.ships):
                log.move_start(log.local_start)
                self.checkpoints.write_log_starts([log])
        if _checks(config) != _checks(before):
            log.state.oldest_config_version = version
        log.state.publish(self.table)

    def _set_others_aside(self, topic: EnsureTopic, number: int) -> Generator[None, None, None]:
        """Remove or rename directories with this partition's name that do not belong to this topic."""
        for topic_id in self.removal.unfinished(topic.name):
            yield from self.removing(topic.name, topic_id)
        key = (topic.name, number)
        for log_dir in self.dirs:
            directory = log_dir.path / names.partition_name(*key)
            if log_dir.failed or not is_directory(directory):
                continue
            holder = read_topic_id(directory, topic.topic_id)
            if holder == topic.topic_id:
                continue
            if holder is None and is_unused(directory) and not log_dir.durable(key):
                # Its creation was cut short.
                shutil.rmtree(directory)
            elif holder is not None and self._is_known(holder):
                yield from self.removing(topic.name, holder)
            else:
                yield from self.checkpoints.forgotten([log_dir], key)
                self.removal.set_aside(directory)

    def _is_known(self, topic_id: bytes) -> bool:
        """Return whether this process or a predecessor served the topic or began to remove it."""
        return (
            bool(self.slot_of.of(topic_id))
            or self.removal.is_under_way(topic_id)
            or self._slots.has(topic_id)
            or topic_id in self._slots.deleted
        )

    def _place(self, log: PartitionLog, log_dir: LogDirectory, topic: EnsureTopic, epoch: int) -> None:
        """Assign a slot to the partition: the one that it had under the predecessor, if any."""
        key = (topic.topic_id, log.partition)
        slot, generation = self._slots.take(key)
        log.state.describe(
            slot,
            topic.topic_id,
            log.partition,
            generation,
            topic.config_version,
            epoch,
            log_dir.number,
            log.log_start,
        )
        log.state.tiering = tiering(topic.name, log.config, self.config)
        log.overrides = topic.configs
        self.logs[slot] = log
        self.slot_of[key] = slot

    def _offline(self, topic: EnsureTopic, number: int, config: TopicConfig) -> PartitionLog:
        """Return a partition's log after an error. A partition without a slot gets one, marked offline."""
        slot = self.slot_of.get((topic.topic_id, number))
        if slot is not None:
            return self.logs[slot]
        name = names.partition_name(topic.name, number)
        there = [log_dir for log_dir in self.dirs if not log_dir.failed and _may_have(log_dir, name)]
        log_dir = [*there, *(log_dir for log_dir in self.dirs if log_dir.failed), self.dirs[0]][0]
        log = PartitionLog(log_dir.path / name, topic.name, number, topic.topic_id, config)
        earlier = self._slots.before((topic.topic_id, number))
        if earlier is not None:
            log.log_start = earlier.log_start_offset
        self._place(log, log_dir, topic, 0)
        if earlier is not None:
            log.state.keep_marks(earlier.high_watermark, earlier.log_end_offset)
        log.state.flags = PartitionFlag.PARTITION_OFFLINE
        self.open_partitions.begin(log)
        return log

    def is_here(self, log: PartitionLog) -> bool:
        """Return whether the log is still open: its topic may have been deleted meanwhile."""
        return self.logs.get(log.state.table_slot) is log

    def is_served(self, log: PartitionLog) -> bool:
        """Return whether the log is open and not offline."""
        return self.is_here(log) and log.state.flags == PartitionFlag.PARTITION_LIVE

    # ---- removal ----

    def removing(
        self, name: str, topic_id: bytes, before_renames: Iterable[None] = ()
    ) -> Generator[None, None, None]:
        """Make a topic's partitions unreachable at once; remove them in the steps that are returned.

        Their files are deleted after file.delete.delay.ms. `before_renames`: steps that must end before a
        directory is renamed. If the removal has begun already, the returned steps continue it. The last
        step raises OSError if a log directory failed, after the other directories are done.
        """
        if not self.removal.is_under_way(topic_id):
            logs = self._unreachable(topic_id)
            delay_ms = self.config.log_segment_delete_delay_ms
            if logs:
                delay_ms = logs[-1].config.file_delete_delay_ms
            earlier = self._slots.take_away(topic_id)
            self.waiting.forget(topic_id)
            before_renames = chain(before_renames, self.creation.topic_goes(topic_id))
            self.removal.begin(name, topic_id, delay_ms, logs, earlier, before_renames)
        return self.removal.removing(topic_id)

    def _unreachable(self, topic_id: bytes) -> list[PartitionLog]:
        """Remove a topic's open partitions from `logs`, publish them as deleted, and return them."""
        logs = []
        for number in self.slot_of.of(topic_id):
            log = self.logs.pop(self.slot_of.pop((topic_id, number)))
            # One that is offline stays so: its last batches must not be acknowledged.
            log.state.flags = (
                PartitionFlag.PARTITION_DELETED | log.state.flags & PartitionFlag.PARTITION_OFFLINE
            )
            log.state.publish(self.table)
            logs.append(log)
        return logs

    # ---- segments and directories ----

    def roll(self, log: PartitionLog) -> None:
        """Begin a new segment. Every append planned for the old one must have ended. Raises OSError."""
        self.open_partitions.note(log)
        for fd in log.roll():
            self.turn.retire(fd, log.state.log_dir)
        self.note_roll(log)

    def note_roll(self, log: PartitionLog) -> None:
        """Tell `checkpoints` that the log has just rolled, and ask for a new prepared segment."""
        self.checkpoints.rolled(log)
        self.open_partitions.segment_preparation.rolled(log)

    def moved(self, log: PartitionLog, log_dir: LogDirectory) -> None:
        """Serve the log from `log_dir`, which has a synced copy. Close the log's files before the call."""
        self.open_partitions.forget(log)
        self.checkpoints.forget(log.state.table_slot)
        self.dirs[log.state.log_dir].forget((log.topic, log.partition))
        log.directory = log_dir.path / log.name
        log.recovery_point = log.state.log_end
        log.settled_end, log.snapshot_at = -1, (-1, 0)
        # The copy may be older than what the tier has written since.
        log.remote_version = 0
        relocate(self.turn, log.state, log_dir.number)

    # ---- the end ----

    def dir_failed(self, number: int, error: int) -> None:
        """Mark a log directory as failed. Raises FatalError if all have failed, or it held the metadata."""
        log_dir = self.dirs[number]
        log_dir.failed = True
        text = (
            f"log directory {log_dir.path} failed: {os.strerror(error)}. "
            "Its partitions are offline until the broker is restarted"
        )
        _log.error(text)
        metadata = self.logs.get(METADATA_SLOT)
        if all(d.failed for d in self.dirs) or (metadata is not None and metadata.state.log_dir == number):
            raise FatalError(text + "; it held the metadata, so the broker stops. Repair or replace the disk")

    def close_cleanly(self) -> int:
        """Flush and close all partitions; return the directories that need no recovery, as a bit mask."""
        closed: set[str] = set()
        clean = 0
        for log_dir in self.dirs:
            log_dir.reserve.close()
        online = [log for log in self.logs.values() if not log.state.is_offline]
        for log_dir in self.dirs:
            its = [log for log in online if log.state.log_dir == log_dir.number]
            closed.update(log.path for log in clean_stop.close_cleanly(log_dir, its, self.say))
        self.checkpoints.write_at_the_end()
        self.io_thread.close()
        for number, problem in (*self.io_thread.failures(), *self.creation.finish()):
            _log.error("%s: %s", self.dirs[number].path, problem)
            self.dirs[number].failed = True
        for log_dir in self.dirs:
            self.journals.empty(log_dir)
            if not log_dir.failed and clean_stop.is_all_closed(log_dir, closed):
                clean |= 1 << log_dir.number
        return clean

    def mark_clean(self, closed: int) -> None:
        """Mark the directories in the bit mask `closed` as cleanly closed. This is the last write to them."""
        for log_dir in self.dirs:
            if closed >> log_dir.number & 1:
                try:
                    write_clean_shutdown(log_dir.path)
                except OSError as error:
                    problem = os.strerror(error.errno) if error.errno else error
                    _log.error(
                        "%s cannot be marked clean: %s; the next start checks it", log_dir.path, problem
                    )


def _may_have(log_dir: LogDirectory, name: str) -> bool:
    try:
        return is_directory(log_dir.path / name)
    except OSError:
        return True
