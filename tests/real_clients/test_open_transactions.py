"""What open transactions go through: their broker stops, or dies, and their clients go on with them.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.committed_offsets import ends, is_pending, offset_of, read
from tests.support.real_brokers import (
    TRANSACTIONS,
    create_topic,
    end,
    make_broker,
    stop_cleanly,
    with_settings,
)
from tests.support.transactional_clients import IN_PYTHON, Program, sends

GONE: Mapping[str, Callable[[Broker], None]] = {"stopped": stop_cleanly, "killed": Broker.kill}


@pytest.mark.parametrize("gone", GONE)
def test_open_transactions_outlive_their_broker(tmp_path: Path, transacting_java: Program, gone: str) -> None:
    """Those of both protocols."""
    broker = with_settings(make_broker(tmp_path / "broker"), TRANSACTIONS)
    clients = {"first": IN_PYTHON["confluent"], "second": transacting_java.open}
    committed, aborted = ([f"{what}-{protocol}" for protocol in clients] for what in ("committed", "aborted"))
    topics = committed + aborted
    try:
        broker.start()
        producers = {topic: clients[topic.rpartition("-")[2]](broker.bootstrap, topic) for topic in topics}
        for topic, producer in producers.items():
            create_topic(broker.bootstrap, topic, 1)
            producer.begin()
            sends(producer, topic, "before")
            producer.offsets(topic, topic, 0, 7)
        GONE[gone](broker)
        broker.start()
        for topic, producer in producers.items():
            assert ends(broker, topic) == (0, 1)
            assert is_pending(broker, topic, topic)
            sends(producer, topic, "behind")
        for topic in committed:
            producers[topic].commit()
        for topic in aborted:
            producers[topic].abort()
        for topic in topics:
            eventually(lambda topic=topic: ends(broker, topic) == (3, 3), topic)  # type: ignore[misc]
            eventually(lambda topic=topic: not is_pending(broker, topic, topic), topic)  # type: ignore[misc]
        assert [read(broker, topic) for topic in committed] == 2 * [{0: ["before", "behind"]}]
        assert [read(broker, topic) for topic in aborted] == 2 * [{}]
        assert [offset_of(broker, topic, topic) for topic in topics] == [7, 7, None, None]
        for producer in producers.values():
            producer.close()
        stop_cleanly(broker)
    finally:
        end(broker)
