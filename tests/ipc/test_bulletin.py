"""The bulletin: readers at their own pace, a publisher that dies, a base that waits."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.ipc.bulletin import HEADER_BYTES, BulletinFull, BulletinPublisher, BulletinReader
from shm.region import sparse
from shm.word import Words
from tests.support.forms import rounds

READERS = 3


class Board:
    """A bulletin in memory of its own; `live` are the readers that count."""

    def __init__(self, half: int = 256) -> None:
        self.block = sparse(HEADER_BYTES + 2 * half)
        self.acks = Words(sparse(4096))
        self.live = set(range(READERS))

    def publisher(self) -> BulletinPublisher:
        return BulletinPublisher(self.block, self.acks, lambda: sorted(self.live))

    def reader(self, index: int) -> BulletinReader:
        return BulletinReader(self.block, self.acks, index)


def test_a_base_and_its_deltas() -> None:
    board = Board()
    publisher, reader = board.publisher(), board.reader(0)
    assert reader.poll() == []
    publisher.publish_base(b"base")
    publisher.publish_delta(b"")
    assert reader.poll() == [b"base", b""]
    assert reader.poll() == []
    publisher.publish_delta(b"more")
    assert reader.poll() == [b"more"]
    assert board.reader(1).poll() == [b"base", b"", b"more"]


def test_a_delta_that_does_not_fit() -> None:
    board = Board(half=64)
    publisher, reader = board.publisher(), board.reader(0)
    publisher.publish_base(b"x" * 30)
    with pytest.raises(BulletinFull):
        publisher.publish_delta(b"y" * 27)
    publisher.publish_delta(b"y" * 26)
    assert reader.poll() == [b"x" * 30, b"y" * 26]


def test_no_delta_before_a_base_of_ones_own() -> None:
    """A successor would write over what its predecessor's readers are reading."""
    board = Board()
    board.publisher().publish_base(b"first")
    successor = board.publisher()
    with pytest.raises(BulletinFull):
        successor.publish_delta(b"second")
    assert board.reader(0).poll() == [b"first"]


def test_a_base_that_is_too_large_spoils_nothing() -> None:
    """The next base must not land in the half that is being read."""
    board = Board(half=64)
    publisher = board.publisher()
    publisher.publish_base(b"first")
    reader = board.reader(0)
    with pytest.raises(ValueError, match="does not fit"):
        publisher.publish_base(b"z" * 61)
    publisher.publish_base(b"second")
    assert board.block[HEADER_BYTES + 64 + 4 : HEADER_BYTES + 64 + 9] == b"first"
    assert reader.poll() == [b"second"]


def test_a_base_waits_for_whoever_is_behind() -> None:
    board = Board()
    publisher = board.publisher()
    readers = [board.reader(index) for index in range(READERS)]
    publisher.publish_base(b"1")
    assert not publisher.can_publish_base()
    for reader in readers[:2]:
        reader.poll()
    assert not publisher.can_publish_base()
    board.live.discard(2)
    assert publisher.can_publish_base()
    publisher.publish_base(b"2")
    # Its successor begins at the beginning, with the words of the dead in `acks`.
    board.live.add(2)
    assert board.reader(2).poll() == [b"2"]


STEPS = st.sampled_from(["publish", "poll", "kill", "reborn"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 60)), max_size=80))
def test_every_reader_comes_to_the_same_news(steps: list[tuple[str, int]]) -> None:
    """What a reader holds after a poll is exactly what was published last."""
    board = Board(half=128)
    publisher = board.publisher()
    readers = [board.reader(index) for index in range(READERS)]
    held: list[list[bytes]] = [[] for _ in range(READERS)]
    truth: list[bytes] = []
    for number, (step, size) in enumerate(steps):
        message = b"%03d" % number + b"." * size
        if step == "publish":
            try:
                publisher.publish_delta(b"D" + message)
                truth.append(message)
            except BulletinFull:
                if publisher.can_publish_base():
                    publisher.publish_base(b"B" + message)
                    truth = [message]
        elif step == "poll":
            index = size % READERS
            for news in readers[index].poll():
                held[index] = [news[1:]] if news[:1] == b"B" else [*held[index], news[1:]]
            assert held[index] == truth
        elif step == "kill":
            publisher = board.publisher()
        else:
            readers[size % READERS] = board.reader(size % READERS)
            held[size % READERS] = []


def _publish_for_ever(board: Board, seed: int) -> None:
    """Messages that say their own length and number; never returns."""
    rng = random.Random(seed)
    publisher = board.publisher()
    number = 0
    while True:
        number += 1
        body = bytes([number & 0xFF]) * rng.randint(0, 300)
        try:
            publisher.publish_delta(b"D" + body)
        except BulletinFull:
            if publisher.can_publish_base():
                publisher.publish_base(b"B" + body)


def _is_whole(message: bytes) -> bool:
    return message[:1] in (b"B", b"D") and len(set(message[1:])) <= 1


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes that are gone at the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_publisher_killed_at_any_moment(children: list[int]) -> None:
    """Readers see whole messages only, and a successor's base is always the first of its generation."""
    board = Board(half=4096)
    rng = random.Random(5)
    readers = [board.reader(index) for index in range(READERS)]
    for seed in range(rounds(40)):
        pid = os.fork()
        if not pid:
            try:
                _publish_for_ever(board, seed)
            finally:
                os._exit(1)
        children.append(pid)
        seen = 0
        enough = rng.randint(1, 400)
        while seen < enough:
            news = [message for reader in readers for message in reader.poll()]
            assert all(_is_whole(message) for message in news)
            seen += len(news)
            if not news:
                os.sched_yield()
        children.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert all(_is_whole(message) for reader in readers for message in reader.poll())
        fresh = board.reader(0).poll()
        assert fresh[0][:1] == b"B"
        assert all(message[:1] == b"D" for message in fresh[1:])
