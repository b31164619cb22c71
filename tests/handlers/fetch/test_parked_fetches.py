"""Fetches that wait: what comes while one begins to wait, and what ends the wait."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from mpbroker.handlers.apis.k01_fetch import Fetch
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import MetadataRequest
from tests.support.handler_logs import FETCH, Logged, answer, ask, fetch, park, partition_of, replies

WAIT_MS = 60_000


def waits_for_nothing(log: Logged) -> bool:
    marks = log.rig.memory.marks().waiting(0)
    return (len(log.rig.handler.broker.fetches), marks, log.rig.handler.intake.open) == (0, 0, {})


def test_bytes_that_come_before_the_marks_are_found(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    purgatory = log.rig.handler.broker.fetches._purgatory
    mark = purgatory._on_first

    def moved(slot: int) -> None:
        log.append()
        mark(slot)

    monkeypatch.setattr(purgatory, "_on_first", moved)
    assert bytes(partition_of(ask(log, fetch(0, wait_ms=WAIT_MS))).records) == log.batches[0]
    assert waits_for_nothing(log)


def test_an_error_after_the_marks_ends_the_wait(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    poll, polls = Fetch.poll, []

    def breaks(waiting: Fetch) -> Generator[None, None, Any]:
        polls.append(waiting)
        if len(polls) == 2:
            raise RuntimeError("the second poll is broken")
        return poll(waiting)

    monkeypatch.setattr(Fetch, "poll", breaks)
    assert ask(log, fetch(0, wait_ms=WAIT_MS)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(polls) == 2
    assert waits_for_nothing(log)


def test_another_request_of_its_connection_does_not_end_the_wait(log: Logged) -> None:
    park(log, fetch(0, wait_ms=WAIT_MS))
    log.rig.send(3, 9, MetadataRequest([]))
    assert [reply.kind for reply in replies(log)] == [SlotKind.SEND]
    assert len(log.rig.handler.broker.fetches) == 1
    log.append()
    log.rig.turn()
    assert bytes(partition_of(answer(log, 12)).records) == log.batches[0]
    assert waits_for_nothing(log)


@pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
def test_an_error_of_a_partition_is_no_reason_to_wait(log: Logged, wait_ms: int) -> None:
    log.append()
    log.rig.send(FETCH, 12, fetch(999, wait_ms=wait_ms))
    assert partition_of(answer(log, 12)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert waits_for_nothing(log)
