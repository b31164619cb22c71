"""docs/PIPELINES.md says what works: its commands are run in their order, its files are those of the demo."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture
def run(here: Here, broker: Broker, lake: Path) -> Callable[[str], None]:
    """Runs the command of a job, with the places that are here."""
    places = {
        "/var/lib/mpbroker": str(broker.log_dir),
        "/lake": str(lake),
        "localhost:9092": broker.bootstrap,
    }

    def run(job: str) -> None:
        words = commands()[job]
        for there, mine in places.items():
            words = [word.replace(there, mine) for word in words]
        assert here(*words) == 0, words

    return run


def test_the_command_of_an_archive(run: Callable[[str], None], lake: Path) -> None:
    run("archive")
    assert list((lake / "orders" / "data").rglob("*.parquet"))


def test_the_command_of_a_replay(run: Callable[[str], None], broker: Broker, lake: Path) -> None:
    if not (lake / "orders").exists():
        run("archive")
    run("replay")
    assert len(records(broker, "orders-again")) == RECORDS


def test_the_command_of_a_mirror(run: Callable[[str], None], broker: Broker) -> None:
    run("mirror")
    assert len(records(broker, "copy.orders")) == RECORDS


def test_the_command_of_an_audit(run: Callable[[str], None], lake: Path) -> None:
    run("audit")
    assert (lake / "audit.svg").exists()


def test_the_command_of_sessions(run: Callable[[str], None], lake: Path) -> None:
    run("sessions")
    assert (lake / "sessions").exists()


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
