"""`mpbroker.spark.session`, in processes of its own: Spark's JVM keeps the environment it was started in."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mpbroker.spark import SparkSetupError
from spark_integration import environment, session
from spark_integration.jvm import jar
from tests.support.forms import each, long_only
from tests.support.programs import ran
from tests.support.spark_here import PYTHON_PATH
from tests.support.spark_logs import PartitionWriter, checkpoint, fill

ROOT = Path(__file__).parents[2]
OTHER_PYTHON = "/nonexistent/python"

PROGRAM = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
import mpbroker.spark
from pyspark.sql import SparkSession

log_dir, found = sys.argv[1], {}
config = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 1,
          "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

def count(spark):
    reader = spark.read.format("mpbroker").option("log.dir", log_dir).option("subscribe", "t")
    return reader.option("columns", "offset").load().count()

def read(spark):
    reader = spark.read.format("mpbroker").option("log.dir", log_dir).option("subscribe", "t")
    return str(reader.load()._jdf.queryExecution().executedPlan().toString())

"""
RUNNING_BEFORE = """
builder = SparkSession.builder.master("local[1]")
for name, value in config.items():
    builder = builder.config(name, value)
before = builder.getOrCreate()
before.sparkContext.setLogLevel("OFF")
"""
MENDED = """
spark = mpbroker.spark.session(master="local[1]", config={"spark.driver.memory": "3g"})
found["same"] = spark is before
found["daemon"] = spark.sparkContext.getConf().get("spark.python.daemon.module")
found["count"] = count(spark)
spark.stop()
print(json.dumps(found))
"""
STOPPED = """
mpbroker.spark.session(master="local[1]").stop()
# The JVM goes on, with the environment that it was started in.
spark = mpbroker.spark.session(master="local[1]", config=config, quiet=True)
found["count"] = count(spark)
found["switched off"] = read(mpbroker.spark.session(accelerated=False))
found["plan"] = read(mpbroker.spark.session())
with ThreadPoolExecutor(1) as pool:
    found["plan of a thread"] = pool.submit(read, spark).result()
spark.stop()
try:
    mpbroker.spark.configure(SparkSession.builder)
except mpbroker.spark.SparkSetupError as error:
    found["configure"] = str(error)
print(json.dumps(found))
"""
CONFIGURED = """
builder = SparkSession.builder.master("local[1]").config("spark.python.worker.reuse", "false")
for name, value in config.items():
    builder = builder.config(name, value)
spark = mpbroker.spark.configure(builder).getOrCreate()
found["count"] = count(spark)
found["conf"] = dict(spark.sparkContext.getConf().getAll())
spark.stop()
print(json.dumps(found))
"""
QUIET = """
import time
# Spark puts something in front of these two.
config |= {"spark.driver.extraJavaOptions": "-Dx=y", "spark.sql.warehouse.dir": log_dir}
for accelerated in (True, False):
    spark = mpbroker.spark.session(master="local[1]", config=config, quiet=True, accelerated=accelerated)
    assert ("by its JVM reader" in read(spark)) == accelerated
    print(count(spark))
spark.sparkContext._conf.set("spark.kafka.clusters.c.auth.bootstrap.servers", "127.0.0.1:1")
mpbroker.spark.session(accelerated=False)
stream = spark.readStream.format("mpbroker").option("log.dir", log_dir).option("subscribe", "t").load()
sink = stream.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
sink.trigger(availableNow=True).start().awaitTermination()
time.sleep(float(sys.argv[3]))
spark._jvm.java.lang.System.err.println("said by the JVM")
spark.sparkContext.setLogLevel("WARN")
mpbroker.spark.session()
print(spark.sparkContext._accumulatorServer.server_address)
spark.read.format("mpbroker").option("log.dir", log_dir).option("subscribe", "gone").load().count()
"""
NO_JVM = """
mpbroker.spark.session(master="local[1]", config={"spark.driver.extraJavaOptions": "-Xss1k"}, quiet=True)
"""


