"""A query that Spark's Kafka source began goes on with ours, and back: no record is missed, none comes twice.

With the real connector, thus under another PySpark.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from ops.bench import connector
from ops.bench.brokers import ROOT, Mpbroker
from tests.support.forms import long_only
from tests.support.real_brokers import served
from tests.support.spark_produced import PARTITIONS, make_topic, produce

pytestmark = long_only("downloads another PySpark")
RECORDS = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path / "broker")) as running:
        yield running


@pytest.fixture
def query(broker: Mpbroker, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    python = str(connector.python())
    with (tmp_path / "spark.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(python, "-m", "ops.bench.connector.checkpoints"),
                *(broker.bootstrap, str(broker.log_dir), str(tmp_path)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=tmp_path,
            env={
                **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": python,
            },
        )
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def read(query: subprocess.Popen[str], source: str, log: Path) -> list[tuple[int, int]]:
    pipe: tuple[IO[str] | None, IO[str] | None] = (query.stdin, query.stdout)
    assert pipe[0] is not None
    assert pipe[1] is not None
    print(source, file=pipe[0], flush=True)
    line = pipe[1].readline()
    assert line, log.read_text()[-4000:]
    return [(partition, offset) for partition, offset in json.loads(line)]


@pytest.mark.timeout(600)
def test_a_query_changes_its_source(broker: Mpbroker, query: subprocess.Popen[str], tmp_path: Path) -> None:
    make_topic(broker, "events")
    read_so_far = 0
    for turn, source in enumerate(("kafka", "local", "kafka", "remote", "kafka", "local", "local", "kafka")):
        # Also nothing new between two of them.
        if turn != 6:
            produce(broker, "events", range(read_so_far * PARTITIONS, (read_so_far + RECORDS) * PARTITIONS))
        found = read(query, source, tmp_path / "spark.log")
        first, last = read_so_far, read_so_far + (RECORDS if turn != 6 else 0)
        assert found == [(p, o) for p in range(PARTITIONS) for o in range(first, last)], source
        read_so_far = last
