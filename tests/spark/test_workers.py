"""How workers end that Spark no longer needs."""

from __future__ import annotations

import socket
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from spark_integration.workers import CLOSED, end_in_silence, in_silence
from tests.support.programs import ran
from tests.support.spark_here import ROOT


def raising(error: OSError) -> ModuleType:
    """A `__main__` whose worker fails with this error."""

    def worker(_socket: socket.socket, _authenticated: bool) -> int:
        raise error

    main = ModuleType("__main__")
    vars(main)["worker"] = worker
    return main


@pytest.fixture(autouse=True)
def as_for_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the variable as Spark has it for planners, and again when the test ends."""
    monkeypatch.setenv("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "")


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_connection_that_spark_has_closed_is_no_failure(error: OSError) -> None:
    with socket.socket() as connection:
        assert in_silence(raising(error).worker)(connection, True) == CLOSED


def test_everything_else_is_as_the_worker_left_it() -> None:
    with socket.socket() as connection:
        assert in_silence(lambda _socket, authenticated: 7 if authenticated else 0)(connection, True) == 7
        with pytest.raises(OSError, match="disk"):
            in_silence(raising(OSError("disk")).worker)(connection, True)


CLOSED_WHILE_IDLE = """
import socket, sys
from pyspark import daemon
from spark_integration.workers import in_silence
idle, of_spark = socket.socketpair()
of_spark.close()
sys.argv = ["daemon", "pyspark.sql.worker.lookup_data_sources"]
print(in_silence(daemon.worker)(idle, True))
"""


def test_an_idle_planner_that_spark_closes_prints_nothing() -> None:
    """Spark does so after a minute. PySpark's worker prints an error of its last flush if it may go on."""
    done = ran([sys.executable, "-c", CLOSED_WHILE_IDLE], timeout=60, cwd=ROOT)
    assert (done.stdout, done.stderr) == (f"{CLOSED}\n", "")


@pytest.mark.parametrize("name", ["pyspark.daemon", "mpbroker.__main__", None])
def test_planners_that_pysparks_daemon_has_forked_end_so(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = raising(BrokenPipeError())
    main.__spec__ = ModuleSpec(name, None) if name else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_in_silence()
    with socket.socket() as connection:
        if name == "pyspark.daemon":
            assert main.worker(connection, True) == CLOSED
        else:
            with pytest.raises(BrokenPipeError):
                main.worker(connection, True)
