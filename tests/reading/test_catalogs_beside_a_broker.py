"""Where the log of a broker that was restored parts from what was read of it before."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer

from mpbroker.config.integers import LONG_MAX
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import Lineage
from mpbroker.storage.checkpoints import read_epochs, write_epochs
from ops.bench.brokers import Broker
from tests.support.polling import until
from tests.support.produced import produce
from tests.support.real_brokers import TRANSACTIONS, create_topic, make_broker, served, with_settings

TIMEOUT_MS = 600_000


def test_a_broker_and_its_files_agree(tmp_path: Path) -> None:
    """A restore begins an epoch at offset 25. A transaction that was open there, from 20 on, aborts later.

    So what was read of it, if it was committed in the log before, is no longer there either.
    """
    broker = with_settings(make_broker(tmp_path), TRANSACTIONS)
    with served(broker):
        create_topic(broker.bootstrap, "t", 1)
        produce(broker.bootstrap, "t", [b""] * 20)
        producer = initialized(broker)
        producer.begin_transaction()
        for _ in range(5):
            producer.produce("t", b"")
        producer.flush()
        before = lineages(broker)
    (directory,) = Path(broker.log_dir).glob("t-0")
    epochs = read_epochs(directory) or [(0, 0)]
    write_epochs(directory, [*epochs, (epochs[-1][0] + 2, LONG_MAX)])
    with served(broker):
        produce(broker.bootstrap, "t", [b""] * 10)
        open_there = lineages(broker)
        initialized(broker)
        until(lambda: stable(broker) == 36, "the transaction is aborted")
        after = lineages(broker)
    assert before == [Lineage(0, 25), Lineage(0, -1)]
    assert open_there == after == [Lineage(2, 20), Lineage(2, 20)]


def initialized(broker: Broker) -> Producer:
    """Return a producer whose start ends the transaction that the one before has left open."""
    settings = {"bootstrap.servers": broker.bootstrap, "transaction.timeout.ms": TIMEOUT_MS}
    producer = Producer({**settings, "transactional.id": "open"})
    producer.init_transactions()
    return producer


def stable(broker: Broker) -> int:
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"})
    with closing(open_catalog(options)) as catalog:
        return catalog.bounds([("t", 0)])["t", 0].end


def lineages(broker: Broker) -> list[Lineage]:
    """Return what a broker says of the first epoch of t-0, and what its files say."""
    found = []
    for where in ({"kafka.bootstrap.servers": broker.bootstrap}, {"log.dir": str(broker.log_dir)}):
        with closing(open_catalog(parse_options({**where, "subscribe": "t"}))) as catalog:
            found.append(catalog.lineages({("t", 0): 0})["t", 0])
    return found
