"""SIGHUP: the configuration file is read again while the broker runs; what can change does, the rest is told.

Limits of connections can: an acceptor goes on with new ones without closing anything (Kafka changes the same
ones by dynamic configs, SocketServer.reconfigure). Every other setting is known to processes that were forked
with it, and waits for the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import structs

from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.keys import ConfigError, field_name
from mpbroker.config.limits import CONNECTION_LIMITS, resolve_overrides
from mpbroker.config.load import Loaded

ReadAgain: TypeAlias = Callable[[], Loaded]

log = logging.getLogger("mpbroker")

_KEYS = {field_name(key): key for key in BROKER_KEYS} | {
    "listener_limits": "listener.name.<listener>.max.connections or .max.connection.creation.rate",
    "listener_security": "listener.name.<listener>.<security setting>",
}


class Reload:
    """`asked`: the configuration as it was read, before ports were chosen and anything was changed."""

    def __init__(self, asked: BrokerConfig, read_again: ReadAgain | None) -> None:
        self._asked = asked
        self._read_again = read_again

    def changes(self) -> dict[str, Any]:
        """The fields that change from now on. What cannot, and why a file cannot be used, is logged."""
        if self._read_again is None:
            log.warning(
                "SIGHUP: the broker was started without a configuration file, so nothing is read again"
            )
            return {}
        try:
            loaded = self._read_again()
            resolve_overrides(loaded.config.max_connections_per_ip_overrides)
        except (ConfigError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            log.error("SIGHUP: the configuration stays as it is, for the file cannot be used: %s", why)
            return {}
        for warning in loaded.warnings:
            log.warning("SIGHUP: %s", warning)
        differ = [
            name
            for name in BrokerConfig.__struct_fields__
            if name != "origins" and getattr(loaded.config, name) != getattr(self._asked, name)
        ]
        changes = {name: getattr(loaded.config, name) for name in differ if name in CONNECTION_LIMITS}
        self._asked = structs.replace(self._asked, **changes)
        if later := [_KEYS.get(name, name) for name in differ if name not in CONNECTION_LIMITS]:
            log.warning("SIGHUP: these settings change at the next start only: %s", ", ".join(later))
        if changes:
            log.info("SIGHUP: changed %s", ", ".join(_KEYS[name] for name in changes))
        elif not later:
            log.info("SIGHUP: the configuration is as it was")
        return changes
