"""Calls between two processes: each is answered once, and no block stays lent, whatever becomes of either."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from mpbroker.ipc.calls import Acknowledged, Failed, FindToClean, Message, ProducerIds, encode
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.rpc import NO_ANSWER, RpcClient, RpcServer
from mpbroker.ipc.slots import SlotKind, kind_of, pack_call, unpack_call, unpack_return
from mpbroker.ipc.topology import COORDINATOR, handler
from shm.arena import Arena, ArenaFull
from shm.region import sparse

MIB = 1 << 20
CLIENT, SERVER = handler(0), COORDINATOR


class Pair:
    """A client and a server that only send when told to."""

    def __init__(self) -> None:
        self.arenas = {role: Arena(sparse(4 * MIB), MIB, 256 << 10) for role in (CLIENT, SERVER)}
        self.of_client = Lender(self.arenas[CLIENT], CLIENT)
        self.of_server = Lender(self.arenas[SERVER], SERVER)
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.client = RpcClient(
            self.of_client, SERVER, self.arenas[SERVER], self.to_server.append, itertools.count(41)
        )
        self.server = RpcServer(self.of_server, self.arenas.__getitem__, self._push)
        self.heard: list[Message] = []

    def _push(self, client: int, slot: bytes) -> None:
        assert client == CLIENT
        self.to_client.append(slot)

    def call(self, message: Message) -> int:
        return self.client.call(message, self.heard.append, connection=9)

    def serve(self, answer: Message) -> Message | None:
        """The next call is answered so; its message."""
        call = unpack_call(self.to_server.popleft())
        assert (call.kind, call.owner) == (SlotKind.CALL, CLIENT)
        message = self.server.message_of(call)
        self.server.answer(call.owner, call.request, answer, call.connection)
        return message

    def hear(self) -> None:
        """The client takes the next answer, the server the block that comes back."""
        answer = unpack_call(self.to_client.popleft())
        assert answer.kind == SlotKind.ANSWER
        self.client.answered(answer)
        while self.to_server and kind_of(self.to_server[-1]) == SlotKind.RETURN:
            returned = unpack_return(self.to_server.pop())
            self.of_server.end(returned.block, returned.generation)

    def lent(self) -> int:
        return self.of_client.in_use_bytes + self.of_server.in_use_bytes


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_block_comes_back_by_a_way_of_its_own(pair: Pair) -> None:
    quietly: deque[bytes] = deque()
    client = RpcClient(
        pair.of_client,
        SERVER,
        pair.arenas[SERVER],
        pair.to_server.append,
        itertools.count(41),
        quietly.append,
    )
    client.call(FindToClean(), pair.heard.append)
    pair.serve(Acknowledged())
    client.answered(unpack_call(pair.to_client.popleft()))
    assert (pair.heard, len(pair.to_server)) == ([Acknowledged()], 0)
    returned = unpack_return(quietly.pop())
    pair.of_server.end(returned.block, returned.generation)
    assert pair.lent() == 0


def test_a_call_that_native_code_has_sent_is_adopted(pair: Pair) -> None:
    size = len(encode(FindToClean()))
    block = pair.arenas[CLIENT].allocate(size)
    pair.arenas[CLIENT].view(block, size)[:] = encode(FindToClean())
    generation = pair.arenas[CLIENT].lend(block, SERVER)
    pair.to_server.append(pack_call(SlotKind.CALL, CLIENT, 7, block, generation, size))
    pair.client.adopt(7, block, generation, size, pair.heard.append)
    pair.serve(Acknowledged())
    pair.hear()
    assert (pair.heard, pair.lent()) == ([Acknowledged()], 0)


def test_a_call_is_answered_and_leaves_nothing(pair: Pair) -> None:
    assert pair.call(FindToClean()) == 41
    assert len(pair.client) == 1
    assert unpack_call(pair.to_server[0]).connection == 9
    assert pair.serve(ProducerIds(5, 10)) == FindToClean()
    pair.hear()
    assert pair.heard == [ProducerIds(5, 10)]
    assert (len(pair.client), pair.lent()) == (0, 0)


def test_answers_come_in_any_order(pair: Pair) -> None:
    heard: list[tuple[int, Message]] = []
    for number in range(3):
        pair.client.call(FindToClean(), lambda answer, number=number: heard.append((number, answer)))  # type: ignore[misc]
    for first in range(3):
        pair.serve(ProducerIds(first, 1))
    pair.to_client.rotate(1)
    for _ in range(3):
        pair.hear()
    assert heard == [(2, ProducerIds(2, 1)), (0, ProducerIds(0, 1)), (1, ProducerIds(1, 1))]
    assert pair.lent() == 0


def test_a_call_for_which_there_is_no_memory_was_not_sent(pair: Pair) -> None:
    whole = pair.of_client.lend(bytes(MIB), SERVER)
    with pytest.raises(ArenaFull):
        pair.call(FindToClean())
    assert (list(pair.to_server), len(pair.client)) == ([], 0)
    pair.of_client.end(*whole)
    pair.call(FindToClean())
    pair.serve(Acknowledged())
    pair.hear()
    assert pair.heard == [Acknowledged()]


def test_an_answer_for_which_there_is_no_memory_ends_the_call(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.of_server.lend(bytes(MIB), CLIENT)
    pair.call(FindToClean())
    call = unpack_call(pair.to_server.popleft())
    assert not pair.server.answer(CLIENT, call.request, Acknowledged())
    pair.hear()
    (failed,) = pair.heard
    assert isinstance(failed, Failed)
    assert (failed.error, failed.message) == (NO_ANSWER, "the coordinator's answer found no memory")
    assert "no memory for an answer to handler" in caplog.text
    assert pair.of_client.in_use_bytes == 0


def test_a_stale_answer_ends_the_call(pair: Pair) -> None:
    pair.call(FindToClean())
    pair.serve(Acknowledged())
    answer = unpack_call(pair.to_client[0])
    pair.of_server.end(answer.block, answer.generation)
    pair.hear()
    assert [type(one) for one in pair.heard] == [Failed]
    assert pair.lent() == 0


def test_a_stale_call_fails(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A call that nobody answers would keep its request, and what waits behind it, for ever."""
    pair.call(FindToClean())
    call = unpack_call(pair.to_server[0])
    pair.of_client.end(call.block, call.generation)
    assert pair.server.message_of(call) is None
    assert "names a stale block" in caplog.text
    pair.hear()
    ((failed,),) = (pair.heard,)
    assert isinstance(failed, Failed)
    assert (failed.error, failed.message) == (NO_ANSWER, "the call's block was stale")


def test_an_answer_to_what_was_not_asked_gives_its_block_back(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    data = encode(Acknowledged())
    block, generation = pair.of_server.lend(data, CLIENT)
    pair.to_client.append(pack_call(SlotKind.ANSWER, SERVER, 7, block, generation, len(data)))
    pair.hear()
    assert (pair.heard, pair.lent()) == ([], 0)
    assert "answered unknown call 7" in caplog.text


def test_a_dead_server_answers_nobody_and_keeps_no_block(pair: Pair) -> None:
    order: list[int] = []
    for number in range(3):
        pair.client.call(FindToClean(), lambda _answer, number=number: order.append(number))  # type: ignore[misc]
    for then in pair.client.server_died():
        then(Failed(16, "died"))
    assert order == [0, 1, 2]
    assert (len(pair.client), pair.of_client.in_use_bytes) == (0, 0)


def test_a_number_can_be_had_before_its_call(pair: Pair) -> None:
    number = pair.client.new_number()
    assert pair.client.call(FindToClean(), pair.heard.append, number=number) == number
    assert pair.call(FindToClean()) != number
    pair.serve(Acknowledged())
    pair.hear()
    assert pair.heard == [Acknowledged()]
