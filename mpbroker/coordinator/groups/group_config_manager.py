"""The effective settings of each group, from the group's own settings and the broker's.

(Kafka: GroupConfigManager, as of 4.3.)
"""

from __future__ import annotations

import logging

from mpbroker.config import resource_config
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import GROUP, GroupSettings
from mpbroker.coordinator.runtime.host import Host

_log = logging.getLogger("mpbroker.coordinator.groups")


class GroupConfigManager:
    """Returns the settings of groups as the durable metadata and the broker's configuration have them now."""

    def __init__(self, config: BrokerConfig, host: Host) -> None:
        self._config = config
        self._host = host
        # The last warnings about each group whose settings the broker's bounds do not allow.
        self._warned: dict[str, list[str]] = {}

    def group_settings(self, group_id: str) -> GroupSettings:
        """Return the effective settings of a group, which need not exist.

        Log a warning, once, for each value that the broker's bounds have replaced.
        """
        configs = self._host.metadata.settings.get((GROUP, group_id), {})
        settings, warnings = resource_config.group_settings(configs, self._config)
        if warnings != self._warned.get(group_id, []):
            for warning in warnings:
                _log.warning("group %s: %s", group_id, warning)
            self._warned[group_id] = warnings
        if not warnings:
            self._warned.pop(group_id, None)
        return settings
