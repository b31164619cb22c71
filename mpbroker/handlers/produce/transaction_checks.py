"""Batches that are part of a transaction: the coordinator is asked before they go to the log (KIP-890).

For clients of transaction.version 2 (Produce v12 or later) the coordinator adds the partitions to the
transaction; for other clients it checks that the transaction has them. If the transaction's marker will have
the producer's own epoch, the coordinator holds the marker back until the handler reports that the batches are
appended, or never will be: a batch after the marker would begin a transaction without an end
(`marker_holds.py`). (Kafka: AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend,
VerificationGuard.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.produce.marker_holds import NO_HOLD, Hold, MarkerHolds
from mpbroker.handlers.produce.verified_partitions import Place, VerifiedPartitions
from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction, Failed, Message
from mpbroker.protocol.errors import ErrorCode, error_code
from shm.clock import monotonic_ms

FIRST_VERSION_WITH_ABORTABLE = 11
# From this version on a batch adds its partition to the transaction.
FIRST_VERSION_THAT_ADDS = 12
# Clients do not know these in an answer to Produce. They get NOT_ENOUGH_REPLICAS, after which they retry
# without refreshing their metadata.
ASKED_AGAIN = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
# The coordinator still loads the transaction's partition, or will, because a log worker died while it wrote.
# Ask again after ASK_AGAIN_MS, for at most LOADING_MS: an error would let the next batches overtake this one.
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
ASK_AGAIN_MS = 20
LOADING_MS = 5_000


def client_error(version: int, code: ErrorCode) -> ErrorCode:
    """Translate the coordinator's error for a client that uses this version of Produce."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    waits_for_end = code == ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in ASKED_AGAIN or waits_for_end else code


class Part(NamedTuple):
    """A partition that a batch goes to."""

    topic: str
    partition: int
    place: Place


class Verification(NamedTuple):
    """A transaction, and the partitions of its batches. `adds`: add the partitions to the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    parts: Sequence[Part]


Then: TypeAlias = Callable[[list[ErrorCode], Hold], None]
"""Callback with an error for each part, in their order, and the hold that it must end."""


@dataclass(frozen=True)
class PendingVerification:
    """A question to the coordinator about a produce request.

    `missing` are the parts to ask for. `until_ms` (monotonic) limits the wait for a coordinator that is
    loading. `is_again`: the question is repeated, because a coordinator died before it answered.
    """

    context: PendingRequest
    asked: Verification
    missing: list[Part]
    then: Then
    until_ms: int
    is_again: bool = False

    def errors(self, found: Sequence[int]) -> list[ErrorCode]:
        """Return the error of each part of `asked`: its error in `found` if it is `missing`, else NONE."""
        by_part = dict(zip(self.missing, map(error_code, found), strict=True))
        return [by_part.get(part, ErrorCode.NONE) for part in self.asked.parts]


class TransactionChecks:
    """Produces that wait for the coordinator's check. `holds`: the handler's holds on transaction markers."""

    def __init__(self, coordinator: PatientClient, holds: MarkerHolds) -> None:
        self._coordinator = coordinator
        self.holds = holds
        self._granted = VerifiedPartitions()
        self._waiting: dict[PendingRequest, None] = {}
        # Questions to ask again, with the time to do so (monotonic ms).
        self._again: deque[tuple[int, PendingVerification]] = deque()

    def __len__(self) -> int:
        """Return the number of requests that wait for the coordinator."""
        return len(self._waiting)

    # ---- asking

    def check(self, context: PendingRequest, asked: Verification, then: Then) -> None:
        """Ask the coordinator for the parts that it has not granted yet, then call `then`.

        The request is not parked meanwhile, unlike other requests that wait for the coordinator: parking
        would give up its block, which contains the batches. It counts as load, like a request that waits for
        the log.
        """
        missing = [part for part in asked.parts if not self._is_granted(asked, part)]
        if missing:
            self._ask(PendingVerification(context, asked, missing, then, monotonic_ms() + LOADING_MS))
        else:
            then([ErrorCode.NONE] * len(asked.parts), self.holds.open(NO_HOLD))

    def _is_granted(self, asked: Verification, part: Part) -> bool:
        return asked.adds and self._granted.has(asked.producer_id, asked.producer_epoch, part.place)

    def _ask(self, question: PendingVerification) -> None:
        context, asked = question.context, question.asked

        def answered(message: Message) -> None:
            self._waiting.pop(context, None)
            if isinstance(message, CheckedTransaction):
                self._checked(question, message)
            elif not context.has_response:
                self._failed(question, message)

        call = CheckTransaction(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            [(part.topic, part.partition) for part in question.missing],
            asked.adds,
        )
        self._waiting[context] = None
        self._coordinator.call(call, context.later(answered), context.slot.connection)

    def _checked(self, question: PendingVerification, message: CheckedTransaction) -> None:
        hold = self.holds.open(message.hold)
        try:
            errors = question.errors(message.errors)
            if question.context.has_response:
                hold.end()
                return
            if hold.number == NO_HOLD and question.asked.adds:
                self._remember(question.asked, errors)
            question.then(errors, hold)
        except BaseException:
            hold.end()
            raise

    def _remember(self, asked: Verification, errors: list[ErrorCode]) -> None:
        for part, code in zip(asked.parts, errors, strict=True):
            if code == ErrorCode.NONE:
                self._granted.add(asked.producer_id, asked.producer_epoch, part.place)

    def _failed(self, question: PendingVerification, message: Message) -> None:
        code = error_code(message.error) if isinstance(message, Failed) else ErrorCode.UNKNOWN_SERVER_ERROR
        now_ms = monotonic_ms()
        if self._coordinator.server_is_up and code in LOADING and now_ms < question.until_ms:
            self._waiting[question.context] = None
            self._again.append((now_ms + ASK_AGAIN_MS, question))
        elif self._coordinator.server_is_up:
            question.then([code] * len(question.asked.parts), self.holds.open(NO_HOLD))
        elif code == ErrorCode.NOT_COORDINATOR and not question.is_again:
            # The coordinator died before it answered; wait for its successor.
            self._ask(replace(question, is_again=True))
        else:
            # An error for this request alone would let the client's later requests overtake it.
            question.context.close()

    def ask_again(self, now_ms: int) -> None:
        """Ask again for requests whose coordinator was loading."""
        while self._again and self._again[0][0] <= now_ms:
            _, question = self._again.popleft()
            del self._waiting[question.context]
            if not question.context.has_response:
                self._ask(question)

    def next_deadline_ms(self) -> int | None:
        return self._again[0][0] if self._again else None

    def close_waiting(self) -> None:
        """Close the connections of all waiting requests.

        Call this after the death of a log worker: processors then count all waiting produces as lost.
        """
        for context in list(self._waiting):
            context.close()
