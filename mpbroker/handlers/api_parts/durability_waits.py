"""Requests about the end of a log, which wait for the commit round under way.

A produce with acks=1 is answered before its batch is durable, and readers see only what is. Its client may
ask for the end of the log at once, and must not get less than what it has written. So such a request waits
until the high watermark is where the log end was. (In Kafka, without replicas, both are the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpbroker.handlers.broker import ApiExchange, Broker
from mpbroker.handlers.requests.parked_memory import PARTITION_BYTES, REQUEST_BYTES
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.slots import Request
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.ipc.topology import log_worker_of_slot
from mpbroker.protocol.errors import ErrorCode

# For a request without a time-out. (Kafka: remote.list.offsets.request.timeout.ms, for requests of that kind)
DEFAULT_TIMEOUT_MS = 30_000


class LogEnd(NamedTuple):
    """A log end that was not durable when a request came."""

    image: PartitionImage
    offset: int


def log_end_to_wait_for(image: PartitionImage, now: Partition) -> LogEnd | None:
    """Return the log end if it is not durable yet, else None: the high watermark tells all."""
    return LogEnd(image, now.log_end_offset) if now.high_watermark < now.log_end_offset else None


def is_durable(broker: Broker, end: LogEnd) -> bool:
    """Return True if the log is durable up to this end."""
    now = broker.in_table(end.image)
    return now is not None and now.high_watermark >= end.offset


def wait_until_durable(
    exchange: ApiExchange, ends: Sequence[LogEnd], timeout_ms: int, then: Callable[[ErrorCode], None]
) -> None:
    """Call `then` when the log ends are durable, no worker is left that could make them so, or time is up.

    It gets the error for those that are not: REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER.
    """
    broker = exchange.broker
    wait = _Wait(exchange, ends, then)
    deadline_ms = broker.monotonic_ms() + (timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS)
    broker.fetches.park(wait, [end.image.slot for end in ends], deadline_ms, wait.parked)


class _Wait:
    """A request that waits; see `parked_fetches.ParkedFetch`."""

    def __init__(
        self, exchange: ApiExchange, ends: Sequence[LogEnd], then: Callable[[ErrorCode], None]
    ) -> None:
        self._exchange = exchange
        # Those that are not known to be durable; the last one is looked at first.
        self._left = list(ends)
        self._then = exchange.later(then)

    @property
    def slot(self) -> Request:
        return self._exchange.slot

    def parked(self) -> None:
        exchange, broker = self._exchange, self._exchange.broker
        size = REQUEST_BYTES + exchange.body_bytes + PARTITION_BYTES * len(self._left)
        if not broker.parked_memory.has_room(exchange, size):
            broker.fetches.expire_now(exchange.slot.connection)
            return
        broker.parked_memory.charge(exchange, size)
        broker.answers.parked(exchange.slot, is_brief=True)

    def try_complete(self) -> bool:
        if self._exchange.has_answer:
            return True
        while self._left and not self._may_become_durable(self._left[-1]):
            self._left.pop()
        if self._left:
            return False
        self._then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return True

    def _may_become_durable(self, end: LogEnd) -> bool:
        """Return False if the log end is durable, or will not be by what runs now."""
        broker = self._exchange.broker
        if not broker.log_calls[log_worker_of_slot(end.image.slot, len(broker.log_calls))].server_is_up:
            return False
        now = broker.in_table(end.image)
        if now is None or now.flags != PartitionFlag.PARTITION_LIVE:
            return False
        return now.high_watermark < end.offset <= now.log_end_offset

    def expire(self) -> None:
        self._then(ErrorCode.REQUEST_TIMED_OUT)

    def cancel(self) -> None:
        self._exchange.cancel()

    def drop(self) -> None:
        self._exchange.drop()
