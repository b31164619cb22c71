"""The plug-in as pytest finds it: two workers of pytest-xdist, a session's broker each, and nothing left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mpbroker.testing.broker import Broker
from tests.support.programs import loaded, ran

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def mpbroker_settings():
    return {"num.partitions": 3}

@pytest.fixture(autouse=True)
def _told(request, tmp_path_factory):
    for name in ("mpbroker_broker", "mpbroker_own_broker"):
        if name in request.fixturenames:
            broker = request.getfixturevalue(name)
            with open(request.config.rootpath / "told", "a") as told:
                print(name, broker.pid, broker.bootstrap_servers, broker.log_dir, broker._memory, file=told)
"""
TESTS = """
import pytest
from mpbroker.testing import BrokerFailed

def topics(broker):
    return sorted(path.name for path in broker.log_dir.glob("*-0") if not path.name.startswith("__"))

@pytest.mark.parametrize("number", range(4))
def test_a_topic(mpbroker_broker, mpbroker_topic, number):
    assert mpbroker_topic.startswith(f"test_a_topic-{number}")
    assert topics(mpbroker_broker) == [f"{mpbroker_topic}-0"]

@pytest.mark.parametrize("number", range(4))
def test_topics_and_a_fault(mpbroker_broker, mpbroker_topics, mpbroker_fault, number):
    first, second = mpbroker_topics(), mpbroker_topics("named", partitions=2)
    assert topics(mpbroker_broker) == sorted([f"{first}-0", "named-0"])
    mpbroker_broker.delete_topic(first)
    fault = mpbroker_fault("CreateTopics", error="POLICY_VIOLATION")
    with pytest.raises(BrokerFailed, match="POLICY_VIOLATION"):
        mpbroker_topics()
    assert fault.hits == 1

def test_that_fails(mpbroker_broker, mpbroker_topic):
    assert False, "as it should"

@pytest.mark.mpbroker({"num.partitions": 2})
def test_a_broker_of_its_own(mpbroker_own_broker):
    assert mpbroker_own_broker.settings == {"num.partitions": "2"}
    name = mpbroker_own_broker.create_topic()
    assert len(list(mpbroker_own_broker.log_dir.glob(f"{name}-*"))) == 2

def test_a_broker_that_dies(mpbroker_own_broker):
    mpbroker_own_broker.kill()
    mpbroker_own_broker.start()
"""
# pytest goes on in the fork, too: it says that the test has failed, and tears everything down.
FORKING_TESTS = """
import os, sys

def test_that_forks(mpbroker_broker, mpbroker_own_broker, mpbroker_topic, mpbroker_fault):
    fault = mpbroker_fault("Heartbeat", delay_ms=1)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    assert mpbroker_broker.is_running and mpbroker_own_broker.is_running
    assert (mpbroker_broker.log_dir / f"{mpbroker_topic}-0").is_dir()
    assert os.path.exists(fault.spec.hits)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[list[str]]]:
    """What pytest says of these tests, and what they have noted of their brokers."""
    directory = tmp_path_factory.mktemp("tests")
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_them.py").write_text(TESTS)
    output = run_pytest(directory, "-n2", "--strict-markers", "-rA")
    return output, [line.split() for line in (directory / "told").read_text().splitlines()]


def run_pytest(directory: Path, *arguments: str) -> str:
    """Run pytest on the tests in a directory, as if none ran already; return what it prints."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = ran(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=directory, env=environment
    )
    return done.stdout + done.stderr


def test_the_fixtures_do_what_they_say(told: tuple[str, list[list[str]]]) -> None:
    output, _ = told
    assert "1 failed, 10 passed in" in output, output
    assert "AssertionError: as it should" in output
    assert output.count("- log of mpbroker_broker -") == 1
    assert "topic test_that_fails" in output.partition("- log of mpbroker_broker -")[2]


def test_each_worker_has_a_broker_for_all_its_tests(told: tuple[str, list[list[str]]]) -> None:
    _, brokers = told
    assert len({pid for name, pid, *_ in brokers if name == "mpbroker_broker"}) == 2
    assert len({pid for name, pid, *_ in brokers if name == "mpbroker_own_broker"}) == 2
    assert len({address for _, _, address, *_ in brokers}) == 4


def test_nothing_is_left(told: tuple[str, list[list[str]]]) -> None:
    _, brokers = told
    for _, pid, _, *directories in brokers:
        assert not Path(f"/proc/{pid}").exists()
        for directory in directories:
            assert not Path(directory).exists()


def test_a_fork_that_leaves_through_fixtures_takes_nothing_along(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_them.py").write_text(FORKING_TESTS)
    output = run_pytest(tmp_path, "-n0", "-q")
    assert "1 failed in" in output, "the fork's report"
    assert "1 passed in" in output, output


def test_a_session_without_brokers_imports_none_of_it() -> None:
    """The class is imported here to say that this file starts brokers; a plain session has not even that."""
    assert Broker.__module__ == "mpbroker.testing.broker"
    assert loaded("import mpbroker.testing.pytest_plugin", "mpbroker.testing.broker", "msgspec") == []
