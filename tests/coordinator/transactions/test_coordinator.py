"""Transactions against a model: producers of one id, in each other's way, and a log that does as it likes.

What must hold whatever happens: a record follows only where its state may; markers are of one kind, and are
those of the decision in the log; a commit that was answered is one; no epoch goes back; a producer that was
fenced adds and ends nothing; no marker overtakes what may be appended; when all is quiet every transaction is
over and every request answered.

Then what happens as time goes by, and when an action fails by a fault of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpbroker.coordinator.transactions.records import ALLOWED_FROM, TransactionState, TransactionValue
from mpbroker.coordinator.transactions.steps import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.ipc.calls import CheckedTransaction
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import EndTxnResponse, InitProducerIdResponse
from tests.support.forms import rounds
from tests.support.transaction_rig import NOBODY, V1, V2, Producer, TransactionRig, code_of, opened

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
EXPECTED = {
    ErrorCode.NONE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.NETWORK_EXCEPTION,
}
T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


@dataclass
class Request:
    """`fenced_below`, `ended_below`: what had been said when it was made."""

    kind: str
    producer: Producer
    fenced_below: Producer
    ended_below: Producer
    commit: bool = False
    version: int = V1


class CheckedRig(TransactionRig):
    """Looks at each marker when it is sent and when it is durable."""

    def __init__(self, *how: Any, **settings: int) -> None:
        self.open_holds: set[int] = set()
        super().__init__(*how, **settings)

    def send(self, marker: Any, partitions: Any, then: Any) -> None:
        value = self._decided(marker, partitions)
        opened = [one for one in self.records_of() if one and one.state is TransactionState.ONGOING]
        bumped = value[:2] > opened[-1][:2] if opened else True
        assert bumped or not self.open_holds, "a marker overtakes a batch"
        super().send(marker, partitions, then)

    def write_markers(self) -> bool:
        for marker, partitions, _ in self.sending:
            self._decided(marker, partitions)
        return super().write_markers()

    def _decided(self, marker: Any, partitions: Any) -> TransactionValue:
        value = self.records_of()[-1]
        assert value is not None
        assert value.state.is_preparing
        assert marker[:2] == (value.producer_id, value.producer_epoch)
        assert marker.is_commit == value.state.is_commit
        assert partitions == value.partitions
        return value


class TransactionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = CheckedRig()
        self.requests: dict[int, Request] = {}
        self.known: list[Producer] = []
        self.fenced_below: Producer = NOBODY
        self.ended_below: Producer = NOBODY
        self.looked_at = 0
        self.last: TransactionValue | None = None

    # --- what clients do

    @initialize(exhausted=st.sampled_from([0, 0, EXHAUSTED_FROM - 1, EXHAUSTED_FROM]))
    def first(self, exhausted: int) -> None:
        producer = self.rig.init()
        if exhausted:
            self.rig.write_record(self.rig.value()._replace(producer_epoch=exhausted))
            producer = producer[0], exhausted
        self.known.append(producer)
        self.fenced_below = producer

    def ask(self, waiter: int, kind: str, producer: Producer, **how: Any) -> None:
        self.requests[waiter] = Request(kind, producer, self.fenced_below, self.ended_below, **how)

    @rule(data=st.data(), knows_itself=st.booleans())
    def init(self, data: st.DataObject, knows_itself: bool) -> None:
        producer = self.one(data) if knows_itself else NOBODY
        self.ask(self.rig.ask_init(producer), "init", producer)

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def add(self, data: st.DataObject, partition: tuple[str, int]) -> None:
        producer = self.one(data)
        self.ask(self.rig.ask_add(producer, partition), "add", producer)

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), adds=st.booleans())
    def check(self, data: st.DataObject, partition: tuple[str, int], adds: bool) -> None:
        producer = self.one(data)
        self.ask(self.rig.ask_check(producer, partition, adds=adds), "check", producer)
        self.hear()

    @rule(data=st.data(), commit=st.booleans(), version=st.sampled_from([V1, V2, V2]))
    def end(self, data: st.DataObject, commit: bool, version: int) -> None:
        producer = self.one(data)
        waiter = self.rig.ask_end(producer, commit, version=version)
        self.ask(waiter, "end", producer, commit=commit, version=version)

    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        if self.requests:
            self.rig.coordinator.abandon(data.draw(st.sampled_from(sorted(self.requests))))

    @rule(data=st.data())
    def end_hold(self, data: st.DataObject) -> None:
        if self.rig.open_holds:
            hold = data.draw(st.sampled_from(sorted(self.rig.open_holds)))
            self.rig.open_holds.remove(hold)
            self.rig.coordinator.end_txn.holds.end(hold)
            if not self.rig.open_holds:
                self.rig.coordinator.end_txn.holds.earlier_ended()

    def one(self, data: st.DataObject) -> Producer:
        """Draw a producer, in three of five cases the newest."""
        at = data.draw(st.sampled_from([-1, -1, -1, -2, -3]))
        return self.known[max(at, -len(self.known))]

    # --- what the log does

    @rule()
    def append(self) -> None:
        self.rig.append_round()

    @rule()
    def refuse(self) -> None:
        self.rig.append_round(REFUSED)

    @rule()
    def write_markers(self) -> None:
        self.rig.write_markers()

    @rule()
    def settle(self) -> None:
        self.rig.settle()

    @rule(has_heard=st.booleans())
    def log_process_dies(self, has_heard: bool) -> None:
        self.lose(has_heard)
        self.rig.reload()

    @rule(has_heard=st.booleans())
    def coordinator_dies(self, has_heard: bool) -> None:
        """The requests that it had get no answer."""
        self.lose(has_heard)
        self.hear()
        self.requests.clear()
        holds = self.rig.open_holds
        self.rig = self.rig.restarted(bool(holds))
        # Numbers of an earlier coordinator mean nothing to this one.
        self.rig.open_holds.update(-abs(hold) for hold in holds)

    def lose(self, has_heard: bool) -> None:
        """Lose the outcome of writes under way: they may be in the log."""
        if not has_heard:
            for batch in self.rig.queue.next_round():
                self.rig.store(batch)

    @rule(delay_ms=st.sampled_from([10, 60, 120, 30_000, 80_000]))
    def later(self, delay_ms: int) -> None:
        self.rig.later(delay_ms)

    @rule(has_ids=st.booleans())
    def ids_come_and_go(self, has_ids: bool) -> None:
        self.rig.has_ids = has_ids

    # --- what must hold

    @invariant()
    def records_follow_where_they_may(self) -> None:
        records = self.rig.records_of()
        for value in records[self.looked_at :]:
            assert value is not None
            before = self.last
            if before is not None:
                assert before.state in ALLOWED_FROM[value.state]
                assert value[:2] >= before[:2]
                if before.state.is_preparing:
                    assert value.state.is_commit == before.state.is_commit
                elif value.state.is_preparing:
                    assert value.partitions == (before.partitions if not before.state.is_over else set())
            self.last = value
        self.looked_at = len(records)

    @invariant()
    def hear(self) -> None:
        self.records_follow_where_they_may()
        for waiter in [waiter for waiter in self.requests if waiter in self.rig.answers]:
            request, answer = self.requests.pop(waiter), self.rig.answers[waiter]
            if request.kind == "add":
                error = self.rig.added(waiter)
            elif isinstance(answer, CheckedTransaction):
                error = error_code(answer.errors[0])
                if answer.hold:
                    self.rig.open_holds.add(answer.hold)
            else:
                error = code_of(answer)
            assert error in EXPECTED, error
            if not error:
                self.heard(request, answer)

    def heard(self, request: Request, answer: Any) -> None:
        """Take note of an answer that is a success."""
        if request.kind == "init":
            self.began(request, answer)
        elif request.kind == "end":
            self.ended(request, answer)
        else:
            assert request.producer >= max(request.fenced_below, request.ended_below)

    def began(self, request: Request, answer: InitProducerIdResponse) -> None:
        producer = answer.producer_id, answer.producer_epoch
        assert answer.producer_epoch < LAST_EPOCH
        if request.producer == NOBODY:
            assert producer > max(request.fenced_below, request.ended_below)
        else:
            assert producer > request.producer
        self.fenced_below = max(self.fenced_below, producer)
        self.know(producer)

    def ended(self, request: Request, answer: EndTxnResponse) -> None:
        assert request.producer >= request.fenced_below
        # One of TV1 that finds nothing open is taken for a retry, also by who has got its id from one of TV2.
        is_open = (TransactionState.EMPTY, TransactionState.ONGOING)
        decisions = [
            (value.producer_id, value.producer_epoch)
            for value in self.rig.records_of()
            if value is not None and value.state not in is_open and value.state.is_commit == request.commit
        ]
        producer_id, epoch = request.producer
        # Of TV1 it is bumped, too, where handlers may have been told that they need not ask.
        possible = {epoch + 1} if request.version == V2 else {epoch, epoch + 1}
        assert any((producer_id, one) in decisions for one in possible)
        if request.version == V2:
            producer = answer.producer_id, answer.producer_epoch
            assert producer > request.producer
            assert answer.producer_epoch < LAST_EPOCH
            self.ended_below = max(self.ended_below, producer)
            self.know(producer)

    def know(self, producer: Producer) -> None:
        if producer not in self.known:
            self.known.append(producer)
            self.known.sort()

    @precondition(lambda self: self.known)
    @rule()
    def all_is_quiet(self) -> None:
        self.rig.has_ids = True
        self.rig.coordinator.end_txn.holds.earlier_ended()
        for _ in range(5):
            self.rig.settle()
            self.hear()
            while self.rig.open_holds:
                self.rig.coordinator.end_txn.holds.end(self.rig.open_holds.pop())
            self.rig.later(120)
        self.rig.settle()
        self.hear()
        assert not self.requests, "somebody is not answered"
        transaction = self.rig.coordinator.state.find("x")
        assert transaction is not None
        assert not transaction.is_busy
        assert not transaction.pending_steps
        assert transaction.value is not None
        assert transaction.value.state.is_over or transaction.value.state is TransactionState.ONGOING
        assert not self.rig.open_holds
        self.know(self.rig.init())
        self.fenced_below = self.known[-1]
        assert self.rig.value().state is TransactionState.EMPTY
        self.hear()


TestTransactionModel = TransactionModel.TestCase
TestTransactionModel.settings = settings(max_examples=rounds(200), stateful_step_count=40, deadline=None)


def test_a_transaction_that_is_open_for_too_long_is_aborted(rig: TransactionRig) -> None:
    producer = opened(rig)
    rig.later(55_000)
    rig.settle()
    assert rig.state == "Ongoing"
    rig.later(15_000)
    rig.settle()
    assert rig.state == "CompleteAbort"
    ((marker, _),) = rig.markers
    assert (marker.producer_epoch, marker.is_commit) == (1, False)
    assert rig.end(producer) is ErrorCode.PRODUCER_FENCED


def test_an_abort_that_is_refused_is_tried_again(rig: TransactionRig) -> None:
    opened(rig)
    rig.later(75_000)
    rig.append_round(REFUSED)
    assert rig.state == "Ongoing"
    rig.later(10_000)
    rig.settle()
    assert (rig.state, rig.value().producer_epoch) == ("CompleteAbort", 1)


def test_an_id_that_nobody_uses_is_forgotten(rig: TransactionRig) -> None:
    unused, used = rig.init(), rig.init(name="y")
    rig.later(WEEK_MS - 2 * HOUR_MS)
    assert rig.add(used, T0, name="y") is NONE
    rig.later(2 * HOUR_MS)
    # Its tombstone is on its way: whoever asks meanwhile waits for it.
    adding, beginning = rig.ask_add(unused, T0), rig.ask_init()
    assert adding not in rig.answers
    rig.settle()
    assert rig.added(adding) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.began(beginning) == (1002, 0)
    assert rig.records_of()[1] is None
    assert rig.coordinator.state.find("y") is not None


def test_an_id_that_is_being_used_is_not_forgotten(
    rig: TransactionRig, caplog: pytest.LogCaptureFixture
) -> None:
    producer = rig.init()
    rig.later(WEEK_MS - 1)
    adding = rig.ask_add(producer, T0)
    rig.later(1)
    rig.settle()
    assert rig.added(adding) is NONE
    assert not caplog.records


def test_an_id_whose_tombstone_is_refused_is_not_forgotten(rig: TransactionRig) -> None:
    producer = rig.init()
    rig.later(WEEK_MS)
    waiting = rig.ask_add(producer, T0)
    rig.append_round(REFUSED)
    rig.settle()
    assert rig.added(waiting) is NONE


def test_a_fault_ends_the_waits_of_that_id_alone(rig: TransactionRig) -> None:
    producer = opened(rig)
    rig.ask_end(producer)
    waiting = rig.ask_add(producer, T1)
    rig.coordinator.refuse_waiters("x", 77)
    assert code_of(rig.answers[77]) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting not in rig.answers
    rig.coordinator.refuse_waiters("x")
    assert rig.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    rig.coordinator.refuse_waiters("nobody")


def test_a_timer_that_goes_wrong_is_no_other_ids_affair(
    rig: TransactionRig, caplog: pytest.LogCaptureFixture
) -> None:
    producer = opened(rig)
    rig.ask_end(producer)
    waiting = rig.ask_add(producer, T1)

    def fails() -> None:
        raise RuntimeError("a fault")

    rig.coordinator.timers.set(("wait", "x", "?"), rig.now_ms, fails)
    rig.coordinator.timers.set("all", rig.now_ms, fails)
    rig.coordinator.tick()
    assert rig.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("RuntimeError: a fault") == 2
