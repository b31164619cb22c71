"""docs/PIPELINES.md says what works: its commands are understood, its files are those of the demo."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NoReturn

import pytest

from mpbroker.cli.main import run
from mpbroker.cli.spark import command as spark_jobs
from ops.demo.pipeline.orders import TEMPLATE

PAGE = Path(__file__).parents[2] / "docs" / "PIPELINES.md"


class Started(BaseException):
    """A job has understood its command, and would start Spark."""


def commands() -> dict[str, list[str]]:
    """The words of each command of the page, in their order, by the job."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, list[str]] = {}
    for line in "".join(blocks).splitlines():
        program, spark, job, *words = shlex.split(line.removeprefix("$ "))
        assert (program, spark) == ("mpbroker", "spark")
        assert job not in found
        found[job] = [job, *words]
    return found


def test_there_is_a_command_for_each_job() -> None:
    assert list(commands()) == ["mirror", "audit", "sessions"]


@pytest.mark.parametrize("job", ["mirror", "audit", "sessions"])
def test_a_command_is_understood(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it then does is in test_jobs and test_stream_jobs."""

    def started(*_: object, **__: object) -> NoReturn:
        raise Started

    monkeypatch.setattr(spark_jobs, "running", started)
    with pytest.raises(Started):
        run(["spark", *commands()[job]])


def test_the_files_of_the_pipeline() -> None:
    page = PAGE.read_text()
    for path in TEMPLATE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"\n{path.read_text()}```" in page, f"{path} has changed: change the page, too"
