"""A partition whose compaction failed is left alone until the next start, and told; others go on."""

from __future__ import annotations

import errno
import logging

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import PartitionFlag
from tests.support.log_rig import MakeRig
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import Broker

RECORD_BYTES = 300_000
COMPACTED = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0"}


@pytest.fixture(name="dirty")
def _dirty(rig: MakeRig) -> Broker:
    """Two partitions, each with sealed segments that nobody has compacted."""
    b = Broker(rig(), 2, **COMPACTED)
    for partition in (0, 1):
        for _ in range(7 + partition):
            assert b.produce(bytes(make_batch(size=RECORD_BYTES)), partition=partition)[0].error == 0
    return b


def asked(broker: Broker, message: calls.Message) -> calls.Message:
    broker.rig.call(message)
    process = broker.process

    def step() -> None:
        process.advance_tasks()
        process.work(5)

    until(lambda: broker.rig.answer_ring.waiting() > 0, "an answer", step)
    answer = broker.rig.take_answer()
    assert answer is not None
    return answer


def next_one(broker: Broker) -> calls.ToClean:
    found = asked(broker, calls.FindToClean())
    assert isinstance(found, calls.ToClean)
    return found


def uncleanable(broker: Broker) -> tuple[int, int]:
    counters = broker.process.context.counters
    return (
        counters.get(Counter.COUNT_UNCLEANABLE_PARTITIONS),
        counters.get(Counter.COUNT_UNCLEANABLE_BYTES),
    )


def test_what_is_wrong_with_it_stays_wrong(dirty: Broker, caplog: pytest.LogCaptureFixture) -> None:
    first = next_one(dirty)
    assert uncleanable(dirty) == (0, 0)
    with caplog.at_level(logging.ERROR):
        asked(dirty, calls.CleaningEnded(first.ticket, problem="a batch at position 7 is corrupt"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{first.directory} is not compacted until the broker is restarted: ")
    assert "a batch at position 7 is corrupt" in line
    second = next_one(dirty)
    assert second.directory != first.directory
    count, size = uncleanable(dirty)
    assert count == 1
    assert size > 3 * RECORD_BYTES
    asked(dirty, calls.CleaningEnded(second.ticket, problem="the same here"))
    assert isinstance(asked(dirty, calls.FindToClean()), calls.NothingToClean)
    assert uncleanable(dirty)[0] == 2


def test_what_passes_is_tried_again(dirty: Broker) -> None:
    first = next_one(dirty)
    asked(dirty, calls.CleaningEnded(first.ticket, problem="no space left", errno=errno.ENOSPC))
    assert next_one(dirty).directory == first.directory
    assert uncleanable(dirty) == (0, 0)


def test_a_disk_that_fails_is_not_held_against_the_partition(dirty: Broker) -> None:
    first = next_one(dirty)
    with pytest.raises(FatalError, match="Input/output error"):
        asked(dirty, calls.CleaningEnded(first.ticket, problem="it cannot be read", errno=errno.EIO))
    for slot, _, _ in dirty.targets:
        assert dirty.rig.partition(slot).flags & PartitionFlag.PARTITION_OFFLINE
    assert uncleanable(dirty) == (0, 0)
