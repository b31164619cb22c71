"""Tables and documents whose names a client has chosen."""

import json

import pytest

from mpbroker.cli.host.ctl import last_errors
from mpbroker.cli.text.output import print_document, print_groups, print_json

EVIL = "a\x1b[2J\nb\x9b\u202e[red]c"
SHOWN = r"a\x1b[2J\nb\x9b\u202e[red]c"


def test_tables_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"name": EVIL, EVIL: [{"member": EVIL, "all": [EVIL, {EVIL: 1}]}]})
    print_groups([(EVIL, {"key": EVIL})])
    said = capsys.readouterr().out
    assert said.count(SHOWN) == 7
    assert all(line.isprintable() for line in said.split("\n"))


def test_documents_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": EVIL})
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.split("\n"))
    assert json.loads(said) == {"name": EVIL}


def test_the_last_error_of_a_process_has_no_control_characters() -> None:
    (line,) = last_errors([{"name": "handler 0", "last_error": "first\nlast \x1b[2J"}])
    assert line == r"last error of handler 0: last \x1b[2J"
