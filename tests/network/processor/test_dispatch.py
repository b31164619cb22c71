"""Who gets a request: never one that has a heavy request while another has none, never one that leaves."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from mpbroker.handlers.hot_path.session_table import first_id
from mpbroker.ipc.slots import Request, SlotFlag, SlotKind, kind_of, unpack_request
from tests.support.forms import rounds
from tests.support.processor_rig import MakeRig, Rig, frame, is_closed, parts_answer
from tests.support.served_processor import Served

METADATA, CREATE_TOPICS, INIT_PRODUCER_ID, HEARTBEAT, PRODUCE = 3, 19, 22, 12, 0
END_TXN, LIST_TRANSACTIONS = 26, 66
FETCH, FETCH_VERSION = 1, 11
HANDLERS = 3


class Pool:
    """Handlers that take requests when told so, and announce what is heavy as the real ones do."""

    def __init__(self, handlers: int = HANDLERS) -> None:
        self.rig = Rig(handlers=handlers, places=256)
        self.heavy = self.rig.memory.words("heavy")
        self.taken: dict[int, list[Request]] = {h: [] for h in range(handlers)}

    def send(self, api_key: int, body: bytes = b"") -> None:
        self.rig.connect().sendall(frame(api_key, 0, 1, body))
        self.rig.step()

    def waiting(self) -> dict[int, int]:
        """Requests in each handler's ring, not taken yet."""
        return {h: self.rig.requests[h].waiting() for h in self.taken}

    def take(self, handler: int) -> list[Request]:
        # The announcement comes first: the slots are looked at before the head moves.
        if SlotFlag.HEAVY in {r.flags for r in self.peek(handler)}:
            self.heavy.store(handler, 1)
        new = self.rig.requests_taken(handler)
        self.taken[handler] += new
        return new

    def peek(self, handler: int) -> list[Request]:
        left = self.rig.requests[handler].untaken()
        return [unpack_request(slot) for slot in left if kind_of(slot) == SlotKind.REQUEST]

    def answer(self, handler: int) -> None:
        """The oldest that it took."""
        request = self.taken[handler].pop(0)
        if request.flags & SlotFlag.HEAVY and not any(r.flags & SlotFlag.HEAVY for r in self.taken[handler]):
            self.heavy.store(handler, 0)
        self.rig.answer_kind(request, SlotKind.NOOP, handler)
        self.rig.step()

    def has_heavy(self, handler: int) -> bool:
        return any(r.flags & SlotFlag.HEAVY for r in [*self.taken[handler], *self.peek(handler)])

    def load(self, handler: int) -> int:
        return len(self.taken[handler]) + len(self.peek(handler))


@pytest.fixture(name="pool")
def _pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.rig.close()


@pytest.mark.parametrize(
    ("api_key", "body", "heavy"),
    [
        (PRODUCE, b"", False),
        (PRODUCE, bytes(1 << 18), True),
        (METADATA, b"", False),
        (METADATA, bytes(1 << 18), True),
        (HEARTBEAT, bytes(1 << 18), True),
        (HEARTBEAT, b"", False),
        (INIT_PRODUCER_ID, b"", False),
        (END_TXN, b"", False),
        (LIST_TRANSACTIONS, b"\0", False),
        (CREATE_TOPICS, b"", True),
    ],
)
def test_what_is_heavy(pool: Pool, api_key: int, body: bytes, heavy: bool) -> None:
    pool.send(api_key, body)
    for _ in range(1000):
        pool.rig.step()  # a large frame needs several
        if any(pool.waiting().values()):
            break
    (request,) = [r for h in pool.taken for r in pool.take(h)]
    assert bool(request.flags & SlotFlag.HEAVY) == heavy


