"""Spark's classes, loaded and verified before: a class-data archive halves the start of each of its JVMs.

`python -m tests.support.spark_classes` makes the archive beside PySpark's environment. It serves drivers, the
daemons and executors of a cluster, and Connect servers: all have PySpark's jars as their class path. A JVM
that finds its class path changed ignores the archive and loads classes from the jars, as it does where there
is no archive. See https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ops.bench.brokers import HOST, free_port
from tests.support.spark_here import PYTHON_PATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# In a JVM that lives for seconds, optimising costs more than all else.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The launcher, or a JVM with more jars, would complain of an archive that is not for it.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Small data, and nobody who looks. A directory of settings on the class path would rule out the archive.
SETTINGS = "-Dspark.ui.enabled=false -Dspark.ui.showConsoleProgress=false -Dspark.sql.shuffle.partitions=2"
# A JVM writes the archive as it ends.
WRITTEN_WITHIN_S = 600
LOCAL = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
# What executors load, beside the classes of the master and the worker that `local-cluster` has in a driver.
OF_EXECUTORS = (
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages",
)


def jvm_options() -> str:
    """Options of any JVM of Spark that tests start."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else ""
    return f"{SHORT_LIVED_JVM}{archive}"


def driver_options() -> str:
    """Options of drivers, for SPARK_SUBMIT_OPTS."""
    return f"{SETTINGS} {jvm_options()}"


def make() -> None:
    """Run what most tests do, and keep the classes that it loaded."""
    # Every test process imports this module, few of them need Spark.
    from pyspark.sql import SparkSession

    from tests.support.spark_jvm import end_jvm

    unfinished = ARCHIVE.with_suffix(".new")
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": PYTHON_PATH, "SPARK_LOCAL_IP": HOST}
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"{SHORT_LIVED_JVM} {SETTINGS} -XX:ArchiveClassesAtExit={unfinished} {QUIET}"
    )
    session = SparkSession.builder.master("local[2]").config(map=LOCAL).getOrCreate()
    use(session)
    session.stop()
    port = free_port()
    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": str(port),
    }
    master = "local-cluster[1,1,1024]"
    with TemporaryDirectory() as directory:
        os.environ |= {"SPARK_WORKER_DIR": directory, "SPARK_LOCAL_DIRS": directory}
        session = SparkSession.builder.master(master).config(map=LOCAL | connect).getOrCreate()
        session.range(10).repartition(2).count()
        command = [sys.executable, "-m", "tests.support.spark_classes", f"sc://{HOST}:{port}"]
        subprocess.run(command, check=True)
        for name in OF_EXECUTORS:
            session._jvm.java.lang.Class.forName(name)
        session.stop()
    end_jvm(WRITTEN_WITHIN_S)
    unfinished.replace(ARCHIVE)


def use(session: SparkSession) -> None:
    """A batch and a stream of a topic, as most tests have them."""
    from tests.support.spark_logs import PartitionWriter, checkpoint, fill, new_log_dir

    with TemporaryDirectory() as directory:
        place = Path(directory)
        log_dir = new_log_dir(place / "log")
        writer = PartitionWriter(log_dir, "t")
        fill(writer, 2)
        checkpoint(log_dir, {("t", 0): writer.next_offset})
        options = {"log.dir": str(log_dir), "subscribe": "t"}
        frame = session.read.format("mpbroker").options(**options).load()
        frame.selectExpr("partition % 3 as k", "string(value) v").groupBy("k").count().orderBy("k").collect()
        frame.mapInArrow(lambda batches: batches, frame.schema).count()
        frame.write.partitionBy("topic").parquet(f"{place}/batch")
        session.read.parquet(f"{place}/batch").where("topic = 't'").collect()
        session.createDataFrame([(b"1",)], "value binary").createOrReplaceTempView("one")
        session.sql("SELECT string(value) FROM one").show()
        stream = session.readStream.format("mpbroker").options(**options, startingOffsets="earliest").load()
        written = stream.writeStream.option("checkpointLocation", f"{place}/checkpoint")
        query = written.format("parquet").option("path", f"{place}/stream").trigger(availableNow=True).start()
        query.awaitTermination()


def main() -> None:
    """Make the archive; as another process, use the Connect server that the argument names."""
    if len(sys.argv) == 1:
        make()
        return
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    session.range(10).selectExpr("string(id) s").where("s > '3'").collect()
    session.stop()


if __name__ == "__main__":
    main()
