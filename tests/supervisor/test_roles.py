"""What the supervisor imports before it forks: children share it, and a successor reads no file of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ast, inspect, sys
from mpbroker.supervisor import main, roles
roles.prepare(has_exporter=True)
names = [
    f"{node.module}.{alias.name}"
    for node in ast.walk(ast.parse(inspect.getsource(roles)))
    if isinstance(node, ast.ImportFrom) and node.module.startswith("mpbroker.")
    for alias in node.names
]
missing = {name for name in names if name.endswith("process")} - sys.modules.keys()
assert not missing, missing
assert len([name for name in names if name.endswith("process")]) == 5, names
"""


@pytest.mark.process
def test_all_that_roles_run_is_imported_before_the_first_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
