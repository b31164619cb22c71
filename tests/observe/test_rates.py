"""Rates and distributions between two looks."""

from __future__ import annotations

from mpbroker.ipc.meters import TopicMeter
from mpbroker.metrics.snapshot import NS, Snapshot
from mpbroker.observe.rates import per_second, rate, since
from tests.support.snapshots import counts, spread


def messages(found: Snapshot) -> int:
    return found.all_topics[TopicMeter.MESSAGES_IN]


def of_messages(seconds: float, number: int) -> Snapshot:
    meters = [0] * TopicMeter.TOPIC_METERS
    meters[TopicMeter.MESSAGES_IN] = number
    return counts(seconds, all_topics=meters)


def test_a_rate_is_never_negative_and_needs_time() -> None:
    assert per_second(30, 10, 2 * NS) == 10
    assert per_second(10, 30, 2 * NS) == 0
    assert per_second(30, 10, 0) is None


def test_a_rate_is_that_between_two_snapshots() -> None:
    before, now = of_messages(1, 10), of_messages(5, 50)
    assert rate(now, before, messages) == 10
    assert rate(now, None, messages) is None
    assert rate(None, before, messages) is None
    assert rate(now, now, messages) is None


def test_what_has_come_to_a_histogram_is_never_negative() -> None:
    """Words of a histogram are read one by one, so the later look may have an older one."""
    found = since(spread({1000: 4, 4000: 2}), spread({1000: 5, 8000: 1}))
    assert (found.count, found.total, found.largest) == (2, 0, 4000)
