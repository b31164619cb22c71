"""What becomes of the records of `__consumer_offsets` when it is read."""

from __future__ import annotations

from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.groups.pending import Transaction
from mpbroker.coordinator.groups.records import GroupValue, OffsetKey, OffsetValue, decode
from mpbroker.ipc.table import Partition
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import COMMIT, marker_of


class GroupContents:
    """Offsets are applied one by one, those of transactions with markers; of groups the last one counts.

    Transactions whose marker is missing stay pending: it comes, since their coordinator says how they end.
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._groups: dict[str, GroupValue | None] = {}

    def begin(self) -> None:
        self._groups = {}

    def read(self, partition: int, batch: Batch) -> None:
        transaction = Transaction(partition, batch.header.producer_id)
        if batch.is_control:
            # A control batch that the cleaner has emptied ends nothing: what it ended is gone as well.
            if (marker := marker_of(batch.bytes)) is not None:
                self._coordinator.offsets.end_transaction(transaction, marker[0] == COMMIT)
            return
        for record in batch.records():
            entry = decode(record.key, record.value)
            if entry is None:
                continue
            key, value = entry
            if isinstance(key, OffsetKey):
                assert value is None or isinstance(value, OffsetValue)
                if batch.is_transactional and value is not None:
                    self._coordinator.offsets.pend(transaction, key, value)
                else:
                    self._coordinator.offsets.apply(key, value)
            else:
                assert value is None or isinstance(value, GroupValue)
                self._groups[key.group] = value

    def read_all(self, end: Partition) -> None:
        self._coordinator.loaded(end.partition, self._groups)

    def failed(self, partition: int) -> None:
        self._coordinator.failed(partition)
