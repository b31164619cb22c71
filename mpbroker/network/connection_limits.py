"""The connection limits that a configuration means."""

from __future__ import annotations

import ipaddress

from mpbroker.config.broker import BrokerConfig
from mpbroker.network.connection_quotas import ConnectionQuotas, Limits


def quotas_of(config: BrokerConfig) -> ConnectionQuotas:
    """Without listeners."""
    return ConnectionQuotas(
        Limits(config.max_connections, config.max_connection_creation_rate),
        config.max_connections_per_ip,
        {
            ipaddress.ip_address(address).packed: limit
            for address, limit in config.max_connections_per_ip_overrides.items()
        },
        config.quota_window_num,
        config.quota_window_size_seconds * 1000,
    )


def limits_of(config: BrokerConfig, listener: str) -> tuple[Limits, bool]:
    """Of a listener, and whether it is the brokers' own. What is not set for it alone is the broker's value,
    as Kafka's lookup of prefixed keys does it.
    """
    own = config.listener_limits.get(listener)
    connections = config.max_connections if own is None else own.max_connections
    per_second = config.max_connection_creation_rate if own is None else own.max_connection_creation_rate
    return Limits(connections, per_second), listener == config.inter_broker_listener_name
