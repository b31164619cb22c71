"""ListTransactions, a slice at a time: other requests are served between two slices of a long list.

(Kafka: TransactionStateManager.listTransactionStates; KIP-664, KIP-994, KIP-1152.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from mpbroker.coordinator.runtime.client_patterns import compile_pattern
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Waiter
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.transactions.records import BY_LABEL, TransactionState
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.coordinator.transactions.steps import TransactionMetadata
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ListTransactionsRequest, ListTransactionsResponse

# Bounds of a pattern; Kafka has none: the longest id takes a sixth of a second at most.
PATTERN_LENGTH_MAX: Final = 1000
INSTRUCTIONS_MAX: Final = 1000
# Steps of a slice: instructions times characters. Without memory for an automaton a step takes 5 ns.
SLICE_STEPS: Final = 2_000_000
# Steps of an id besides its pattern.
STEPS_OF_AN_ID: Final = 500
LISTINGS_MAX: Final = 64


@dataclass(eq=False)
class ListTransactions:
    """Lists transactional ids. Each request in turn gets one slice of work."""

    _state: TransactionStateManager
    _timers: Timers
    _clock: Clock
    _answers: Answers
    _under_way: dict[Waiter, _Listing] = field(default_factory=dict, init=False)

    def waiters(self) -> list[Waiter]:
        """Return the requests whose lists are incomplete."""
        return list(self._under_way)

    def abandon(self, waiter: Waiter) -> None:
        """Stop listing for a request whose client has disconnected."""
        if self._under_way.pop(waiter, None) is not None:
            self._answers.fail(waiter, ErrorCode.NETWORK_EXCEPTION)

    def withdraw(self, waiter: Waiter) -> None:
        """Stop listing for a request that failed. The caller answers the request."""
        self._under_way.pop(waiter, None)

    def list(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse | None:
        """Return the list if one slice is enough. Else return None, and answer later. Raises ApiError."""
        self._state.partitions.check_none_is_loading()
        if len(self._under_way) >= LISTINGS_MAX:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        listing = _Listing(request, list(self._state), self._clock.wall_ms())
        if not self._under_way and listing.work(SLICE_STEPS):
            return listing.response
        self._under_way[context.waiter] = listing
        self._go_on()
        return None

    def _go_on(self) -> None:
        if self._under_way:
            self._timers.set("list", self._clock.monotonic_ms(), self._slice)

    def _slice(self) -> None:
        """Do one slice of work on the list that has waited longest."""
        if not self._under_way:
            return
        waiter = next(iter(self._under_way))
        listing = self._under_way.pop(waiter)
        try:
            self._state.partitions.check_none_is_loading()
            is_complete = listing.work(SLICE_STEPS)
        except ApiError as error:
            self._answers.fail(waiter, error.code)
        except Exception:
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
            raise
        else:
            if is_complete:
                self._answers.answer(waiter, listing.response)
            else:
                self._under_way[waiter] = listing
        finally:
            self._go_on()


class _Listing:
    """A ListTransactions request and its progress. Raises ApiError if the pattern is invalid or too long."""

    def __init__(
        self, request: ListTransactionsRequest, transactions: list[TransactionMetadata], now_ms: int
    ) -> None:
        self.response = ListTransactionsResponse()
        self._request = request
        self._transactions = transactions
        self._at = 0
        self._states: set[TransactionState] = set()
        for label in request.state_filters:
            if label in BY_LABEL:
                self._states.add(BY_LABEL[label])
            else:
                self.response.unknown_state_filters.append(label)
        self._pattern = _compiled(request.transactional_id_pattern)
        self._producer_ids = set(request.producer_id_filters)
        self._started_before_ms = now_ms - request.duration_filter

    def work(self, steps: int) -> bool:
        """Match ids with the request, in about `steps` steps. Return True if no ids are left to match."""
        instructions = self._pattern.programsize if self._pattern is not None else 0
        while self._at < len(self._transactions):
            if steps <= 0:
                return False
            transaction = self._transactions[self._at]
            self._at += 1
            steps -= STEPS_OF_AN_ID + instructions * len(transaction.transactional_id)
            self._match(transaction)
        return True

    def _match(self, transaction: TransactionMetadata) -> None:
        value, request = transaction.value, self._request
        if value is None or transaction.pending_state is TransactionState.DEAD:
            return
        if (
            (not request.state_filters or value.state in self._states)
            and (not self._producer_ids or value.producer_id in self._producer_ids)
            and (request.duration_filter < 0 or value.start_ms < self._started_before_ms)
            and (self._pattern is None or self._pattern.fullmatch(transaction.transactional_id))
        ):
            self.response.transaction_states.append(
                ListTransactionsResponse.TransactionState(
                    transaction.transactional_id, value.producer_id, value.state.label
                )
            )


def _compiled(text: str | None) -> Any:
    """Compile a client's pattern with RE2, as Kafka does. Raises ApiError."""
    if not text:
        return None
    pattern = compile_pattern(text, PATTERN_LENGTH_MAX)
    if pattern.programsize > INSTRUCTIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The pattern has more than {INSTRUCTIONS_MAX} instructions; repeat less in it.",
        )
    return pattern