def without_pysparks() -> dict[str, str]:
    """The environment without the Pythons of Spark, which sessions of other tests here have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}


def end_of(
    program: str, log_dir: Path, *arguments: object, **environ: str
) -> subprocess.CompletedProcess[str]:
    return ran(
        [sys.executable, "-c", PROGRAM + program, str(log_dir), *map(str, arguments)],
        timeout=300,
        cwd=log_dir,
        env={**without_pysparks(), "PYTHONPATH": PYTHON_PATH, **environ},
    )


def run(program: str, log_dir: Path, **environ: str) -> tuple[dict[str, Any], str]:
    """What the program printed, and what it said on standard error."""
    done = end_of(program, log_dir, **environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr


@pytest.fixture
def filled(log_dir: Path) -> Path:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3)
    checkpoint(log_dir, {("t", 0): writer.next_offset})
    return log_dir


@long_only("a session in a JVM with a wrong Python")
def test_a_session_with_a_wrong_python_is_mended(filled: Path) -> None:
    found, said = run(RUNNING_BEFORE + MENDED, filled, PYSPARK_PYTHON=OTHER_PYTHON)
    assert found["same"] is True
    assert found["daemon"] == "pyspark_mpbroker.daemon"
    assert found["count"] == 30
    assert f"has the Python {OTHER_PYTHON}, but program {OTHER_PYTHON} does not exist" in said
    assert "spark.driver.memory is not set, not 3g" in said


@long_only("sessions after the first one in a JVM with a wrong Python")
def test_a_jvm_with_a_wrong_python_has_sessions_after_the_first(filled: Path) -> None:
    found, _ = run(RUNNING_BEFORE + STOPPED, filled, PYSPARK_PYTHON=OTHER_PYTHON)
    assert found["count"] == 30
    # The jar has come into the JVM that ran without it.
    assert "by its JVM reader" in found["plan"]
    assert "by its JVM reader" in found["plan of a thread"]
    assert "(Python)" in found["switched off"]
    assert OTHER_PYTHON in found["configure"]
    assert "mpbroker.spark.session()" in found["configure"]


def test_a_builder_is_configured_and_keeps_what_it_has(filled: Path) -> None:
    found, said = run(CONFIGURED, filled, PYSPARK_PYTHON=OTHER_PYTHON, PYSPARK_DRIVER_PYTHON="jupyter")
    assert found["count"] == 30
    assert found["conf"]["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["conf"]["spark.python.worker.reuse"] == "false"
    assert found["conf"]["spark.executorEnv.ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"] == "true"
    assert "spark.sql.session.timeZone" not in found["conf"]
    assert f"PYSPARK_PYTHON is {OTHER_PYTHON}, but program {OTHER_PYTHON} does not exist" in said


# Spark ends what it does not need after a minute.
@each("idle_s", short=[0], long=[90])
def test_a_quiet_session_says_nothing_and_its_errors_are_whole(
    filled: Path, tmp_path: Path, idle_s: int
) -> None:
    """Neither as it starts, by JVM and by Python, nor when it idles; nor is the source registered twice."""
    done = end_of(QUIET, filled, tmp_path / "checkpoint", idle_s)
    counts, _, socket = done.stdout.rpartition("30\n")
    assert (done.returncode, counts) == (1, "30\n"), done.stderr
    assert socket.endswith(".sock\n")
    assert not Path(socket.rstrip()).exists()
    said, begin, error = done.stderr.partition("Traceback (most recent call last):\n")
    tokens, _, said = said.partition("\n")
    assert tokens.startswith("spark.kafka.clusters.* sets up delegation tokens")
    assert (said, bool(begin)) == ("said by the JVM\n", True), done.stderr
    assert re.search(r"(?s)line \d+, in <module>\n.*SourceUnavailable: topic gone is not in", error), error


def test_a_quiet_start_that_fails_says_why(filled: Path) -> None:
    done = end_of(NO_JVM, filled)
    assert "stack size specified is too small" in done.stdout
    assert re.match(r"(?s)Error: Could not create the Java .*Traceback .*JAVA_GATEWAY_EXITED", done.stderr)


@pytest.mark.parametrize(
    ("topic", "code", "prints", "says"),
    [
        ("t", 0, r"PARTITION .*\nt-0 .*\n", r"audit: Spark runs, the first batch begins\n"),
        ("gone", 1, "", r"mpbroker: topic gone is not in the log directory\. .+\n"),
    ],
)
def test_a_command_says_what_it_has_done_or_what_is_wrong_and_no_more(
    filled: Path, topic: str, code: int, prints: str, says: str
) -> None:
    command = [sys.executable, "-m", "mpbroker", "spark", "audit", topic, "--master", "local[1]"]
    env = {**without_pysparks(), "PYTHONPATH": PYTHON_PATH}
    done = ran([*command, "--log-dir", str(filled)], timeout=300, env=env)
    assert done.returncode == code
    assert re.fullmatch(prints, done.stdout), done.stdout
    assert re.fullmatch(rf"audit: starting Spark, which takes some seconds\n{says}", done.stderr), done.stderr


BARE = """
import mpbroker.spark
for make in mpbroker.spark.session, lambda: mpbroker.spark.configure(None):
    try:
        make()
    except mpbroker.spark.SparkSetupError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["PySpark", "PyArrow"])
