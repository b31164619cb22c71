"""One version, wherever it is written."""

import tomllib
from pathlib import Path

from mpbroker.config.version import VERSION

ROOT = Path(__file__).parents[2]


def test_the_package_has_it_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
