"""Through Spark Connect: the client has no JVM, the server plans, reads and runs the stream."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import HOST, free_port
from spark_integration.jvm.jar import add_to
from tests.support.polling import PATIENCE_S
from tests.support.programs import ran
from tests.support.spark_cluster import ROOT
from tests.support.spark_logs import PartitionWriter, checkpoint, fill


@pytest.fixture(scope="module")
def server(no_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    """The address of a Connect server, which runs beside a session of this process."""
    port = free_port()
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        # As of a server that PySpark starts itself.
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    add_to(session)
    yield f"sc://{HOST}:{port}"
    session.stop()


@pytest.fixture
def orders(log_dir: Path) -> Path:
    """A directory with a topic `orders`, 50 records in each of two partitions."""
    topic_id = (1).to_bytes(16, "big")
    writers = [PartitionWriter(log_dir, "orders", partition, topic_id=topic_id) for partition in range(2)]
    for writer in writers:
        fill(writer, batches=5)
    checkpoint(log_dir, {("orders", number): writer.next_offset for number, writer in enumerate(writers)})
    return log_dir


def through(server: str, how: str, log_dir: Path, place: Path) -> dict[str, Any]:
    """What a client process found."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    done = ran(
        [sys.executable, "-m", "tests.spark.connect_client", server, how, str(log_dir), "orders", str(place)],
        env={**os.environ, **environment},
        cwd=place,
        timeout=6 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect")
    return found


def test_a_batch_through_connect(server: str, orders: Path, tmp_path: Path) -> None:
    found = through(server, "batch", orders, tmp_path)
    assert found["count"] == 100
    assert len(found["of_partition_1"]) == 50
    assert "by its JVM reader" in found["plan"]


def test_a_stream_through_connect(server: str, orders: Path, tmp_path: Path) -> None:
    assert through(server, "stream", orders, tmp_path)["streamed"] == 100
