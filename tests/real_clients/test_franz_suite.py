"""franz-go's own tests of groups of the consumer protocol (KIP-848), in its kgo package.

Its ETL tests chain groups whose members join and leave all the time: no record is lost, none read twice.
"""

from __future__ import annotations

import os
from pathlib import Path

from confluent_kafka import TopicPartition

from tests.support.client_tools import franz_tests
from tests.support.committed_offsets import commit_offset
from tests.support.forms import pick
from tests.support.programs import ran
from tests.support.real_brokers import TRANSACTIONS, create_topic, make_broker, served, with_settings

TESTS = pick(
    "tests of franz-go:", short="^Test848RegexBrokerResolves$", long="848|^TestGroupETL$|^TestTxnEtl$"
)
RECORDS = pick("records through franz-go's chains of groups", short=1_000, long=50_000)
TIMEOUT_S = 1800


def test_franz_go_passes_its_own_tests(tmp_path: Path) -> None:
    with served(with_settings(make_broker(tmp_path / "broker"), TRANSACTIONS)) as broker:
        # FindCoordinator does it in Kafka, here a group's first record.
        create_topic(broker.bootstrap, "orders", 1)
        commit_offset(broker, "readers", TopicPartition("orders", 0, 0))
        environment = {
            "KGO_SEEDS": broker.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        }
        done = ran(
            [franz_tests(), "-test.v", f"-test.timeout={TIMEOUT_S}s", "-test.run", TESTS],
            env=os.environ | environment,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "--- PASS: Test848RegexBrokerResolves" in done.stdout
    assert "--- SKIP" not in done.stdout
