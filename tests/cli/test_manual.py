"""The manual page."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from typer.main import get_command

from mpbroker.cli.main import app
from mpbroker.cli.manual import page
from tests.support.own_cli import OwnCli


def test_every_command_and_flag_is_in_the_page() -> None:
    text = page(app)
    sections = re.findall(r"^\.SS (.*)$", text, re.MULTILINE)
    assert {"serve", "group reset\\-offsets", "ctl listener add", "txn abort", "log\\-dirs"} <= set(sections)
    assert set(get_command(app).commands) == {name.split()[0].replace("\\", "") for name in sections}  # type: ignore[attr-defined]
    assert "\n.B \\-\\-to\\-earliest\n" in text
    assert "\n.B 130\n" in text


@pytest.mark.process
def test_roff_obeys_what_is_meant_and_nothing_else() -> None:
    text = page(app)
    assert text.isascii()
    macros = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".SS", ".B", ".I", ".PP", ".TP"}
    assert re.findall(r"(?<!\\)\\(?![-e&\[])", text) == []
    if (groff := shutil.which("groff")) is not None:
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww"], input=text, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


def test_the_command_prints_it() -> None:
    assert OwnCli("nobody:1")("man").out == page(app)
