"""Settings of groups and of subscriptions to client metrics in the coordinator: kept, read, bounded."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.metadata import resource_rules
from mpbroker.coordinator.metadata.metadata_records import decode_record, encode_record
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.ipc.calls import AlterSettings, ConfigAlteration, ConfigChange, ReadSettings, SettingsRead
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType
from tests.support.decider_rig import DeciderRig

SESSION = "consumer.session.timeout.ms"
GROUP, METRICS = ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS


def setting(
    kind: ConfigResourceType, name: str, key: str, value: str | None, *, replaces: bool = False
) -> ConfigAlteration:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    return ConfigAlteration(name, [ConfigChange(key, operation, value)], replaces, kind)


def errors(rig: DeciderRig, *alterations: ConfigAlteration, validate_only: bool = False) -> list[int]:
    return [code for code, _ in rig.results(AlterSettings(list(alterations), validate_only))]


def kept(rig: DeciderRig, call: ReadSettings | None = None) -> dict[tuple[int, str], dict[str, str]]:
    answer = rig.call(call or ReadSettings())
    assert isinstance(answer, SettingsRead)
    return {(kind, name): configs for kind, name, configs in answer.resources}


def test_settings_are_kept_until_they_are_deleted(rig: DeciderRig) -> None:
    assert errors(rig, setting(GROUP, "g", SESSION, "50000"), setting(METRICS, "s", "metrics", "a")) == [0, 0]
    assert kept(rig) == {(GROUP, "g"): {SESSION: "50000"}, (METRICS, "s"): {"metrics": "a"}}
    assert kept(rig, ReadSettings([(GROUP, "g"), (METRICS, "other")])) == {
        (GROUP, "g"): {SESSION: "50000"},
        (METRICS, "other"): {},
    }
    assert errors(rig, setting(METRICS, "s", "interval.ms", "1000", replaces=True)) == [0]
    assert kept(rig)[METRICS, "s"] == {"interval.ms": "1000"}
    removed = (setting(GROUP, "g", SESSION, None), setting(METRICS, "s", "interval.ms", None))
    assert errors(rig, *removed) == [0, 0]
    assert kept(rig) == {}


def test_what_is_refused_or_only_validated_changes_nothing(rig: DeciderRig) -> None:
    assert errors(rig, setting(GROUP, "g", SESSION, "50000"), validate_only=True) == [0]
    refused = [
        setting(GROUP, "", SESSION, "50000"),
        setting(GROUP, "g", SESSION, "1"),
        setting(METRICS, "s", "no.such", "1"),
    ]
    assert errors(rig, *refused) == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    ]
    assert kept(rig) == {}


def test_handlers_are_told_of_changed_subscriptions_and_of_nothing_else(rig: DeciderRig) -> None:
    changed, group = setting(METRICS, "s", "metrics", "a"), setting(GROUP, "g", SESSION, "50000")
    assert rig.decide(AlterSettings([changed, group], True)).subscriptions == []
    assert rig.decide(AlterSettings([changed, group], False)).subscriptions == ["s"]
    assert rig.decide(AlterSettings([changed, group], False)).subscriptions == []
    removed = setting(METRICS, "s", "metrics", None)
    assert rig.decide(AlterSettings([removed], False)).subscriptions == ["s"]


def test_a_setting_is_judged_by_those_that_the_group_has_already(rig: DeciderRig) -> None:
    assert errors(rig, setting(GROUP, "g", SESSION, "45000")) == [0]
    longer = setting(GROUP, "g", "consumer.heartbeat.interval.ms", "15000")
    assert errors(rig, longer) == [0]
    assert errors(rig, setting(GROUP, "g", SESSION, "44000")) == [ErrorCode.INVALID_CONFIG]


def test_their_records_are_kafkas_and_a_restart_finds_them(rig: DeciderRig) -> None:
    errors(rig, setting(GROUP, "g", SESSION, "50000"))
    state = MetadataState()
    for name, value in rig.state.settings[GROUP, "g"].items():
        record = resource_rules.ConfigRecord(GROUP, "g", name, value)
        state.apply_all([decode_record(encode_record(record))])
    assert state.settings == rig.state.settings


def test_there_is_room_for_so_many(rig: DeciderRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_rules, "SETTINGS_BYTES_MAX", 100)
    assert errors(rig, setting(METRICS, "s", "metrics", "x" * 100)) == [ErrorCode.POLICY_VIOLATION]
    assert errors(rig, setting(METRICS, "s", "metrics", "x")) == [0]
