"""The settings of groups that the coordinator uses: those of now, and what is said of bounds."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest

from mpbroker.config.load import load
from mpbroker.coordinator.groups.group_config_manager import GroupConfigManager
from mpbroker.coordinator.metadata import resource_rules
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.coordinator.runtime.host import Host
from mpbroker.ipc import settings
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigResourceType

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"


class Settings:
    """A manager, and what it reads."""

    def __init__(self) -> None:
        self.config = load().config
        self.host = SimpleNamespace(metadata=MetadataState())
        self.manager = GroupConfigManager(self.config, cast(Host, self.host))

    def alter(self, group: str, key: str, value: str | None) -> None:
        """Replace the metadata, as a durable round does."""
        self.host.metadata = self.host.metadata.draft()
        resource_rules.apply(
            self.host.metadata.settings, ConfigRecord(ConfigResourceType.GROUP, group, key, value)
        )

    def reload(self, *overrides: str) -> None:
        """Let the process follow another configuration."""
        data = settings.encode(load(None, overrides).config)
        block = bytearray(8 + len(data))
        settings.write(memoryview(block), data)
        settings.adopt(memoryview(block), self.config)


def test_alterations_and_reloads_are_effective_at_once() -> None:
    there = Settings()
    assert there.manager.group_settings("g") == (45000, 5000, 1000)
    there.alter("g", SESSION, "50000")
    there.alter("g", INTERVAL, "0")
    assert there.manager.group_settings("g") == (50000, 5000, 0)
    assert there.manager.group_settings("other") == (45000, 5000, 1000)
    there.reload(f"group.{HEARTBEAT}=6000", f"group.{INTERVAL}=7")
    assert there.manager.group_settings("g") == (50000, 6000, 0)
    there.alter("g", SESSION, None)
    there.alter("g", INTERVAL, None)
    assert there.manager.group_settings("g") == (45000, 6000, 7)


def test_a_value_out_of_bounds_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mpbroker.coordinator.groups")
    there = Settings()
    there.alter("g", SESSION, "60000")
    there.manager.group_settings("g")
    assert not caplog.messages
    there.reload("group.consumer.max.session.timeout.ms=50000")
    for _ in range(2):
        assert there.manager.group_settings("g").session_timeout_ms == 50000
    assert caplog.messages == [f"group g: {SESSION}=60000 is not between 45000 and 50000: 50000 is used"]
    there.reload()
    assert there.manager.group_settings("g").session_timeout_ms == 60000
    there.reload("group.consumer.max.session.timeout.ms=50000")
    there.manager.group_settings("g")
    assert len(caplog.messages) == 2, "it is a new problem"
