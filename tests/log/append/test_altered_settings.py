"""Altered settings of a partition that is open: they count at once, and what is on its way is still taken."""

from __future__ import annotations

import pytest

from mpbroker.ipc import calls
from tests.support.log_rig import TOPIC_ID, MakeRig, Result, Rig
from tests.support.log_writer import make_batch
from tests.support.stepped_log import Broker

NOT_LEADER = 6
RECORD_LIST_TOO_LARGE = 18


def alter(broker: Broker, version: int, partitions: int = 1, **configs: str) -> calls.EnsuredTopic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    message = calls.EnsureTopic("t", TOPIC_ID, list(range(partitions)), named, version, 1)
    broker.rig.call(message)
    broker.settle()
    answer = broker.rig.take_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    return answer


def errors_of(broker: Broker, *versions: int) -> list[int]:
    """Return the errors of batches that were checked under these settings."""
    slot, generation, _ = broker.targets[0]
    found = []
    for version in versions:
        broker.rig.job([((slot, generation, version), bytes(make_batch()))])
        broker.settle()
        found.append(broker.rig.replies()[0].results[0].error)
    return found


@pytest.mark.parametrize("by_reference", [False, True])
def test_batches_on_their_way_are_taken(b: Broker, by_reference: bool) -> None:
    """Check that batches checked under earlier settings are appended.

    The exceptions are settings that the log process does not know yet, and those that need a new check.
    """
    b.process.turn.for_tests(by_reference=by_reference)
    assert errors_of(b, 4, 5, 6) == [NOT_LEADER, 0, NOT_LEADER]
    alter(b, 7, retention_ms="1", max_message_bytes="10000000")
    assert errors_of(b, 4, 5, 6, 7, 8) == [NOT_LEADER, 0, 0, 0, NOT_LEADER]
    alter(b, 8, message_timestamp_type="LogAppendTime")
    assert errors_of(b, 7, 8) == [NOT_LEADER, 0]
    alter(b, 9, message_timestamp_type="LogAppendTime", cleanup_policy="compact")
    assert errors_of(b, 8, 9) == [NOT_LEADER, 0]
    alter(b, 10, message_timestamp_type="LogAppendTime", cleanup_policy="compact,delete")
    assert errors_of(b, 9, 10) == [0, 0]


def test_asked_again_nothing_changes(rig: MakeRig) -> None:
    b = Broker(rig(), segment_bytes="1048576")
    log = b.log()
    alter(b, 5, segment_bytes="2000000")
    assert log.config.segment_bytes == 1048576
    alter(b, 6, segment_bytes="2000000")
    assert (log.config.segment_bytes, log.state.segment_bytes) == (2_000_000, 2_000_000)


def test_a_smaller_segment_counts_from_the_next_batch_on(b: Broker) -> None:
    for _ in range(2):
        b.produce(bytes(make_batch(size=800_000)))
    alter(b, 6, segment_bytes="1048576")
    assert b.produce(bytes(make_batch(size=800_000))) == [Result(0, 2, -1, 0)]
    assert sorted(path.name for path in (b.rig.directory / "t-0").glob("*.log")) == [
        f"{base:020d}.log" for base in (0, 2)
    ]


def test_new_partitions_beside_a_directory_that_failed(rig: MakeRig) -> None:
    """Check that partitions from `new_from` on are made: they cannot have had records anywhere."""
    r: Rig = rig()
    (r.directory.parent / "other").mkdir()
    r.config = type(r.config)(log_dirs=(str(r.directory), str(r.directory.parent / "other")))
    b = Broker(r)
    b.process.turn.storage_failed(1, 5)
    b.settle()
    # The first partition was there.
    assert [p.error for p in alter(b, 6, partitions=3).partitions] == [56, 0, 0]


@pytest.mark.parametrize("by_reference", [False, True])
def test_what_is_larger_than_a_segment_is_refused(rig: MakeRig, by_reference: bool) -> None:
    """Check RECORD_LIST_TOO_LARGE to the byte, and that later batches are appended."""
    small, large = bytes(make_batch(size=1_000_000)), bytes(make_batch(size=1_100_000))
    b = Broker(rig(), segment_bytes=str(len(large)), max_message_bytes="2000000")
    b.process.turn.for_tests(by_reference=by_reference)
    assert b.produce(large) == [Result(0, 0, -1, 0)]
    alter(b, 6, segment_bytes=str(len(large) - 1), max_message_bytes="2000000")
    b.targets = [(slot, generation, 6) for slot, generation, _ in b.targets]
    assert b.produce(large, small) == [Result(RECORD_LIST_TOO_LARGE, -1, -1, -1), Result(0, 1, -1, 0)]
    assert b.rig.partition(b.targets[0][0]).log_end_offset == 2
