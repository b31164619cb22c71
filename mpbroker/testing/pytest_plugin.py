"""Fixtures of brokers and topics for pytest, which loads this module automatically if mpbroker is installed.

A test gets the broker that its session shares (`mpbroker_broker`) or a broker of its own
(`mpbroker_own_broker`), and its own topics on the shared broker (`mpbroker_topic`, `mpbroker_topics`). With
pytest-xdist each worker is a session. Modules are imported and brokers started only when a test needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpbroker.testing.broker import Broker
    from mpbroker.testing.faults import Fault

MARKER = "mpbroker"
BROKERS = ("mpbroker_broker", "mpbroker_own_broker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test's report the last log lines of each broker that the test used."""
    report = yield
    if report.failed:
        for name in BROKERS:
            if (broker := getattr(item, "funcargs", {}).get(name)) is not None:
                report.sections.append((f"log of {name}", broker.log_tail()))
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(settings): settings of this test's mpbroker_own_broker")


@pytest.fixture(scope="session")
def mpbroker_settings() -> Mapping[str, object]:
    """Return the brokers' settings, by Kafka's names. Override this fixture in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def mpbroker_broker(mpbroker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """Run a broker that all tests of the session share."""
    from mpbroker.testing.broker import Broker

    with Broker(mpbroker_settings) as broker:
        yield broker


@pytest.fixture
def mpbroker_own_broker(
    request: pytest.FixtureRequest, mpbroker_settings: Mapping[str, object]
) -> Iterator[Broker]:
    """Run a broker for this test alone; `@pytest.mark.mpbroker({...})` adds to its settings."""
    from mpbroker.testing.broker import Broker

    settings = dict(mpbroker_settings)
    for mark in reversed([*request.node.iter_markers(MARKER)]):
        for more in mark.args:
            settings.update(more)
    with Broker(settings) as broker:
        yield broker


@pytest.fixture
def mpbroker_topics(request: pytest.FixtureRequest, mpbroker_broker: Broker) -> Iterator[Callable[..., str]]:
    """Return a function that works like `Broker.create_topic`. Its topics are deleted after the test.

    The default name of a topic is unique and begins with the test's name.
    """
    from mpbroker.testing.names import unique_name

    # Each with the process that made it: a fork of the tests that ends by way of this fixture has others.
    made: list[tuple[int, str]] = []

    def create(
        name: str | None = None, partitions: int = -1, config: Mapping[str, object] | None = None
    ) -> str:
        topic = mpbroker_broker.create_topic(name or unique_name(request.node.name), partitions, config)
        made.append((os.getpid(), topic))
        return topic

    yield create
    ours = [topic for pid, topic in made if pid == os.getpid()]
    if ours and mpbroker_broker.is_running:
        mpbroker_broker.delete_topics(ours, missing_ok=True)


@pytest.fixture
def mpbroker_topic(mpbroker_topics: Callable[..., str]) -> str:
    """Create a topic for this test, with the broker's default number of partitions; return its name."""
    return mpbroker_topics()


@pytest.fixture
def mpbroker_fault(mpbroker_broker: Broker) -> Iterator[Callable[..., Fault]]:
    """Return `Broker.fault` of the session's broker; the faults are cleared after the test."""
    made: list[Fault] = []

    def fault(*arguments: str | int, **what: object) -> Fault:
        made.append(mpbroker_broker.fault(*arguments, **what))  # type: ignore[arg-type]
        return made[-1]

    yield fault
    if made:
        mpbroker_broker.clear_faults(*made)
