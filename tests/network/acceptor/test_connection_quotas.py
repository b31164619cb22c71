"""Connection limits against a model that is as plain as can be; the clock is a parameter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpbroker.network.acceptor.connection_quotas import (
    FORGOTTEN_AT_ONCE,
    NO_ADDRESS,
    Admission,
    ConnectionQuotas,
    Limits,
)
from mpbroker.network.acceptor.connection_rate import UNLIMITED, WindowedRate
from tests.support.forms import rounds

CLIENTS, BROKERS, OPERATORS = 0, 1, 2
LISTENERS = (CLIENTS, BROKERS, OPERATORS)
ADDRESSES = [b"\x7f\0\0\1", b"\x0a\0\0\1", bytes(15) + b"\1", NO_ADDRESS]
WINDOW_MS = 1000


class CountingMachine(RuleBasedStateMachine):
    """Connections come and go by three listeners, one of them the brokers' own, and limits change."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[int, bytes]] = []
        self.most = {CLIENTS: UNLIMITED, BROKERS: 4, OPERATORS: 3}
        self.of_broker = 6
        self.quotas = ConnectionQuotas(Limits(self.of_broker), 4, {ADDRESSES[1]: 1})
        for listener in LISTENERS:
            self.quotas.add_listener(listener, Limits(self.most[listener]), inter_broker=listener == BROKERS)

    def model_has_slot(self, listener: int) -> bool:
        of_listener = sum(one == listener for one, _ in self.open)
        if of_listener >= self.most[listener]:
            return False
        return listener == BROKERS or len(self.open) < self.of_broker

    @rule(listener=st.sampled_from(LISTENERS), address=st.sampled_from(ADDRESSES))
    def come(self, listener: int, address: bytes) -> None:
        assert self.quotas.has_slot(listener) == self.model_has_slot(listener)
        if not self.model_has_slot(listener):
            return
        of_address = sum(there == address for _, there in self.open)
        limit = UNLIMITED if address == NO_ADDRESS else 1 if address == ADDRESSES[1] else 4
        admission, _ = self.quotas.admit(listener, address, 0)
        if of_address >= limit:
            assert admission is Admission.TOO_MANY
        else:
            assert admission is Admission.COUNTED
            self.open.append((listener, address))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.open))
        self.open.remove(gone)
        self.quotas.remove(*gone)

    @rule(most=st.integers(0, 8))
    def change_broker(self, most: int) -> None:
        self.of_broker = most
        self.quotas.change_broker(Limits(most))

    @rule(listener=st.sampled_from(LISTENERS), most=st.integers(0, 6))
    def change_listener(self, listener: int, most: int) -> None:
        self.most[listener] = most
        self.quotas.change_listener(listener, Limits(most))

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        assert self.quotas.total == len(self.open)
        for listener in LISTENERS:
            assert self.quotas.by_listener[listener] == sum(one == listener for one, _ in self.open)
        assert dict(self.quotas.by_ip) == {
            address: count
            for address in ADDRESSES[:3]
            if (count := sum(there == address for _, there in self.open))
        }

    @invariant()
    def what_is_too_many_can_be_closed(self) -> None:
        others = sum(listener != BROKERS for listener, _ in self.open)
        assert self.quotas.surplus() == min(max(0, len(self.open) - self.of_broker), others)


TestCounting = CountingMachine.TestCase
TestCounting.settings = settings(max_examples=rounds(150), stateful_step_count=40, deadline=None)


def test_a_single_listener_is_never_protected() -> None:
    quotas = ConnectionQuotas(Limits(1))
    quotas.add_listener(BROKERS, Limits(), inter_broker=True)
    quotas.admit(BROKERS, ADDRESSES[0], 0)
    assert not quotas.has_slot(BROKERS)
    quotas.add_listener(CLIENTS, Limits())
    assert quotas.has_slot(BROKERS)
    quotas.remove_listener(CLIENTS)
    assert not quotas.has_slot(BROKERS)


def test_what_was_never_counted_cannot_be_removed() -> None:
    quotas = ConnectionQuotas(Limits())
    quotas.add_listener(CLIENTS, Limits())
    with pytest.raises(KeyError):
        quotas.remove(CLIENTS, ADDRESSES[0])
    quotas.admit(CLIENTS, ADDRESSES[0], 0)
    with pytest.raises(KeyError):
        quotas.remove(CLIENTS, ADDRESSES[2])


