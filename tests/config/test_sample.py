"""The commented server.properties has each setting that has an effect, and loads, remarks and all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.keys import format_value
from mpbroker.config.load import load
from mpbroker.config.properties import parse
from mpbroker.config.sample import groups, sample

# What a user removes the sign of.
SETTING = re.compile(r"^#(?=[a-z])", re.MULTILINE)


def test_each_setting_with_an_effect_is_in_it_once() -> None:
    named = re.findall(r"^(?:# ?)?([a-z0-9.]+)=", sample(), re.MULTILINE)
    assert sorted(named) == sorted(name for name, key in BROKER_KEYS.items() if not key.pending)
    assert len(set(named)) == len(named)


def test_as_it_is_it_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(sample())
    loaded = load(file)
    assert (loaded.warnings, loaded.config) == ((), load().config)


def test_with_every_line_uncommented_all_have_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(SETTING.sub("", sample()))
    assert len(parse(file.read_text())) > 130
    loaded = load(file)
    assert loaded.warnings == ()
    defaults = load().config
    # The protocol map names listeners that may come later, each with settings of its own.
    for name in {*BrokerConfig.__struct_fields__} - {"origins", "listener_security"}:
        assert getattr(loaded.config, name) == getattr(defaults, name)


def test_a_setting_has_its_sentence_and_what_it_may_be() -> None:
    text = sample()
    remark = "# group: acked and readable means on disk; os: the page cache is enough. One of: group, os."
    assert f"\n{remark}\n#log.flush.policy=group\n" in text
    assert "\n# Age at which segments are deleted; -1: never.\n# log.retention.ms=\n" in text
    assert all(len(line) <= 100 for line in text.splitlines() if line.startswith("# "))


def test_what_is_given_is_set(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(sample({"log.dirs": "/srv/records"}))
    assert load(file).config.log_dirs == ("/srv/records",)
    assert [entry.key for entry in parse(file.read_text())] == ["log.dirs"]


@pytest.mark.parametrize(
    "title", ["Identity and addresses", "Topics", "Quotas", "TLS", "SASL", "Transactions", "Tiered storage"]
)
def test_settings_are_in_groups(title: str) -> None:
    assert f"\n## {title}\n" in sample()


def test_the_brokers_own_come_first() -> None:
    titles = [title for title, _ in groups()]
    assert titles[0] == "Identity and addresses"
    assert titles[-1] == "Tiered storage"
    assert format_value(groups()[0][1][0].default) == "1"
