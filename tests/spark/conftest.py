"""One small Spark session per test module, and log directories with a broker played by the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mpbroker.cli import main
from tests.support.spark_logs import FakeBroker, new_log_dir

Here = Callable[..., int]
ROOT = Path(__file__).parents[2]
# select() takes none above 1023; a session and its queries need some.
HIGHEST_FD = 800


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Workers are children of the JVM, which inherits this environment.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.syspath_prepend(str(ROOT))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("mpbroker tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.catalogImplementation", "in-memory")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.executor.pyspark.memory", "900m")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        with open(os.devnull) as probe:
            assert probe.fileno() < HIGHEST_FD, "py4j's callbacks would hang: see what keeps descriptors open"
        yield session
        session.stop()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return new_log_dir(tmp_path / "log")


@pytest.fixture
def fake_broker(log_dir: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(log_dir)
    yield broker
    broker.stop()


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Here:
    """`mpbroker spark …` in this process and on this session; returns the exit code."""
    monkeypatch.setattr("mpbroker.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["mpbroker", "spark", *arguments])
        with pytest.raises(SystemExit) as raised:
            main.main()
        code = raised.value.code
        assert code is None or isinstance(code, int)
        return code or 0

    return run
