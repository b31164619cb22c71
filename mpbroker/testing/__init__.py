"""Real brokers for tests, each with its own processes and directories, which are removed after the test.

    from mpbroker.testing import Broker

    with Broker() as broker:
        topic = broker.create_topic()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})  # any Kafka client

With pytest, use the fixtures of `mpbroker.testing.pytest_plugin` instead.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpbroker.testing.broker import Broker
    from mpbroker.testing.errors import BrokerFailed
    from mpbroker.testing.faults import Fault

__all__ = ["Broker", "BrokerFailed", "Fault"]


def __getattr__(name: str) -> Any:
    # pytest imports this package at each start, whether its tests want a broker or not.
    module = {"Broker": "broker", "BrokerFailed": "errors", "Fault": "faults"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
