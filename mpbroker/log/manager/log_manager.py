"""The partitions in the log directories, and the slot of each in the table (Kafka: LogManager)."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, TopicConfigError, resolve
from mpbroker.ipc.calls import EnsuredPartition, EnsuredTopic, EnsureTopic
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.append.relocation import relocate
from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.directories import future_replica
from mpbroker.log.directories.delayed_deletions import DelayedDeletions
from mpbroker.log.directories.directory_layout import write_clean_shutdown
from mpbroker.log.directories.journal_set import Journals
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.directories.startup_state import StartupState
from mpbroker.log.format import names
from mpbroker.log.format.checkpoints import CheckpointCorrupt, Offsets, read_topic_id, topic_id_if_any
from mpbroker.log.format.names import ALONE, LogWorker
from mpbroker.log.format.partition_map import PartitionMap
from mpbroker.log.io.disk_errors import PASSING
from mpbroker.log.io.file_removal import remove_tree
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.io.strict_stat import is_directory
from mpbroker.log.manager.directory_selection import DirectorySelection
from mpbroker.log.manager.open_partitions import OpenPartitions
from mpbroker.log.manager.refusals import WaitingPartitions
from mpbroker.log.manager.slot_allocator import SlotAllocator
from mpbroker.log.partition.partition_log import PartitionLog, SyncFailed
from mpbroker.log.recovery import clean_stop
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.log.recovery.scheduler import RecoveryScheduler
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from shm.table import SlotTable

_log = logging.getLogger("mpbroker")


def _checks(config: TopicConfig) -> tuple[str, bool]:
    """Return the settings by which batches are checked and stamped."""
    return config.message_timestamp_type, "compact" in config.cleanup_policy


class Unusable(Exception):
    """Raised when a topic cannot be opened, whatever the state of its files."""


class LogManager:
    """The partitions of one log worker.

    `is_first_life`: the worker has no predecessor in this broker's life.
    """

    def __init__(
        self,
        config: BrokerConfig,
        table: SlotTable,
        turn: AppendTurn,
        helper: IoThread,
        say: Callable[[str], None],
        opening: RecoveryScheduler,
        take_over: StartupState,
        worker: LogWorker = ALONE,
        *,
        is_first_life: bool = True,
    ) -> None:
        self.config = config
        self.opening = opening
        self.table = table
        self.turn = turn
        self.helper = helper
        self.say = say
        self.worker = worker
        self.group = config.log_flush_policy == "group"
        # Directories that failed under a predecessor stay failed: after a failed fsync nobody can tell
        # whether a file's bytes are on disk.
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
        self.journals = Journals(config, self.dirs, turn, helper)
        self._take_over(take_over, is_first_life=is_first_life)
        future_replica.settle(self.dirs)
        self.placing = DirectorySelection(self.dirs, worker)
        self.open_partitions = OpenPartitions(turn, helper)
        self.logs: dict[int, PartitionLog] = {}
        self.slot_of: PartitionMap[bytes] = PartitionMap()
        self.deletions = DelayedDeletions(helper)
        # By slot: the commit round that syncs the segment the last roll sealed, and the base of the new one.
        self._rolled: dict[int, tuple[int, int]] = {}
        self._slots = SlotAllocator(table, worker)
        self._waiting = WaitingPartitions([home.path for home in self.dirs], config)
        self._queue_old_deletions()
        opening.found(self.dirs, is_successor=not is_first_life)

    def _take_over(self, take_over: StartupState, *, is_first_life: bool) -> None:
        if not take_over.is_done:
            self.journals.take_over(self.say, is_successor=False)
            take_over.done(self.dirs)
            return
        self.journals.take_over(self.say, is_successor=True)
        for home in self.dirs:
            # Another worker did the take-over, and this one has no predecessor that opened files since.
            if is_first_life and not self.worker.is_first:
                home.clean = take_over.was_clean(home)

    # ---- opening ----

    def open_metadata(self) -> None:
        """Open `__cluster_metadata-0`, before the first request is served.

        Raises FatalError if it cannot be opened.
        """
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
                ensured: EnsuredTopic = end.value
                return ensured

    def ensuring(self, topic: EnsureTopic) -> Generator[None, None, EnsuredTopic]:
        """Do `ensure` in steps, one per partition to open, so that the log can append in between."""
        config, problem = self._resolved(topic.configs)
        done = []
        for number in (one for one in topic.partitions if self.worker.owns(topic.name, one)):
            is_open = (topic.topic_id, number) in self.slot_of
            done.append((yield from self._ensured(topic, number, config, problem)))
            if not is_open:
                yield
        return EnsuredTopic(topic.topic_id, done)

    def _resolved(self, configs: Mapping[str, str]) -> tuple[TopicConfig, str | None]:
        """Return a topic's settings, and the problem with its own ones (None if there is none).

        With a problem, the settings are the broker's defaults.
        """
        try:
            return resolve(self.config, configs), None
        except TopicConfigError as error:
            return resolve(self.config, {}), str(error)

    def follow_settings(self) -> None:
        """Apply changed broker settings to the topics that do not override them."""
        own = {id(log.overrides): log.overrides for log in self.logs.values()}
        resolved = {which: self._resolved(overrides)[0] for which, overrides in own.items()}
        for log in self.logs.values():
            log.apply_config(resolved[id(log.overrides)])

    def _ensured(
        self, topic: EnsureTopic, number: int, config: TopicConfig, problem: str | None
    ) -> Generator[None, None, EnsuredPartition]:
        """Open one partition and return the answer for it.

        A passing error leaves no trace in the table: the coordinator asks again.
        """
        code = ErrorCode.KAFKA_STORAGE_ERROR
        try:
            if (topic.topic_id, number) not in self.slot_of:
                self._slots.check_for_one((topic.topic_id, number))
            if problem is not None:
                code = ErrorCode.INVALID_CONFIG
                raise Unusable(problem)
            log = yield from self._opening(topic, number, config)
            self._waiting.end(topic, number)
            error, message = self._offline_error(log)
        except (OSError, PartitionDamaged, CheckpointCorrupt, Unusable) as failure:
            error, message = code, str(failure)
            if isinstance(failure, OSError) and failure.errno in PASSING:
                self._waiting.begin(topic, number, failure)
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
        log, home = yield from self._recovered(topic, number, config)
        epoch = log.epochs[-1][0]
        self._place(log, home, topic, epoch)
        log.state.all_is_durable(log.recovery_point)
        log.state.flags = PartitionFlag.PARTITION_LIVE
        self.open_partitions.begin(log)
        self.opening.count(home.number)
        return log

    def _recovered(
        self, topic: EnsureTopic, number: int, config: TopicConfig
    ) -> Generator[None, None, tuple[PartitionLog, LogDirectory]]:
        """Return the partition's log and directory: opened by a recovery worker, loaded here, or created."""
        name = names.partition_name(topic.name, number)
        by_worker = yield from self.opening.result((topic.topic_id, number))
        if by_worker is not None:
            home = self.dirs[by_worker.log_dir]
            log = PartitionLog(f"{home.path}/{name}", topic.name, number, topic.topic_id, config)
            by_worker.opened.adopt(log)
            return log, home
        self.say(f"opening {name}")
        yield from self._set_others_aside(topic, number)
        found = self.placing.holder_of(name)
        if found is not None:
            known = self._known(found, topic, number)
            count = self.opening.checked(found.number)
            log = load(found.path / name, topic.name, number, topic.topic_id, config, known, self.say, count)
            log.close_files()
            return log, found
        earlier = self._slots.before((topic.topic_id, number))
        is_new = earlier is None and topic.new_from is not None and number >= topic.new_from
        if not is_new:
            self.placing.refuse_to_replace((topic.name, number), earlier.high_watermark if earlier else 0)
        yield from self._forgotten(self.dirs, (topic.name, number))
        home = self.placing.for_new((topic.name, number), self.logs.values())
        return PartitionLog.create(home.path / name, topic.name, number, topic.topic_id, config), home

    def prefetch(self, topic: EnsureTopic) -> None:
        """Let the recovery workers start on the topic's partitions before its turn comes."""
        config, problem = self._resolved(topic.configs)
        if problem is None:
            unopened = (n for n in topic.partitions if (topic.topic_id, n) not in self.slot_of)
            self.opening.begin(topic, unopened, config, lambda home, n: self._known(home, topic, n))

    def _alter(self, log: PartitionLog, config: TopicConfig, version: int) -> None:
        """Apply new settings to an open log.

        Batches checked under earlier settings are still appended, unless the new ones would check them
        differently: then their clients are told to send them again.
        """
        if version == log.state.config_version:
            return
        before = log.config
        log.apply_config(config)
        log.state.config_version = version
        if _checks(config) != _checks(before):
            log.state.oldest_config_version = version
        log.state.publish(self.table)

    def _known(self, home: LogDirectory, topic: EnsureTopic, number: int) -> Known:
        key = (topic.name, number)
        recovery_point = home.known[names.RECOVERY_POINTS].get(key, 0)
        # Without group commit the high watermark survives a crash of the process, but not of the machine.
        durable = home.durable(key)
        log_start = home.known[names.LOG_STARTS].get(key, 0)
        earlier = self._slots.before((topic.topic_id, number))
        if earlier is not None:
            log_start = max(log_start, earlier.log_start_offset)
            # The predecessor's high watermark is newer than any checkpoint. A partition that was offline may
            # never have published one.
            is_offline = earlier.flags & PartitionFlag.PARTITION_OFFLINE
            durable = max(durable, earlier.high_watermark) if is_offline else earlier.high_watermark
            recovery_point = min(recovery_point, durable)
        if self.group:
            # If the log turns out to be damaged, the next start must know this offset as well.
            home.known[names.HIGH_WATERMARKS][key] = durable
        return Known(
            clean=home.clean and earlier is None,
            recovery_point=recovery_point,
            durable=durable,
            log_start=log_start,
            producer_expiration_ms=self.config.producer_id_expiration_ms,
        )

    def _forgotten(self, homes: Iterable[LogDirectory], key: tuple[str, int]) -> Generator[None, None, None]:
        """Forget the offsets of an earlier partition of that name, on disk too.

        Wait until no checkpoint has them: a start after a crash must not find them either. Raises OSError
        (EAGAIN) if a checkpoint could not be written.
        """
        for home in homes:
            home.forget(key)
        naming = [home for home in homes if not home.failed and home.is_on_disk(key)]
        if not naming:
            return
        for home in naming:
            home.write_stale(self.helper)
        self.say(f"waiting until no checkpoint names {names.partition_name(*key)}, which was deleted")
        yield from self.helper.catching_up()
        for home in naming:
            if home.is_on_disk(key) and not home.failed:
                home.write_again()
                raise OSError(errno.EAGAIN, f"the checkpoints in {home.path} could not be written")

    def _set_others_aside(self, topic: EnsureTopic, number: int) -> Generator[None, None, None]:
        """Remove or rename directories that hold a partition of another topic with this name.

        That topic is deleted, even if the order to remove it has not come yet.
        """
        key = (topic.name, number)
        for home in self.dirs:
            directory = home.path / names.partition_name(*key)
            if home.failed or not is_directory(directory):
                continue
            holder = read_topic_id(directory, topic.topic_id)
            if holder == topic.topic_id:
                continue
            if holder is None and not any(directory.glob(f"*{names.LOG_SUFFIX}")):
                # Its creation was cut short: nothing was ever appended.
                shutil.rmtree(directory)
            elif holder is not None and (self.slot_of.of(holder) or self._slots.has(holder)):
                self.remove(topic.name, holder)
            else:
                yield from self._forgotten([home], key)
                self._set_aside(directory)

    def _place(self, log: PartitionLog, home: LogDirectory, topic: EnsureTopic, epoch: int) -> None:
        """Give the partition its slot: the one it had before, if any."""
        key = (topic.topic_id, log.partition)
        slot, generation = self._slots.take(key)
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
        log.overrides = topic.configs
        self.logs[slot] = log
        self.slot_of[key] = slot

    def _offline(self, topic: EnsureTopic, number: int, config: TopicConfig) -> PartitionLog:
        """Place a partition that cannot be opened in the table as offline; leave an open one as it is."""
        slot = self.slot_of.get((topic.topic_id, number))
        if slot is not None:
            return self.logs[slot]
        name = names.partition_name(topic.name, number)
        there = [home for home in self.dirs if not home.failed and _may_have(home, name)]
        home = [*there, *(home for home in self.dirs if home.failed), self.dirs[0]][0]
        log = PartitionLog(home.path / name, topic.name, number, topic.topic_id, config)
        earlier = self._slots.before((topic.topic_id, number))
        if earlier is not None:
            log.log_start = earlier.log_start_offset
        self._place(log, home, topic, 0)
        if earlier is not None:
            log.state.keep_marks(earlier.high_watermark, earlier.log_end_offset)
        log.state.flags = PartitionFlag.PARTITION_OFFLINE
        self.open_partitions.begin(log)
        return log

    def is_here(self, log: PartitionLog) -> bool:
        """Tell whether the log is still open. Its topic may have been deleted since the caller got it."""
        return self.logs.get(log.state.table_slot) is log

    def is_served(self, log: PartitionLog) -> bool:
        """Tell whether the log is open and not offline."""
        return self.is_here(log) and log.state.flags == PartitionFlag.PARTITION_LIVE

    # ---- removal ----

    def remove(self, name: str, topic_id: bytes) -> None:
        """Make a topic's partitions unreachable at once, and delete their files after file.delete.delay.ms.

        Raises OSError if a log directory failed, after the others are done.
        """
        delay_ms = self.config.log_segment_delete_delay_ms
        numbers = set()
        unreadable = set()
        for number in self.slot_of.of(topic_id):
            slot = self.slot_of.pop((topic_id, number))
            log = self.logs.pop(slot)
            self._rolled.pop(slot, None)
            delay_ms = log.config.file_delete_delay_ms
            log.state.flags = PartitionFlag.PARTITION_DELETED
            log.state.publish(self.table)
            self._slots.give_back(slot, log.state.generation)
            self.open_partitions.end(log)
            numbers.add(log.partition)
            unreadable.add(log.directory)
        numbers.update(self._slots.forget(topic_id))
        self._waiting.forget(topic_id)
        failure: OSError | None = None
        for home in self.dirs:
            try:
                self._remove_from(home, name, topic_id, delay_ms, numbers, unreadable)
            except OSError as error:
                # The other directories are cleared all the same.
                failure = error
                if error.errno not in PASSING:
                    self.turn.storage_failed(home.number, error.errno or errno.EIO)
        if failure is not None:
            raise failure

    def _remove_from(
        self,
        home: LogDirectory,
        name: str,
        topic_id: bytes,
        delay_ms: int,
        numbers: set[int],
        unreadable: set[Path],
    ) -> None:
        """Remove the topic's partitions from one log directory.

        `numbers`: the known partition numbers of the topic; those found here are added. Raises OSError if
        the directory cannot be read or changed.
        """
        for directory, number in home.directories_of(name):
            holder = topic_id_if_any(directory)
            if holder == topic_id or (holder is None and directory in unreadable):
                gone = self._rename(directory, names.DELETE_SUFFIX)
                self.deletions.add(delay_ms, home.number, partial(remove_tree, gone))
                numbers.add(number)
        for number in numbers:
            # The name may belong to another topic by now: then its offsets stay.
            if not is_directory(home.path / names.partition_name(name, number)):
                home.forget((name, number))

    def set_strays_aside(self, topics: dict[str, bytes]) -> None:
        """Rename partition directories that belong to no topic, and forget their checkpointed offsets.

        To be called when every existing topic has been ensured.
        """
        known: PartitionMap[str] = PartitionMap()
        for slot, log in self.logs.items():
            known[log.topic, log.partition] = slot
        for home in self.dirs:
            unknown = [
                (home.path / name, (parsed.topic, parsed.partition))
                for name, parsed in home.own_partitions()
                if not parsed.suffix and (parsed.topic, parsed.partition) not in known
            ]
            for directory, key in unknown:
                holder = topic_id_if_any(directory)
                if key[0] not in topics or holder not in (None, topics[key[0]]):
                    self._set_aside(directory)
                    home.forget(key)
            named = {key for offsets in home.known.values() for key in offsets if key not in known}
            for key in named:
                if key[0] not in topics and not is_directory(home.path / names.partition_name(*key)):
                    home.forget(key)

    def _set_aside(self, directory: Path) -> None:
        renamed = self._rename(directory, names.STRAY_SUFFIX)
        _log.warning("%s belongs to no topic; it is %s now", directory, renamed.name)

    def _rename(self, directory: Path, suffix: str) -> Path:
        parsed = names.parse_partition(directory.name)
        renamed = directory.with_name(names.renamed(parsed.topic, parsed.partition, uuid.uuid4().hex, suffix))
        return directory.rename(renamed)

    def _queue_old_deletions(self) -> None:
        for home in self.dirs:
            for name, parsed in home.own_partitions(names.DELETE_SUFFIX):
                self.deletions.add(0, home.number, partial(remove_tree, home.path / name))
                if not is_directory(home.path / names.partition_name(parsed.topic, parsed.partition)):
                    # The last run ended before its checkpoints were written without this partition.
                    home.forget((parsed.topic, parsed.partition))

    # ---- checkpoints ----

    def roll(self, log: PartitionLog) -> None:
        """Begin a new segment; no append may be planned for the old one. Raises OSError if it cannot."""
        self.open_partitions.note(log)
        for fd in log.roll():
            self.turn.retire(fd, log.state.log_dir)
        self.note_roll(log)

    def note_roll(self, log: PartitionLog) -> None:
        """Note that the old segment's files were just retired.

        Everything below the new segment is on disk once the coming commit round is done.
        """
        self._rolled[log.state.table_slot] = (self.turn.coming_commit_round(), log.state.segment_base)
        self.open_partitions.preparing.rolled(log)

    def recovery_point(self, log: PartitionLog) -> int:
        """Advance the recovery point as far as syncs allow, and return it.

        All records below it are in synced segments. A start trusts segments that end at or below it, and
        their transaction indexes too. A roll syncs the transaction index; a sync of the segment alone
        does not.
        """
        commit_round, base = self._rolled.get(log.state.table_slot, (0, 0))
        if self.turn.commit_rounds >= commit_round:
            synced = log.state.synced if self.group else 0
            if synced == log.state.log_end and log.state.aborted_end > log.state.segment_base:
                # The next segment may begin at `synced`: then this one would be trusted with an unsynced
                # transaction index.
                synced -= 1
            log.recovery_point = max(log.recovery_point, base, synced)
        return log.recovery_point

    def checkpoint_high_watermarks(self) -> None:
        self._checkpoint(names.HIGH_WATERMARKS, lambda log: log.state.high_watermark)

    def checkpoint_recovery_points(self) -> None:
        """Checkpoint recovery points and log starts.

        A recovery point is the synced end with group commit, else the base behind the last synced roll.
        """
        self.journals.release()
        self._checkpoint(names.RECOVERY_POINTS, self.recovery_point)
        self._checkpoint(names.LOG_STARTS, lambda log: log.log_start)

    def checkpoint_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Have the helper write the log start offsets of `logs`.

        They are on disk once the helper has caught up, unless it failed.
        """
        moved: dict[int, Offsets] = {}
        for log in logs:
            moved.setdefault(log.state.log_dir, Offsets())[log.topic, log.partition] = log.log_start
        for number, offsets in moved.items():
            self.dirs[number].checkpoint(names.LOG_STARTS, offsets, self.helper)

    def log_start_on_disk(self, log: PartitionLog) -> int:
        """Return the log start offset in the checkpoint on disk; 0 if the directory failed."""
        home = self.dirs[log.state.log_dir]
        return 0 if home.failed else home.on_disk[names.LOG_STARTS].get((log.topic, log.partition), 0)

    def moved(self, log: PartitionLog, home: LogDirectory) -> None:
        """Make `home` the partition's log directory.

        Its records must all be in synced files there, and none of its files may be open.
        """
        self.open_partitions.forget(log)
        self._rolled.pop(log.state.table_slot, None)
        self.dirs[log.state.log_dir].forget((log.topic, log.partition))
        log.directory = home.path / log.name
        log.recovery_point = log.state.log_end
        log.settled_end, log.snapshot_at = -1, (-1, 0)
        relocate(self.turn, log.state, home.number)

    def write_stale_checkpoints(self) -> None:
        """Rewrite checkpoints that still name removed partitions.

        Partitions removed while a write is under way share the next one.
        """
        if not self.helper.is_idle:
            return
        for home in self.dirs:
            if home.is_stale and not home.failed:
                home.write_stale(self.helper)

    def _online(self) -> Iterator[tuple[int, PartitionLog]]:
        for slot, log in self.logs.items():
            if not log.state.is_offline:
                yield slot, log

    def _checkpoint(self, name: str, offset_of: Callable[[PartitionLog], int]) -> None:
        offsets = [Offsets() for _ in self.dirs]
        for _, log in self._online():
            offsets[log.state.log_dir][log.topic, log.partition] = offset_of(log)
        for home in self.dirs:
            home.checkpoint(name, offsets[home.number], self.helper)

    # ---- the end ----

    def dir_failed(self, number: int, error: int) -> None:
        """Mark a log directory failed. `error`: the errno.

        Raises FatalError if all have failed, or if this one held the metadata.
        """
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

    def close_cleanly(self) -> int:
        """Flush and close everything. The turn must be settled.

        Return a bit mask of the directories in which the next start has nothing of this worker to check.
        Failed directories are not among them.
        """
        closed: set[str] = set()
        clean = 0
        for home in self.dirs:
            home.reserve.close()
        online = [log for _, log in self._online()]
        for home in self.dirs:
            its = [log for log in online if log.state.log_dir == home.number]
            closed.update(log.path for log in clean_stop.close_cleanly(home, its, self.say))
        for name in (names.HIGH_WATERMARKS, names.RECOVERY_POINTS):
            self._checkpoint(name, lambda log: log.state.log_end)
        self._checkpoint(names.LOG_STARTS, lambda log: log.log_start)
        self.helper.close()
        for number, problem in self.helper.failures():
            _log.error("%s: %s", self.dirs[number].path, problem)
            self.dirs[number].failed = True
        for home in self.dirs:
            self.journals.empty(home)
            if not home.failed and clean_stop.is_all_closed(home, closed):
                clean |= 1 << home.number
        return clean

    def mark_clean(self, closed: int) -> None:
        """Mark the directories in the mask `closed` clean, as the last write of all.

        `closed` has those that all workers have closed: they need no recovery.
        """
        for home in self.dirs:
            if closed >> home.number & 1:
                try:
                    write_clean_shutdown(home.path)
                except OSError as error:
                    problem = os.strerror(error.errno) if error.errno else error
                    _log.error("%s cannot be marked clean: %s; the next start checks it", home.path, problem)


def _may_have(home: LogDirectory, name: str) -> bool:
    try:
        return is_directory(home.path / name)
    except OSError:
        return True
