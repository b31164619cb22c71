"""Topics of a test's broker, made and deleted by mpbroker's own client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, from_properties, parse_servers
from mpbroker.client.errors import ClientError, ConfigError
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.testing.errors import BrokerFailed

TIMEOUT_MS = 30_000
CLIENT_ID = "mpbroker-testing"


class BrokerAddress(NamedTuple):
    """The address of a broker, and the properties of a client that may connect there."""

    servers: str
    client: Mapping[str, str]


def create(where: BrokerAddress, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic. Raises BrokerFailed."""
    wanted = m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[m.CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in config.items()],
    )
    response = _ask(where, m.CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
    for result in response.topics:
        _check(f"create topic {name}", result.error_code, result.error_message)


def delete(where: BrokerAddress, names: list[str], *, missing_ok: bool) -> None:
    """Delete topics. Raises BrokerFailed."""
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    request = m.DeleteTopicsRequest(topic_names=names, topics=states, timeout_ms=TIMEOUT_MS)
    for result in _ask(where, request).responses:
        if not (missing_ok and result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            _check(f"delete topic {result.name}", result.error_code, result.error_message)


def _ask(where: BrokerAddress, request: m.Message) -> Any:
    try:
        config, unknown = from_properties(where.client, ClientConfig(client_id=CLIENT_ID))
        if unknown:
            raise ConfigError(f"client={where.client}: no Kafka client has {', '.join(unknown)}")
        with closing(Cluster(parse_servers(where.servers), config)) as cluster:
            return cluster.ask_any(request, TIMEOUT_MS)
    except ClientError as error:
        raise BrokerFailed(str(error)) from error


def _check(what: str, code: int, message: str | None) -> None:
    if code:
        raise BrokerFailed(f"{what}: {error_code(code).name}: {message or error_code(code).message}")
