"""What transactions leave on disk goes on in Apache Kafka, and what Apache Kafka leaves goes on here.

Both begin with the other one's partitions of topics, of `__transaction_state` and of `__consumer_offsets`, on
the other one's port: clients go on with the transactions that they have.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpbroker.log.format.checkpoints import read_offsets, write_offsets
from mpbroker.log.format.names import HIGH_WATERMARKS, LOG_STARTS, PARTITION_METADATA, RECOVERY_POINTS
from ops.bench.brokers import Broker, Kafka
from tests.support.client_tools import eventually, kafka_tool
from tests.support.committed_offsets import ends, is_pending, offset_of, read
from tests.support.forms import long_only
from tests.support.real_brokers import (
    TRANSACTIONS,
    create_topic,
    end,
    make_broker,
    stop_cleanly,
    with_settings,
)
from tests.support.transactional_clients import (
    IN_PYTHON,
    Fenced,
    Open,
    Program,
    Transactional,
    commits,
    sends,
)

TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"
# By what becomes of a topic's transaction. Its group and its transactional id have the same name.
COMMITTED, ABORTED, GOES_ON, FENCED = KINDS = ("committed", "aborted", "goes-on", "fenced")
INTERNAL = ("__transaction_state", "__consumer_offsets")
GENERATIONS = ("first", "second")
TOPICS = [f"{kind}-{generation}" for kind in KINDS for generation in GENERATIONS]


def kafka(directory: Path) -> Broker:
    directory.mkdir()
    return Kafka(directory)


def prime(broker: Broker, client: Open) -> None:
    """Start the broker, create all topics and its internal ones, and stop it."""
    broker.start()
    for topic in TOPICS:
        create_topic(broker.bootstrap, topic, 1)
    producer = client(broker.bootstrap, "nobody")
    producer.begin()
    producer.offsets("nobody", TOPICS[0], 0, 1)
    producer.commit()
    producer.close()
    stop_cleanly(broker)


def leave(broker: Broker, clients: dict[str, Open]) -> dict[str, Transactional]:
    """Transactions that are finished, and open ones with records and offsets; then the broker is stopped."""
    broker.start()
    producers = {}
    for topic in TOPICS:
        kind, _, generation = topic.rpartition("-")
        create_topic(broker.bootstrap, topic, 1)
        producer = producers[topic] = clients[generation](broker.bootstrap, topic)
        commits(producer, topic, "before")
        producer.begin()
        sends(producer, topic, kind)
        producer.offsets(topic, topic, 0, 7)
        if kind == COMMITTED:
            producer.commit()
        if kind == ABORTED:
            producer.abort()
    for topic in TOPICS[:4]:
        eventually(lambda topic=topic: ends(broker, topic) == (4, 4), topic)  # type: ignore[misc]
        eventually(lambda topic=topic: not is_pending(broker, topic, topic), topic)  # type: ignore[misc]
    stop_cleanly(broker)
    return producers


def take_over(source: Broker, target: Broker) -> None:
    """Partitions as they are, with what the source's checkpoints say of them: a clean stop for both."""
    names = set()
    for partition in sorted(source.log_dir.glob("*-*/")):
        topic, _, number = partition.name.rpartition("-")
        if topic not in (*TOPICS, *INTERNAL):
            continue
        names.add((topic, int(number)))
        into = target.log_dir / partition.name
        for path in into.iterdir():
            if path.name != PARTITION_METADATA:
                path.unlink()
        for path in partition.iterdir():
            if path.name != PARTITION_METADATA:
                shutil.copy(path, into / path.name)
    for checkpoint in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS):
        theirs, ours = source.log_dir / checkpoint, target.log_dir / checkpoint
        kept = {name: offset for name, offset in read_offsets(ours).items() if name not in names}
        taken = {name: offset for name, offset in read_offsets(theirs).items() if name in names}
        write_offsets(ours, {**kept, **taken})


def states(broker: Broker) -> dict[str, str]:
    printed = kafka_tool(TRANSACTIONS_TOOL, "--bootstrap-server", broker.bootstrap, "list")
    rows: Sequence[list[str]] = [line.split() for line in printed.splitlines()[1:]]
    return {row[0]: row[-1] for row in rows}


@long_only("transactions go on at Kafka, and back")
@pytest.mark.parametrize("adopter", ["kafka", "ours"])
def test_transactions_go_on_at_the_other_broker(
    tmp_path: Path, transacting_java: Program, adopter: str
) -> None:
    clients: dict[str, Open] = {"first": IN_PYTHON["confluent"], "second": transacting_java.open}
    brokers = {"ours": make_broker(tmp_path / "ours"), "kafka": kafka(tmp_path / "kafka")}
    target = with_settings(brokers.pop(adopter), TRANSACTIONS)
    (source,) = brokers.values()
    with_settings(source, TRANSACTIONS)
    try:
        # Side by side; the producers go on at the port that they have begun with.
        with ThreadPoolExecutor(1) as beside:
            primed = beside.submit(prime, target, clients["first"])
            producers = leave(source, clients)
            primed.result()
        target.port = source.port
        take_over(source, target)
        target.start()
        expected = {COMMITTED: "CompleteCommit", ABORTED: "CompleteAbort"}
        wanted = {topic: expected.get(topic.rpartition("-")[0], "Ongoing") for topic in TOPICS}
        # Kafka lists what its coordinator has loaded so far.
        eventually(lambda: len(states(target)) == len(wanted), "all transactions are loaded")
        assert states(target) == wanted
        check_finished(target)
        check_goes_on(target, producers)
        check_fenced(target, producers, clients)
        for producer in producers.values():
            producer.close()
        if adopter == "ours":
            stop_cleanly(target)
    finally:
        end(source)
        end(target)


def check_finished(broker: Broker) -> None:
    for generation in GENERATIONS:
        committed, aborted = (f"{kind}-{generation}" for kind in (COMMITTED, ABORTED))
        assert read(broker, committed) == {0: ["before", COMMITTED]}
        assert read(broker, aborted) == {0: ["before"]}
        assert offset_of(broker, committed, committed) == 7
        assert offset_of(broker, aborted, aborted) is None


def check_goes_on(broker: Broker, producers: dict[str, Transactional]) -> None:
    """Check that an open transaction is finished by the producer that began it."""
    for generation in GENERATIONS:
        topic = f"{GOES_ON}-{generation}"
        assert ends(broker, topic) == (2, 3)
        assert is_pending(broker, topic, topic)
        sends(producers[topic], topic, "here")
        producers[topic].commit()
        eventually(lambda topic=topic: ends(broker, topic) == (5, 5), topic)  # type: ignore[misc]
        eventually(lambda topic=topic: not is_pending(broker, topic, topic), topic)  # type: ignore[misc]
        assert read(broker, topic) == {0: ["before", GOES_ON, "here"]}
        assert offset_of(broker, topic, topic) == 7


def check_fenced(broker: Broker, producers: dict[str, Transactional], clients: dict[str, Open]) -> None:
    """A successor begins with the abort of what is open."""
    for generation in GENERATIONS:
        topic = f"{FENCED}-{generation}"
        successor = clients[generation](broker.bootstrap, topic)
        with pytest.raises(Fenced):
            producers[topic].commit()
        commits(successor, topic, "after")
        successor.close()
        eventually(lambda topic=topic: ends(broker, topic) == (6, 6), topic)  # type: ignore[misc]
        eventually(lambda topic=topic: not is_pending(broker, topic, topic), topic)  # type: ignore[misc]
        assert read(broker, topic) == {0: ["before", "after"]}
        assert offset_of(broker, topic, topic) is None
