"""A small Spark session that test modules share, and log directories with a broker played by the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from mpbroker.cli import main
from spark_integration.jvm.jar import SWITCH, add_to
from tests.support.spark_here import ROOT, Here
from tests.support.spark_jvm import CHECKPOINT_FILES, session_beside_the_connector
from tests.support.spark_logs import fake_broker, log_dir

__all__ = ["fake_broker", "log_dir"]

# select() takes none above 1023; a session and its queries need some.
HIGHEST_FD = 800


class SharedSession:
    """A session that modules use one after the other: Spark's Python daemons stay, and what they imported.

    A test that stops it, or its context, costs the next module a new one. So does a module that wants the
    other kind, with Spark's Kafka connector.
    """

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._session: SparkSession | None = None
        self._with_connector: SparkSession | None = None
        self._connector = ExitStack()

    def running(self) -> SparkSession:
        self._connector.close()
        if self._session is None or not is_running():
            self._session = self._start()
        return self._session

    def beside_the_connector(self) -> SparkSession:
        if self._with_connector is None or not is_running():
            self.stop()
            made = session_beside_the_connector(self._warehouse)
            self._with_connector = self._connector.enter_context(made)
            self._connector.callback(setattr, self, "_with_connector", None)
        return self._with_connector

    def stop(self) -> None:
        self._connector.close()
        if self._session is not None and is_running():
            self._session.stop()
        self._session = None

    def _start(self) -> SparkSession:
        is_jvm_new = SparkContext._gateway is None
        session = (
            SparkSession.builder.master("local[2]")
            .appName("mpbroker tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.catalogImplementation", "in-memory")
            .config("spark.sql.warehouse.dir", str(self._warehouse))
            .config("spark.sql.shuffle.partitions", "2")
            # Compiling Java for each of these small queries takes a tenth of the CPU. Those beside the
            # connector, of commands and of clusters are compiled, as users' are.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.executor.pyspark.memory", "900m")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
            .getOrCreate()
        )
        # As session() does. The JVM reader has tests of its own, which compare it with the Python reader.
        add_to(session)
        session.conf.set(SWITCH, "false")
        session.sparkContext.setLogLevel("ERROR")
        with open(os.devnull) as probe:
            assert probe.fileno() < HIGHEST_FD, "py4j's callbacks would hang: see what keeps descriptors open"
        if is_jvm_new:
            # The first query of a JVM takes seconds, which belong to no test.
            session.range(4).selectExpr("id % 2 k").groupBy("k").count().collect()
        return session


def is_running() -> bool:
    """Whether this process has a Spark context."""
    return SparkContext._active_spark_context is not None


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSession]:
    shared = SharedSession(tmp_path_factory.mktemp("warehouse"))
    # Workers are children of the JVM, which inherits this environment.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.syspath_prepend(str(ROOT))
        yield shared
        shared.stop()


@contextmanager
def kept_as_it_was(session: SparkSession) -> Iterator[SparkSession]:
    """End the queries of a module, and undo its settings."""
    before = dict(session.conf.getAll)
    yield session
    if is_running():
        session.sparkContext.setLogLevel("ERROR")
        for query in session.streams.active:
            query.stop()
        now = dict(session.conf.getAll)
        for name in now.keys() - before.keys():
            session.conf.unset(name)
        for name in (name for name, value in before.items() if now.get(name) != value):
            session.conf.set(name, before[name])


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSession) -> Iterator[SparkSession]:
    """A session with the settings that it began with, whatever earlier modules have set."""
    with kept_as_it_was(shared_spark.running()) as session:
        yield session


@pytest.fixture(scope="module")
def beside_the_connector(shared_spark: SharedSession) -> Iterator[SparkSession]:
    """As `spark`, in a JVM that has Spark's Kafka connector, too: a module names it as its `spark`."""
    with kept_as_it_was(shared_spark.beside_the_connector()) as session:
        yield session


@pytest.fixture(scope="module")
def no_spark(shared_spark: SharedSession) -> None:
    """No session runs: the module starts one of its own."""
    shared_spark.stop()


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Here:
    """`mpbroker spark …`, or another group's command, in this process and on this session.

    Returns the exit code.
    """
    monkeypatch.setattr("mpbroker.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(*arguments: str, group: str = "spark") -> int:
        monkeypatch.setattr(sys, "argv", ["mpbroker", group, *arguments])
        with pytest.raises(SystemExit) as raised:
            main.main()
        code = raised.value.code
        assert code is None or isinstance(code, int)
        return code or 0

    return run
