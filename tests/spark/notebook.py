"""Runs docs/spark-walkthrough.ipynb beside a broker of its own, in Jupyter or without it.

`python -m tests.spark.notebook` runs it in Jupyter and keeps what its cells print.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ops.bench.brokers import HOST, Mpbroker
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import served
from tests.support.spark_here import ROOT

NOTEBOOK = ROOT / "docs" / "spark-walkthrough.ipynb"


def read() -> Any:
    """The notebook as it is kept."""
    return nbformat.read(NOTEBOOK, as_version=4)


def run(directory: Path) -> Any:
    """The notebook with the outputs of now, without what programs say on standard error."""
    found = read()
    with served(Mpbroker(directory / "broker")) as broker:
        resources = {"metadata": {"path": str(directory)}}
        client = NotebookClient(found, timeout=5 * PATIENCE_S, kernel_name="python3", resources=resources)
        client.execute(env={**os.environ, **_variables(directory, broker)})
    for cell in found.cells:
        # Times of execution are of no interest, and differ each time.
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return found


@contextmanager
def cells_here(directory: Path) -> Iterator[list[Callable[[], str]]]:
    """Yield the cells of code beside a broker, each as a function that runs it and returns what it prints and
    gives.

    They run in this process, on its JVM if it has one already. The caller takes back what this changes in
    `os.environ`.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with served(Mpbroker(directory / "broker")) as broker:
        os.environ.update(_variables(directory, broker))
        yield [partial(_cell, cell.source, namespace) for cell in read().cells if cell.cell_type == "code"]


def _cell(source: str, namespace: dict[str, Any]) -> str:
    if source.startswith("%%bash\n"):
        script = source.removeprefix("%%bash\n")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "notebook", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), namespace)
            print("" if value is None else repr(value), end="")
    return printed.getvalue()


def _variables(directory: Path, broker: Mpbroker) -> Mapping[str, str]:
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": HOST,
        "MPBROKER_LOG_DIR": str(broker.log_dir),
        "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap,
        "IPYTHONDIR": str(directory / "ipython"),
    }


def shown(notebook: Any) -> list[str]:
    """What each cell of code prints and gives, as text."""
    return [text for _, text in chapters_shown(notebook)]


def chapters_shown(notebook: Any) -> list[tuple[str, str]]:
    """For each cell of code the heading above it, and what it prints and gives."""
    found, chapter = [], ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            chapter = cell.source.splitlines()[0].lstrip("# ")
        elif cell.cell_type == "code":
            found.append((chapter, "".join(_text(output) for output in cell.outputs)))
    return found


def _text(output: Any) -> str:
    text: str = output.get("text", "") or output.get("data", {}).get("text/plain", "")
    return text


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
