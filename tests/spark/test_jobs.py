"""The jobs beside a running broker, on what librdkafka wrote, by their functions and by their commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

from mpbroker.cli import main
from mpbroker.cli.spark import command as spark_jobs
from mpbroker.cli.spark import job
from mpbroker.records.builder import build_batch
from mpbroker.storage.checkpoints import write_offsets
from ops.bench.brokers import Broker, Mpbroker
from spark_integration.jobs import replay as replaying
from spark_integration.jobs.archive import ArchiveSettings, archive
from spark_integration.jobs.audit import Gap, audit
from spark_integration.jobs.audit_svg import draw
from spark_integration.jobs.compact import compact
from spark_integration.jobs.frame import JobError, Source
from spark_integration.jobs.replay import Progress, Replayed, ReplaySettings, replay
from tests.support.polling import PATIENCE_S, is_readable
from tests.support.real_brokers import TRANSACTIONS, create_topic, served, with_settings
from tests.support.spark_here import PYTHON_PATH, Here
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, numbered
from tests.support.spark_produced import records

PARTITIONS = 2
RECORDS = 2000
JOB_PATIENCE_S = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(with_settings(Mpbroker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic of numbered records, with headers, from an idempotent producer."""
    create_topic(broker.bootstrap, "orders", PARTITIONS)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5}
    producer = Producer({**settings, "batch.num.messages": 50})
    for number in range(RECORDS):
        producer.produce(
            "orders", b"%d" % number, b"key", partition=number % PARTITIONS, headers=[("n", b"%d" % number)]
        )
    assert producer.flush(PATIENCE_S) == 0
    return "orders"


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`mpbroker spark …` in a process group of its own, which does not outlive a test that fails."""
    job = subprocess.Popen(
        [sys.executable, "-m", "mpbroker", "spark", *arguments, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def goes_on(job: subprocess.Popen[str], holds: Callable[[], object], what: str) -> None:
    """Until it holds, and the job runs meanwhile; a JVM on a busy machine takes its time."""
    hangs = time.monotonic() + JOB_PATIENCE_S
    descriptor = os.pidfd_open(job.pid)
    try:
        while not holds():
            assert not is_readable(descriptor, 0.05), job.communicate()
            assert time.monotonic() < hangs, f"{what}: not within {JOB_PATIENCE_S} s"
    finally:
        os.close(descriptor)


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=JOB_PATIENCE_S)
    # A worker of Spark that is killed says so itself, of its own frames.
    assert not re.search(r"spark_integration|mpbroker/cli|py4j", err), err
    assert "\tat " not in err, err
    return job.returncode, out, err


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


def test_the_commands_of_archive_and_replay(
    here: Here, broker: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    assert here("archive", topic, "-b", broker.bootstrap, "--to", lake) == 0
    assert "2,000 records of 1 topic archived in 1 run" in capsys.readouterr().err
    assert here("archive", topic, "-b", broker.bootstrap, "--to", lake, "--compact", "--json") == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert (summary.pop("seconds") > 0, summary.pop("compacted")["records"]) == (True, RECORDS)
    assert summary == {"records": 0, "topics": [], "runs": 0, "target": f"{lake}/data"}
    assert "archived" not in said.err
    back = ["replay", lake, "-b", broker.bootstrap, "--to-topic", "again"]
    assert here(*back, "--keep-partitions", "--name", "a/b") == 1
    assert "a name is of letters, digits" in capsys.readouterr().err
    create_topic(broker.bootstrap, "again", 1)
    assert here(*back, "--keep-partitions") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mpbroker: ")]
    assert line.endswith("Invalid partition given with record: 1 is not in the range [0...1) of topic again")
    assert here(*back, "--name", "by-key", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary.pop("seconds") > 0
    assert summary == {"records": RECORDS, "steps": 1, "bootstrap_servers": broker.bootstrap}
    assert here(*back, "--name", "by-key") == 0
    assert "0 records written to" in capsys.readouterr().err
    assert len(records(broker, "again")) >= RECORDS
    assert here("replay", str(tmp_path), "-b", broker.bootstrap) == 1
    assert "is not an archive. Name the --to directory of mpbroker spark archive" in capsys.readouterr().err


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_an_archive_is_written_back(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, exactly_once: bool
) -> None:
    """Killed before it wrote down that a step is written, a job does that step again, and no other."""
    lake, copy = tmp_path / "lake", f"copy-{exactly_once}"
    source = Source(topic, bootstrap_servers=broker.bootstrap)
    archive(spark, ArchiveSettings(source, lake, records_per_run=RECORDS // 2))
    create_topic(broker.bootstrap, copy, PARTITIONS)
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    settings = ReplaySettings(lake, options, to_topic=copy, keep_partitions=True, exactly_once=exactly_once)
    with pytest.MonkeyPatch.context() as patch:
        save = replaying._save

        def killed_after_the_second(file: Path, progress: Progress) -> None:
            if (progress.step, progress.next) == (2, ()):
                raise KeyboardInterrupt
            save(file, progress)

        patch.setattr(replaying, "_save", killed_after_the_second)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, settings)
    assert compact(spark, lake).runs == 2
    assert replay(spark, settings) == Replayed(RECORDS // 2, 1)
    assert replay(spark, settings) == Replayed(0, 0)
    with pytest.raises(JobError, match="Give this one another name"):
        replay(spark, replace(settings, to_topic="elsewhere"))
    found = records(broker, copy)
    for partition in range(PARTITIONS):
        numbers = [int(message.value() or b"") for message in found if message.partition() == partition]
        mine = list(range(partition, RECORDS, PARTITIONS))
        assert numbers == [*mine, *([] if exactly_once else mine[len(mine) // 2 :])]
    first = next(message for message in found if message.value() == b"7")
    (original,) = (message for message in records(broker, topic) if message.value() == b"7")
    for read in (Message.key, Message.headers, Message.timestamp, Message.partition):
        assert read(first) == read(original)


class Stopped(NamedTuple):
    """What a job has left, and said, that was told to stop."""

    lake: Path
    code: int
    err: str


class Archiving(NamedTuple):
    """A job that archives, and where to."""

    job: subprocess.Popen[str]
    lake: Path

    def await_a_run(self) -> None:
        goes_on(self.job, lambda: list(self.lake.glob("data/run=*")), "a run of the archive")


@pytest.fixture(scope="module")
def archiving(broker: Broker, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archiving]:
    lake = tmp_path_factory.mktemp("stopped") / "lake"
    where = ["--log-dir", str(broker.log_dir), "--to", str(lake), "--records-per-run", "20"]
    with command("archive", topic, *where) as job:
        yield Archiving(job, lake)


@pytest.fixture(scope="module")
def stopped(archiving: Archiving) -> Stopped:
    """An archive whose job was told to stop behind its first run, with its JVM, as systemd and timeout do."""
    archiving.await_a_run()
    os.killpg(archiving.job.pid, signal.SIGTERM)
    code, _, err = ended(archiving.job)
    return Stopped(archiving.lake, code, err)


def test_an_archive_is_written_in_runs(archiving: Archiving) -> None:
    archiving.await_a_run()
    assert archiving.job.poll() is None


def test_a_job_that_is_told_to_stop_says_so(stopped: Stopped) -> None:
    """What a kill leaves is in test_archive, between any two steps."""
    assert stopped.code == 128 + signal.SIGTERM, stopped.err
    last = stopped.err.splitlines()[-1]
    assert last.startswith("mpbroker: stopped by SIGTERM. Committed work stays, and the same")
    assert stopped.err.startswith("archive: starting Spark, which takes some seconds\n")
    assert "\narchive: Spark runs, the first batch begins\n" in stopped.err
    # PySpark's own workers may say where the kill met them; no frame of ours is among those lines.
    assert "spark_integration/" not in stopped.err, stopped.err


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


def test_a_key_that_stops_the_start_leaves_one_line(log_dir: Path, tmp_path: Path) -> None:
    """The signal cuts a call to the JVM, or its start; Py4J and Spark's script describe both."""
    with command("archive", "t", "--log-dir", str(log_dir), "--to", str(tmp_path / "lake")) as job:
        assert job.stderr is not None
        assert job.stderr.readline() == "archive: starting Spark, which takes some seconds\n"
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


def test_an_archive_whose_job_was_told_to_stop_goes_on(
    spark: SparkSession, broker: Broker, topic: str, stopped: Stopped
) -> None:
    settings = ArchiveSettings(Source(topic, bootstrap_servers=broker.bootstrap), stopped.lake)
    assert archive(spark, settings).records > 0
    rows = spark.read.parquet(str(stopped.lake)).select("value", "headers").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(RECORDS))
    assert all(bytes(row.headers[0].value) == bytes(row.value) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["archive", "t", "--to", "x"], "say where to read"),
        (["archive", "--to", "x", "--log-dir", "y"], "name topics"),
        (["archive", "t", "--to", "x", "--log-dir", "y", "--option", "z"], "--option is KEY=VALUE"),
        (["archive", "t", "--to", "x", "--log-dir", "y", "--partition-by", "z"], "--partition-by is topic"),
        (["replay", "x", "-b", "h:1", "--option", "kafka.acks=2"], "kafka.acks is one of"),
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
