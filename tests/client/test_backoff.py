"""Waits grow, and stay within their bound."""

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.client.backoff import ExponentialBackoff, monotonic_ms
from tests.client.fakes import middle


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 50), st.floats(0.8, 1.2))
def test_a_rest_is_never_longer_than_allowed(initial: int, most: int, attempts: int, factor: float) -> None:
    backoff = ExponentialBackoff(initial, most, lambda _low, _high: factor)
    assert 0 <= backoff.after(attempts) <= most
    steady = ExponentialBackoff(initial, most, middle)
    assert steady.after(attempts) <= steady.after(attempts + 1)


def test_it_doubles_up_to_the_most() -> None:
    backoff = ExponentialBackoff(50, 1_000, middle)
    assert [backoff.after(attempts) for attempts in range(6)] == [50, 100, 200, 400, 800, 1_000]


def test_the_clock_does_not_go_back() -> None:
    assert monotonic_ms() <= monotonic_ms()
