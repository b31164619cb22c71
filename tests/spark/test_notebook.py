"""docs/spark-walkthrough.ipynb runs beside a real broker, and prints what it shows.

`python -m tests.spark.notebook` runs it and keeps what it prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.notebook import cells_here, chapters_shown, read, run, shown
from tests.support.forms import long_only

OUTPUT_BYTES_MAX = 3_000
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:\w+/)+")


CHAPTERS = list(dict.fromkeys(chapter for chapter, _ in chapters_shown(read())))


class Walk:
    """The cells of code in their order, with their chapters and what the notebook shows of them."""

    def __init__(self, cells: list[Callable[[], str]]) -> None:
        self._left = [
            (name, cell, text) for (name, text), cell in zip(chapters_shown(read()), cells, strict=True)
        ]

    def to_the_end_of(self, chapter: str) -> tuple[list[str], list[str]]:
        """Run what has not been run yet. Returns what it prints, and what the notebook shows there."""
        printed, wanted = [], []
        while any(name == chapter for name, _, _ in self._left):
            _, cell, text = self._left.pop(0)
            printed.append(cell())
            wanted.append(text)
        return printed, wanted


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "PYTHONPATH", "SPARK_LOCAL_IP", "IPYTHONDIR", "MPBROKER_LOG_DIR"):
            patch.setenv(name, os.environ.get(name, ""))
        patch.setenv("MPBROKER_BOOTSTRAP_SERVER", "")
        with cells_here(tmp_path_factory.mktemp("notebook")) as cells:
            yield Walk(cells)
            session = SparkSession.getActiveSession()
            if session is not None:
                session.stop()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_its_cells_print_what_it_shows(walk: Walk, chapter: str) -> None:
    """A chapter goes on from those before it; alone it runs them first."""
    printed, wanted = walk.to_the_end_of(chapter)
    assert printed
    assert printed == wanted


@long_only("the notebook in Jupyter")
def test_it_runs_in_jupyter_and_prints_what_it_shows(tmp_path: Path) -> None:
    assert shown(run(tmp_path)) == shown(read())


def test_what_it_shows_is_small_and_of_no_machine() -> None:
    kept = read()
    outputs = "".join(shown(kept))
    assert 100 < len(outputs) < OUTPUT_BYTES_MAX
    assert not ABSOLUTE_PATH.search(outputs)
    streams = [one.get("name") for cell in kept.cells if cell.cell_type == "code" for one in cell.outputs]
    assert "stderr" not in streams
