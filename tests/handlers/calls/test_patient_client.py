"""Calls that have a deadline or wait for a successor: each ends once, and those that wait are counted."""

from __future__ import annotations

import itertools

import pytest

from mpbroker.handlers.calls.patient_client import SUCCESSOR_MS, PatientClient
from mpbroker.ipc.calls import Abandon, Acknowledged, Failed, FindToClean, Message, encode
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.rpc import RpcClient
from mpbroker.ipc.slots import SlotKind, pack_call, unpack_call
from mpbroker.ipc.topology import COORDINATOR, SharedMemory, handler
from mpbroker.protocol.errors import ErrorCode
from shm.clock import monotonic_ms

CLIENT = handler(0)


class Asking:
    """A client, and a coordinator that answers when told to."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.sent: list[bytes] = []
        self.counters = memory.counters(CLIENT)
        theirs = memory.arena(COORDINATOR)
        self.theirs = Lender(theirs, COORDINATOR)
        lender = Lender(memory.arena(CLIENT), CLIENT)
        rpc = RpcClient(lender, COORDINATOR, theirs, self.sent.append, itertools.count(1))
        self.client = PatientClient(rpc, self.sent.clear, counters=self.counters, successor_ms=SUCCESSOR_MS)
        self.heard: list[Message] = []

    def answer(self, number: int) -> None:
        data = encode(Acknowledged())
        block, generation = self.theirs.lend(data, CLIENT)
        slot = pack_call(SlotKind.ANSWER, COORDINATOR, number, block, generation, len(data))
        self.client.answered(unpack_call(slot))

    @property
    def delayed(self) -> int:
        return self.counters.get(Counter.COUNT_CALLS_DELAYED)

    def codes(self) -> list[int]:
        return [one.error for one in self.heard if isinstance(one, Failed)]


@pytest.fixture(name="asking")
def _asking(memory: SharedMemory) -> Asking:
    return Asking(memory)


def test_who_waits_long_enough_is_told_once_and_counts_no_more(asking: Asking) -> None:
    number = asking.client.call(FindToClean(), asking.heard.append, deadline_ms=monotonic_ms() + 100)
    assert asking.delayed == 1
    assert asking.client.next_deadline_ms() is not None
    asking.client.expire(monotonic_ms() + 200)
    assert (asking.codes(), asking.delayed, len(asking.client)) == ([ErrorCode.REQUEST_TIMED_OUT], 0, 1)
    asking.answer(number)
    assert (len(asking.heard), asking.delayed, len(asking.client)) == (1, 0, 0)


def test_an_answer_in_time_ends_the_wait(asking: Asking) -> None:
    number = asking.client.call(FindToClean(), asking.heard.append, deadline_ms=monotonic_ms() + 100)
    asking.answer(number)
    asking.client.expire(monotonic_ms() + 200)
    assert (asking.heard, asking.delayed, asking.client.next_deadline_ms()) == ([Acknowledged()], 0, None)


def test_a_call_without_a_deadline_waits_for_an_answer_alone(asking: Asking) -> None:
    number = asking.client.call(FindToClean(), asking.heard.append)
    asking.client.expire(1 << 61)
    assert (asking.heard, asking.delayed) == ([], 1)
    asking.answer(number)
    assert (asking.heard, asking.delayed) == ([Acknowledged()], 0)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_death_ends_all_that_was_asked(asking: Asking, is_late: bool) -> None:
    asking.client.call(FindToClean(), asking.heard.append)
    asking.client.call(FindToClean(), asking.heard.append, deadline_ms=monotonic_ms() + 100)
    if is_late:
        asking.client.expire(monotonic_ms() + 200)
    asking.client.server_died()
    last = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR]
    assert asking.codes() == (last if is_late else [ErrorCode.NOT_COORDINATOR] * 2)
    assert (asking.sent, asking.delayed, len(asking.client)) == ([], 0, 0)


def test_calls_wait_for_the_successor_in_their_order(asking: Asking) -> None:
    asking.client.server_died()
    numbers = [asking.client.call(FindToClean(), asking.heard.append) for _ in range(3)]
    assert (asking.sent, asking.delayed) == ([], 3)
    asking.client.abandon(numbers[1])
    assert asking.delayed == 2
    asking.client.welcome()
    assert [unpack_call(slot).request for slot in asking.sent] == [numbers[0], numbers[2]]
    asking.answer(numbers[2])
    assert (asking.heard, asking.delayed) == ([Acknowledged()], 1)


def test_a_successor_that_does_not_come_is_not_waited_for_any_longer(asking: Asking) -> None:
    asking.client.server_died()
    asking.client.call(FindToClean(), asking.heard.append)
    asking.client.expire(monotonic_ms() + SUCCESSOR_MS)
    assert (asking.codes(), asking.delayed) == ([ErrorCode.COORDINATOR_NOT_AVAILABLE], 0)
    asking.client.arrived()
    assert asking.sent == []


def test_the_server_hears_that_nobody_waits(asking: Asking) -> None:
    number = asking.client.call(FindToClean(), asking.heard.append)
    asking.client.abandon(number)
    call = unpack_call(asking.sent[1])
    assert bytes(asking.memory.arena(CLIENT).view(call.block, call.length)) == encode(Abandon(number))
