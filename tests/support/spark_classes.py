"""Spark's classes, loaded and verified before: a class-data archive halves the start of a session's JVM.

`python -m tests.support.spark_classes` makes the archive beside PySpark's environment. A JVM that finds its
class path changed ignores the archive and loads classes from the jars, as it does where there is no archive.
See https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# In a JVM that lives for seconds, optimising costs more than all else.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The launcher, or a JVM with more jars, would complain of an archive that is not for it.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Small data, and nobody who looks. A directory of settings on the class path would rule out the archive.
SETTINGS = "-Dspark.ui.enabled=false -Dspark.ui.showConsoleProgress=false -Dspark.sql.shuffle.partitions=2"


def driver_options() -> str:
    """Options of drivers that tests start, for SPARK_SUBMIT_OPTS."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else ""
    return f"{SHORT_LIVED_JVM} {SETTINGS}{archive}"


def make() -> None:
    """Run what most sessions do, and keep the classes that it loaded."""
    # Every test process imports this module, few of them need Spark.
    from pyspark.sql import SparkSession

    from tests.support.spark_jvm import end_jvm

    unfinished = ARCHIVE.with_suffix(".new")
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"{SHORT_LIVED_JVM} {SETTINGS} -XX:ArchiveClassesAtExit={unfinished} {QUIET}"
    )
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    session = SparkSession.builder.master("local[2]").config(map=local).getOrCreate()
    session.range(100).selectExpr("id % 3 as k").groupBy("k").count().collect()
    with TemporaryDirectory() as directory:
        session.range(10).write.mode("overwrite").parquet(directory)
        session.read.parquet(directory).count()
    session.stop()
    end_jvm()
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    make()
