"""How a processor takes new connections and lets closed ones go, and when Python has to know of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mpbroker.ipc import topology
from mpbroker.network.processor import turn
from tests.support.polling import is_readable
from tests.support.processor_rig import is_closed
from tests.support.served_processor import Served


def open_in(served: Served) -> int:
    """Return how many connections the ledger knows that the processor serves."""
    _, taken, found = served.processor.ledger.snapshot()
    assert taken == served.processor.ledger.handed, "all were taken"
    return len(found)


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Iterator[Served]:
    caplog.set_level(logging.INFO, "mpbroker")
    served = Served()
    yield served
    served.close()


def test_python_sees_the_first_connection_of_a_listener_only(served: Served) -> None:
    served.hand()
    assert served.turn.turn(0) == turn.CONNECTIONS
    served.processor._take_connections()
    assert open_in(served) == 1
    served.hand()
    assert served.turn.turn(0) == 0
    assert open_in(served) == served.turn.connections == 2
    served.hand(1)
    assert served.turn.turn(0) == turn.CONNECTIONS
    served.processor._take_connections()
    assert open_in(served) == 3


def test_what_waits_for_python_is_taken_first_and_the_rest_behind_it(served: Served) -> None:
    served.hand()
    served.processor._work(0)
    for listener in (0, 1, 0):
        served.hand(listener)
    assert served.turn.turn(0) == turn.CONNECTIONS
    assert served.turn.connections == 2
    assert served.turn.turn(0) & turn.CONNECTIONS, "it still waits"
    assert served.turn.connections == 2, "nothing overtakes it"
    served.processor._take_connections()
    assert open_in(served) == 4
    assert served.turn.handed() is None


def test_a_close_that_nobody_logs_needs_no_python(served: Served) -> None:
    served.hand()
    served.processor._work(0)
    client = served.hand()
    served.turn.turn(0)
    assert open_in(served) == 2
    served.processor.ledger.wait(0, True)
    client.close()
    bell = served.memory.doorbell(topology.ACCEPTOR)
    bell.arm()
    for _ in range(2):
        assert served.turn.turn(0) == 0
    assert open_in(served) == served.turn.connections == 1
    assert is_readable(bell.fd), "an acceptor waits for a slot"
    served.processor.ledger.wait(0, False)


def test_clients_can_turn_the_lines_on_while_it_runs(served: Served) -> None:
    served.hand()
    served.processor._work(0)
    client = served.hand()
    served.turn.turn(0)
    served.memory.words("log_levels").store(0, logging.DEBUG)
    client.close()
    assert [served.turn.turn(0) for _ in range(2)].count(turn.CLOSED) == 2
    assert len(served.turn.closed()) == 1


def test_descriptors_that_are_all_taken_are_pythons(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.hand()
    served.processor.connections_max = 2
    served.processor._work(0)
    kept, refused = served.hand(), served.hand()
    served.processor._work(0)
    assert is_closed(refused)
    assert not is_closed(kept)
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert open_in(served) == 2


def test_a_removed_listener_is_asked_about(served: Served) -> None:
    served.hand()
    served.processor._work(0)
    served.processor.removed_listeners.add(0)
    served.turn.ask_about(0)
    client = served.hand()
    assert served.turn.turn(0) == turn.CONNECTIONS
    served.processor._take_connections()
    assert is_closed(client)
    assert open_in(served) == 1
