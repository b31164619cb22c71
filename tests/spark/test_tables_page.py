"""docs/TABLES.md says what works: its commands are understood, its files declare tables."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from mpbroker.cli.main import run
from mpbroker.cli.tables import command
from spark_integration.tables.settings import JobSettings, read_settings

PAGE = (Path(__file__).parents[2] / "docs" / "TABLES.md").read_text()


class Started(BaseException):
    """The job has understood its command, and would start Spark."""


def test_the_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell writes is a file that the command takes. What the job does is in tables/test_job."""
    echoed = re.search(r'\$ echo "(\[source\].*?)" > (tables\.toml)', PAGE, re.DOTALL)
    assert echoed is not None
    text = echoed[1].replace("\n> ", "\n").replace("$PWD", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path(echoed[2]).write_text(text)
    (declared,) = read_settings(Path(echoed[2])).tables
    assert (declared.topic, declared.name) == ("orders", "shop.orders")

    def started(*_: object, **__: object) -> NoReturn:
        raise Started

    monkeypatch.setattr(command, "running", started)
    monkeypatch.setattr("mpbroker.spark.tables.checked_replay", lambda *_: None)
    lines = re.findall(r"^\$ mpbroker (tables (?:run|replay) .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        with pytest.raises(Started):
            run(shlex.split(line))


def test_the_file(tmp_path: Path) -> None:
    """It has every setting of the job, with its default."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "tables.toml").write_text(block)
    found = read_settings(tmp_path / "tables.toml")
    assert len(found.tables) == 2
    job: dict[str, Any] = tomllib.loads(block)["job"]
    assert job == msgspec.to_builtins(JobSettings())
