"""The jobs beside a running broker, on what librdkafka wrote, by their functions and by their commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from mpbroker.cli import main
from mpbroker.cli.spark import command as spark_jobs
from mpbroker.cli.spark import job
from mpbroker.records.builder import build_batch
from mpbroker.storage.checkpoints import write_offsets
from ops.bench.brokers import Broker, Mpbroker
from spark_integration.jobs.audit import Gap, audit
from spark_integration.jobs.audit_svg import draw
from spark_integration.jobs.frame import Source
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served
from tests.support.spark_commands import command, ended, goes_on
from tests.support.spark_here import Here
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, numbered

PARTITIONS = 2
RECORDS = 2000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic of numbered records from an idempotent producer."""
    create_topic(broker.bootstrap, "orders", PARTITIONS)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5}
    producer = Producer({**settings, "batch.num.messages": 50})
    for number in range(RECORDS):
        producer.produce("orders", b"%d" % number, b"key", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return "orders"


def test_an_audit_of_a_log_that_is_whole(spark: SparkSession, broker: Broker, topic: str) -> None:
    found = audit(spark, Source(topic, log_dir=str(broker.log_dir)), keys=True)
    assert found.is_whole
    assert [(one.partition, one.records, one.end) for one in found.partitions] == [
        (0, 1000, 1000),
        (1, 1000, 1000),
    ]
    assert sum(one.batches for one in found.partitions) >= RECORDS / 50
    assert found.gaps == found.duplicates == found.faults == []
    assert sum(found.throughput[topic]) == RECORDS
    assert found.repeated_keys == {topic: RECORDS - 1}


@pytest.fixture
def damaged(log_dir: Path, fake_broker: FakeBroker) -> Path:
    """Holes, an offset range that compaction took, a batch that is there twice, and a flipped bit."""
    holes, twice, flipped = (PartitionWriter(log_dir, "t", number, topic_id=b"t" * 16) for number in range(3))
    fill(holes, 2)
    holes.skip(5)
    fill(holes, 2)
    holes.append_marker(1)
    holes.roll()
    holes.skip(7)
    fill(holes, 1)
    write_offsets(log_dir / "cleaner-offset-checkpoint", {("t", 0): 30})
    for _ in range(3):
        batch = build_batch(
            numbered(4), base_offset=twice.next_offset, producer_id=9, producer_epoch=0, base_sequence=12
        )
        twice.append_bytes(batch, 4, 1_700_000_000_003)
    fill(flipped, 30, roll_every=10)
    for writer in (holes, twice, flipped):
        fake_broker.publish(writer)
    segment = flipped.directory / "00000000000000000100.log"
    data = bytearray(segment.read_bytes())
    # Within a batch, behind its header.
    data[len(data) // 2 + 80] ^= 1
    segment.write_bytes(data)
    return segment


def test_an_audit_tells_what_is_wrong(spark: SparkSession, log_dir: Path, damaged: Path) -> None:
    found = audit(spark, Source("t", log_dir=str(log_dir)))
    holes, twice, flipped = found.partitions
    assert (holes.records, holes.control_batches, holes.compacted, holes.missing) == (50, 1, 5, 7)
    assert [gap for gap in found.gaps if gap.partition == 0] == [
        Gap("t", 0, 46, 53, "hole"),
        Gap("t", 0, 20, 25, "compaction"),
    ]
    assert (twice.duplicates, twice.missing) == (2, 0)
    ((duplicate),) = found.duplicates
    assert (duplicate.producer_id, duplicate.sequence, duplicate.times) == (9, 12, 3)
    assert (duplicate.first_offset, duplicate.last_offset) == (0, 8)
    assert (flipped.faults, flipped.missing, flipped.records) == (1, 10, 290)
    ((fault),) = found.faults
    assert (fault.file, fault.text) == (str(damaged), "the CRC does not match")
    assert damaged.read_bytes()[fault.position + 16] == 2
    picture = draw(found)
    assert picture == draw(found)
    texts = [node.text for node in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Audit: not whole", "t-2", "290"} <= set(texts)


def test_the_command_of_an_audit(
    here: Here, log_dir: Path, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "audit.svg"
    assert here("audit", "t", "--log-dir", str(log_dir), "--json", "--svg", str(svg)) == 1
    said = capsys.readouterr()
    assert "missing, twice, or damaged" in said.err
    (fault,) = json.loads(said.out)["faults"]
    assert fault["file"] == str(damaged)
    assert ET.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.parametrize(("error", "reports"), [(EOFError, 0), (ConnectionResetError, 0), (ValueError, 1)])
def test_the_end_of_the_jvm_is_no_error_of_accumulators(error: type[Exception], reports: int) -> None:
    server, reported = SimpleNamespace(), list[type[Exception]]()
    server.handle_error = lambda *_: reported.append(error)
    job._end_accumulators_in_silence(Mock(sparkContext=Mock(_accumulatorServer=server)))
    try:
        raise error
    except error:
        server.handle_error(None, None)
    assert len(reported) == reports


def test_a_key_that_stops_the_start_leaves_one_line(log_dir: Path) -> None:
    """The signal cuts a call to the JVM, or its start; Py4J and Spark's script describe both."""
    with command("spark", "audit", "t", "--log-dir", str(log_dir)) as job:
        assert job.stderr is not None
        assert job.stderr.readline() == "audit: starting Spark, which takes some seconds\n"
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")

        def starts() -> bool:
            for child in children.read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    program, *arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                    if program.endswith(b"java") and b"org.apache.spark.deploy.SparkSubmit" in arguments:
                        return True
            return False

        goes_on(job, starts, "the start of the JVM")
        os.killpg(job.pid, signal.SIGINT)
        # A JVM that stays keeps the pipes open.
        code, _, err = ended(job)
    assert code == 128 + signal.SIGINT, err
    (line,) = err.splitlines()
    assert line.startswith("mpbroker: stopped by SIGINT. ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "t"], "say where to read"),
        (["audit", "--log-dir", "y"], "name topics"),
        (["audit", "t", "--log-dir", "y", "--option", "z"], "--option is KEY=VALUE"),
        (
            ["mirror", "t", "-b", "h:1", "--to", "h:1", "--checkpoint", "c", "--sink-option", "kafka.acks=2"],
            "kafka.acks is one of",
        ),
        (["audit", "t", "--log-dir", "y", "--option", "readMode=z"], "readMode is auto, local or remote"),
    ],
)
def test_wrong_usage_ends_before_spark_starts(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_jobs, "running", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setattr(sys, "argv", ["mpbroker", "spark", *arguments])
    with pytest.raises(SystemExit) as raised:
        main.main()
    assert raised.value.code == 2
    assert says in capsys.readouterr().err