def test_a_missing_package_is_named_before_spark_is_started(tmp_path: Path, name: str) -> None:
    """In a Python that finds nothing but its own library and this checkout."""
    if name == "PyArrow":
        (tmp_path / "pyspark").mkdir()
        (tmp_path / "pyspark" / "__init__.py").touch()
        (tmp_path / "pyspark" / "version.py").write_text('__version__ = "4.3.0"\n')
    said = subprocess.check_output(
        [sys.executable, "-S", "-c", BARE],
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    session, configure = said.splitlines()
    assert session == configure
    assert session.startswith(f"{name} is not installed in {sys.executable}")
    assert "pip install 'mpbroker-server[spark]'" in session


def java(directory: Path, says: str) -> dict[str, str]:
    """A JAVA_HOME whose Java says this of itself."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": str(directory)}


def test_java_is_found_and_its_version_understood(tmp_path: Path) -> None:
    new = java(tmp_path / "new", 'openjdk version "21.0.2" 2024-01-16')
    assert environment.check_java(new) == (str(tmp_path / "new/bin/java"), 21)
    early = java(tmp_path / "early", 'openjdk version "25-ea" 2025-09-16')
    assert environment.check_java(early).major == 25


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ('java version "1.8.0_292"', "does not run on Java 8"),
        ('openjdk version "11.0.20"', "does not run on Java 11"),
        ("no such thing", "prints no version but: no such thing"),
    ],
)
def test_java_that_is_too_old_is_named(tmp_path: Path, says: str, expected: str) -> None:
    with pytest.raises(SparkSetupError, match=expected) as raised:
        environment.check_java(java(tmp_path / "old", says))
    assert "openjdk-17" in str(raised.value)


def test_missing_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkSetupError, match="PATH has none"):
        environment.check_java({"PATH": str(tmp_path)})
    with pytest.raises(SparkSetupError, match="JAVA_HOME is"):
        environment.check_java({"JAVA_HOME": str(tmp_path)})


def test_a_python_is_asked_what_it_can_import(tmp_path: Path) -> None:
    assert environment.why_unfit(sys.executable, str(ROOT)) is None
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    assert "cannot import pyarrow" in (environment.why_unfit(str(bare)) or "")
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho hello\n")
    mute.chmod(0o755)
    assert "does not work as a Python" in (environment.why_unfit(str(mute)) or "")


def test_a_python_that_the_user_chose_and_that_cannot_work_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    with pytest.raises(SparkSetupError, match=r"PYSPARK_PYTHON is \./environment/bin/python, but"):
        session._python_for_workers({"spark.master": "spark://host:7077"})
    with pytest.raises(SparkSetupError, match=f"spark.pyspark.python is {OTHER_PYTHON}, but"):
        session._python_for_workers({"spark.pyspark.python": OTHER_PYTHON})


def test_the_path_of_workers_leads_to_a_clone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = environment.with_package("/a:/b")
    assert once == f"{ROOT}:/a:/b"
    assert environment.with_package(once) == once
    # What is installed needs no path, and there it would go before the standard library.
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda _name: str(ROOT))
    assert environment.with_package(None) == ""


def test_a_connect_server_keeps_its_own_settings() -> None:
    given = {"spark.remote": "sc://host:15002"}
    assert session._prepared(given, quiet=False) == given


def test_without_a_jar_python_reads_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jar, "_PATH", tmp_path / "none.jar")
    jar.add_to(Mock(spec=()))
    assert "none.jar is missing. A wheel has it" in caplog.text


def test_the_face_for_users_imports_nothing_heavy() -> None:
    code = "import sys, mpbroker.spark; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    done = ran([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == "[]"
