"""Delays requests about the end of a log until that end is durable.

A produce with acks=1 is answered before its batch is durable, and readers see only durable batches. The
producer may ask for the end of the log at once, and must not get an end before its own records. So a request
for the end waits until the high watermark is where the log end was when the request came. (In Kafka, without
replicas, high watermark and log end are the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from mpbroker.handlers.broker import Broker
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.parked_memory import PARTITION_BYTES, REQUEST_BYTES
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.ipc.topology import log_worker_of_slot
from mpbroker.protocol.errors import ErrorCode

# For a request without a time-out. (Kafka: remote.list.offsets.request.timeout.ms, for requests of that kind)
DEFAULT_TIMEOUT_MS = 30_000


class LogEnd(NamedTuple):
    """A log end that was not durable when a request came."""

    image: PartitionImage
    offset: int


def log_end_to_wait_for(broker: Broker, image: PartitionImage, now: Partition) -> LogEnd | None:
    """Return the log end if it is not durable yet and records below it may be acknowledged, else None.

    With mpbroker.remote.acks=ledger no record above the high watermark is acknowledged.
    """
    if broker.config.ships_rounds:
        return None
    return LogEnd(image, now.log_end_offset) if now.high_watermark < now.log_end_offset else None


def is_durable(broker: Broker, end: LogEnd) -> bool:
    """Return True if the log is durable up to this end."""
    now = broker.in_table(end.image)
    return now is not None and now.high_watermark >= end.offset


def wait_until_durable(
    context: RequestContext, ends: Sequence[LogEnd], timeout_ms: int
) -> Generator[None, None, ErrorCode]:
    """Wait until each log end is durable or cannot become durable, or time is up.

    Return the error for log ends that are not durable: REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER.
    """
    broker = context.broker
    deadline_ms = broker.monotonic_ms() + (timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS)

    def begin(then: Callable[[ErrorCode], None]) -> None:
        wait = _Wait(context, ends, then)
        broker.fetches.park(wait, [end.image.slot for end in ends], deadline_ms)
        if wait.try_complete():
            broker.fetches.release(context.slot)
        else:
            wait.parked()

    return (yield from context.wait(begin))


class _Wait:
    """A request that waits for durable log ends (implements `parked_fetches.ParkedFetch`)."""

    def __init__(
        self, context: RequestContext, ends: Sequence[LogEnd], then: Callable[[ErrorCode], None]
    ) -> None:
        self.context = context
        # Those that are not known to be durable; the last one is checked first.
        self._left = list(ends)
        self._then = then

    def parked(self) -> None:
        context, broker = self.context, self.context.broker
        size = REQUEST_BYTES + context.body_bytes + PARTITION_BYTES * len(self._left)
        if not broker.parked_memory.has_room(context, size):
            broker.fetches.expire_now(context.slot.connection)
            return
        broker.parked_memory.charge(context, size)
        broker.responses.parked(context.slot, is_brief=True)

    def try_complete(self) -> bool:
        if self.context.has_response:
            return True
        while self._left and not self._may_become_durable(self._left[-1]):
            self._left.pop()
        if self._left:
            return False
        self._then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return True

    def _may_become_durable(self, end: LogEnd) -> bool:
        """Return True if the log end is not durable, but its log worker is up and can make it durable."""
        broker = self.context.broker
        if not broker.log_calls[log_worker_of_slot(end.image.slot, len(broker.log_calls))].server_is_up:
            return False
        now = broker.in_table(end.image)
        if now is None or not now.flags & PartitionFlag.PARTITION_LIVE:
            return False
        return now.high_watermark < end.offset <= now.log_end_offset

    def expire(self) -> None:
        self._then(ErrorCode.REQUEST_TIMED_OUT)