def test_a_listener_that_is_gone_leaves_its_connections_counted() -> None:
    quotas = ConnectionQuotas(Limits())
    quotas.add_listener(CLIENTS, Limits())
    quotas.admit(CLIENTS, ADDRESSES[0], 0)
    quotas.remove_listener(CLIENTS)
    assert quotas.total == 1
    quotas.remove(CLIENTS, ADDRESSES[0])
    assert (quotas.total, dict(quotas.by_ip)) == (0, {})


# ---- rates


def test_the_rate_is_kafkas_for_a_steady_stream() -> None:
    """Check 10 a second for 20 s: the rate over the last 10 to 11 windows is 10."""
    rate = WindowedRate(1000, windows=11, window_ms=WINDOW_MS)
    for tick in range(200):
        rate.record(1, tick * 100)
    assert rate.per_second(19_900) == pytest.approx(10, rel=0.05)


def test_a_burst_is_measured_over_at_least_ten_windows() -> None:
    """Check 22 at once with a bound of 2 a second.

    22 in 10 s are 2.2, a tenth too much for 10 s; the pause is capped to one.
    """
    rate = WindowedRate(2, windows=11, window_ms=WINDOW_MS)
    for _ in range(20):
        rate.record(1, 0)
        assert rate.throttle_ms(0) == 0
    rate.record(1, 0)
    assert rate.throttle_ms(0) == 500
    rate.record(3, 0)
    assert rate.throttle_ms(0) == WINDOW_MS


def test_a_rate_forgets() -> None:
    rate = WindowedRate(1, windows=11, window_ms=WINDOW_MS)
    rate.record(100, 0)
    assert rate.throttle_ms(0) > 0
    assert rate.throttle_ms(10_999) > 0
    assert rate.throttle_ms(11_000) == 0


def limited(broker: int = UNLIMITED, listener: int = UNLIMITED, brokers: int = UNLIMITED) -> ConnectionQuotas:
    quotas = ConnectionQuotas(Limits(per_second=broker))
    quotas.add_listener(CLIENTS, Limits(per_second=listener))
    quotas.add_listener(BROKERS, Limits(per_second=brokers), inter_broker=True)
    return quotas


def test_the_larger_delay_of_broker_and_listener_counts() -> None:
    for quotas in (limited(broker=1), limited(listener=1), limited(broker=1, listener=1)):
        delays = [quotas.delay_ms(CLIENTS, 0) for _ in range(12)]
        assert delays[:10] == [0] * 10
        assert delays[10:] == [1000, 1000]


def test_the_brokers_own_listener_minds_only_its_own_rate() -> None:
    quotas = limited(broker=1, brokers=2)
    assert [quotas.delay_ms(BROKERS, 0) for _ in range(20)] == [0] * 20
    assert quotas.delay_ms(BROKERS, 0) > 0
    assert quotas.delay_ms(CLIENTS, 0) == 0, "the brokers' own do not count for the others"


def test_what_the_rate_of_an_address_refuses_leaves_no_trace() -> None:
    quotas = limited(broker=100, listener=100)
    quotas.change_ip_rates({None: 1})
    admitted = 0
    for _ in range(50):
        quotas.delay_ms(CLIENTS, 0)
        admission, throttle_ms = quotas.admit(CLIENTS, ADDRESSES[0], 0)
        admitted += admission is Admission.COUNTED
        assert (admission is Admission.THROTTLED) == (throttle_ms > 0)
        assert throttle_ms <= WINDOW_MS
    assert admitted == 10
    assert quotas.total == admitted
    of_broker, of_listeners = quotas.rates(0)
    assert of_broker == of_listeners[CLIENTS] == pytest.approx(1.0), "10 in 10 s, not 50"


