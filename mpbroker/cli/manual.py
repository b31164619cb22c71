"""`mpbroker man`: the manual page, made from the help of all commands, in the macros of man(7).

Installations have it in share/man, from ops/man/mpbroker.1, which a test compares with what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from mpbroker.cli.app import App
from mpbroker.config.environment import VARIABLES
from mpbroker.config.version import VERSION

EXIT_STATUS = {
    "0": "All is done.",
    "1": "It could not be done, or not all of it; trying again may help.",
    "2": "The call is wrong, by the command's own rules or by the broker's.",
    "130": "It was interrupted (Ctrl-C).",
}


def page(app: App) -> str:
    """Return the manual page of an application."""
    root = get_command(app)
    lines = [
        f'.TH MPBROKER 1 "" "mpbroker {VERSION}" "User Commands"',
        ".SH NAME",
        f"mpbroker \\- {_text(_first_sentence(root.help or ''))}",
        ".SH SYNOPSIS",
        ".B mpbroker",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
        ".SH COMMANDS",
    ]
    for path, command in _commands((), root):
        lines += _section(path, command)
    lines += [".SH ENVIRONMENT", *_list(VARIABLES), ".SH EXIT STATUS", *_list(EXIT_STATUS)]
    return "\n".join(lines) + "\n"


def _commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands below a group, with the words that name them."""
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name, one in command.commands.items():
        if not one.hidden:
            yield from _commands((*path, name), one)


def _section(path: tuple[str, ...], command: Any) -> list[str]:
    name = " ".join(("mpbroker", *path))
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f".SS {_text(' '.join(path))}", f".B {_text(name)}", _text(usage), ".PP"]
    paragraphs = re.split(r"\n\s*\n", (command.help or "").strip())
    for index, paragraph in enumerate(paragraphs):
        lines += [".PP"] * bool(index) + [_text(" ".join(paragraph.split()))]
    options = [param.get_help_record(context) for param in command.params]
    shown = {name: text for name, text in filter(None, options) if name.startswith("-")}
    return [*lines, *_list(shown)]


def _list(entries: dict[str, str]) -> list[str]:
    lines = []
    for name, text in entries.items():
        lines += [".TP", f".B {_text(name)}", _text(" ".join(text.split()))]
    return lines


def _first_sentence(text: str) -> str:
    return text.strip().split("\n")[0].rstrip(".")


def _text(text: str) -> str:
    """Escape for roff: backslashes, hyphens, leading dots, letters beyond ASCII."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
