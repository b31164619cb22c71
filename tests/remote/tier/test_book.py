"""The book: what waits for the ledger while another thread waits for the store, or for files."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest

from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.remote_files import RemoteFiles
from tests.support.fault_store import Fault, FaultStore
from tests.support.ledger_parts import read
from tests.support.ledger_parts import segment as event_of
from tests.support.tier_world import TierWorld


@pytest.fixture
def book(world: TierWorld) -> Book:
    world.turn()
    assert world.tier.book is not None
    return world.tier.book


def test_a_renewal_waits_for_no_file(world: TierWorld, book: Book) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> bool:
        waits.set()
        return go_on.wait(10)

    world.fill(2)
    with patch.object(RemoteFiles, "write", slow):
        writer = threading.Thread(target=world.turn)
        writer.start()
        assert waits.wait(10)
        before = read(world.memory_store).seq
        book.renew()
        assert read(world.memory_store).seq == before + 1
        go_on.set()
        writer.join()


def test_what_is_added_while_an_entry_is_under_way_is_not_forgotten(world: TierWorld, book: Book) -> None:
    assert isinstance(world.store, FaultStore)
    assert world.topics.now is not None
    (topic,) = world.topics.now.values()
    world.store.plan("create", Fault.SLOW)
    book.add_segment(event_of(0, 1, topic.topic_id), topic)
    committing = threading.Thread(target=book.commit)
    committing.start()
    world.store.waiting.acquire()
    book.add_segment(event_of(10, 1, topic.topic_id), topic)
    world.store.release()
    committing.join()
    key = topic.topic_id, 1
    assert (book.end_of(key), book.end_with_ready(key)) == (10, 20)
    book.commit()
    assert (book.end_of(key), book.end_with_ready(key)) == (20, 20)


def test_events_that_a_renewal_brings_in_reach_the_files_with_the_next_commit(
    world: TierWorld, book: Book
) -> None:
    assert isinstance(world.store, FaultStore)
    world.fill(2)
    # Its segments are uploaded, and the entry is not known to be in.
    world.store.plan("create", Fault.LOST)
    with pytest.raises(Exception, match="lost"):
        world.turn()
    assert len(world.file()) == 3
    book.renew()
    world.turn()
    world.check()
    assert len(world.file()) == 5
