"""Makes a restored broker the owner of the ledger.

One entry does it, the claim (`ledger/claim.py`). It also says which segments the restored broker has.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.remote.ledger.claim import new_claim, settle
from mpbroker.remote.ledger.entries import Header, Writer, entry_name
from mpbroker.remote.ledger.events import (
    Event,
    SegmentRevived,
    SegmentsRemoved,
    TakenOver,
    TopicRestored,
    TopicSet,
)
from mpbroker.remote.ledger.owner import Owner, save_owner
from mpbroker.remote.restore.plan import Plan, RestoreRefused, time_text
from shm.clock import wall_ms

# An owner that has written this long ago may be alive.
SILENT_MS: Final = 90_000


class TakenLedger(NamedTuple):
    """The new owner, and the ledger entry that made it the owner."""

    writer: Writer
    seq: int


def check_silent(last: Header, now_ms: int) -> None:
    """Raise RestoreRefused if the present owner wrote a moment ago."""
    silent_ms = now_ms - last.time_ms
    if silent_ms < SILENT_MS:
        raise RestoreRefused(
            f"the ledger's owner wrote {entry_name(last.seq)} {max(silent_ms, 0) / 1000:.0f} s ago "
            f"({time_text(last.time_ms)}): stop that broker and wait {SILENT_MS // 1000} s, or name --force "
            "if it is gone for good"
        )


def take_over(plans: Callable[[], Plan], *, is_forced: bool) -> tuple[Plan, TakenLedger]:
    """Create the entry; return its plan. `plans()` reads the ledger and checks the objects.

    Raises RestoreRefused, LedgerDamaged, StoreError: then the entry may be there, and a further call begins
    another generation.
    """
    while True:
        plan = plans()
        ledger = plan.ledger
        assert ledger.last is not None, "a ledger with a cut has entries"
        if ledger.state.exported is not None:
            raise RestoreRefused(
                f"Apache Kafka may write to the object store since {time_text(ledger.last.time_ms)}: take "
                "its log directories back first, with mpbroker remote import"
            )
        if not is_forced:
            check_silent(ledger.last, wall_ms())
        manifest = plan.manifest
        taken = TakenOver(
            *(manifest.cluster_id, manifest.broker_id, socket.gethostname()),
            cut_id=plan.cut.cut_id,
            shipped=-1 if plan.takes_shipped else plan.cut.shipped,
        )
        claim = new_claim(ledger, take_over_events(plan, taken))
        if settle(ledger, claim):
            return plan, TakenLedger(claim.writer, claim.seq)


def write_owner(directory: Path, taken: TakenLedger, standbys: Iterable[int] = ()) -> None:
    """Write the file of a new owner into its first log directory. Raises OSError."""
    writer = taken.writer
    save_owner(directory, Owner(writer.owner, writer.generation, taken.seq, [writer.start], list(standbys)))


def take_over_events(plan: Plan, taken: TakenOver) -> list[Event]:
    """Return the events of the entry: it removes segments that are not of the cut, and adds revived ones.

    A topic that was deleted before the cut keeps its segments, so that it can still be undeleted.
    """
    state = plan.ledger.state
    deleted = {topic_id for topic_id, one in plan.topics.items() if one.deleted_ms is not None}
    kept = {one.segment_id for segments in plan.segments.values() for one in segments}
    there = {one.segment_id for segments in state.segments.values() for one in segments}
    revived = [one for segments in plan.segments.values() for one in segments if one.segment_id not in there]
    events: list[Event] = [taken]
    for topic_id in dict.fromkeys(one.topic_id for one in revived):
        known = state.topics.get(topic_id)
        if known is None:
            topic = plan.topics[topic_id]
            events.append(TopicSet(topic.name, topic_id, topic.partitions, topic.settings))
        elif known.deleted_ms is not None:
            events.append(TopicRestored(topic_id))
    for key, segments in state.segments.items():
        gone = tuple(one.segment_id for one in segments if one.segment_id not in kept)
        if gone and key[0] not in deleted:
            events.append(SegmentsRemoved(*key, gone))
    # Each before the one that follows it.
    return [*events, *(SegmentRevived(one) for one in reversed(revived))]
