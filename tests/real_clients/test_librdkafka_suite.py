"""librdkafka's own tests with group.protocol=consumer: what passes on Apache Kafka 4.3 passes here.

`librdkafka_suite.txt` lists what passes on Apache Kafka. MPBROKER_TEST_BROKER=kafka asks Kafka, and with
MPBROKER_TEST_WRITES=1 the test writes the list. It takes five minutes, and the build of the suite one before.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.forms import long_only
from tests.support.librdkafka_suite import SETTINGS, run_suite
from tests.support.real_brokers import make_broker, served, with_settings

LISTED = Path(__file__).with_name("librdkafka_suite.txt")
# Their end depends on which of two members is the first, on how busy the machine is, and on whether an answer
# comes while the client unsubscribes: it may leave after it has subscribed again, and then sends nothing.
FICKLE = frozenset({"0118_commit_rebalance", "0127_fetch_queue_backoff", "0045_subscribe_many_updates"})


@long_only("librdkafka's own tests")
def test_what_passes_on_kafka_passes(tmp_path: Path) -> None:
    writes = os.environ.get("MPBROKER_TEST_WRITES") == "1"
    wanted = LISTED.read_text().split()
    with served(with_settings(make_broker(tmp_path / "broker"), SETTINGS)) as broker:
        numbers = () if writes else [name[:4] for name in wanted]
        ended = run_suite(broker, numbers)
    if writes:
        wanted = [name for name, state in ended.items() if state == "PASSED" and name not in FICKLE]
        LISTED.write_text("".join(f"{name}\n" for name in wanted))
    assert {name: ended.get(name) for name in wanted} == dict.fromkeys(wanted, "PASSED"), broker.directory
