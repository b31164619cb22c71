"""Tiered topics: what CreateTopics and AlterConfigs take, and a start without the object store."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.metadata.replay import refuse_tiered_topics
from mpbroker.ipc.calls import AlterSettings, ConfigAlteration, ConfigChange, CreateTopic
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigOperation
from mpbroker.protocol.topic_names import INTERNAL_TOPICS
from tests.support.decider_rig import DeciderRig

TIERED: dict[str, str | None] = {"remote.storage.enable": "true"}


@pytest.fixture
def rig() -> DeciderRig:
    return DeciderRig(remote_log_storage_system_enable=True, mpbroker_remote_url="file:///b")


def alter(rig: DeciderRig, name: str, **settings: str) -> tuple[int, str | None]:
    changes = [
        ConfigChange(key.replace("_", "."), ConfigOperation.SET, value) for key, value in settings.items()
    ]
    (result,) = rig.results(AlterSettings([ConfigAlteration(name, changes)]))
    return result


def test_a_tiered_topic_is_made_and_switched_off(rig: DeciderRig) -> None:
    assert rig.create(CreateTopic("a", 1, configs=TIERED)) == [("a", 0, None)]
    error, message = alter(rig, "a", remote_storage_enable="false")
    assert (error, (message or "")[:40]) == (
        ErrorCode.INVALID_CONFIG,
        "It is invalid to disable remote storage ",
    )
    off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    assert alter(rig, "a", **off) == (0, None)
    assert alter(rig, "a", remote_log_delete_on_disable="false") == (0, None)
    assert alter(rig, "a", remote_storage_enable="true") == (0, None)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_not_tiered(rig: DeciderRig, name: str) -> None:
    ((_, error, message),) = rig.create(CreateTopic(name, 1, configs=TIERED))
    assert (error, f"such as {name}:" in (message or "")) == (ErrorCode.INVALID_CONFIG, True)
    rig.create(CreateTopic(name, 1))
    assert alter(rig, name, remote_storage_enable="true")[0] == ErrorCode.INVALID_CONFIG


def test_a_start_without_the_store_names_what_would_be_unreadable(rig: DeciderRig) -> None:
    rig.create(*(CreateTopic(name, 1, configs=TIERED) for name in "dcba"), CreateTopic("e", 1))
    refuse_tiered_topics(rig.state, rig.config)
    with pytest.raises(FatalError, match=r"enable is false, and topics have .*: a, b, c and others\. Set it"):
        refuse_tiered_topics(rig.state, DeciderRig().config)
    for name in "abcd":
        alter(rig, name, remote_storage_enable="false", remote_log_delete_on_disable="true")
    refuse_tiered_topics(rig.state, DeciderRig().config)
