"""The manual page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.main import get_command

from mpbroker.cli.main import app
from mpbroker.cli.manual import page
from mpbroker.config.environment import VARIABLES
from tests.support.own_cli import OwnCli
from tests.support.programs import ran

ROOT = Path(__file__).parents[2]


def test_every_command_and_flag_is_in_the_page() -> None:
    text = page(app)
    sections = re.findall(r"^\.SS (.*)$", text, re.MULTILINE)
    assert {"serve", "group reset\\-offsets", "ctl listener add", "txn abort", "log\\-dirs"} <= set(sections)
    assert set(get_command(app).commands) == {name.split()[0].replace("\\", "") for name in sections}  # type: ignore[attr-defined]
    assert "\n.B \\-\\-to\\-earliest\n" in text
    assert "\n.B 130\n" in text


def test_the_page_has_each_environment_variable_that_the_code_reads() -> None:
    sources = {path: path.read_text() for path in (ROOT / "mpbroker").rglob("*.py")}
    table = sources.pop(ROOT / "mpbroker/config/environment.py")
    named = {word for text in sources.values() for word in re.findall(r"\bMPBROKER_[A-Z_]+", text)}
    assert named <= set(VARIABLES)
    # Who reads one does so by its constant: no quoted name is left, and no constant is for nothing.
    assert [path for path, text in sources.items() if re.search(r"[\"']MPBROKER_[A-Z_]+[\"']", text)] == []
    for constant, variable in re.findall(r'^(\w+): Final = "(\w+)"$', table, re.MULTILINE):
        assert variable in VARIABLES
        uses = [text for text in sources.values() if "config.environment import" in text]
        # One time is the import.
        assert any(len(re.findall(rf"\b{constant}\b", text)) > 1 for text in uses), constant
        assert f"\n.B {variable}\n" in page(app)


@pytest.mark.process
def test_roff_obeys_what_is_meant_and_nothing_else() -> None:
    text = page(app)
    assert text.isascii()
    macros = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".SS", ".B", ".I", ".PP", ".TP"}
    assert re.findall(r"(?<!\\)\\(?![-e&\[])", text) == []
    if (groff := shutil.which("groff")) is not None:
        done = ran([groff, "-man", "-Tutf8", "-ww"], input=text, check=True)
        assert done.stderr == ""


def test_the_command_prints_it() -> None:
    assert OwnCli("nobody:1")("man").out == page(app)


def test_the_file_that_is_installed_is_this_page() -> None:
    assert (ROOT / "ops/man/mpbroker.1").read_text() == page(app), "mpbroker man > ops/man/mpbroker.1"
