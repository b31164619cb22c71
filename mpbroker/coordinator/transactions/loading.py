"""Taking in the records of `__transaction_state` when it is read."""

from __future__ import annotations

from mpbroker.coordinator.transactions.end_txn import EndTxn
from mpbroker.coordinator.transactions.records import TransactionValue, decode
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.ipc.table import Partition
from mpbroker.records.iterate import Batch


class TransactionContents:
    """Keeps the last record of each transactional id. None of them is written in a transaction."""

    def __init__(self, state: TransactionStateManager, end_txn: EndTxn) -> None:
        self._state = state
        self._end_txn = end_txn
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

    def end(self, end: Partition) -> None:
        """Believe the records. Transactions whose end was decided get their markers, perhaps once more."""
        for transaction in self._state.load(end.partition, self._values, end.leader_epoch):
            assert transaction.value is not None
            if transaction.value.state.is_preparing:
                self._end_txn.send_markers(transaction)

    def fail(self, partition: int) -> None:
        self._state.fail(partition)
