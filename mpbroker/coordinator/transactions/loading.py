"""What becomes of the records of `__transaction_state` when it is read."""

from __future__ import annotations

from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.records import TransactionValue, decode
from mpbroker.ipc.table import Partition
from mpbroker.records.iterate import Batch


class TransactionContents:
    """The last record of each transactional id counts. None of them is written in a transaction."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._values: dict[str, TransactionValue | None] = {}

    def begin(self) -> None:
        self._values = {}

    def read(self, _partition: int, batch: Batch) -> None:
        if batch.is_control:
            return
        for record in batch.records():
            if (entry := decode(record.key, record.value)) is not None:
                transactional_id, value = entry
                self._values[transactional_id] = value

    def read_all(self, end: Partition) -> None:
        self._coordinator.loaded(end.partition, self._values, end.leader_epoch)

    def failed(self, partition: int) -> None:
        self._coordinator.failed(partition)
