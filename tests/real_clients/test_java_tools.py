"""DumpLogSegments, the reference for files."""

import re

from ops.bench.brokers import Broker
from tests.support import client_adapters
from tests.support.client_samples import Record, sample_records, stored_in
from tests.support.client_tools import kafka_tool
from tests.support.real_brokers import create_topic, stop_cleanly

DUMP = "org.apache.kafka.tools.DumpLogSegments"

SEGMENT_BYTES = 1 << 20


def dump(*arguments: str) -> str:
    return kafka_tool(DUMP, *arguments)


def test_the_written_files_are_kafkas_own(own_broker: Broker) -> None:
    """Every file of a partition with several segments, read by Kafka's tool after a clean stop."""
    create_topic(own_broker.bootstrap, "dumped", 1, {"segment.bytes": str(SEGMENT_BYTES)})
    records: list[Record] = []
    for seed, codec in enumerate(client_adapters.CODECS * 2):
        batch = sample_records(1, 500, seed)
        client_adapters.aiokafka_write(own_broker.bootstrap, "dumped", batch, codec)
        records += batch
    stored = stored_in(records)[0]
    stop_cleanly(own_broker)

    partition = own_broker.log_dir / "dumped-0"
    segments = sorted(partition.glob("*.log"))
    assert len(segments) > 1, "the topic was meant to have several segments"
    assert all(path.stat().st_size <= SEGMENT_BYTES for path in segments)

    printed = "".join(dump("--files", str(path), "--deep-iteration") for path in segments)
    assert "corrupt" not in printed.lower()
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == [each.offset for each in stored]
    times = [int(found) for found in re.findall(r"^\| offset: .*CreateTime: (\d+) ", printed, re.MULTILINE)]
    assert times == [each.record.timestamp_ms for each in stored]
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == set(client_adapters.CODECS)
    assert "isvalid: false" not in printed

    bases = {path.stem for path in segments}
    for suffix in ("index", "timeindex"):
        paths = sorted(partition.glob(f"*.{suffix}"))
        assert {path.stem for path in paths} == bases
        for path in paths:
            checked = dump("--files", str(path), "--index-sanity-check")
            assert "passed sanity check" in checked, checked
            verified = dump("--files", str(path), "--verify-index-only")
            assert "mismatch" not in verified.lower(), verified
            assert "Found timestamp" not in verified, verified
