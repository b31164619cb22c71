"""Kafka Streams with exactly_once_v2: its counts are right, whatever its broker goes through.

Apache Kafka 4.3 passes where nobody kills it: it may leave out the abort of what it finds open at a start,
and such records count again (see tests/chaos/run_transactions.py).
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.bench.brokers import Broker
from tests.support.client_tools import eventually, java_command
from tests.support.committed_offsets import read
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.programs import Piped
from tests.support.real_brokers import TRANSACTIONS, create_topic, make_broker, served, with_settings

WORDS, COUNTS = "words", "counts"
PARTITIONS = 2
KINDS = 7
EACH_TIME = 700


@contextmanager
def streams(broker: Broker, directory: Path) -> Iterator[None]:
    """Runs while we look; must end well."""
    command = java_command("Streams", broker.bootstrap, "counter", WORDS, COUNTS, str(directory / "state"))
    with open(directory / "streams.log", "wb") as output:
        process = Piped(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
        process.stdin.close()
        assert process.wait(2 * PATIENCE_S) == 0
    except BaseException:
        print((directory / "streams.log").read_text()[-8000:])
        raise
    finally:
        process.kill()
        process.wait()


def write_words(broker: Broker) -> None:
    words = (f"word{number % KINDS}" for number in range(EACH_TIME))
    produce(broker.bootstrap, WORDS, words, PARTITIONS, enable_idempotence=True)


def counts(broker: Broker) -> list[str]:
    found = read(broker, COUNTS, PARTITIONS)
    return [each for partition in found.values() for each in partition]


def test_each_word_is_counted_once(tmp_path: Path) -> None:
    """Each count is there once, and none is left out: after a clean start, a kill -9 of all, and another."""
    with served(with_settings(make_broker(tmp_path / "broker"), TRANSACTIONS)) as broker:
        create_topic(broker.bootstrap, WORDS, PARTITIONS)
        create_topic(broker.bootstrap, COUNTS, PARTITIONS)
        write_words(broker)
        with streams(broker, tmp_path):
            for counted in (0, EACH_TIME):
                # In the middle of the counting.
                eventually(lambda counted=counted: len(counts(broker)) > counted, "it counts")  # type: ignore[misc]
                broker.kill()
                broker.start()
                write_words(broker)
            eventually(lambda: len(counts(broker)) >= 3 * EACH_TIME, "all is counted")
        expected = {f"word{kind}={1 + n}" for kind in range(KINDS) for n in range(3 * EACH_TIME // KINDS)}
        assert Counter(counts(broker)) == dict.fromkeys(expected, 1)
