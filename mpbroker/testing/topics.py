"""Topics of a test's broker, made and deleted by mpbroker's own client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ClientError
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code

if TYPE_CHECKING:
    from mpbroker.testing.broker import Broker

TIMEOUT_MS = 30_000


def create(broker: Broker, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic. Raises BrokerFailed."""
    wanted = m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[m.CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in config.items()],
    )
    response = _ask(broker, m.CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
    for result in response.topics:
        _check(f"create topic {name}", result.error_code, result.error_message)


def delete(broker: Broker, names: list[str], *, missing_ok: bool) -> None:
    """Delete topics. Raises BrokerFailed."""
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    request = m.DeleteTopicsRequest(topic_names=names, topics=states, timeout_ms=TIMEOUT_MS)
    for result in _ask(broker, request).responses:
        if not (missing_ok and result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            _check(f"delete topic {result.name}", result.error_code, result.error_message)


def _ask(broker: Broker, request: m.Message) -> Any:
    from mpbroker.testing.broker import BrokerFailed

    config = ClientConfig(client_id="mpbroker-testing")
    with closing(Cluster([broker.direct_address], config)) as cluster:
        try:
            return cluster.ask_any(request, TIMEOUT_MS)
        except ClientError as error:
            raise BrokerFailed(f"{error}\n{broker.log_tail()}") from error


def _check(what: str, code: int, message: str | None) -> None:
    from mpbroker.testing.broker import BrokerFailed

    if code:
        raise BrokerFailed(f"{what}: {error_code(code).name}: {message or error_code(code).message}")
