"""Limits of the system: too few open files are refused in one line, with enough a broker serves."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

import mpbroker
from mpbroker.config.broker import BrokerConfig
from mpbroker.reading.errors import SourceUnavailable
from mpbroker.supervisor.system_limits import advice, files_needed, raise_file_limit
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import served

TOPIC = "many"
PARTITIONS = 120
CONNECTIONS = 20
SERVE = [sys.executable, "-m", "mpbroker", "serve", "--listeners", "PLAINTEXT://127.0.0.1:0"]


@pytest.fixture
def _limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_limits")
def test_the_soft_limit_of_open_files_is_lifted() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    raise_file_limit(BrokerConfig())
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_what_is_needed_depends_on_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig()
    needed = files_needed(config)
    more = structs.replace(config, num_io_threads=config.num_io_threads + 2, log_dirs=("a", "b", "c"))
    assert files_needed(more) > needed + 2
    limits = {"": (0, needed)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[""])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update({"": wanted}))
    raise_file_limit(config)
    assert limits[""] == (needed, needed)
    with pytest.raises(ValueError, match=f"may have {needed}"):
        raise_file_limit(more)
    limits[""] = (0, resource.RLIM_INFINITY)
    raise_file_limit(more)


@pytest.mark.process
@pytest.mark.parametrize("limit", [32, 48, 64, 128])
def test_too_few_open_files_are_refused_in_one_line(tmp_path: Path, limit: int) -> None:
    command = [*SERVE, "--log-dirs", str(tmp_path / "log")]
    refused = subprocess.run(
        ["prlimit", f"--nofile={limit}:{limit}", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    (line,) = refused.stderr.splitlines() + refused.stdout.splitlines()
    assert "open files or more, and may have " + str(limit) in line
    assert "ulimit -n" in line
    assert "LimitNOFILE" in line
    assert refused.returncode == 2
    assert not (tmp_path / "log").exists()


def _read(broker: Mpbroker) -> set[int]:
    """Return the partitions that have records, none if one of them cannot be read.

    A log worker that waits for a slow disk may be short of files for a moment.
    """
    address = "{}:{}".format(*broker.address)
    try:
        found = mpbroker.read(TOPIC, bootstrap_servers=address, columns=["partition"]).read_all()
    except SourceUnavailable:
        return set()
    return set(found["partition"].to_pylist())


@pytest.mark.process
def test_a_broker_that_has_what_it_needs_serves(tmp_path: Path) -> None:
    """No process dies, though its partitions have more files than it may open."""
    limit = files_needed(structs.replace(BrokerConfig(), log_dirs=("one",)))
    limited = f"prlimit --nofile={limit}:{limit} "
    with served(Mpbroker(tmp_path, template=limited + Mpbroker.template)) as broker:
        before = {process.pid for process in broker.tree().members()}
        with ExitStack() as open_at_once:
            connections = [
                open_at_once.enter_context(frames.connected(broker.address, timeout_s=PATIENCE_S))
                for _ in range(CONNECTIONS)
            ]
            assert frames.exchange(connections[0], frames.create_topic(TOPIC, PARTITIONS))[0] == 0

            def produced() -> set[int]:
                request = frames.produce(TOPIC, records=1, value_bytes=100)
                return {
                    frames.exchange(connections[n % CONNECTIONS], request.for_partition(n))[0]
                    for n in range(PARTITIONS)
                }

            eventually(lambda: produced() == {0}, "every partition takes a batch")
            eventually(lambda: _read(broker) == set(range(PARTITIONS)), "every partition is read")
        assert {process.pid for process in broker.tree().members()} == before
        assert "Traceback" not in broker.output()


@pytest.mark.parametrize(
    ("number", "name"),
    [(errno.EMFILE, "LimitNOFILE"), (errno.EAGAIN, "LimitNPROC"), (errno.EFBIG, "LimitFSIZE")],
)
def test_an_error_names_the_limit(number: int, name: str) -> None:
    assert name in advice(OSError(number, os.strerror(number)))
    assert not advice(OSError(errno.EIO, "broken"))


@pytest.mark.process
def test_a_limit_of_the_size_of_files_is_named(tmp_path: Path) -> None:
    command = [*SERVE, "--log-dirs", str(tmp_path / "log")]
    refused = subprocess.run(
        ["prlimit", "--fsize=65536:65536", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    (line,) = refused.stderr.splitlines() + refused.stdout.splitlines()
    assert "cannot reserve" in line
    assert "LimitFSIZE" in line
    assert refused.returncode == 1