def test_what_an_address_sends_to_the_brokers_own_listener_changes_no_rate_of_the_others() -> None:
    """Check that what was never added to the broker's rate is not subtracted from it either."""
    quotas = limited(broker=100)
    quotas.change_ip_rates({None: 1})
    for _ in range(20):
        quotas.delay_ms(CLIENTS, 0)
    before = quotas.rates(0)[0]
    admissions = []
    for _ in range(50):
        quotas.delay_ms(BROKERS, 0)
        admissions.append(quotas.admit(BROKERS, ADDRESSES[0], 0)[0])
    assert admissions.count(Admission.THROTTLED) == 40
    assert quotas.rates(0)[0] == before > 0


def test_rates_of_addresses_change_while_running() -> None:
    quotas = limited()
    quotas.change_ip_rates({None: 1})
    quotas.change_ip_rates({ADDRESSES[1]: 3})

    def admitted(address: bytes) -> int:
        verdicts = [quotas.admit(CLIENTS, address, 0)[0] for _ in range(50)]
        return sum(verdict is Admission.COUNTED for verdict in verdicts)

    assert (admitted(ADDRESSES[0]), admitted(ADDRESSES[1]), admitted(NO_ADDRESS)) == (10, 30, 50)
    quotas.change_ip_rates({ADDRESSES[1]: 4})
    assert admitted(ADDRESSES[1]) == 10
    quotas.change_ip_rates({ADDRESSES[1]: None})
    assert admitted(ADDRESSES[1]) == 0, "the default's again"
    quotas.change_ip_rates({None: None})
    assert admitted(ADDRESSES[1]) == 50
    quotas.change_ip_rates({None: 1, ADDRESSES[1]: 1})
    quotas.change_ip_rates({ADDRESSES[0]: 2}, replace=True)
    assert (admitted(ADDRESSES[0]), admitted(ADDRESSES[1])) == (10, 50), "who is not named has no rate"


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 999, 1000, 9_900, 10_000, 10_999, 11_000, 60_000]),
            st.sampled_from(ADDRESSES[:3]),
            st.sampled_from([None, None, None, None, 0.1, 0.3, 1.0, float(UNLIMITED)]),
        ),
        min_size=10,
        max_size=120,
    )
)
def test_no_rate_of_an_address_is_forgotten_while_it_counts(
    steps: list[tuple[int, bytes, float | None]],
) -> None:
    """Compare with rates that are never forgotten."""
    quotas, kept, now_ms, default = limited(), {}, 1e6, 0.1
    quotas.change_ip_rates({None: default, ADDRESSES[1]: 0.2})
    for passed_ms, address, other in steps:
        now_ms += passed_ms
        if other is not None:
            default = other
            quotas.change_ip_rates({None: default})
        bound = 0.2 if address == ADDRESSES[1] else default
        expected = 0
        if bound < UNLIMITED:
            model = kept.setdefault(address, WindowedRate(bound, 11, WINDOW_MS))
            model.bound = bound
            model.record(1.0, now_ms)
            expected = model.throttle_ms(now_ms)
            if expected:
                model.record(-1.0, now_ms)
        quotas.delay_ms(CLIENTS, now_ms)
        assert quotas.admit(CLIENTS, address, now_ms)[1] == expected


def test_addresses_that_came_once_are_forgotten_a_few_at_a_time() -> None:
    """Check that no connection pays for many: one IPv6 network has more addresses than can be remembered."""
    quotas = limited()
    quotas.change_ip_rates({None: 100})
    for number in range(1, 20_001):
        held = len(quotas._ip_rates)
        quotas.admit(CLIENTS, b"\x20\x01" + number.to_bytes(14, "big"), number * 10.0)
        assert len(quotas._ip_rates) > held - FORGOTTEN_AT_ONCE
        assert len(quotas._ip_rates) <= 1_101, "those of 11 s, at 100 a second"
    # After a storm, too.
    for number in range(20_001, 25_000):
        quotas.admit(CLIENTS, b"\x20\x01" + number.to_bytes(14, "big"), 200_000.0)
    for number in range(3_200):
        quotas.admit(CLIENTS, ADDRESSES[number % 2], 300_000.0 + number * 1000)
    assert len(quotas._ip_rates) == 2


def test_a_bound_of_zero_delays_and_does_not_divide_by_it() -> None:
    assert limited(broker=0).delay_ms(CLIENTS, 0) == WINDOW_MS
