"""Commits the transactions of a batch as one: first records the intent durably, then commits each.

The steps are in the order of Flink's two-phase sink. Tasks leave their transactions open. The driver
1. fences earlier drivers of this sink, and reads the sink's latest intent;
2. commits the batch of that intent, if an earlier driver died before it had committed all transactions;
3. records the new intent: from here on the batch is decided, and will be committed after any crash;
4. commits the transactions, and records that the batch is committed.
A batch that was decided is never written again: its tasks write nothing, or abort what they wrote.
Sans-I/O: callers pass the log of intents (`log`) and the object that ends transactions (`ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpbroker.writing.intents import Batch, Intent, Outcome, Prepared, SinkError, State

if TYPE_CHECKING:
    from mpbroker.writing.kafka_sink import KafkaEnds, KafkaIntentLog


def commit(
    log: KafkaIntentLog, ends: KafkaEnds, batch: Batch, prepared: Sequence[Prepared], skipped: bool
) -> None:
    """Commit the batch, unless an earlier call has committed it.

    `skipped`: a task wrote nothing, because it found the batch decided. Raises SinkError if the batch cannot
    be committed; the next commit continues from the recorded intent.
    """
    log.fence()
    latest = log.latest()
    if latest is not None:
        is_covered = latest.covers(batch)
        _finish(log, ends, latest)
        if is_covered:
            ends.abort_all()
            return
    if skipped:
        raise SinkError(
            f"tasks of batch {batch.number} have written nothing because it was decided, but now it is not: "
            "the records of this sinkId were changed from outside. Start the query again"
        )
    if not prepared:
        return
    if closed := ends.closed(prepared):
        raise SinkError(
            f"batch {batch.number}: {len(closed)} of {len(prepared)} transactions are no longer open, the "
            f"first is {closed[0].transactional_id}. Nothing of the batch is committed. It took longer than "
            "kafka.transaction.timeout.ms, or another query uses this sinkId: mend that and start the query "
            "again"
        )
    intent = Intent(batch, State.DECIDED, tuple(prepared))
    log.record(intent)
    _finish(log, ends, intent)
    ends.abort_all()


def abort(log: KafkaIntentLog, ends: KafkaEnds, batch: Batch, prepared: Sequence[Prepared]) -> None:
    """Abort the batch after a task or `commit` failed. A batch that was decided is not aborted.

    Raises SinkError, and aborts nothing, if the sink belongs to another query.
    """
    log.fence()
    latest = log.latest()
    if latest is not None and (latest.covers(batch) or latest.state is State.DECIDED):
        return
    ends.abort(prepared)
    ends.abort_all()


def settle(log: KafkaIntentLog, ends: KafkaEnds) -> None:
    """Commit a decided batch and abort all other transactions, after a query was stopped.

    An open transaction would block all readers of committed records until it times out. Raises SinkError.
    """
    log.fence()
    latest = log.latest()
    if latest is not None:
        _finish(log, ends, latest)
    ends.abort_all()


def _finish(log: KafkaIntentLog, ends: KafkaEnds, intent: Intent) -> None:
    """Commit the batch if it is decided. Raises SinkError if a transaction can no longer be committed."""
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
            "the topic. Start the query again, which writes the batch again"
        )
    raise SinkError(
        f"batch {number} is decided, but {len(lost)} of its {count} transactions can no longer be committed, "
        f"the first is {lost[0].transactional_id} of producer {lost[0].producer.id}: "
        "kafka.transaction.timeout.ms was over before the driver came back. The rows of the others are in "
        "the topic, those of the lost ones are not: writing the batch again would double rows, continuing "
        "would lose some. Check the producers in the topic, write the missing rows and start with another "
        "sinkId and a new checkpoint"
    )
