"""Markers on their way: rounds, what is refused, what is gone, and what a dead log worker leaves unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mpbroker.coordinator.runtime.host import TopicBatch
from mpbroker.coordinator.runtime.write_queue import Marker
from mpbroker.coordinator.transactions.marker_sender import RETRY_MS, ROUND_MARKERS, MarkerSender
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import GROUP_TOPIC
from mpbroker.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, scan_batch
from mpbroker.records.markers import ABORT, COMMIT, marker_of

COMMITS = Marker(7, 3, 5, is_commit=True)
ABORTS = Marker(8, 0, 5, is_commit=False)
NONE = ErrorCode.NONE


class Around:
    """Partitions that are there, and the rounds that were asked for."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.rounds: list[tuple[list[TopicBatch], Callable[[list[ErrorCode]], None]]] = []
        self.offsets: list[tuple[int, Marker, Callable[[ErrorCode], None]]] = []
        self.monotonic_ms = 1_000
        self.ended: list[str] = []
        self.sender = MarkerSender(self, lambda: 77, lambda: self.monotonic_ms)

    def partitions_of(self, topic: str) -> int:
        return 0 if topic in self.gone else 2 * ROUND_MARKERS

    def append_markers(self, batches: Sequence[TopicBatch], done: Callable[[list[ErrorCode]], None]) -> None:
        self.rounds.append((list(batches), done))

    def write_offsets_marker(self, partition: int, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        self.offsets.append((partition, marker, done))

    def send(self, name: str, marker: Marker, *partitions: tuple[str, int]) -> None:
        self.sender.send(marker, frozenset(partitions), lambda: self.ended.append(name))

    def named(self, number: int) -> list[tuple[str, int]]:
        return [(topic, batch.partition) for topic, batch in self.rounds[number][0]]

    def answer(self, number: int, *errors: ErrorCode) -> None:
        batches, done = self.rounds[number]
        done(list(errors) or [NONE] * len(batches))
        self.sender.step()


@pytest.fixture
def around() -> Around:
    return Around()


def test_a_transaction_ends_when_all_of_its_partitions_have_their_marker(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0), ("t", 1), (GROUP_TOPIC, 4))
    assert not around.sender.is_idle
    around.sender.step()
    assert around.named(0) == [("t", 0), ("t", 1)]
    around.answer(0)
    assert around.ended == []
    ((partition, marker, done),) = around.offsets
    assert (partition, marker) == (4, COMMITS)
    done(NONE)
    assert around.ended == ["a"]
    assert around.sender.is_idle


def test_the_batch_says_who_ends_what_how(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0))
    around.send("b", ABORTS, ("t", 1))
    around.sender.step()
    (_, commit), (_, abort) = around.rounds[0][0]
    for batch, marker, kind in ((commit, COMMITS, COMMIT), (abort, ABORTS, ABORT)):
        header = scan_batch(batch.batch)
        assert (header.producer_id, header.producer_epoch) == batch.producer == marker[:2]
        assert header.attributes == batch.attributes == CONTROL_BIT | TRANSACTIONAL_BIT
        assert marker_of(batch.batch) == (kind, marker.coordinator_epoch)
        assert (header.max_timestamp, batch.max_timestamp) == (77, 77)


def test_without_partitions_there_is_nothing_to_wait_for(around: Around) -> None:
    around.send("a", ABORTS)
    assert around.ended == ["a"]
    assert around.sender.is_idle


def test_one_round_is_under_way_and_the_next_has_all_that_came_meanwhile(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0))
    around.sender.step()
    around.send("b", ABORTS, ("t", 0))
    around.send("c", COMMITS, ("u", 3))
    around.sender.step()
    assert len(around.rounds) == 1
    around.answer(0)
    assert around.ended == ["a"]
    assert around.named(1) == [("t", 0), ("u", 3)]
    around.answer(1)
    assert around.ended == ["a", "b", "c"]


def test_a_round_has_a_bound(around: Around) -> None:
    around.send("a", COMMITS, *(("t", number) for number in range(ROUND_MARKERS + 1)))
    around.sender.step()
    assert len(around.rounds[0][0]) == ROUND_MARKERS
    around.answer(0)
    assert around.ended == []
    assert around.named(1) == [("t", ROUND_MARKERS)]
    around.answer(1)
    assert around.ended == ["a"]


def test_what_is_refused_is_tried_again_and_nobody_else_waits_for_it(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0), ("t", 1))
    around.send("b", ABORTS, ("t", 2))
    around.sender.step()
    around.answer(0, NONE, ErrorCode.KAFKA_STORAGE_ERROR, NONE)
    assert around.ended == ["b"]
    assert len(around.rounds) == 1
    assert around.sender.retry_at_ms == around.monotonic_ms + RETRY_MS
    around.monotonic_ms += RETRY_MS
    around.sender.step()
    assert around.named(1) == [("t", 1)]
    around.answer(1)
    assert around.ended == ["b", "a"]
    assert around.sender.retry_at_ms is None


def test_a_partition_that_is_gone_needs_no_marker(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0), ("u", 0))
    around.gone.add("u")
    around.sender.step()
    assert around.named(0) == [("t", 0)]
    around.answer(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert around.ended == []
    around.gone.add("t")
    around.monotonic_ms += RETRY_MS
    around.sender.step()
    assert around.ended == ["a"]
    assert len(around.rounds) == 1


def test_a_partition_that_knows_of_a_later_life_is_left_as_it_is(around: Around) -> None:
    around.send("a", COMMITS, ("t", 0), ("t", 1))
    around.sender.step()
    around.answer(0, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert around.ended == ["a"]
    assert around.sender.is_idle


def test_what_was_under_way_when_a_log_worker_died_is_nobodys(around: Around) -> None:
    """Check that an answer from before the death is ignored: the coordinator sends the markers again."""
    around.send("a", COMMITS, ("t", 0), (GROUP_TOPIC, 1))
    around.send("b", COMMITS, ("t", 1))
    around.sender.step()
    around.send("c", COMMITS, ("t", 2))
    around.sender.unload()
    assert around.sender.is_idle
    around.answer(0)
    around.offsets[0][2](NONE)
    assert around.ended == []
    around.send("a again", COMMITS, ("t", 0))
    around.sender.step()
    around.answer(1)
    assert around.ended == ["a again"]
