"""The commands of docs/STANDBY.md, as readers run them, and `make lake`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.brokers import free_port
from tests.support.forms import long_only
from tests.support.page_shell import pattern, shell, steps

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "STANDBY.md").read_text()


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in ("9092", "9093")}
    with shell(tmp_path) as sh:
        for step in steps(PAGE):
            command = re.sub("909[23]", lambda found: ports[found[0]], step.command)
            # Nobody waits for a second of the machine's for the sake of the page.
            printed = sh.run(command.replace("lease.ms=5000", "lease.ms=2000"))
            assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{step.command}\n{printed}"


@pytest.mark.process
@long_only("make lake")
def test_the_demonstration_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["ops/demo/lake.sh"], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert done.stdout.count(b"30000 different records of 30000") == 2
    assert b"Polars: [(30097, '30098'), (30098, '30099'), (30099, '30100')]" in done.stdout
    assert list(tmp_path.iterdir()) == []
