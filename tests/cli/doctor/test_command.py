"""`mpbroker doctor spark`: what it finds, and how a person and a program are told."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from mpbroker.cli.doctor import command
from spark_integration.check import PROBLEM, Check
from spark_integration.doctor import examine
from tests.support.programs import ran
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill, new_log_dir

ROOT = Path(__file__).parents[3]


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = ran(
        [sys.executable, "-m", "mpbroker", "doctor", "spark", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **environ},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def found_in(document: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(document)["checks"]}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = new_log_dir(tmp_path / "log")
    writer = PartitionWriter(path, "t")
    fill(writer, 1)
    checkpoint(path, {("t", 0): writer.next_offset})
    return path


@pytest.mark.process
def test_where_nothing_is_missing_it_says_so(log_dir: Path) -> None:
    done = run("--log-dirs", log_dir)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert lines[-1] == "No problems: Spark can read topics from here."
    assert f"ok       log.dir: {log_dir}: 1 topic, at rest" in lines
    assert f"ok       PYSPARK_PYTHON: {sys.executable}" in lines
    # A jar that is there is not in use yet.
    (jar,) = (line for line in lines if "JVM reader: " in line)
    assert jar.startswith("note") or jar.endswith(
        ", which mpbroker.spark.session() adds, and others in spark.jars or --jars"
    )


@pytest.mark.process
def test_each_problem_comes_with_what_to_do(tmp_path: Path) -> None:
    done = run(
        *("--json", "--log-dirs", f"{tmp_path}"),
        PYSPARK_PYTHON="/nonexistent/python",
        PYSPARK_DRIVER_PYTHON="/nonexistent/jupyter",
        JAVA_HOME=str(tmp_path),
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == 4
    found = found_in(done.stdout)
    assert {name for name, row in found.items() if row["state"] == "problem"} == {
        *("Java", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "log.dir")
    }
    assert "openjdk-17" in found["Java"]["advice"]
    assert found["PYSPARK_PYTHON"]["advice"].startswith(f"export PYSPARK_PYTHON={sys.executable}, or make")
    assert found["PYSPARK_DRIVER_PYTHON"]["advice"].startswith("unset PYSPARK_DRIVER_PYTHON")
    assert "has no meta.properties" in found["log.dir"]["found"]
    assert found["workers"]["state"] == "ok"


@pytest.mark.process
def test_a_directory_that_a_broker_uses_is_told_from_one_at_rest(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_integration.doctor.why_unfit", lambda *_arguments: None)
    broker = FakeBroker(log_dir)
    try:
        *_, last = examine([str(log_dir)])
    finally:
        broker.stop()
    assert last.found.endswith("in use by a broker")


@pytest.mark.process
def test_packages_that_are_old_or_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(name: str) -> str:
        if name == "fastavro":
            raise PackageNotFoundError(name)
        return {"pandas": "3.0.1", "pyarrow": "17.0.0"}.get(name, "4.3.0")

    monkeypatch.setattr("spark_integration.doctor.version", version)
    monkeypatch.setattr("spark_integration.doctor.why_unfit", lambda *_arguments: "it is not there")
    found = {one.name: one for one in examine()}
    assert found["pyarrow"] == Check(
        "pyarrow", PROBLEM, "17.0.0, wanted is >=18", "pip install 'pyarrow>=18'"
    )
    assert found["pandas"].advice == "pip install 'pandas>=2.2,<3'"
    assert (found["fastavro"].state, found["workers"].state) == ("note", "problem")


@pytest.mark.process
def test_on_a_terminal_lines_are_folded_to_its_width() -> None:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = (
        "from mpbroker.cli.doctor.command import Check, report; "
        "report([Check('Java', 'problem', 'far ' * 40, 'do ' * 40)], as_json=False)"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    try:
        run_on = {"stdout": terminal, "capture_output": False, "cwd": ROOT, "env": environ}
        ran([sys.executable, "-c", code], check=True, **run_on)
        lines = os.read(reader, 10_000).decode().splitlines()
    finally:
        os.close(reader)
        os.close(terminal)
    assert lines[0].startswith("problem  Java: far far")
    assert any(line.startswith("         → do do") for line in lines)
    assert 60 < max(map(len, lines)) <= 80


def test_elsewhere_each_finding_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.report([command.Check("a", "note", "x " * 200, "y " * 200)], as_json=False) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
