"""Readers of docs/SPARK.md can do what it says: every command and snippet is run, beside a real broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import HOST, Mpbroker
from tests.spark.guide import Guide, sections
from tests.support.real_brokers import served
from tests.support.spark_here import ROOT

PAGE = ROOT / "docs" / "SPARK.md"


SECTIONS = sections(PAGE.read_text())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


@pytest.fixture(scope="module")
def guide(broker: Mpbroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guide]:
    """The page, of which nothing has been run yet."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": HOST,
    }
    lake = tmp_path_factory.mktemp("lake")
    places = {
        "/var/lib/mpbroker": str(broker.log_dir),
        "127.0.0.1:9092": broker.bootstrap,
        "/lake": str(lake),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(lake)
        found = Guide(PAGE, lake, places, variables)
        yield found
        session = found.namespace.get("spark")
        if isinstance(session, SparkSession):
            session.stop()


@pytest.mark.parametrize("section", SECTIONS)
def test_the_guide_does_what_it_says(guide: Guide, section: str) -> None:
    """A section goes on from those before it; alone it runs them first."""
    assert guide.run(section) > 0


def test_most_sections_have_something_to_run() -> None:
    assert len(SECTIONS) > 8
