"""Settings with where each comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from mpbroker.config.altered import Altered
from mpbroker.config.describe import ConfigSource
from mpbroker.config.load import Flag, load
from mpbroker.console.settings_view import rows, topic_rows
from mpbroker.protocol import messages as m


def found(tmp_path: Path, altered: Altered | None = None) -> dict[str, dict[str, Any]]:
    file = tmp_path / "server.properties"
    file.write_text("\nlog.retention.hours=5\ndelegation.token.secret.key=hush\nnum.partitions=3\n")
    loaded = load(file, ["message.max.bytes=2000000"], [Flag("--handlers", "num.io.threads", "4")])
    config = loaded.config if altered is None else structs.replace(loaded.config, altered=altered)
    return {row["name"]: row for row in rows(config)}


def test_each_source_is_told(tmp_path: Path) -> None:
    settings = found(tmp_path)
    assert settings["num.partitions"]["source"] == "file"
    assert settings["num.partitions"]["origin"] == f"{tmp_path / 'server.properties'}:4"
    assert settings["num.partitions"]["default"] == "1"
    assert (settings["num.io.threads"]["source"], settings["num.io.threads"]["origin"]) == (
        "flag",
        "--handlers",
    )
    assert (settings["message.max.bytes"]["source"], settings["message.max.bytes"]["origin"]) == (
        "flag",
        "-o",
    )
    assert (settings["http.listener"]["source"], settings["http.listener"]["origin"]) == ("default", "")


def test_an_alteration_beats_the_file(tmp_path: Path) -> None:
    settings = found(tmp_path, Altered(default={"num.io.threads": "6"}))
    assert settings["num.io.threads"]["source"] == "dynamic"
    assert settings["num.io.threads"]["origin"] == "altered for all brokers"


def test_where_each_is_changed_is_told(tmp_path: Path) -> None:
    settings = found(tmp_path, Altered(default={"message.max.bytes": "3000000"}))
    assert settings["log.retention.hours"]["change"] == f"{tmp_path / 'server.properties'}:2"
    assert settings["num.partitions"]["change"] == f"{tmp_path / 'server.properties'}:4"
    assert settings["num.io.threads"]["change"] == "mpbroker config set"
    assert settings["message.max.bytes"]["config_source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert settings["http.listener"]["change"] == "properties file, or -o"


def test_secrets_are_not_told(tmp_path: Path) -> None:
    settings = found(tmp_path)
    secret = settings["delegation.token.secret.key"]
    assert secret["is_sensitive"]
    assert secret["value"] is None
    assert "hush" not in str(settings)


def test_every_setting_says_what_it_is(tmp_path: Path) -> None:
    assert all(row["documentation"] for row in found(tmp_path).values())


def test_settings_of_a_topic_are_its_own_or_those_of_the_broker_or_defaults() -> None:
    sources = {
        "segment.ms": ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        "retention.ms": ConfigSource.DYNAMIC_TOPIC_CONFIG,
        "segment.bytes": ConfigSource.STATIC_BROKER_CONFIG,
        "cleanup.policy": ConfigSource.DEFAULT_CONFIG,
    }
    entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult
    found = topic_rows([entry(name=name, value="1", config_source=sources[name]) for name in sources])
    assert [(row["name"], row["source"], row["is_own"]) for row in found] == [
        ("cleanup.policy", "default", False),
        ("retention.ms", "topic", True),
        ("segment.bytes", "broker", False),
        ("segment.ms", "broker", False),
    ]
