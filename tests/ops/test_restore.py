"""The commands of docs/RESTORE.md, as readers run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.directory import DirectoryStore
from ops.bench.brokers import free_port
from shm.clock import wall_ms
from tests.support.client_tools import eventually
from tests.support.page_shell import pattern, shell, steps

PAGE = (Path(__file__).parents[2] / "docs" / "RESTORE.md").read_text()


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    port = str(free_port())
    with shell(tmp_path) as sh:
        for step in steps(PAGE):
            if step.command.startswith("sleep "):
                wait_for_cut(tmp_path / "store", wall_ms())
                continue
            printed = sh.run(step.command.replace("9092", port))
            assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{step.command}\n{printed}"


def wait_for_cut(store: Path, after_ms: int) -> None:
    """Wait for a cut whose instant comes after this time."""

    def is_there() -> bool:
        reader = LedgerReader(DirectoryStore(store))
        reader.read_to_end()
        return any(one.event.taken_ms > after_ms for one in reader.state.cuts)

    eventually(is_there, "there is a newer cut")
