"""docs/SECURITY.md names the tables that clients fill: their modules, and bounds, are those of the code."""

from __future__ import annotations

import importlib
import re
from typing import NamedTuple

import pytest

from mpbroker.config.broker import BrokerConfig
from ops.bench.brokers import ROOT

PAGE = (ROOT / "docs/SECURITY.md").read_text()
SECTION = PAGE.split("### Tables that clients fill")[1].split("\n## ")[0]
ROW = re.compile(r"^\| ([^|]+), `([\w/]+)` \| `([\w.]+)` ([\d,]+)([^|]*)\| ([^|]+) \|$", re.MULTILINE)


class Table(NamedTuple):
    what: str
    module: str
    bound: str
    value: int
    unit: str
    at_the_bound: str


TABLES = [
    Table(what, module, bound, int(value.replace(",", "")), unit, then)
    for what, module, bound, value, unit, then in ROW.findall(SECTION)
]


def test_every_row_is_read() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("| ") and "|---" not in line]
    assert len(TABLES) == len(rows) - 1 > 20
    assert len({table.what for table in TABLES}) == len(TABLES)


@pytest.mark.parametrize("table", TABLES, ids=[table.what for table in TABLES])
def test_the_bound_is_that_of_the_code(table: Table) -> None:
    path = ROOT / "mpbroker" / table.module
    if not table.bound.isupper():
        assert any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyx")), "no such module"
        assert getattr(BrokerConfig(), table.bound.replace(".", "_")) == table.value
        return
    if path.with_suffix(".pyx").exists():
        found = re.search(rf"^{table.bound}\s*=\s*(.+)$", path.with_suffix(".pyx").read_text(), re.MULTILINE)
        assert found is not None
        shifted = re.fullmatch(r"(\d+) << (\d+)", found[1])
        assert shifted is not None
        assert int(shifted[1]) << int(shifted[2]) == table.value
        return
    module = importlib.import_module(f"mpbroker.{table.module.replace('/', '.')}")
    assert getattr(module, table.bound) == table.value
