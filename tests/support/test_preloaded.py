from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ops.bench.brokers import BrokerError, Mpbroker, execute
from tests.support import preloaded
from tests.support.polling import PATIENCE_S

TITLES = ["supervisor", "log 0", "coordinator", "handler 0", "handler 1", "processor 0 PLAINTEXT", "scrubber"]


class Executed(Mpbroker):
    launch = staticmethod(execute)


@pytest.mark.parametrize("kind", [Mpbroker, Executed])
def test_forked_and_executed_brokers_are_alike(
    request: pytest.FixtureRequest, tmp_path: Path, kind: type[Mpbroker]
) -> None:
    broker = kind(tmp_path)
    request.addfinalizer(broker.kill)
    broker.start()
    process = broker.process
    assert process is not None
    assert isinstance(process, subprocess.Popen) is (kind is Executed)
    titles = [" ".join(member.cmdline()).partition(": ")[2].strip() for member in broker.tree().members()]
    assert titles[: len(TITLES)] == TITLES
    assert os.getsid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert (process.poll(), process.returncode) == (None, None)
    assert broker.stop() == 0
    assert (process.poll(), process.returncode) == (0, 0)
    broker.start()
    assert broker.process is not None
    broker.process.kill()
    assert broker.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_start_that_is_refused_has_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="exited with 2 at start") as raised:
        Mpbroker(tmp_path, flags=["--no-such-flag"]).start()
    assert "No such option" in str(raised.value)


def test_the_path_that_a_session_of_spark_leaves_behind_is_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{preloaded.ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert preloaded.preloaded().can_start(preloaded.COMMAND, Mpbroker(Path()).environment())


def test_another_environment_of_python_or_the_loader_runs_the_command() -> None:
    plain = Mpbroker(Path()).environment()
    forks = preloaded.preloaded()
    assert forks.can_start(preloaded.COMMAND, plain)
    assert forks.can_start(preloaded.COMMAND, {**plain, "MPBROKER_LOG_LEVEL": "debug"})
    assert not forks.can_start(preloaded.COMMAND, {**plain, "LD_PRELOAD": "fault.so"})
    assert not forks.can_start(["strace", *preloaded.COMMAND], plain)
