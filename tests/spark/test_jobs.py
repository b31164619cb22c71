"""The export job: every record once, however often it runs, also when a run dies before its commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_integration.jobs import export as job
from tests.spark.logs import FakeBroker, PartitionWriter, fill


def test_runs_write_what_is_new(
    spark: SparkSession,
    log_dir: Path,
    fake_broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "lake"
    options = {"subscribe": "a,b", "log.dir": str(log_dir), "includeHeaders": "true"}
    writers = [PartitionWriter(log_dir, topic, number) for topic, number in (("a", 0), ("a", 1), ("b", 0))]

    def append(batches: int) -> None:
        for writer in writers:
            fill(writer, batches, 10)
            fake_broker.publish(writer)

    append(5)
    assert job.export(spark, options, target) == 150
    assert job.export(spark, options, target) == 0
    append(2)

    def dies(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(job, "write_state", dies)
        with pytest.raises(OSError, match="no space"):
            job.export(spark, options, target)
    append(1)
    assert job.export(spark, options, target) == 90
    rows = spark.read.parquet(str(target)).select("topic", "partition", "offset").collect()
    expected = [(w.topic, w.partition, offset) for w in writers for offset in range(80)]
    assert sorted(tuple(row) for row in rows) == expected


def test_bad_options_end_before_spark_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert job.main(["a", "--to", str(tmp_path)]) == 2
    assert "'log.dir'" in capsys.readouterr().err
