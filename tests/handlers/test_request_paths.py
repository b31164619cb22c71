"""The calls of a request from the handler's ring to what it is for, and back: few enough to be followed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.process import Handler
from mpbroker.handlers.produce.slow_appends import Jobs
from mpbroker.ipc.calls import ForwardedResponse
from mpbroker.ipc.rings import Outbox
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.messages import JoinGroupRequest
from mpbroker.records.compression import Codec
from mpbroker.storage.reader import PartitionReader
from tests.support import handler_fences
from tests.support.handler_logs import TOPIC, Logged, fetch, park

CALLS_MAX = 10
# From an answer in the ring to the response in another one.
WAY_OUT_CALLS_MAX = 13
MUCH = 1 << 30


class Paths:
    """The calls from the handler's loop to each call of a method, the outermost first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        self.found: list[list[str]] = []
        real = getattr(owner, method)

        def recorded(*args: Any, **options: Any) -> Any:
            frame, path = sys._getframe(1), [f"{owner.__name__}.{method}"]
            while frame is not None and frame.f_code is not Handler.take_and_serve.__code__:
                path.append(frame.f_code.co_qualname)
                frame = frame.f_back  # type: ignore[assignment]
            self.found.append(path[::-1])
            return real(*args, **options)

        monkeypatch.setattr(owner, method, recorded)


def answered_fetch(log: Logged, monkeypatch: pytest.MonkeyPatch) -> Paths:
    log.rig.handler.turn.fetch_is_fast = False
    paths = Paths(monkeypatch, PartitionReader, "fetch_slice")
    log.append()
    log.rig.send(1, 12, fetch(0))
    assert len(paths.found) == 1
    return paths


def waiting_fetch(log: Logged, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Park a fetch that reads before and after its marks are set, and once more when bytes have come."""
    log.rig.handler.turn.fetch_is_fast = False
    paths = Paths(monkeypatch, PartitionReader, "fetch_slice")
    log.append()
    park(log, fetch(0, min_bytes=MUCH, max_bytes=MUCH, wait_ms=60_000))
    assert len(paths.found) == 2
    log.append()
    log.rig.turn()
    assert len(paths.found) == 3
    return paths


def produce(log: Logged, monkeypatch: pytest.MonkeyPatch) -> Paths:
    paths = Paths(monkeypatch, Jobs, "append")
    log.rig.processor.send(handler_fences.produce(Codec.GZIP, topic=TOPIC))
    log.rig.turn()
    assert len(paths.found) == 1
    return paths


def join_group(log: Logged, monkeypatch: pytest.MonkeyPatch) -> Paths:
    paths = Paths(monkeypatch, PatientClient, "call")
    log.rig.send(11, 9, JoinGroupRequest("g"))
    assert len(paths.found) == 1
    return paths


@pytest.mark.parametrize("paths_of", [answered_fetch, waiting_fetch, produce, join_group])
def test_few_calls_lie_between_the_ring_and_what_a_request_is_for(
    log: Logged, paths_of: Callable[[Logged, pytest.MonkeyPatch], Paths], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in paths_of(log, monkeypatch).found:
        assert len(path) <= CALLS_MAX, " > ".join(path)


def test_few_calls_lie_between_the_coordinators_answer_and_the_response(
    log: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, _ = log.rig.asked(11, 9, JoinGroupRequest("g"))
    log.rig.processor.replies()
    paths = Paths(monkeypatch, Outbox, "push")
    log.rig.reply(call, ForwardedResponse(b"", {}))
    assert [reply.kind for reply in log.rig.processor.replies()] == [SlotKind.SEND]
    # The answer's block goes back to the coordinator first.
    path = paths.found[-1]
    assert path[-2:] == ["Responses._push", "Outbox.push"]
    assert len(path) <= WAY_OUT_CALLS_MAX, " > ".join(path)
