"""Taking in the records of `__consumer_offsets` when it is read."""

from __future__ import annotations

from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.pending import TransactionKey
from mpbroker.coordinator.groups.records import GroupValue, OffsetKey, OffsetValue, decode
from mpbroker.ipc.table import Partition
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import COMMIT, marker_of


class GroupContents:
    """Applies offsets one by one, those of transactions with their markers; of each group the last record
    counts.

    The offsets of a transaction whose marker is missing stay pending: its coordinator will send the marker.
    """

    def __init__(self, manager: GroupMetadataManager, offsets: Offsets) -> None:
        self._manager = manager
        self._offsets = offsets
        self._groups: dict[str, GroupValue | None] = {}

    def begin(self) -> None:
        self._groups = {}

    def read(self, partition: int, batch: Batch) -> None:
        transaction = TransactionKey(partition, batch.header.producer_id)
        if batch.is_control:
            # A control batch that the cleaner has emptied ends nothing: what it ended is gone as well.
            if (marker := marker_of(batch.bytes)) is not None:
                self._offsets.end_transaction(transaction, marker[0] == COMMIT)
            return
        for record in batch.records():
            entry = decode(record.key, record.value)
            if entry is None:
                continue
            key, value = entry
            if isinstance(key, OffsetKey):
                assert value is None or isinstance(value, OffsetValue)
                if batch.is_transactional and value is not None:
                    self._offsets.pend(transaction, key, value)
                else:
                    self._offsets.apply(key, value)
            else:
                assert value is None or isinstance(value, GroupValue)
                self._groups[key.group] = value

    def end(self, end: Partition) -> None:
        self._manager.load(end.partition, self._groups)

    def fail(self, partition: int) -> None:
        self._manager.fail(partition)
