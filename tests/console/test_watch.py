"""What a look at the broker says of its topics."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from mpbroker.cli.top.samples import BrokerSeen, Health, Sample
from mpbroker.console.watch import is_internal, knows_topics
from mpbroker.metrics.snapshot import Snapshot


@pytest.mark.parametrize(
    ("health", "knows"),
    [(Health.RUNNING, True), (Health.SILENT, True), (Health.RECOVERING, False), (Health.UNKNOWN, False)],
)
def test_a_topic_is_missing_only_if_all_have_been_seen(health: Health, knows: bool) -> None:
    assert knows_topics(Sample(0, BrokerSeen(health), counts=Mock(spec=Snapshot))) is knows
    assert not knows_topics(Sample(0, BrokerSeen(health)))
    assert not knows_topics(None)


def test_the_brokers_own_topics_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__mine")
