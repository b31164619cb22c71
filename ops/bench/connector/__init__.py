"""Spark's own Kafka connector: its jars come from Maven Central once, into `build/spark-connector`.

`python -m ops.bench.connector` fetches them. `make test` runs it; if that failed, the first test that needs
the jars fetches them. Maven Central has no connector for Spark 4.3.0, but the one for 4.2.0 runs with 4.3.0,
in one session with our source.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from ops.setup import maven

ROOT = Path(__file__).parents[3]
POM = Path(__file__).with_name("pom.xml")
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
