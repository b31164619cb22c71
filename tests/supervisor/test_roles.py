"""What the supervisor imports before it forks: children share it, and a successor reads no file of it."""

from __future__ import annotations

import sys

import pytest

from tests.support.programs import ran

PROGRAM = """
import ast, inspect, sys
from mpbroker.supervisor import main, roles
roles.prepare(has_exporter=True, has_tier=True)
names = [
    f"{node.module}.{alias.name}"
    for node in ast.walk(ast.parse(inspect.getsource(roles)))
    if isinstance(node, ast.ImportFrom) and node.module.startswith("mpbroker.")
    for alias in node.names
]
missing = {name for name in names if name.endswith("process")} - sys.modules.keys()
assert not missing, missing
assert len([name for name in names if name.endswith("process")]) == 6, names
assert "obstore" not in sys.modules
"""

# What no broker runs for as long as it runs well, or only with an exporter.
NOT_IMPORTED = """
import sys
from mpbroker.cli import entry
from mpbroker.cli.host import serve
from mpbroker.supervisor import main, roles
roles.prepare(has_exporter=False)
late = {"asyncio", "click", "ctypes", "difflib", "psutil", "rich", "statistics", "textual", "typer"}
late |= {"mpbroker.cli.main", "mpbroker.console", "mpbroker.exporter", "mpbroker.http", "pyarrow"}
late |= {"mpbroker.remote", "obstore"}
print(*sorted(late & sys.modules.keys()))
"""


@pytest.mark.process
def test_what_is_not_run_is_not_imported() -> None:
    """Each process of a broker would keep such modules in memory."""
    done = ran([sys.executable, "-c", NOT_IMPORTED], check=True)
    assert done.stdout == "\n"


@pytest.mark.process
def test_all_that_roles_run_is_imported_before_the_first_fork() -> None:
    done = ran([sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
