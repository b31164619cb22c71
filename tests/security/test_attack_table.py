"""The table of attacks: what it measures is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.docs import security as page
from tests.security import attack_table
from tests.security.attack_table import ATTACKS, Attack, Row
from tests.support.attacks import MEGABYTE
from tests.support.secure_broker import SecureBroker


def test_an_attack_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with one whose memory is known: a group's members, up to their bound."""
    monkeypatch.setattr(attack_table, "SETTLING_S", 0.1)
    attack = Attack(
        "joins",
        lambda attacker: attack_table.parked_joins(attacker, 100),
        (("group.max.members.bytes", str(20 * MEGABYTE)),),
        prepare=attack_table.offsets,
    )
    broker: SecureBroker = attack_table.broker_for(tmp_path, attack)
    # On a busy machine a handler, whose requests wait for the coordinator, may grow by as much for a moment.
    row = attack_table.measured(broker, attack, "coordinator")
    assert row.attack == "joins"
    assert 15 * MEGABYTE < row.peak_bytes - row.before_bytes < 40 * MEGABYTE
    assert row.sent_bytes > 100 * MEGABYTE // 2
    assert "x GROUP_MAX_SIZE_REACHED" in row.answer
    assert "x waits" in row.answer
    assert "replaced" not in row.answer
    assert row.longest_ms > 0


def test_the_page_has_a_row_for_each_attack() -> None:
    rows = page.measured()["attacks"]["attacks"]
    assert [row["attack"] for row in rows] == [attack.name for attack in ATTACKS]
    assert {name for row in rows for name in row} == set(Row.__dataclass_fields__)
