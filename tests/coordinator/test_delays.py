"""What clients have waited for too long is told: the change, and who owes what to it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from mpbroker.coordinator import delays
from mpbroker.coordinator.delays import CHECK_EVERY_S, LOG_AFTER_S, Delays, Progress
from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.state import Topic
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.coordinator.waiting import Awaited, Change, Token, WaitingCallers
from mpbroker.ipc.calls import Acknowledged, CreateTopic, CreateTopics, DeleteTopics
from mpbroker.ipc.slots import SlotKind, kind_of
from mpbroker.ipc.topology import handler, processor
from tests.support.coordinator_tree import CoordinatorTree

TOPIC_ID = bytes(range(16))
IDLE = Progress({TOPIC_ID: Topic("t", TOPIC_ID, 8)}, [], 0, None)


class Link:
    def __init__(self) -> None:
        self.owes: set[int] = set()

    def owing(self, topic_id: bytes) -> set[int]:
        return self.owes if topic_id == TOPIC_ID else set()


class DelaysRig:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "mpbroker")
        self.caplog = caplog
        self.time_s = 100.0
        self.link = Link()
        self.behind: list[int] = []
        self.waiting = WaitingCallers(lambda *_: None)
        self.delays = Delays(cast(LogLink, self.link), self.waiting, lambda: self.behind, lambda: self.time_s)

    def wait(self, number: int, token: Token) -> None:
        self.waiting.add(Caller(handler(number), 0, 1), Acknowledged(), {token})

    def pass_s(self, seconds: float, now: Progress = IDLE) -> list[str]:
        """Let time pass, and return what is logged meanwhile."""
        self.caplog.clear()
        for _ in range(round(seconds / CHECK_EVERY_S)):
            self.time_s += CHECK_EVERY_S
            self.delays.check(lambda: now)
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> DelaysRig:
    return DelaysRig(caplog)


def test_who_has_not_opened_a_topic_is_named_once(rig: DelaysRig) -> None:
    rig.link.owes = {0, 2}
    rig.wait(1, (Awaited.USABLE, TOPIC_ID))
    assert rig.pass_s(LOG_AFTER_S) == []
    (told,) = rig.pass_s(60)
    assert told == (
        "Acknowledged for handler 1 has waited for 5 s: partitions of topic t are not opened by log 0, log 2"
        ". `mpbroker ctl status` has the status of each process"
    )
    rig.waiting.settle({(Awaited.USABLE, TOPIC_ID)})
    (told,) = rig.pass_s(3)
    assert told == "delayed changes completed; longest wait 65 s"
    assert rig.pass_s(10) == []


def test_what_comes_in_time_is_not_told(rig: DelaysRig) -> None:
    for _ in range(10):
        rig.wait(0, (Awaited.REMOVED, TOPIC_ID))
        assert rig.pass_s(LOG_AFTER_S - 1) == []
        rig.waiting.settle({(Awaited.REMOVED, TOPIC_ID)})
        assert rig.pass_s(1) == []


@pytest.mark.parametrize(
    ("token", "owes", "behind", "why"),
    [
        ((Awaited.REMOVED, TOPIC_ID), {1}, [], "partitions of topic t are not removed by log 1"),
        (Change(TOPIC_ID, 2, 9), {1}, [], "partitions of topic t are not opened by log 1"),
        ((Awaited.USABLE, TOPIC_ID), set(), [], "topic t is not announced. "),
        (
            (Awaited.USABLE, TOPIC_ID),
            set(),
            [handler(1)],
            "is not announced, handler 1 did not read the last announcements",
        ),
        ((Awaited.REMOVED, bytes(16)), set(), [], "topic AAAAAAAAAAAAAAAAAAAAAA is not announced"),
        ((Awaited.QUOTAS, b"x"), set(), [handler(0)], "quotas are not announced, handler 0 did not"),
        (
            (Awaited.CREDENTIALS, b"x"),
            set(),
            [processor(0)],
            "credentials are not announced, processor 0 did",
        ),
        ((Awaited.SETTINGS, bytes(8)), set(), [], "the supervisor has not applied the altered"),
        ((Awaited.RATES, b"x"), set(), [], "rates of addresses are not announced"),
    ],
)
def test_every_wait_has_its_reason(
    rig: DelaysRig, token: Token, owes: set[int], behind: list[int], why: str
) -> None:
    rig.link.owes, rig.behind = owes, behind
    rig.wait(0, token)
    (told,) = rig.pass_s(20)
    assert why in told


def test_many_that_wait_are_one_line(rig: DelaysRig) -> None:
    for number in range(3):
        rig.wait(number, (Awaited.USABLE, TOPIC_ID))
    (told,) = rig.pass_s(20)
    assert "has waited for 5 s, as 2 more:" in told


def test_a_log_that_is_away_keeps_all_waiting(rig: DelaysRig) -> None:
    away = Progress({}, ["DeleteTopics", "CreateTopics", "CreateTopics"], 7, "waiting for a log process")
    (told,) = rig.pass_s(20, away)
    assert told.startswith(
        "CreateTopics, DeleteTopics has waited for 5 s, as 1 more: waiting for a log process"
    )
    rig.pass_s(5)
    (told,) = rig.pass_s(20, Progress({}, [], 7, "waiting for a log process"))
    assert told.startswith("7 calls to the coordinator has waited for 5 s: waiting for")


def test_a_coordinator_that_was_stopped_itself_tells_of_nothing(rig: DelaysRig) -> None:
    rig.wait(0, (Awaited.USABLE, TOPIC_ID))
    rig.pass_s(1)
    rig.time_s += 60
    assert rig.pass_s(1) == []


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that returns what a coordinator that is forked from now on has logged."""
    monkeypatch.setattr(delays, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(delays, "LOG_AFTER_S", 0.05)
    log, path = logging.getLogger("mpbroker"), tmp_path / "log"
    to_file, before = logging.FileHandler(path), log.level
    log.addHandler(to_file)
    log.setLevel(logging.INFO)
    yield path.read_text
    log.removeHandler(to_file)
    log.setLevel(before)
    to_file.close()


def test_a_coordinator_names_the_log_process_that_does_not_answer(
    make_tree: Callable[..., CoordinatorTree], written: Callable[[], str]
) -> None:
    tree = make_tree()
    tree.serve()
    log = tree.log
    assert log is not None

    def told(text: str) -> None:
        tree.until(lambda: text in re.sub(r"for \d+ s", "for a while", written()), pump_log=False)

    def asked() -> bool:
        return any(kind_of(slot) == SlotKind.CALL for slot in log.inbox.untaken())

    request = tree.handlers[0].call(CreateTopics([CreateTopic("a", 2)]))
    told("CreateTopics has waited for a while: log 0 has not made the change of metadata durable")
    log.pump()
    tree.until(asked, pump_log=False)
    told("CreatedTopics for handler 0 has waited for a while: partitions of topic a are not opened by log 0")
    log.pump()
    tree.until(lambda: request in tree.handlers[0].answers)
    told("delayed changes completed")
    request = tree.handlers[0].call(DeleteTopics(["a"]))
    tree.until(tree.append_waits, pump_log=False)
    log.pump()
    told("are not removed by log 0")
    tree.until(lambda: request in tree.handlers[0].answers)
    assert tree.stop() == 0
