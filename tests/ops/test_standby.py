"""The commands of docs/STANDBY.md, as readers run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.bench.brokers import free_port
from tests.support.page_shell import pattern, shell, steps

PAGE = (Path(__file__).parents[2] / "docs" / "STANDBY.md").read_text()


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in ("9092", "9093")}
    with shell(tmp_path) as sh:
        for step in steps(PAGE):
            command = re.sub("909[23]", lambda found: ports[found[0]], step.command)
            # Nobody waits for a second of the machine's for the sake of the page.
            printed = sh.run(command.replace("lease.ms=5000", "lease.ms=2000"))
            assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{step.command}\n{printed}"
