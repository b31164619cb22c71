"""The commands of docs/SECURITY.md do what stands there, line by line, in one shell, as readers run them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from ops.bench.brokers import free_port
from tests.support.client_tools import eventually
from tests.support.page_shell import Step, pattern, shell, steps

PAGE = Path(__file__).parents[2] / "docs" / "SECURITY.md"
PORT = "9094"


def of_the_page() -> list[Step]:
    return steps(PAGE.read_text().partition("\n## In five minutes\n")[2].partition("\n## ")[0])


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


@pytest.mark.process
def test_five_minutes(tmp_path: Path) -> None:
    port = str(free_port())
    secure = tmp_path / "secure"
    with shell(tmp_path) as sh:
        for step in of_the_page():
            printed = sh.run(step.command.replace(PORT, port)).replace(port, PORT)
            assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{step}\n{printed}"
            if step.command.endswith("&"):
                eventually(lambda: accepts(secure / "admin.sock"), "the broker serves")
    assert "stopped with status 0" in (secure / "broker.log").read_text()
    said = (secure / "audit.log").read_text() + (secure / "broker.log").read_text()
    for user in ("shop", "billing"):
        assert (secure / f"{user}.password").read_text().strip() not in said
    open_to_others = [one.name for one in secure.iterdir() if one.stat().st_mode & 0o007]
    assert open_to_others == []
