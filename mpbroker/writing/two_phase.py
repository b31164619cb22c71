"""Commits a batch of many transactions as one: first the intent, durably, then the transactions.

The order is that of Flink's two-phase sink. Tasks leave their transactions open. The driver
1. fences whoever was driver of this sink before, and reads the sink's latest intent;
2. finishes that, if somebody died between deciding and ending;
3. records the new intent: from here on the batch is committed, whatever dies;
4. ends the transactions, and records that too.
A batch that was decided is never written again: its tasks write nothing, or what they wrote is aborted.
Sans-I/O: the log of intents and the transactions are given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Protocol

from mpbroker.writing.intents import Batch, Intent, Prepared, SinkError, State


class Outcome(Enum):
    """The outcome of a transaction that was to be committed."""

    COMMITTED = 1
    ABORTED = 2
    UNKNOWN = 3


class IntentLog(Protocol):
    """The sink's durable record of its decisions."""

    def fence(self) -> None:
        """Keep every driver that began before from recording anything from now on."""

    def latest(self) -> Intent | None:
        """Return the last intent that was recorded."""

    def record(self, intent: Intent) -> None:
        """Record the intent: durable and visible on return.

        If this raises, the intent may be recorded or not.
        """


class Ends(Protocol):
    """Ends the transactions of the sink's tasks."""

    def commit(self, transaction: Prepared) -> Outcome:
        """Commit the transaction; may be repeated."""

    def abort(self, transactions: Iterable[Prepared]) -> None:
        """Abort those that are still open."""

    def closed(self, transactions: Iterable[Prepared]) -> list[Prepared]:
        """Return those that are not open any more."""

    def abort_others(self, kept: Collection[str]) -> None:
        """Abort open transactions of this sink whose transactional ids are not in `kept`."""


def commit(log: IntentLog, ends: Ends, batch: Batch, prepared: Sequence[Prepared], skipped: bool) -> None:
    """Commit the batch. Return when it is committed, now or before.

    `skipped` says that a task knew the batch as decided and wrote nothing. Raises SinkError if it cannot be
    committed; the recorded intent then says how to go on.
    """
    log.fence()
    latest = log.latest()
    if latest is not None:
        is_covered = latest.covers(batch)
        _finish(log, ends, latest)
        if is_covered:
            ends.abort_others(())
            return
    if skipped:
        raise SinkError(
            f"tasks of batch {batch.number} have written nothing because it was decided, but now it is not: "
            "somebody has changed the records of this sinkId. Start the query again"
        )
    if not prepared:
        return
    if gone := ends.closed(prepared):
        raise SinkError(
            f"batch {batch.number}: {len(gone)} of {len(prepared)} transactions are not open any more, the "
            f"first is {gone[0].transactional_id}. Nothing of the batch is committed. It took longer than "
            "kafka.transaction.timeout.ms, or another query uses this sinkId: see to that and start the "
            "query again"
        )
    intent = Intent(batch, State.DECIDED, tuple(prepared))
    log.record(intent)
    _finish(log, ends, intent)
    ends.abort_others(())


def abort(log: IntentLog, ends: Ends, batch: Batch, prepared: Sequence[Prepared]) -> None:
    """Abort the batch after a failure, one of `commit` included. A decided batch stays decided.

    Raises SinkError, and touches nothing, if the sink belongs to another query.
    """
    log.fence()
    latest = log.latest()
    if latest is not None and (latest.covers(batch) or latest.state is State.DECIDED):
        return
    ends.abort(prepared)
    ends.abort_others(())


def settle(log: IntentLog, ends: Ends) -> None:
    """Commit what was decided and abort all other transactions, after a query was stopped.

    An open transaction would hold up all readers of committed records until it times out. Raises SinkError.
    """
    log.fence()
    latest = log.latest()
    if latest is not None:
        _finish(log, ends, latest)
    ends.abort_others(())


def _finish(log: IntentLog, ends: Ends, intent: Intent) -> None:
    """Commit what was decided. Raises SinkError if a transaction is lost."""
    if intent.state is not State.DECIDED:
        return
    outcomes = [(one, ends.commit(one)) for one in intent.transactions]
    lost = [one for one, outcome in outcomes if outcome is not Outcome.COMMITTED]
    if not lost:
        log.record(intent.now(State.COMMITTED))
        return
    number, count = intent.batch.number, len(outcomes)
    if all(outcome is Outcome.ABORTED for _, outcome in outcomes):
        log.record(intent.now(State.WITHDRAWN))
        raise SinkError(
            f"all {count} transactions of batch {number} were aborted before the first could be committed: "
            "kafka.transaction.timeout.ms was over before the driver came back. Nothing of the batch is in "
            "the topic. Start the query again: the batch is written anew"
        )
    raise SinkError(
        f"batch {number} is decided, but {len(lost)} of its {count} transactions are not committed and "
        f"cannot be any more, the first is {lost[0].transactional_id} of producer {lost[0].producer.id}: "
        "kafka.transaction.timeout.ms was over before the driver came back. The rows of the others are in "
        "the topic, those of the lost ones are not: writing the batch again would double rows, going on "
        "would lose some. Look at the producers in the topic, then write what is missing and start with "
        "another sinkId and a new checkpoint"
    )
