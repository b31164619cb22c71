"""The log directory that has a partition, or gets a new partition (Kafka: LogManager.nextLogDirs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpbroker.ipc.process import FatalError
from mpbroker.log.directories.log_directory import LogDirectory, LogWorker
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import PartitionDamaged
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.storage import names
from mpbroker.storage.strict_stat import is_directory

# Preferences kept for partitions that do not exist. One more makes the oldest forgotten.
PREFERRED_MOST = 10_000


class DirectorySelection:
    def __init__(self, dirs: Sequence[LogDirectory], worker: LogWorker) -> None:
        self._dirs = dirs
        self._worker = worker
        # The directory a client wants for a partition still to be created (Kafka: preferredLogDirs).
        self._preferred: dict[TopicPartition, int] = {}

    def holder_of(self, name: str) -> LogDirectory | None:
        """Return the partition's log directory or None. Raises FatalError if two have it, OSError."""
        holders = [
            log_dir for log_dir in self._dirs if not log_dir.failed and is_directory(log_dir.path / name)
        ]
        if len(holders) > 1:
            raise FatalError(
                f"{name} is in {holders[0].path} and in {holders[1].path}. Move one of them away"
            )
        return holders[0] if holders else None

    def refuse_to_replace(self, key: TopicPartition, durable: int) -> None:
        """Raise PartitionDamaged if a partition that is in no working directory may have had records.

        Such a partition must not be created again. Call this only if the partition is not new. `durable`: the
        high watermark that a predecessor of this process published.
        """
        name = names.partition_name(*key)
        for log_dir in self._dirs:
            if log_dir.failed:
                raise PartitionDamaged(
                    f"{name} is in none of the log directories that work, and {log_dir.path} failed. "
                    "It stays offline until the broker is restarted"
                )
        for log_dir in self._dirs:
            had = max(
                log_dir.known[file].get(key, 0) for file in (names.HIGH_WATERMARKS, names.RECOVERY_POINTS)
            )
            if had > 0:
                raise PartitionDamaged(
                    f"{log_dir.path / name} is missing, but the partition had offsets below {had}. "
                    "Restore it, or delete the topic"
                )
        if durable > 0:
            raise PartitionDamaged(f"the directory of {name} is missing. Restore it, or delete the topic")

    def prefer(self, key: TopicPartition, number: int) -> None:
        """Remember log directory `number` as the preferred one for a partition that may be created later."""
        self._preferred.pop(key, None)
        if len(self._preferred) >= PREFERRED_MOST:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[key] = number

    def for_new(self, key: TopicPartition, logs: Iterable[PartitionLog]) -> LogDirectory:
        """Return a new partition's directory: the preferred one, else the one with fewest partitions."""
        preferred = self._preferred.pop(key, None)
        if preferred is not None and not self._dirs[preferred].failed:
            return self._dirs[preferred]
        counts = dict.fromkeys((log_dir.number for log_dir in self._dirs if not log_dir.failed), 0)
        for log in logs if len(counts) > 1 else ():
            if log.state.log_dir in counts:
                counts[log.state.log_dir] += 1
        # Each worker starts at another directory, so that ties do not all go to the first one.
        first, count = self._worker.number, len(self._dirs)
        return self._dirs[min(counts, key=lambda number: (counts[number], (number - first) % count))]
