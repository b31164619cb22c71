"""The coordinator's arena is full of answers that handlers have not returned: the log process is asked when
there is room.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.coordinator.metadata.state import Topic
from mpbroker.ipc.append_job import NewBatch
from mpbroker.ipc.calls import CreatedTopics, CreateTopic, CreateTopics, Message
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import COORDINATOR, handler
from shm.arena import ArenaFull
from tests.support.coordinator_tree import CoordinatorTree

ROOM = 256 << 10


@pytest.fixture(name="full")
def _full(make_tree: Callable[..., CoordinatorTree]) -> CoordinatorTree:
    """One of its handlers takes no answers."""
    tree = make_tree(reply_limit_bytes=ROOM)
    tree.serve()
    tree.until(lambda: tree.log.recovered == 1)
    tree.fill_arena(ROOM)
    return tree


def test_a_round_waits_for_room(full: CoordinatorTree) -> None:
    slow, fast = full.handlers
    counters = full.memory.counters(COORDINATOR)
    request, before = fast.call(CreateTopics([CreateTopic("a")])), counters.turns
    full.until(lambda: counters.turns > before + 2)
    assert request not in fast.answers
    slow.sleeps = False
    full.until(lambda: request in fast.answers)
    answer = fast.answers[request]
    assert isinstance(answer, CreatedTopics)
    assert [topic.error for topic in answer.topics] == [0]
    full.until(lambda: "a" in slow.topics)
    assert full.stop() == 0


@pytest.mark.parametrize("end", ["reads", "dies"])
def test_a_round_that_waited_for_room_when_the_log_process_died_is_decided_anew(
    full: CoordinatorTree, end: str
) -> None:
    slow, fast = full.handlers
    counters = full.memory.counters(COORDINATOR)
    request, before = fast.call(CreateTopics([CreateTopic("a")])), counters.turns
    full.until(lambda: counters.turns > before + 2)
    full.replace_log()
    assert request not in fast.answers
    if end == "reads":
        slow.sleeps = False
    else:
        full.fence(handler(0), 0)
    full.until(lambda: request in fast.answers)
    answer = fast.answers[request]
    assert isinstance(answer, CreatedTopics)
    assert [topic.error for topic in answer.topics] == [0]
    assert fast.topics.keys() == {"a"}
    assert full.stop() == 0


class Events:
    """What the link tells the coordinator."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def appended(self, error: int, base_offset: int) -> None:
        self.told.append(f"appended {error} at {base_offset}")

    def opened(self, topic: Topic, _answer: Message, /) -> None:
        self.told.append(f"opened {topic.name}")

    def removed(self, topic_id: bytes, _answer: Message, /) -> None:
        self.told.append(f"removed {topic_id.hex()}")

    def log_answers(self) -> None:
        self.told.append("log answers")


class Link:
    """The link alone, behind an arena without room."""

    def __init__(self, tree: CoordinatorTree) -> None:
        assert tree.log is not None
        self.log = tree.log
        arena = tree.memory.arena(COORDINATOR)
        arena.reset()
        self.events, self.lender = Events(), Lender(arena, COORDINATOR)
        self.link = LogLink(ProcessContext(COORDINATOR, tree.memory, tree.config), self.lender, self.events)
        self.lent = self.lender.lend(bytes(ROOM), handler(0))

    def return_all(self) -> None:
        self.lender.end(*self.lent)

    def append(self) -> None:
        batch = bytes(build_metadata_batch([b"x"], 0))
        new = NewBatch(METADATA_SLOT, self.log.incarnation, 0, batch, 1)
        self.link.append_all([new], lambda done: self.events.appended(done[0].error, done[0].base_offset))

    def go_on(self) -> list[str]:
        """-> what it has told by now."""
        for _ in range(4):
            self.link.receive()
            self.link.flush()
            self.log.pump()
        return self.events.told


@pytest.fixture(name="link")
def _link(make_tree: Callable[..., CoordinatorTree]) -> Link:
    return Link(make_tree(reply_limit_bytes=ROOM))


def test_questions_and_appends_wait_for_room_in_their_order(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.link.open(Topic("a", b"a" * 16, 1))
    link.link.greet()
    link.link.open(Topic("b", b"b" * 16, 1))
    link.append()
    assert link.go_on() == []
    assert link.link.waits_for_room
    assert not link.link.idle
    assert ["wait for room" in one.getMessage() for one in caplog.records] == [True], "it is logged once"
    link.return_all()
    assert link.go_on() == ["appended 0 at 0", "opened a", "log answers", "opened b"]
    assert not link.link.waits_for_room
    assert link.link.idle


def test_an_append_that_waits_is_work_to_be_done(link: Link) -> None:
    """Check that a coordinator that stops waits for an append that has no room yet."""
    link.append()
    assert not link.link.idle
    link.return_all()
    assert link.go_on() == ["appended 0 at 0"]
    assert link.link.idle


def test_what_waits_for_room_is_void_when_a_log_worker_dies(link: Link) -> None:
    link.link.open(Topic("a", b"a" * 16, 1))
    link.append()
    link.link.peer_down(0)
    link.return_all()
    link.link.peer_up(0)
    assert link.go_on() == []
    assert link.link.idle
    assert not link.link.is_appending


def test_what_never_has_room_is_no_reason_to_wait(link: Link) -> None:
    link.return_all()
    with pytest.raises(ArenaFull):
        link.link.open(Topic("a", b"a" * 16, 1, {"too.long": "x" * (64 << 20)}))
