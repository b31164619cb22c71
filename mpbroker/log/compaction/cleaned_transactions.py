"""The outcomes of transactions in a walk over a log: batches to discard, markers without batches. No I/O.

(Kafka: CleanedTransactionMetadata; KIP-98, KIP-534.) A cleaning walks twice over the log: over the dirty part
for the offset map, then from the first segment on for the new segments. Both walks follow these rules:

* A data batch is aborted if it lies within an aborted transaction of its producer: from its first offset to
  its marker. Neither earlier transactions nor the start of the walk matter, so a walk may start anywhere,
  also within a transaction.
* Every transaction with records in the cleaned part has ended, since that part ends at or below the last
  stable offset. Its marker may lie in any later segment, also in the active one, and its entry in that
  segment's transaction index. So the indexes of later segments are read, too, up to the first entry whose
  last stable offset is not below the end of the cleaned part.
* Aborted batches are neither in the offset map nor in the new segments. If an aborted batch has the last
  sequence number of its producer, its header stays, without records.
* A marker stays as long as its transaction has a batch in the log, even a batch without records. The first
  walk that finds no such batch sets the marker's delete horizon, and the first walk after the horizon removes
  the marker. Each walk reads all files from the first segment on, so a killed cleaning does no harm.
* An index entry stays as long as a walk finds a batch of its transaction, for read_committed consumers. It is
  removed when the marker gets its horizon, so no entry outlives its marker. If one did, consumers would
  discard records that the producer commits later.
* Entries and markers agree. If a marker aborts records without an entry, or lies within the range of another
  entry of its producer, an index is damaged, and the log is not cleaned.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from mpbroker.records.iterate import Batch
from mpbroker.records.markers import ABORT, marker_of
from mpbroker.storage.transaction_index import AbortedTransaction, TransactionIndexCorrupt


@dataclass
class _Aborted:
    transaction: AbortedTransaction
    has_batches: bool = False

    @property
    def marker_offset(self) -> int:
        return self.transaction.last_offset


class CleanedTransactions:
    """The transactions in a walk over a log. Callers pass each batch and marker once, in the log's order.

    `aborted`: the aborted transactions with records in the cleaned part. `kept`: the index entries for the
    new segment. `marks_nothing` adds an entry to `kept`; the caller empties `kept` after each segment.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        # By producer, those that began before the current batch, in the order of their markers.
        self._begun: dict[int, list[_Aborted]] = {}
        # By producer, whether a batch without an entry since its last marker has records.
        self._committing: dict[int, bool] = {}
        self.kept: list[AbortedTransaction] = []

    def discards(self, batch: Batch) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        if not batch.is_transactional:
            return False
        aborted = self._aborted_at(batch)
        if aborted is not None:
            aborted.has_batches = True
            return True
        producer_id, has_records = batch.header.producer_id, batch.header.record_count > 0
        self._committing[producer_id] = self._committing.get(producer_id, False) or has_records
        return False

    def marks_nothing(self, batch: Batch) -> bool:
        """Return whether the marker's transaction has no batch in the log. Raises TransactionIndexCorrupt."""
        marker = marker_of(batch.bytes)
        if marker is None:
            # An emptied batch, kept for its producer's last sequence number, marks nothing.
            return batch.header.record_count == 0
        producer_id, aborts = batch.header.producer_id, marker[0] == ABORT
        aborted, committed_records = self._aborted_at(batch), self._committing.pop(producer_id, None)
        is_its_own = aborted is None or (aborts and aborted.marker_offset == batch.last_offset)
        if not is_its_own or (aborts and committed_records):
            raise TransactionIndexCorrupt(
                f"the marker at offset {batch.last_offset} {'aborts' if aborts else 'commits'} records of "
                f"producer {producer_id}, which contradicts the .txnindex files"
            )
        if aborted is not None and aborted.has_batches:
            self.kept.append(aborted.transaction)
            return False
        return committed_records is None

    def _aborted_at(self, batch: Batch) -> _Aborted | None:
        """Return the aborted transaction of a batch or a marker, None if there is none."""
        offset = batch.last_offset
        while self._coming and self._coming[-1].first_offset <= offset:
            one = self._coming.pop()
            begun = self._begun.setdefault(one.producer_id, [])
            insort(begun, _Aborted(one), key=lambda other: other.marker_offset)
        begun = self._begun.get(batch.header.producer_id, [])
        while begun and begun[0].marker_offset < offset:
            del begun[0]
        return begun[0] if begun else None
