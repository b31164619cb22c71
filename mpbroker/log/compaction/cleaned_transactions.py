"""Which batches belong to aborted transactions, and which markers end nothing any more. No I/O.

(Kafka: CleanedTransactionMetadata.) Batches are shown in the order of the log, each once per walk. What is
known of aborted transactions comes from the `.txnindex` files of the segments; their entries stay for as long
as there are batches of them, for those who read only what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpbroker.log.format.transaction_index import AbortedTransaction
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import ABORT, marker_of


@dataclass
class _Aborting:
    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactions:
    """`kept`: the entries of aborted transactions that still have batches, since it was last emptied."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(set(aborted), key=lambda one: one.first_offset, reverse=True)
        self._aborting: dict[int, _Aborting] = {}
        self._committing: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def discards(self, batch: Batch) -> bool:
        """A batch of data: whether it is of an aborted transaction."""
        self._advance(batch.last_offset)
        if not batch.is_transactional:
            return False
        producer_id = batch.header.producer_id
        aborting = self._aborting.get(producer_id)
        if aborting is not None:
            aborting.has_batches = True
            return True
        self._committing.add(producer_id)
        return False

    def marks_nothing(self, batch: Batch) -> bool:
        """A control batch: whether it ends a transaction of which the log has no batch any more."""
        self._advance(batch.last_offset)
        marker = marker_of(batch.bytes)
        if marker is None:
            # An empty one, which was kept for the last sequence number of its producer, marks nothing.
            return batch.header.record_count == 0
        producer_id = batch.header.producer_id
        if marker[0] == ABORT:
            aborting = self._aborting.pop(producer_id, None)
            if aborting is not None and aborting.has_batches:
                self.kept.append(aborting.transaction)
                return False
            return True
        had_batches = producer_id in self._committing
        self._committing.discard(producer_id)
        return not had_batches

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            self._aborting.setdefault(transaction.producer_id, _Aborting(transaction))
