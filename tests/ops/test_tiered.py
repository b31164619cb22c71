"""The commands of docs/TIERED.md do what stands there, beside a broker that they start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.page_shell import pattern, shell, steps

PAGE = Path(__file__).parents[2] / "docs" / "TIERED.md"
WORDS_MAX = 1_400


@pytest.mark.process
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with shell(tmp_path) as sh:
        for step in steps(PAGE.read_text()):
            command = step.command
            if command.startswith("mpbroker serve"):
                command = command.replace("serve", "serve --listeners PLAINTEXT://127.0.0.1:0", 1)
            printed = re.sub(" +", " ", sh.run(f"{command}\nended=$?"))
            wanted = pattern(re.sub(" +", " ", step.printed))
            assert re.fullmatch(wanted, printed, re.DOTALL), f"{step}\n{printed}"
            assert sh.run("echo $ended").strip() == "0", step
        sh.run("kill %1; wait %1")


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) <= WORDS_MAX
