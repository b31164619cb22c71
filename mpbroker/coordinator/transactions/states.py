"""The states of a transactional id, with the numbers and names that Kafka gives them.

(Kafka: TransactionState.)

    Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit
      │          │
      └──────────┴──────► PrepareAbort ───► CompleteAbort

CompleteCommit and CompleteAbort lead where Empty leads. A transactional id that is about to be deleted is
Dead; no record says so. PrepareEpochFence is not written either: Kafka enters it to bump the epoch of an
Ongoing transaction before it aborts that, and here both are one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    EMPTY = "Empty", 0
    ONGOING = "Ongoing", 1
    PREPARE_COMMIT = "PrepareCommit", 2
    PREPARE_ABORT = "PrepareAbort", 3
    COMPLETE_COMMIT = "CompleteCommit", 4
    COMPLETE_ABORT = "CompleteAbort", 5
    DEAD = "Dead", 6
    PREPARE_EPOCH_FENCE = "PrepareEpochFence", 7

    def __init__(self, label: str, number: int) -> None:
        self.label = label
        self.number = number

    @property
    def is_preparing(self) -> bool:
        """True while the end is decided and the markers are on their way."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_over(self) -> bool:
        """True while no transaction is open."""
        return self in _OVER

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


_OVER: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)

BY_NUMBER: Final[Mapping[int, TransactionState]] = {state.number: state for state in TransactionState}
BY_LABEL: Final[Mapping[str, TransactionState]] = {state.label: state for state in TransactionState}

ALLOWED_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _OVER,
    TransactionState.ONGOING: _OVER | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _OVER | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _OVER,
}
"""The states from which each state can be entered."""
