"""The native turn and the slow path agree on each Fetch: the same bytes, wherever the turn answers at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotFlag, SlotKind
from mpbroker.protocol.messages import FetchRequest
from tests.support.forms import rounds
from tests.support.handler_logs import TOPIC, VERSIONS, Logged, fetch, learn, two_segments, whole
from tests.support.handler_rig import PROCESSOR, Rig, partition_payload, request_frame, topic_id

FETCH = 1


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Iterator[Logged]:
    """Make a log whose segments the turn knows."""
    with two_segments(tmp_path) as log:
        for base in (0, 50):
            learn(log.rig.handler.turn.fetch_positions, 0, log.directory / f"{base:020d}.log")
        yield log


def fast(made: Rig) -> int:
    return made.context.counters.get(Counter.COUNT_FETCHES_FAST)


def ask(log: Logged, version: int, request: FetchRequest, native: bool, **send: Any) -> tuple[bytes, bool]:
    """(the frame, whether the turn answered)"""
    before = fast(log.rig)
    log.rig.handler.turn.fetch_is_fast = native
    log.rig.send(FETCH, version, request, **send)
    (reply,) = log.rig.processor.replies()
    answered = fast(log.rig) > before
    # What the turn answers stands in the request's own block: nobody has to give it back.
    assert (reply.owner == PROCESSOR) == answered
    return whole(log.rig, reply), answered


def agree(log: Logged, version: int, request: FetchRequest) -> bool:
    """Check that both paths answer with the same bytes; tell whether the turn answered."""
    expected, _ = ask(log, version, request, native=False)
    seen, answered = ask(log, version, request, native=True)
    assert seen == expected
    return answered


def two(offsets: tuple[int, int], **fields: int) -> FetchRequest:
    """Both partitions; the second one is empty."""
    request = fetch(offsets[0], **fields)
    request.topics[0].partitions.append(FetchRequest.FetchPartition(1, fetch_offset=offsets[1]))
    return request


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "request_",
    [
        fetch(0),
        fetch(7),
        fetch(30, max_bytes=200),
        fetch(30, each=1),
        fetch(49),
        fetch(50),
        fetch(99, min_bytes=1, wait_ms=1000),
        fetch(100),
        fetch(0, isolation_level=1),
        fetch(60, max_bytes=0),
        fetch(60, max_bytes=-(1 << 31)),
        fetch(0, min_bytes=1 << 30),
        two((10, 0)),
        two((100, 0)),
    ],
)
def test_hot_fetches_are_answered_by_the_turn(log: Logged, version: int, request_: FetchRequest) -> None:
    assert agree(log, version, request_)


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        (18, fetch(101)),
        (18, fetch(-1)),
        (18, fetch(0, partition=2)),
        (18, fetch(0, current_leader_epoch=3)),
        (18, fetch(0, last_fetched_epoch=3)),
        (11, fetch(0, session_id=5, session_epoch=1)),
        (11, fetch(0, session_epoch=-2)),
        (11, fetch(0, replica_id=1)),
        (18, fetch(0, replica_state=FetchRequest.ReplicaState(2, 1))),
    ],
)
def test_what_has_to_be_refused_is_left_to_the_slow_path(
    log: Logged, version: int, request_: FetchRequest
) -> None:
    assert not agree(log, version, request_)


def test_an_unknown_topic_is_left_to_the_slow_path(log: Logged) -> None:
    request = fetch(0)
    request.topics[0].topic, request.topics[0].topic_id = "other", topic_id(9)
    assert not agree(log, 12, request)
    assert not agree(log, 13, request)


def test_a_fetch_of_nothing_is_left_to_the_slow_path(log: Logged) -> None:
    request = fetch(0)
    request.topics = []
    assert not agree(log, 18, request)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_truncated_request_is_answered_by_the_turn(log: Logged, version: int) -> None:
    frame = request_frame(FETCH, version, fetch(0))
    for length in range(20, len(frame)):
        log.rig.processor.send(frame[:length])
        log.rig.turn()
        log.rig.processor.replies()
    assert fast(log.rig) == 0


def test_an_offline_partition_is_left_to_the_slow_path(log: Logged) -> None:
    log.publish(flags=3)
    assert not agree(log, 18, fetch(0))


def test_another_generation_of_the_slot_is_left_to_the_slow_path(log: Logged) -> None:
    log.rig.table.write(0, partition_payload(TOPIC, 0, generation=6, high_watermark=100, log_end_offset=100))
    assert not agree(log, 18, fetch(0))


def test_a_fetch_that_has_to_wait_is_parked_by_the_slow_path(log: Logged) -> None:
    log.rig.send(FETCH, 18, fetch(100, wait_ms=5000))
    assert [r.kind for r in log.rig.processor.replies()] == [SlotKind.PARKED]
    assert fast(log.rig) == 0


def test_too_little_room_behind_the_request(log: Logged) -> None:
    """Check it with a frame that fills its block and leaves no room for the answer."""
    request = fetch(0)
    answered = []
    for filling in range(1500, 1900, 10):
        request.rack_id = "r" * filling
        expected, _ = ask(log, 18, request, native=False, room=0)
        seen, native = ask(log, 18, request, native=True, room=0)
        assert seen == expected
        answered.append(native)
    assert set(answered) == {True, False}


def test_a_request_that_comes_again_is_looked_up_anew(log: Logged, tmp_path: Path) -> None:
    """Check that handler and turn forget their open file if the processor found that it was replaced."""
    assert agree(log, 18, fetch(0))
    path = log.directory / f"{0:020d}.log"
    copy = tmp_path / "swapped"
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    frame, answered = ask(log, 18, fetch(0), native=True, flags=SlotFlag.AGAIN)
    assert not answered
    assert log.batches[0] in frame
    assert agree(log, 18, fetch(0))


def test_the_turn_learns_from_the_slow_path(log: Logged) -> None:
    log.rig.handler.turn.fetch_positions.forget_all()
    assert not ask(log, 18, fetch(0), native=True)[1]
    assert ask(log, 18, fetch(0), native=True)[1]
    assert not ask(log, 18, fetch(70), native=True)[1]
    assert ask(log, 18, fetch(70), native=True)[1]


def test_a_sequential_reader_stays_in_the_turn(log: Logged) -> None:
    """Check it batch by batch, over a roll, and with what is appended meanwhile."""
    for offset in range(0, 100, 10):
        assert agree(log, 18, fetch(offset, max_bytes=1))
    log.append()
    assert agree(log, 18, fetch(100, min_bytes=1, wait_ms=1000))


@settings(
    max_examples=rounds(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    version=st.sampled_from(VERSIONS),
    offset=st.integers(0, 100),
    max_bytes=st.integers(-1, 2000),
    each=st.integers(-1, 2000),
    isolation_level=st.integers(0, 2),
    stable=st.integers(0, 5),
)
def test_any_fetch_of_what_is_there(
    log: Logged, version: int, offset: int, max_bytes: int, each: int, isolation_level: int, stable: int
) -> None:
    size = len(log.batches[0])
    log.publish(last_stable_offset=50 + 10 * stable, last_stable_position=size * stable)
    request = fetch(offset, max_bytes=max_bytes, each=each, isolation_level=isolation_level)
    assert agree(log, version, request)
