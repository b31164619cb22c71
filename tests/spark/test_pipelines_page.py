"""docs/PIPELINES.md says what works: its commands are understood, its files are those of the demo."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NoReturn

import pytest

from mpbroker.cli.main import run
from mpbroker.cli.spark import command as spark_jobs
from ops.demo.pipeline.orders import TEMPLATE, PipelineFailed, Results, amount, check, is_order, step_of

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
    assert list(commands()) == ["archive", "replay", "mirror", "audit", "sessions"]


@pytest.mark.parametrize("job", ["archive", "replay", "mirror", "audit", "sessions"])
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


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("2026-11-29 00:30:34: Creating dataflow graph...", "Creating dataflow graph"),
        (
            "[Stage 4:> (0 + 1) / 1]\r  \r2026-11-29 00:31:28: Flow spark_catalog.default.totals is RUNNING.",
            "Flow totals is RUNNING",
        ),
        ("26/11/29 00:30:24 WARN NativeCodeLoader: Unable to load native-hadoop library", None),
    ],
)
def test_the_demo_says_each_step_of_a_run(line: str, step: str | None) -> None:
    assert step_of(line) == step


def test_the_check_of_the_pipeline_finds_what_is_wrong() -> None:
    orders = [number for number in range(30) if is_order(number)]
    large = [number for number in orders if amount(number) >= 500]
    customers: dict[str, tuple[int, int]] = {}
    for number in orders:
        count, total = customers.get(f"c{number % 3}", (0, 0))
        customers[f"c{number % 3}"] = (count + 1, total + amount(number))
    totals = sorted((name, *sums) for name, sums in customers.items())
    check(Results(orders, large, totals), 30)
    for wrong in (
        Results(orders[1:], large, totals),
        Results([orders[0], *orders], large, totals),
        Results(orders, large[1:], totals),
        Results(orders, [*large, large[-1]], totals),
        Results(orders, large, totals[1:]),
    ):
        with pytest.raises(PipelineFailed):
            check(wrong, 30)
