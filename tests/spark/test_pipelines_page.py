"""docs/PIPELINES.md says what works: its commands are run in their order, its files are those of the demo."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, Mpbroker
from ops.demo.pipeline.orders import TEMPLATE, PipelineFailed, Results, amount, check, is_order
from tests.support.real_brokers import TRANSACTIONS, served, with_settings
from tests.support.spark_here import Here
from tests.support.spark_produced import make_topic, produce, records

PAGE = Path(__file__).parents[2] / "docs" / "PIPELINES.md"
RECORDS = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(with_settings(Mpbroker(tmp_path_factory.mktemp("broker")), TRANSACTIONS)) as running:
        for topic in ("orders", "payments", "copy.orders"):
            make_topic(running, topic)
            if topic != "copy.orders":
                produce(running, topic, range(RECORDS))
        yield running


def test_the_commands(here: Here, broker: Broker, tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    names = []
    for command in commands:
        for there, mine in (
            ("/var/lib/mpbroker", str(broker.log_dir)),
            ("/lake", str(tmp_path)),
            ("localhost:9092", broker.bootstrap),
        ):
            command = command.replace(there, mine)
        words = shlex.split(command)
        assert words[:2] == ["mpbroker", "spark"]
        assert here(*words[2:]) == 0, command
        names.append(words[2])
    assert names == ["archive", "replay", "mirror", "audit", "sessions"]
    assert len(records(broker, "orders-again")) == len(records(broker, "copy.orders")) == RECORDS
    assert (tmp_path / "audit.svg").exists()


def test_the_files_of_the_pipeline() -> None:
    page = PAGE.read_text()
    for path in TEMPLATE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"\n{path.read_text()}```" in page, f"{path} has changed: change the page, too"


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
