"""Spark's own Kafka connector: its jars come from Maven Central once, into `build/spark-connector`.

`python -m tests.support.spark_connector` fetches them; where `make test` has not, the first test does.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from ops.bench import maven

ROOT = Path(__file__).parents[2]
POM = ROOT / "tests" / "spark" / "connector_pom.xml"
JARS = ROOT / "build" / "spark-connector"


def connector_jars() -> str:
    """Return what `spark.jars` has to be for `format("kafka")`. Raises MissingToolError."""
    JARS.parent.mkdir(exist_ok=True)
    with open(JARS.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = JARS / "made"
        if not made.exists() or made.stat().st_mtime < POM.stat().st_mtime:
            shutil.rmtree(JARS, ignore_errors=True)
            maven.copy_dependencies(POM, JARS)
            made.touch()
    return ",".join(sorted(map(str, JARS.glob("*.jar"))))


if __name__ == "__main__":
    connector_jars()
