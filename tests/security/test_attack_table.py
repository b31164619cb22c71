"""The table of attacks: what it measures is what happens."""

from __future__ import annotations

from ops.docs import security as page
from tests.security.attack_table import ATTACKS, Row


def test_the_page_has_a_row_for_each_attack() -> None:
    rows = page.measured()["attacks"]["attacks"]
    assert [row["attack"] for row in rows] == [attack.name for attack in ATTACKS]
    assert {name for row in rows for name in row} == set(Row.__dataclass_fields__)
