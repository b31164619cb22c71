"""Fixtures of brokers and topics for pytest, which finds this module by itself where mpbroker is installed.

A test gets a broker that its session shares (`mpbroker_broker`) or one of its own (`mpbroker_own_broker`),
and topics of its own on the shared one (`mpbroker_topic`, `mpbroker_topics`). With pytest-xdist each worker
is a session. Nothing is imported and nothing started before a test asks for it.
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
    """Show the end of the log of each broker that a failed test used."""
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
    """Return the settings of the session's broker, by Kafka's names; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def mpbroker_broker(mpbroker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """Run a broker for all tests of the session that ask for it."""
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
    """Return a function that creates topics as `Broker.create_topic` does; each is deleted after the test.

    A topic without a name gets one that begins with the test's and that no other topic has.
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
    """Create a topic with one partition for this test; return its name."""
    return mpbroker_topics()


@pytest.fixture
def mpbroker_fault(mpbroker_broker: Broker) -> Iterator[Callable[..., Fault]]:
    """Return `Broker.fault` of the session's broker; its faults end with the test."""
    made: list[Fault] = []

    def fault(*arguments: str | int, **what: object) -> Fault:
        made.append(mpbroker_broker.fault(*arguments, **what))  # type: ignore[arg-type]
        return made[-1]

    yield fault
    if made:
        mpbroker_broker.clear_faults(*made)
