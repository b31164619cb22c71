"""Batches of aborted transactions, and markers that end nothing any more. No I/O.

(Kafka: CleanedTransactionMetadata.) Batches are shown in the order of the log, each once per walk. Aborted
transactions are known from the `.txnindex` files of the segments. An entry stays as long as its transaction
has batches in the log: read_committed consumers need it.
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
    """The transactions of a walk over the log.

    `kept`: entries of aborted transactions that still have batches, found since the list was last emptied.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(set(aborted), key=lambda one: one.first_offset, reverse=True)
        self._aborting: dict[int, _Aborting] = {}
        self._committing: set[int] = set()
        self.kept: list[AbortedTransaction] = []

    def discards(self, batch: Batch) -> bool:
        """Tell whether a data batch is of an aborted transaction."""
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
        """Tell whether a control batch ends a transaction that has no batch in the log any more."""
        self._advance(batch.last_offset)
        marker = marker_of(batch.bytes)
        if marker is None:
            # An emptied batch, kept for its producer's last sequence number, marks nothing.
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
