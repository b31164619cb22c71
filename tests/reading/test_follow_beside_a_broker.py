"""A running broker's files wake who follows them: it writes records before it publishes them."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from confluent_kafka import Producer

from mpbroker.reading import follow as follow_module
from mpbroker.reading.follow import LocalFollower, follow
from mpbroker.reading.options import parse_options
from ops.bench.brokers import Broker
from tests.reading.test_follow import waits
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import create_topic

pytestmark = pytest.mark.skipif(
    os.environ.get("MPBROKER_TEST_BROKER") == "kafka",
    reason="Apache Kafka publishes nothing outside of its own process",
)


def test_each_record_after_a_while_of_quiet_is_heard_of(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_ALARM_SETS_IN_S", 0.0)
    create_topic(broker.bootstrap, "heard", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    given = {"log.dir": str(broker.log_dir), "subscribe": "heard", "readMode": "local"}
    follower = follow(parse_options(given, streaming=True))
    assert isinstance(follower, LocalFollower)
    with closing(follower):
        for turn in range(4):
            assert sum(bounds.end for bounds in follower.poll().values()) == turn
            monkeypatch.setattr(follower, "_stirred_at", -60.0)
            with waits(follower):
                until(lambda: follower._alarm is not None, "the alarm is set")
                producer.produce("heard", b"v", partition=turn % 2)
                assert producer.flush(PATIENCE_S) == 0
        assert sum(bounds.end for bounds in follower.poll().values()) == 4
        assert follower._has_alarms
