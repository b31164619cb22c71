"""Connections that a process keeps between readers: for how long, for whom, and not beyond a fork."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest

from mpbroker.client.config import ClientConfig
from mpbroker.protocol.messages import FetchRequest
from mpbroker.reading.connections import IDLE_S_MAX, KEPT_MAX, Connections, Lent
from tests.support.kafka_server import HangUp, KafkaServer
from tests.support.polling import PATIENCE_S
from tests.support.threaded_server import HOST
from tests.support.threads import concurrently

CONFIG = ClientConfig(metadata_max_age_ms=300_000)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connections(clock: Clock) -> Iterator[Connections]:
    kept = Connections(clock)
    yield kept
    kept.close()


def take(connections: Connections, config: ClientConfig = CONFIG, port: int = 1) -> Lent:
    return connections.take([(HOST, port)], config, "")


def test_it_is_lent_to_one_at_a_time(connections: Connections) -> None:
    first, second = take(connections), take(connections)
    assert first.cluster is not second.cluster
    connections.give_back(first)
    assert take(connections).cluster is first.cluster
    connections.give_back(second)
    for other in (
        take(connections, port=2),
        take(connections, msgspec.structs.replace(CONFIG, client_id="b")),
    ):
        assert other.cluster not in (first.cluster, second.cluster)
        other.cluster.close()
    first.cluster.close()


def test_it_is_not_kept_for_ever(connections: Connections, clock: Clock) -> None:
    lent = take(connections)
    for _ in range(4):
        connections.give_back(lent)
        clock.now_s += IDLE_S_MAX
        assert take(connections).cluster is lent.cluster
    connections.give_back(lent)
    clock.now_s += IDLE_S_MAX + 1
    younger = take(connections)
    assert younger.cluster is not lent.cluster
    # Used all the time, but what it knows is old.
    for _ in range(6):
        connections.give_back(younger)
        clock.now_s += 49
        assert take(connections).cluster is younger.cluster
    connections.give_back(younger)
    clock.now_s += 7
    assert take(connections).cluster is not younger.cluster


def test_no_more_are_kept_than_are_used(connections: Connections) -> None:
    lent = [take(connections) for _ in range(KEPT_MAX + 2)]
    for one in lent:
        connections.give_back(one)
    again = [take(connections) for _ in lent]
    assert len({id(one.cluster) for one in again} & {id(one.cluster) for one in lent}) == KEPT_MAX
    for one in again:
        one.cluster.close()


def test_one_that_waits_for_an_answer_is_ended(connections: Connections) -> None:
    ended = threading.Event()

    def no_answer(_nth: int, _offset: int) -> None:
        ended.wait(PATIENCE_S)
        raise HangUp

    wanted = FetchRequest.FetchTopic(topic="t", partitions=[FetchRequest.FetchPartition(partition=0)])
    with KafkaServer("t", [], fault=no_answer) as server:
        lent = take(connections, port=server.port)
        lent.cluster.refresh(None)
        lent.cluster.start(7, FetchRequest(topics=[wanted]))
        connections.give_back(lent)
        ended.set()
        assert take(connections, port=server.port).cluster is not lent.cluster


def test_what_a_fork_left_belongs_to_the_parent(connections: Connections) -> None:
    kept, lent = take(connections), take(connections)
    connections.give_back(kept)
    connections.forget()
    assert take(connections).cluster is not kept.cluster
    connections.give_back(lent._replace(pid=lent.pid + 1))
    assert take(connections).cluster is not lent.cluster
    lent.cluster.close()


def test_many_threads(connections: Connections) -> None:
    used: set[int] = set()
    doubled = []
    lock = threading.Lock()

    def borrow(_: threading.Event) -> None:
        for _ in range(50):
            lent = take(connections)
            with lock:
                if id(lent.cluster) in used:
                    doubled.append(lent)
                used.add(id(lent.cluster))
            with lock:
                used.discard(id(lent.cluster))
            connections.give_back(lent)

    with concurrently(*[borrow] * 6):
        pass
    assert doubled == []
