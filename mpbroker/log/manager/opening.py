"""Opens a partition's files, with offsets from checkpoints and a dead predecessor, or creates new files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.manager.checkpointing import Checkpointing
from mpbroker.log.manager.directory_selection import DirectorySelection
from mpbroker.log.manager.slot_allocator import SlotAllocator
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.log.recovery.scheduler import ByWorker, RecoveryScheduler
from mpbroker.storage import names


class Opened(NamedTuple):
    """A partition just opened. If `is_on_disk` is False it is empty, and its files may be unsynced."""

    log: PartitionLog
    log_dir: LogDirectory
    is_on_disk: bool


@dataclass(eq=False)
class PartitionOpening:
    """Opens or creates partitions that have no slot yet.

    `_slots` has the states of partitions as this worker's dead predecessor published them. `_group`: True if
    appends are acknowledged only when their commit round is on disk. `_say` sets the process's status.
    """

    _config: BrokerConfig
    _dirs: Sequence[LogDirectory]
    _slots: SlotAllocator
    _directory_selection: DirectorySelection
    _recovery_scheduler: RecoveryScheduler
    _checkpoints: Checkpointing
    _say: Callable[[str], None]
    _group: bool

    def adopt(self, by_worker: ByWorker, topic: EnsureTopic, number: int, config: TopicConfig) -> Opened:
        """Return a partition that a recovery worker has opened."""
        name = names.partition_name(topic.name, number)
        log_dir = self._dirs[by_worker.log_dir]
        log = PartitionLog(f"{log_dir.path}/{name}", topic.name, number, topic.topic_id, config)
        by_worker.recovered.adopt(log)
        return Opened(log, log_dir, log.state.log_end > 0)

    def load_or_create(
        self, topic: EnsureTopic, number: int, config: TopicConfig, others: Collection[PartitionLog]
    ) -> Generator[None, None, Opened]:
        """Return a partition: loaded if it is in a directory, else created.

        `others`: the open partitions; a new one goes to the directory with the fewest of them. No directory
        may have another topic's partition of the same name. Raises PartitionDamaged, OSError or
        CheckpointCorrupt.
        """
        name = names.partition_name(topic.name, number)
        found = self._directory_selection.holder_of(name)
        if found is not None:
            known = self.known(found, topic, number)
            count = self._recovery_scheduler.checked(found.number)
            log = load(found.path / name, topic.name, number, topic.topic_id, config, known, self._say, count)
            log.close_files()
            return Opened(log, found, known.clean or log.state.log_end > 0)
        earlier = self._slots.before((topic.topic_id, number))
        is_new = earlier is None and topic.new_from is not None and number >= topic.new_from
        if not is_new:
            self._directory_selection.refuse_to_replace(
                (topic.name, number), earlier.high_watermark if earlier else 0
            )
        yield from self._checkpoints.forgotten(self._dirs, (topic.name, number))
        log_dir = self._directory_selection.for_new((topic.name, number), others)
        log = PartitionLog.create(log_dir.path / name, topic.name, number, topic.topic_id, config)
        return Opened(log, log_dir, is_on_disk=False)

    def known(self, log_dir: LogDirectory, topic: EnsureTopic, number: int) -> Known:
        """Return what the checkpoints of `log_dir` and the dead predecessor tell about a partition."""
        key = (topic.name, number)
        recovery_point = log_dir.known[names.RECOVERY_POINTS].get(key, 0)
        # Without group commit the high watermark survives a crash of the process, but not of the machine.
        durable = log_dir.durable(key)
        log_start = log_dir.known[names.LOG_STARTS].get(key, 0)
        earlier = self._slots.before((topic.topic_id, number))
        if earlier is not None:
            log_start = max(log_start, earlier.log_start_offset)
            # The predecessor's high watermark is newer than any checkpoint. A partition that was offline may
            # never have published one.
            is_offline = earlier.flags & PartitionFlag.PARTITION_OFFLINE
            durable = max(durable, earlier.high_watermark) if is_offline else earlier.high_watermark
            recovery_point = min(recovery_point, durable)
        if self._group:
            # If the log turns out to be damaged, the next start must know this offset as well.
            log_dir.known[names.HIGH_WATERMARKS][key] = durable
        return Known(
            clean=log_dir.clean and earlier is None,
            recovery_point=recovery_point,
            durable=durable,
            log_start=log_start,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )
