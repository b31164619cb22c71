"""docs/spark-walkthrough.ipynb runs beside a real broker, and prints what it shows.

`python -m tests.spark.notebook` runs it and keeps what it prints.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.notebook import read, run, run_here, shown
from tests.support.forms import long_only

OUTPUT_BYTES_MAX = 3_000
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:\w+/)+")


def test_its_cells_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "PYTHONPATH", "SPARK_LOCAL_IP", "IPYTHONDIR", "MPBROKER_LOG_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("MPBROKER_BOOTSTRAP_SERVER", "")
    try:
        assert run_here(tmp_path) == shown(read())
    finally:
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


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
