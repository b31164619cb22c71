"""A broker in its own process, for clients that nobody here wrote.

The tests state what Apache Kafka does. They can prove themselves: with MPBROKER_TEST_BROKER=kafka the same
tests run against Apache Kafka from Maven.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.support.client_adapters import READERS, WRITERS, Franz, Reader, Writer
from tests.support.client_tools import java_command
from tests.support.real_brokers import TopicMaker, create_topic, make_broker, served, with_settings
from tests.support.transactional_clients import IN_PYTHON, Open, Program


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that every test of a module shares, with the settings that the module may name."""
    made = make_broker(tmp_path_factory.mktemp("broker"))
    if settings := getattr(request.module, "BROKER_SETTINGS", None):
        with_settings(made, settings)
    with served(made) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test, which stops or restarts it itself."""
    with served(make_broker(tmp_path / "broker")) as running:
        yield running


@pytest.fixture
def new_topic(broker: Broker, request: pytest.FixtureRequest) -> TopicMaker:
    """Makes a topic named after the test."""
    made = 0

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        nonlocal made
        made += 1
        allowed = "".join(c if c.isalnum() else "-" for c in request.node.name)
        name = f"{allowed}-{made}"
        create_topic(broker.bootstrap, name, partitions, config)
        return name

    return make


@pytest.fixture(scope="session")
def franz() -> Franz:
    return Franz()


@pytest.fixture
def writer(request: pytest.FixtureRequest) -> Writer:
    """The writer that the test is parametrized with, by name."""
    if request.param == "franz":
        program: Franz = request.getfixturevalue("franz")
        return program.write
    return WRITERS[request.param]


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Reader:
    """The reader that the test is parametrized with, by name."""
    if request.param == "franz":
        program: Franz = request.getfixturevalue("franz")
        return program.read
    return READERS[request.param]


@pytest.fixture(scope="session")
def transacting_java() -> Iterator[Program]:
    with Program(java_command("Transactions")) as running:
        yield running


@pytest.fixture(scope="session")
def transacting_franz(franz: Franz) -> Iterator[Program]:
    with Program([franz.program, "transact"]) as running:
        yield running


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Open:
    """Opens transactional producers of the client that the test is parametrized with, by name."""
    if request.param in IN_PYTHON:
        return IN_PYTHON[request.param]
    found: Program = request.getfixturevalue(f"transacting_{request.param}")
    return found.open
