"""The commands of docs/CLI.md do what stands there, line by line, in one shell, as readers run them."""

from __future__ import annotations

import re
from pathlib import Path

from mpbroker.cli.main import app
from mpbroker.testing import Broker
from tests.support.page_shell import pattern, shell, steps

PAGE = Path(__file__).parents[2] / "docs" / "CLI.md"
PORT = "9092"


def commands() -> set[str]:
    """The names of all commands and groups of commands."""
    named = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    return named | {str(group.name) for group in app.registered_groups}


def test_the_page_does_what_it_says(mpbroker_own_broker: Broker, tmp_path: Path) -> None:
    address = mpbroker_own_broker.bootstrap_servers
    port = address.rpartition(":")[2]
    with shell(tmp_path) as sh:
        sh.run(f"export MPBROKER_BOOTSTRAP_SERVER={address}")
        for step in steps(PAGE.read_text()):
            # Columns are as wide as what is in them.
            printed = re.sub(" +", " ", sh.run(step.command).replace(port, PORT))
            wanted = pattern(re.sub(" +", " ", step.printed))
            assert re.fullmatch(wanted, printed, re.DOTALL), f"{step}\n{printed}"


def test_the_table_has_each_command_and_no_other() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z-]+)`", "".join(row.split("|")[1] for row in rows))) == commands()
