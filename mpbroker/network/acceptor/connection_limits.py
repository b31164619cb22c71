"""The connection limits that the configuration and the coordinator set."""

from __future__ import annotations

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import field_name
from mpbroker.config.limits import ListenerLimits, limits_by_address
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.limits import LimitNews
from mpbroker.ipc.process import ProcessContext
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas, Limits

_decoder: msgspec.msgpack.Decoder[LimitNews] = msgspec.msgpack.Decoder(LimitNews)


def quotas_of(config: BrokerConfig) -> ConnectionQuotas:
    """Return new quotas with the configured limits, before any listener is added."""
    return ConnectionQuotas(
        Limits(config.max_connections, config.max_connection_creation_rate),
        config.max_connections_per_ip,
        limits_by_address(config.max_connections_per_ip_overrides),
        config.quota_window_num,
        config.quota_window_size_seconds * 1000,
    )


def change_quotas(quotas: ConnectionQuotas, config: BrokerConfig) -> None:
    """Apply the configured limits of the broker and of addresses to `quotas`."""
    new = quotas_of(config)
    quotas.change_broker(new.broker)
    quotas.change_per_ip(new.per_ip, new.per_ip_overrides)


def limits_of(config: BrokerConfig, listener: str) -> tuple[Limits, bool]:
    """Return a listener's limits, and whether it is the inter-broker listener.

    A limit that is not set for this listener is the broker's, as in Kafka's lookup of prefixed keys.
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
    """Return the key of the setting that applies to a listener: its own (listener.name.…) or `key`."""
    own = config.listener_limits.get(listener, ListenerLimits())
    is_own = getattr(own, field_name(key)) is not None
    return f"listener.name.{listener.lower()}.{key}" if is_own else key


class AddressRates:
    """Takes the connection rates of addresses from the coordinator, and sets them in `quotas`."""

    def __init__(self, context: ProcessContext, quotas: ConnectionQuotas) -> None:
        memory = context.memory
        block = memory.private.block("limits")
        # It changes with each message.
        self.word = block[:8]
        self._reader = BulletinReader(block, memory.words("limit_acks"), context.index)
        self._quotas = quotas

    def follow(self) -> None:
        """Apply new messages. Call it often: the coordinator may wait until all processes have read them."""
        for message in self._reader.poll():
            news = _decoder.decode(message)
            rates = {image.address: image.per_second for image in news.limits}
            self._quotas.change_ip_rates(rates, replace=news.everything)
