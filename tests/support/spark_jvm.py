"""Spark's JVM for tests: jars and settings that it is started with stay with it, so some need a fresh one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from ops.bench.connector import connector_jars
from ops.setup.maven import MissingToolError
from spark_integration import session
from tests.support.spark_here import ROOT

# Spark's usual way to write a file of a checkpoint starts three programs, `readlink` most of all, which costs
# more than the file; this one, Spark's for file systems that have no such way, starts fewer.
CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def end_jvm(within_s: float = 60) -> None:
    """Ends the JVM that earlier sessions of this process have left, so that the next one starts its own."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    # It ends when its standard input does.
    process.stdin.close()
    process.wait(within_s)


@contextmanager
def session_beside_the_connector(warehouse: Path) -> Iterator[SparkSession]:
    """A session of a JVM of its own, which has Spark's Kafka connector, too, unless its jars are missing."""
    end_jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.syspath_prepend(str(ROOT))
        config = {
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        }
        with suppress(MissingToolError):
            # The tests that need them say what is missing.
            config["spark.jars"] = connector_jars()
        made = session.session("mpbroker tests", "local[2]", config=config, quiet=True)
        # The first query of a JVM takes seconds, which belong to no test.
        made.range(4).selectExpr("id % 2 k").groupBy("k").count().collect()
        yield made
        made.stop()
    # Later sessions of this process are not to have its jar.
    end_jvm()
