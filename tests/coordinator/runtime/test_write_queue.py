"""The rounds of a coordinator's journal: what goes into one batch, in which order, and what waits."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.runtime.requests import Then, Waiter
from mpbroker.coordinator.runtime.write_queue import (
    BATCH_BYTES,
    NOBODY,
    ROUND_BYTES,
    Marker,
    PartitionBatch,
    Producer,
    WriteQueue,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from mpbroker.records.markers import COMMIT, marker_of
from tests.support.record_reading import iterate_records

NONE = ErrorCode.NONE
SEVEN, EIGHT = Producer(7, 1), Producer(8, 0)
LARGE = BATCH_BYTES * 3 // 4


class QueueRig:
    """Names are a letter and the number of their partition. `heard` has what became of each."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ErrorCode]] = []
        self.failed: list[tuple[str, Waiter | None]] = []
        self.queue = WriteQueue[bytes](
            "thing",
            lambda entry: (b"k", entry),
            lambda name: int(name[1:]),
            lambda: 77,
            lambda: BATCH_BYTES,
            lambda name, waiter: self.failed.append((name, waiter)),
        )

    def write(self, name: str, *values: bytes, producer: Producer = NOBODY) -> None:
        self.queue.append(name, values, self.then(name), producer=producer)

    def end(self, producer: Producer) -> None:
        self.queue.append_marker(0, Marker(*producer, 5, is_commit=True), self.then("marker"))

    def then(self, name: str) -> Then:
        return lambda error: self.heard.append((name, error))

    def names(self) -> list[str]:
        return [name for name, _ in self.heard]


@pytest.fixture
def rig() -> QueueRig:
    return QueueRig()


def values_of(batch: PartitionBatch) -> list[bytes | None]:
    return [record.value for record in iterate_records(batch.batch)]


def test_a_transaction_has_batches_of_its_own_and_its_marker_comes_behind_them(rig: QueueRig) -> None:
    rig.write("a0", b"1")
    rig.write("b0", b"2")
    rig.write("c0", b"3", producer=SEVEN)
    rig.write("d0", b"4", producer=SEVEN)
    rig.end(SEVEN)
    rig.write("e0", b"5", producer=EIGHT)
    rig.write("f0", b"6")
    plain, inside, marker, other, last = rig.queue.next_round()
    found = [values_of(one) for one in (plain, inside, other, last)]
    assert found == [[b"1", b"2"], [b"3", b"4"], [b"5"], [b"6"]]
    found = [one.producer for one in (plain, inside, marker, other, last)]
    assert found == [NOBODY, SEVEN, SEVEN, EIGHT, NOBODY]
    assert (plain.attributes, inside.attributes) == (0, TRANSACTIONAL_BIT)
    assert marker.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
    assert marker_of(marker.batch) == (COMMIT, 5)
    rig.queue.finish([NONE] * 5)
    assert rig.names() == ["a0", "b0", "c0", "d0", "marker", "e0", "f0"]
    assert rig.queue.is_idle


def test_a_batch_that_is_refused_is_refused_alone(rig: QueueRig) -> None:
    rig.write("a0", b"1")
    rig.write("b0", b"2", producer=SEVEN)
    rig.queue.next_round()
    rig.queue.finish([NONE, ErrorCode.INVALID_PRODUCER_EPOCH])
    assert rig.heard == [("a0", NONE), ("b0", ErrorCode.INVALID_PRODUCER_EPOCH)]


def test_what_comes_meanwhile_goes_into_the_next_round(rig: QueueRig) -> None:
    rig.write("a0", b"1")
    rig.queue.next_round()
    rig.write("b0", b"2")
    assert not rig.queue.has_work
    rig.queue.finish([NONE])
    assert rig.queue.has_work
    (batch,) = rig.queue.next_round()
    assert values_of(batch) == [b"2"]


def test_what_is_too_large_is_refused_when_those_before_it_are_through(rig: QueueRig) -> None:
    rig.write("a0", b"1")
    rig.write("b0", bytes(BATCH_BYTES))
    rig.write("c0", b"3")
    rig.queue.next_round()
    assert rig.heard == []
    rig.queue.finish([NONE])
    (batch,) = rig.queue.next_round()
    assert values_of(batch) == [b"3"]
    assert rig.heard == [("a0", NONE), ("b0", ErrorCode.MESSAGE_TOO_LARGE)]


def test_a_place_in_the_order_needs_no_batch(rig: QueueRig) -> None:
    rig.write("a0")
    assert rig.queue.next_round() == []
    assert rig.heard == [("a0", NONE)]
    rig.write("b0", b"1")
    rig.write("c0")
    assert len(rig.queue.next_round()) == 1
    assert rig.names() == ["a0"]
    rig.queue.finish([NONE])
    assert rig.names() == ["a0", "b0", "c0"]


def test_a_round_has_a_bound(rig: QueueRig) -> None:
    partitions = ROUND_BYTES // LARGE + 2
    for number in range(partitions):
        rig.write(f"a{number}", bytes(LARGE))
        rig.write(f"b{number}", bytes(LARGE))
    rounds = []
    while batches := rig.queue.next_round():
        rounds.append(batches)
        rig.queue.finish([NONE] * len(batches))
    sizes = [sum(len(batch.batch) for batch in batches) for batches in rounds]
    assert max(sizes) < ROUND_BYTES + 2 * BATCH_BYTES
    assert len(rounds) > 1
    for number in range(partitions):
        assert rig.names().index(f"a{number}") < rig.names().index(f"b{number}")


def test_what_follows_a_record_and_fails_is_no_others_affair(
    rig: QueueRig, caplog: pytest.LogCaptureFixture
) -> None:

    def fails(_error: ErrorCode) -> None:
        raise RuntimeError("a fault")

    rig.queue.append("a0", [b"1"], fails, "waiter")
    rig.queue.append_marker(0, Marker(*SEVEN, 5, is_commit=True), fails)
    rig.write("b0", b"2")
    rig.queue.finish([NONE] * len(rig.queue.next_round()))
    assert rig.failed == [("a0", "waiter")]
    assert rig.heard == [("b0", NONE)]
    assert caplog.text.count("RuntimeError: a fault") == 2


def test_when_nobody_knows_what_became_of_it_all_hear_so(rig: QueueRig) -> None:
    rig.write("a0", b"1")
    rig.queue.next_round()
    rig.write("b0", b"2")
    rig.queue.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert rig.heard == [(name, ErrorCode.NOT_LEADER_OR_FOLLOWER) for name in ("a0", "b0")]
    assert rig.queue.is_idle