def test_light_requests_avoid_who_has_not_even_taken_its_heavy_one(pool: Pool) -> None:
    pool.send(CREATE_TOPICS)
    (busy,) = [h for h, waiting in pool.waiting().items() if waiting]
    for _ in range(40):
        pool.send(METADATA)
    assert pool.waiting()[busy] == 1
    pool.take(busy)
    for _ in range(40):
        pool.send(METADATA)
    assert pool.waiting()[busy] == 0
    pool.answer(busy)
    pool.send(METADATA)
    assert pool.waiting()[busy] == 1


def test_a_heavy_request_goes_where_nothing_waits(pool: Pool) -> None:
    pool.send(METADATA)
    pool.send(METADATA)
    (idle,) = [h for h, waiting in pool.waiting().items() if not waiting]
    pool.send(CREATE_TOPICS)
    assert [r.flags for r in pool.peek(idle)] == [SlotFlag.HEAVY]


def test_what_comes_together_with_a_heavy_request_does_not_wait_behind_it(pool: Pool) -> None:
    clients = [pool.rig.connect() for _ in range(9)]
    for number, client in enumerate(clients):
        client.sendall(frame(CREATE_TOPICS if number == 4 else METADATA, 0, number))
    pool.rig.step()
    (busy,) = [h for h in pool.taken if pool.has_heavy(h)]
    assert [r.correlation for r in pool.peek(busy)] == [4]


def test_one_that_leaves_gets_nothing_and_keeps_what_it_has(pool: Pool) -> None:
    pool.send(METADATA)
    (leaving,) = [h for h, waiting in pool.waiting().items() if waiting]
    pool.rig.turn.leave_handler(leaving)
    for _ in range(20):
        pool.send(METADATA)
    assert pool.waiting()[leaving] == 1
    pool.take(leaving)
    pool.answer(leaving)
    pool.rig.turn.fence_handler(leaving)
    pool.rig.turn.welcome_handler(leaving)
    pool.rig.step()
    pool.send(METADATA)
    assert pool.waiting()[leaving] == 1


def test_a_request_waits_while_only_handlers_that_leave_have_room(pool: Pool) -> None:
    for handler in (1, 2):
        pool.rig.turn.leave_handler(handler)
    pool.rig.turn.fence_handler(0)
    pool.send(METADATA)
    assert set(pool.waiting().values()) == {0}
    pool.rig.turn.welcome_handler(0)
    pool.rig.step()
    assert pool.waiting()[0] == 1


def test_one_that_starts_gets_nothing_before_it_is_ready() -> None:
    """Check that it gets no requests: they would wait, or be told that there are no topics."""
    served = Served(handlers=2)
    clients = [served.connect() for _ in range(8)]
    for client in clients:
        client.sendall(frame(METADATA, 0, 1))
        served.step()
    assert [served.requests[h].waiting() for h in range(2)] == [8, 0]
    served.turn.welcome_handler(1)
    clients.append(served.connect())
    clients[-1].sendall(frame(METADATA, 0, 1))
    served.step()
    assert [served.requests[h].waiting() for h in range(2)] == [8, 1]
    served.close()


