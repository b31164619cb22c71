"""Connection limits as a configuration sets them."""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import field_name
from mpbroker.config.limits import ListenerLimits, limits_by_address
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas, Limits


def quotas_of(config: BrokerConfig) -> ConnectionQuotas:
    """Return the quotas without listeners. The supervisor has looked up the names of the overrides."""
    return ConnectionQuotas(
        Limits(config.max_connections, config.max_connection_creation_rate),
        config.max_connections_per_ip,
        limits_by_address(config.max_connections_per_ip_overrides),
        config.quota_window_num,
        config.quota_window_size_seconds * 1000,
    )


def change_quotas(quotas: ConnectionQuotas, config: BrokerConfig) -> None:
    """Change the limits of the broker and of addresses."""
    new = quotas_of(config)
    quotas.change_broker(new.broker)
    quotas.change_per_ip(new.per_ip, new.per_ip_overrides)


def limits_of(config: BrokerConfig, listener: str) -> tuple[Limits, bool]:
    """Return a listener's limits, and whether it is the brokers' own.

    A limit not set for it alone is the broker's, as in Kafka's lookup of prefixed keys.
    """
    own = config.listener_limits.get(listener, ListenerLimits())
    limits = Limits(
        config.max_connections if own.max_connections is None else own.max_connections,
        config.max_connection_creation_rate
        if own.max_connection_creation_rate is None
        else own.max_connection_creation_rate,
    )
    return limits, listener == config.inter_broker_listener_name


def limit_key(config: BrokerConfig, listener: str, key: str) -> str:
    """Return the key that sets a listener's limit: its own, or the one for all."""
    own = config.listener_limits.get(listener, ListenerLimits())
    is_own = getattr(own, field_name(key)) is not None
    return f"listener.name.{listener.lower()}.{key}" if is_own else key
