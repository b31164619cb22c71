"""A partition that one process has opened, on its way from a recovery worker to its log worker."""

from __future__ import annotations

from typing import NamedTuple

from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage.leader_epochs import shared
from mpbroker.storage.segments import Sealed


class RecoveredPartition(NamedTuple):
    """All that its log worker needs of a partition: `of`, then `adopt`. No file is open in between."""

    state: tuple[int, ...]
    producers: bytes
    log_start: int
    recovery_point: int
    settled_end: int
    sealed: list[int]
    epochs: list[tuple[int, int]]

    @classmethod
    def of(cls, log: PartitionLog) -> RecoveredPartition:
        """Close the log's files and take its state; files are opened when they are needed."""
        log.close_files()
        return cls(
            log.state.carried(),
            log.state.producers.carried(),
            log.log_start,
            log.recovery_point,
            log.settled_end,
            [segment.base for segment in log.sealed],
            list(log.epochs),
        )

    def adopt(self, log: PartitionLog) -> None:
        """Give the state to `log`, none of whose files is open."""
        log.apply_config(log.config)
        log.state.carry(self.state)
        log.state.producers.carry(self.producers)
        log.log_start = self.log_start
        log.recovery_point, log.settled_end = self.recovery_point, self.settled_end
        log.sealed = [Sealed(base) for base in self.sealed] or ()
        log.epochs = shared(self.epochs)
