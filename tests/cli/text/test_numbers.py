"""Numbers of flags: whatever is typed, they fit the requests, or the call is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from mpbroker.cli.main import app
from mpbroker.cli.text.numbers import limited_to
from tests.support.own_cli import OwnCli

HUGE = "9" * 20
# More digits than Python parses.
HUGER = "9" * 5000
# Options whose text has a number in it, by what stands for that in the help, and ways to write it.
TEXTS = {
    "TIME": ("{}", "-{}d", "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"),
    "DURATION": ("{}d", "PT{}H", "P{}D"),
    "PLACE": ("{}", "-{}", "+{}", "@{}"),
    "OFFSET|latest": ("{}",),
}
# Spark parses these.
THEIRS = ("--gap", "--lateness")


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name, one in command.commands.items():
        yield from commands((*path, name), one)


def values(option: Any) -> Iterator[str]:
    """Return values that no option of this type may take."""
    if option.type.name.startswith("int"):
        yield from (HUGE, f"-{HUGE}", HUGER)
    elif option.type.name.startswith("float"):
        yield from ("nan", "inf", "-inf", "1e300", HUGE)
    elif option.opts[0] not in THEIRS:
        for form in TEXTS.get(option.metavar or "", ()):
            yield from dict.fromkeys(form.format(huge) for huge in (HUGE, HUGER))


def calls() -> Iterator[list[str]]:
    """Each command with each such value; what else it needs is there."""
    for path, command in commands((), get_command(app)):
        needed = [one for one in command.params if one.required]
        for option in command.params:
            others = [
                word
                for one in needed
                if one is not option
                for word in (["x"] if one.param_type_name == "argument" else [one.opts[0], "x"])
            ]
            for value in values(option):
                name = option.opts[0]
                yield [*path, *([f"{name}={value}"] if name.startswith("--") else [name, value]), *others]


def test_a_number_that_no_request_can_have_is_a_wrong_call() -> None:
    """Nobody is connected to: the port is nobody's, and a command that tried would end with 1."""
    cli, seen = OwnCli("127.0.0.1:1"), set()
    for words in calls():
        said = cli(*words, code=2)
        assert "Traceback" not in said.err, words
        seen.add(next(word for word in words if word.startswith("-")).split("=")[0])
    assert {"--partition", "--producer-epoch", "--wait", "--time", "--by-duration", "--before"} <= seen
    assert len(seen) > 25


def test_nan_is_in_no_limits() -> None:
    with pytest.raises(Exception, match="nan is not from 0 to 5"):
        limited_to(0, 5)(float("nan"))
    assert limited_to(0, 5)([1, 5]) == [1, 5]
    assert limited_to(0, 5)(None) is None
