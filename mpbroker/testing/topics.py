"""Creates and deletes topics of a test's broker with mpbroker's own client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, from_properties, parse_servers
from mpbroker.client.errors import ApiFailed, ClientConfigError, ClientError
from mpbroker.protocol.errors import ErrorCode
from mpbroker.testing.errors import BrokerFailed

TIMEOUT_S = 30.0
CLIENT_ID = "mpbroker-testing"


class BrokerAddress(NamedTuple):
    """The bootstrap servers of a broker, and the properties with which a client can connect to them."""

    servers: str
    client: Mapping[str, str]


def create(where: BrokerAddress, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic with this number of partitions; -1 is the broker's default. Raises BrokerFailed."""
    try:
        with _admin(where) as admin:
            admin.create_topic(name, partitions, 1, config, TIMEOUT_S)
    except ClientError as error:
        raise _failed(f"create topic {name}", error) from error


def delete(where: BrokerAddress, names: list[str], *, missing_ok: bool) -> None:
    """Delete topics in one request. With `missing_ok` ignore unknown topics. Raises BrokerFailed."""
    try:
        with _admin(where) as admin:
            results = admin.delete_topics(names, TIMEOUT_S)
    except ClientError as error:
        raise _failed("delete topics", error) from error
    for name, failed in results.items():
        if failed is not None and not (missing_ok and failed.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise _failed(f"delete topic {name}", failed)


def _admin(where: BrokerAddress) -> Admin:
    config, unknown = from_properties(where.client, ClientConfig(client_id=CLIENT_ID))
    if unknown:
        raise ClientConfigError(f"client={where.client}: no Kafka client has {', '.join(unknown)}")
    return Admin(Cluster(parse_servers(where.servers), config))


def _failed(what: str, error: ClientError) -> BrokerFailed:
    if isinstance(error, ApiFailed):
        return BrokerFailed(f"{what}: {error.code.name}: {error.message}")
    return BrokerFailed(str(error))
