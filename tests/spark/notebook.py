"""Runs docs/spark-walkthrough.ipynb beside a broker of its own. `python -m tests.spark.notebook` does so and
keeps what its cells print.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ops.bench.brokers import HOST, Mpbroker
from tests.real_clients.conftest import end, stop_cleanly
from tests.spark.conftest import ROOT
from tests.support.polling import PATIENCE_S

NOTEBOOK = ROOT / "docs" / "spark-walkthrough.ipynb"


def read() -> Any:
    """The notebook as it is kept."""
    return nbformat.read(NOTEBOOK, as_version=4)


def run(directory: Path) -> Any:
    """The notebook with the outputs of now, without what programs say on standard error."""
    found = read()
    with _broker(directory) as broker:
        variables = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": HOST,
            "MPBROKER_LOG_DIR": str(broker.log_dir),
            "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap,
            "IPYTHONDIR": str(directory / "ipython"),
        }
        resources = {"metadata": {"path": str(directory)}}
        client = NotebookClient(found, timeout=5 * PATIENCE_S, kernel_name="python3", resources=resources)
        client.execute(env=variables)
    for cell in found.cells:
        # Times of execution are of no interest, and differ each time.
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return found


def shown(notebook: Any) -> list[str]:
    """What each cell of code prints and gives, as text."""
    return [
        "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@contextmanager
def _broker(directory: Path) -> Iterator[Mpbroker]:
    found = Mpbroker(directory / "broker")
    found.directory.mkdir()
    try:
        found.start()
        yield found
        stop_cleanly(found)
    finally:
        end(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = run(Path(directory))
    found.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(found, NOTEBOOK)
    print(*shown(found), sep="\n")


if __name__ == "__main__":
    main()
