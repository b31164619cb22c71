"""Requests that meet a fault, in a handler whose peers and clock are the test's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.handlers.requests.faults import Faults
from mpbroker.ipc import faults, settings
from mpbroker.ipc.faults import Fault
from mpbroker.ipc.process import LOG_FENCE_CLOSE
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListOffsetsRequest, MetadataRequest
from tests.support.handler_fences import TOPIC, kinds, produce
from tests.support.handler_rig import PROCESSOR, Rig, fence, order_settings, request_frame

VERSION = 7
READY = (TOPIC,)


@pytest.fixture
def hits(tmp_path: Path) -> Path:
    path = tmp_path / "hits"
    path.touch()
    return path


class Clock:
    def __init__(self, made: Rig) -> None:
        self.now_ms = 1_000
        made.handler.intake.faults = Faults(made.memory.private.block("faults"), lambda: self.now_ms)


@pytest.fixture
def clock(ready: Rig) -> Clock:
    return Clock(ready)


def put(made: Rig, *wanted: Fault) -> None:
    settings.write(made.memory.private.block("faults"), faults.encode(list(wanted)))
    settings.write(made.memory.private.block("settings"), settings.encode(made.context.config))
    order_settings(made)


def metadata(client: str = "test") -> bytes:
    return request_frame(ApiKey.METADATA, VERSION, MetadataRequest(), client=client)


def answers(made: Rig, *frames: bytes) -> list[tuple[int, int]]:
    for connection, frame in enumerate(frames, start=1):
        made.processor.send(frame, connection=connection)
    made.turn()
    return kinds(made)


def test_the_turn_serves_produces_itself_only_without_faults(ready: Rig, hits: Path) -> None:
    assert not ready.handler.turn.leaves_all
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True))
    assert ready.handler.turn.leaves_all
    put(ready)
    assert not ready.handler.turn.leaves_all


def test_faults_leave_the_request_log_as_it_is(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.FETCH, closes=True))
    assert (ready.handler.turn.leaves_all, ready.handler.broker.logs_requests()) == (True, False)


def test_a_produce_that_fails_is_not_appended(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.PRODUCE, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    ready.processor.send(produce())
    ready.turn()
    response = ready.answer(ApiKey.PRODUCE, 7)
    (partition,) = response.responses[0].partition_responses
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ready.log.take() == []


def test_a_connection_is_closed(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True))
    assert answers(ready, metadata()) == [(1, SlotKind.CLOSE)]


def test_other_apis_and_clients_do_not_meet_it(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True, client_id="mine"))
    offsets = request_frame(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(), client="mine")
    found = answers(ready, metadata("yours"), offsets, metadata("mine"))
    assert found == [(1, SlotKind.SEND), (2, SlotKind.SEND), (3, SlotKind.CLOSE)]
    assert hits.read_bytes() == b"."


def test_it_holds_for_so_many_requests(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True, times=2))
    found = answers(ready, *[metadata()] * 4)
    assert [kind for _, kind in found] == [SlotKind.CLOSE, SlotKind.CLOSE, SlotKind.SEND, SlotKind.SEND]
    assert len(hits.read_bytes()) == 2


def test_several_handlers_count_together(ready: Rig, hits: Path) -> None:
    """Another one was quicker between our look at the file and our byte: the last hit was its."""
    hits.write_bytes(b".")
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True, times=2))
    assert answers(ready, metadata(), metadata()) == [(1, SlotKind.CLOSE), (2, SlotKind.SEND)]


def test_a_fault_whose_file_is_gone_was_taken_back(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True))
    hits.unlink()
    assert answers(ready, metadata()) == [(1, SlotKind.SEND)]


def test_a_successor_has_the_faults_of_the_handler_that_died(ready: Rig, hits: Path) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, closes=True))
    successor = Rig(ready.memory)
    assert successor.handler.turn.leaves_all
    assert answers(successor, metadata()) == [(1, SlotKind.CLOSE)]


def test_a_delayed_request_is_served_when_its_time_has_come(ready: Rig, hits: Path, clock: Clock) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, delay_ms=50, times=1))
    assert answers(ready, metadata(), metadata()) == [(2, SlotKind.SEND)]
    clock.now_ms += 49
    ready.turn()
    assert kinds(ready) == []
    clock.now_ms += 1
    ready.turn()
    assert kinds(ready) == [(1, SlotKind.SEND)]


def test_a_handler_does_not_sleep_longer_than_the_delay(ready: Rig, hits: Path) -> None:
    now_ms = ready.handler.sleep_ms()
    put(ready, Fault(str(hits), ApiKey.METADATA, delay_ms=7, times=1))
    answers(ready, metadata())
    assert ready.handler.sleep_ms() <= 7 < now_ms


def test_a_request_may_wait_and_then_fail(ready: Rig, hits: Path, clock: Clock) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, delay_ms=50, closes=True))
    assert answers(ready, metadata()) == []
    clock.now_ms += 50
    ready.turn()
    assert kinds(ready) == [(1, SlotKind.CLOSE)]


def test_a_delayed_produce_is_not_overtaken(ready: Rig, hits: Path, clock: Clock) -> None:
    put(ready, Fault(str(hits), ApiKey.PRODUCE, delay_ms=50, times=1))
    for _ in range(2):
        ready.processor.send(produce())
    ready.turn()
    assert ready.log.take() == []
    clock.now_ms += 50
    ready.turn()
    ready.turn()
    assert len(ready.log.take()) == 2


def test_delayed_requests_of_a_dead_processor_are_forgotten(ready: Rig, hits: Path, clock: Clock) -> None:
    put(ready, Fault(str(hits), ApiKey.METADATA, delay_ms=50))
    assert answers(ready, metadata()) == []
    fence(ready, PROCESSOR, alive=False)
    clock.now_ms += 50
    ready.turn()
    assert kinds(ready) == []


def test_delayed_produces_are_closed_with_a_dead_log_worker(ready: Rig, hits: Path, clock: Clock) -> None:
    """Processors take all produces for lost that a handler has taken; none may be appended later."""
    put(ready, Fault(str(hits), ApiKey.PRODUCE, delay_ms=50))
    ready.processor.send(produce(), connection=1)
    ready.turn()
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    assert kinds(ready) == [(1, SlotKind.CLOSE)]
    clock.now_ms += 50
    ready.turn()
    assert (kinds(ready), ready.log.take()) == ([], [])


def test_a_handler_that_stops_delays_nothing_longer(ready: Rig, hits: Path) -> None:
    Clock(ready)
    put(ready, Fault(str(hits), ApiKey.METADATA, delay_ms=3_600_000))
    assert answers(ready, metadata()) == []
    ready.handler.finish()
    assert kinds(ready) == [(1, SlotKind.SEND)]
