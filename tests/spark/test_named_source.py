"""`format("mpbroker")` wherever a jar can be added: a batch, a stream, and a save without a mode."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ops.bench import connector
from ops.bench.brokers import HOST, Mpbroker
from spark_integration.jvm.jar import jar_path
from tests.spark.test_connect import server as server
from tests.support.forms import each, long_only
from tests.support.polling import PATIENCE_S
from tests.support.programs import ran
from tests.support.real_brokers import create_topic, served
from tests.support.spark_cluster import EXECUTOR_MEMORY, SPARK_HOME, running_cluster
from tests.support.spark_here import PYTHON_PATH

PROGRAM = Path(__file__).with_name("named_source.py")
JAR = jar_path()
RECORDS = 100
DOWNLOAD_S = 1800
COORDINATES = "io.mpbroker:mpbroker-spark:0.1.0"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>io.mpbroker</groupId><artifactId>mpbroker-spark</artifactId><version>0.1.0</version></project>
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.sql.shuffle.partitions": "1",
}

Run = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.skipif(JAR is None, reason="the jar is missing: set-up found no JDK")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"))) as running:
        create_topic(running.bootstrap, "t", 2)
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("t", b"v%d" % number, b"k%d" % number, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        yield running


@pytest.fixture
def run(broker: Mpbroker, tmp_path: Path, no_spark: None) -> Run:  # noqa: ARG001
    """Run the program by a command, in an environment without a session of this process."""
    numbers = count()

    def program(
        command: Sequence[str | Path], *settings: str, python: str | Path = sys.executable
    ) -> dict[str, Any]:
        copies = f"copies-{tmp_path.name}-{next(numbers)}"
        create_topic(broker.bootstrap, copies, 1)
        arguments = (str(broker.log_dir), broker.bootstrap, "t", copies, str(tmp_path / copies))
        others = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        done = ran(
            [*map(str, command), str(PROGRAM), *arguments, *settings],
            env={**others, "PYTHONPATH": PYTHON_PATH, "PYSPARK_PYTHON": str(python)},
            cwd=tmp_path,
            timeout=6 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "stderr": done.stderr}

    return program


def submit(*flags: str | Path) -> list[str | Path]:
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    return [SPARK_HOME / "bin" / "spark-submit", *settings, *flags]


def is_whole(found: dict[str, Any]) -> None:
    assert found["count"] == RECORDS
    assert found["copies"] == RECORDS + 5
    assert "by its JVM reader" in found["plan"]


def says_what_it_leaves_out(found: dict[str, Any]) -> None:
    """Once, and nothing of Python: the JVM reads batch and stream."""
    left_out = "kafka.isolation.level is not set: records of aborted and of open transactions are left out"
    assert found["stderr"].count(left_out) == 1, found["stderr"]
    assert "Python reads" not in found["stderr"], found["stderr"]


@each("registered", short=["before"], long=["never", "before", "after"])
def test_a_plain_session_with_the_jar(run: Run, registered: str) -> None:
    """Whether the Python source was registered, too, and when."""
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    chosen = ("spark.master=local[2]", f"spark.jars={JAR}", f"register={registered}")
    found = run([sys.executable], *settings, *chosen)
    is_whole(found)
    says_what_it_leaves_out(found)


@long_only("spark-submit with packages")
def test_submit_with_packages(run: Run, tmp_path: Path) -> None:
    group, artifact, version = COORDINATES.split(":")
    place = tmp_path / "maven" / group.replace(".", "/") / artifact / version
    place.mkdir(parents=True)
    assert JAR is not None
    (place / f"{artifact}-{version}.jar").write_bytes(JAR.read_bytes())
    (place / f"{artifact}-{version}.pom").write_text(POM)
    ivy = f"spark.jars.ivy={tmp_path / 'ivy'}"
    repository = f"file://{tmp_path / 'maven'}"
    flags = ("--master", "local[2]", "--packages", COORDINATES, "--repositories", repository, "--conf", ivy)
    is_whole(run(submit(*flags)))


@long_only("spark-submit on a cluster of two workers")
def test_submit_to_a_cluster_with_a_jar(run: Run, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", [[], []]) as cluster:
        assert JAR is not None
        is_whole(run(submit("--master", cluster.master, "--jars", JAR)))


def other_spark(version: str) -> Path:
    """Return a Python with that PySpark, which the first call downloads."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mpbroker", f"named-{version}")
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        ran([sys.executable, "-m", "venv", "--clear", home], check=True, timeout=DOWNLOAD_S)
        wanted = [f"pyspark=={version}", *connector.PACKAGES, "google-re2", "h11", "rich", "typer"]
        ran([python, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=DOWNLOAD_S)
        (home / "complete").touch()
    return python


@long_only("downloads Spark 4.2")
def test_the_jar_runs_on_the_spark_before(run: Run) -> None:
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    python = other_spark("4.2.0")
    is_whole(run([python], *settings, f"spark.jars={JAR}", python=python))


@long_only("downloads Spark 4.1")
def test_where_a_class_is_missing_python_reads_with_a_warning(run: Run) -> None:
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    python = other_spark("4.1.1")
    # The sink of a Python source refuses a save without a mode.
    found = run([python], *settings, f"spark.jars={JAR}", "mode=append", python=python)
    assert (found["count"], found["copies"]) == (RECORDS, RECORDS + 5)
    assert "(Python)" in found["plan"]
    assert found["stderr"].count("PythonPlannerRunner.runnerConf, which it needs") == 1


@long_only("a client of a Connect server that has the jar")
def test_a_client_of_a_connect_server(run: Run, server: str) -> None:
    is_whole(run([sys.executable], f"remote={server}"))