class Model(RuleBasedStateMachine):
    """Any order of sending, taking and answering."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    def teardown(self) -> None:
        self.pool.rig.close()

    @rule(heavy=st.sampled_from([False, False, False, True]))
    def send(self, heavy: bool) -> None:
        before = {h: (self.pool.has_heavy(h), self.pool.load(h)) for h in range(HANDLERS)}
        self.pool.send(CREATE_TOPICS if heavy else METADATA)
        (chosen,) = [h for h in range(HANDLERS) if self.pool.load(h) > before[h][1]]
        assert before[chosen] == min(before.values()), "no heavy request first, then the least load"

    @rule(handler=st.integers(0, HANDLERS - 1))
    def take(self, handler: int) -> None:
        self.pool.take(handler)

    @precondition(lambda self: any(self.pool.taken.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.pool.answer(data.draw(st.sampled_from([h for h, taken in self.pool.taken.items() if taken])))


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=rounds(15), stateful_step_count=25, deadline=None)


# ---- fetch sessions ----


def fetch(session: int, epoch: int) -> bytes:
    return frame(FETCH, FETCH_VERSION, 1, struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 0, session, epoch))


def who_gets(pool: Pool, request: bytes) -> int:
    """The handler; it does not take it yet."""
    before = pool.waiting()
    pool.rig.connect().sendall(request)
    pool.rig.step()
    (got,) = (h for h, count in pool.waiting().items() if count > before[h])
    return got


@pytest.mark.parametrize("keeper", range(HANDLERS))
def test_a_fetch_goes_to_the_keeper_of_its_session(pool: Pool, keeper: int) -> None:
    session = first_id(keeper) + 4711
    # However much it has to do, and to end a session too.
    for epoch in (1, 2, 1 << 30, 0, -1):
        assert who_gets(pool, fetch(session, epoch)) == keeper


def test_each_handler_gets_its_share_of_new_sessions(pool: Pool) -> None:
    assert sorted(who_gets(pool, fetch(0, 0)) for _ in range(2 * HANDLERS)) == [0, 0, 1, 1, 2, 2]


def test_a_full_fetch_that_comes_again_goes_to_who_made_its_session(pool: Pool, segment: Path) -> None:
    assert 0 in [who_gets(pool, fetch(0, 0)) for _ in range(HANDLERS)]
    (request,) = pool.take(0)
    parts_answer(pool.rig, request, b"HEAD", segment, [(0, 10)], inode=1)
    pool.rig.step()
    (channel,) = pool.rig.files.opening()
    assert who_gets(pool, fetch(0, 0)) == 1
    pool.rig.files.ask_again(channel)
    pool.rig.step()
    assert [again.flags for again in pool.take(0)] == [SlotFlag.AGAIN]


def test_a_fetch_without_a_session_goes_to_anybody(pool: Pool) -> None:
    """Check that it goes to the handler with the least load, as all other requests do."""
    assert sorted(who_gets(pool, fetch(0, -1)) for _ in range(HANDLERS)) == [0, 1, 2]


def test_a_session_without_a_keeper(pool: Pool) -> None:
    pool.rig.turn.leave_handler(1)
    for session in (first_id(1) + 5, first_id(31) + 5, -5):
        assert sorted(who_gets(pool, fetch(session, 3)) for _ in range(2)) == [0, 2], "the least load"


def test_a_fetch_that_is_cut_short(pool: Pool) -> None:
    """Check that it counts as a fetch without a session: its handler answers with the error."""
    whole = fetch(first_id(2) + 5, 3)
    cut = whole[4:-1]
    got = [who_gets(pool, struct.pack(">i", len(cut)) + cut) for _ in range(HANDLERS)]
    assert sorted(got) == [0, 1, 2]


@pytest.mark.parametrize("taken", [True, False])
def test_a_large_request_that_its_handler_had_begun_is_not_given_to_another(
    make_rig: MakeRig, taken: bool
) -> None:
    """Check that only a request that was not begun is: a begun one may be why the handler hung."""
    rig = make_rig(handlers=2)
    client, bystander = rig.connect(), rig.connect()
    rig.memory.words("heavy").store(1, 1)
    bystander.sendall(frame(METADATA, 1, 2))
    rig.step()
    if taken:
        assert len(rig.requests_taken(0)) == 1
    client.sendall(frame(METADATA, 1, 1, bytes(300_000)))
    while rig.requests[0].waiting() < (1 if taken else 2):
        rig.step(1)
    if taken:
        assert len(rig.requests_taken(0)) == 1
    rig.turn.fence_handler(0)
    rig.memory.words("heavy").store(1, 0)
    rig.step()
    found = sorted(request.correlation for request in rig.requests_taken(1))
    assert found == ([2] if taken else [1, 2])
    assert is_closed(client) == taken
