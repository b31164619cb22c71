"""The table of attacks: what it measures is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.docs import attacks as page
from tests.security import attack_table
from tests.security.attack_table import ATTACKS, Row
from tests.support.attacks import MEGABYTE
from tests.support.secure_broker import SecureBroker


def test_an_attack_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with one whose memory is known: a group's members, up to their bound."""
    monkeypatch.setattr(attack_table, "SETTLING_S", 0.1)
    (attack,) = [one for one in ATTACKS if one.run is attack_table.parked_joins]
    bounded = attack._replace(settings=(("group.max.members.bytes", str(20 * MEGABYTE)),))
    broker: SecureBroker = attack_table.broker_for(tmp_path, bounded)
    row = attack_table.measured(broker, bounded)
    assert row.process == "coordinator"
    assert 15 * MEGABYTE < row.peak_bytes - row.before_bytes < 60 * MEGABYTE
    assert row.sent_bytes > 600 * MEGABYTE // 2
    assert "x GROUP_MAX_SIZE_REACHED" in row.answer
    assert "x waits" in row.answer
    assert "replaced" not in row.answer
    assert row.longest_ms > 0


def test_the_page_has_a_row_for_each_attack() -> None:
    assert [row["attack"] for row in page.measured()["attacks"]] == [attack.name for attack in ATTACKS]
    assert {name for row in page.measured()["attacks"] for name in row} == set(Row.__dataclass_fields__)
