"""PySpark with Spark's own Kafka connector, in an environment of its own, outside of the repository.

Maven Central has no connector for the Spark version that our source is made for. So the connector and our
source are both measured with the connector's version of PySpark, in `~/.cache/mpbroker/pyspark-4.0.0`
(XDG_CACHE_HOME moves it). The first call takes some minutes and 1 GB. If PYSPARK_ARCHIVE names a source
distribution of PySpark, pip installs that file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ops.bench import maven

VERSION = "4.0.0"
POM = Path(__file__).parent / "pom.xml"
# What Spark brings along itself.
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
PIP_TIMEOUT_S = 1800
# Of ours, and for Arrow.
PACKAGES = ("cramjam", "msgspec", "psutil", "setproctitle", "pyarrow", "pandas<3", "confluent-kafka")


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mpbroker" / f"pyspark-{VERSION}"


def is_there() -> bool:
    """Return whether PySpark and the jars are fetched. If so, `python` and `jars` need no network."""
    return (_home() / "complete").exists()


def python() -> Path:
    """Return the interpreter with PySpark, made by the first call. Raises MissingToolError."""
    home = _home()
    if not is_there():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _run([sys.executable, "-m", "venv", str(home / "venv")])
        pyspark = os.environ.get("PYSPARK_ARCHIVE") or f"pyspark=={VERSION}"
        _run([str(home / "venv/bin/pip"), "install", "--quiet", pyspark, *PACKAGES])
        maven.copy_dependencies(POM, home / "jars")
        for jar in (home / "jars").iterdir():
            if not jar.name.startswith(JARS):
                jar.unlink()
        (home / "complete").touch()
    return home / "venv/bin/python"


def jars() -> str:
    """Return the value of `spark.jars` that `format("kafka")` needs."""
    python()
    return ",".join(str(path) for path in sorted((_home() / "jars").iterdir()))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    if done.returncode:
        printed = (done.stdout + done.stderr).strip()[-2000:]
        raise maven.MissingToolError(f"{' '.join(command)} failed (is the network there?):\n{printed}")
