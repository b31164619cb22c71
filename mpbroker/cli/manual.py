"""`mpbroker man`: the manual page, made from the help of all commands, in the macros of man(7).

Installations have it in share/man, from ops/man/mpbroker.1, which a test compares with the output of `page`.
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
        f"mpbroker \\- {_text((root.help or '').strip().rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B mpbroker",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
        ".SH COMMANDS",
        *_sections("mpbroker", root),
    ]
    return "\n".join(
        [*lines, ".SH ENVIRONMENT", *_list(VARIABLES), ".SH EXIT STATUS", *_list(EXIT_STATUS), ""]
    )


def _sections(path: str, command: Any) -> Iterator[str]:
    """Yield the page's lines about a command, or all commands of a group. `path`: the words that call it."""
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            if not one.hidden:
                yield from _sections(f"{path} {name}", one)
        return
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f".SS {_text(path.partition(' ')[2])}", f".B {_text(path)}", _text(usage))
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        yield from (".PP", _text(" ".join(paragraph.split())))
    options = filter(None, [param.get_help_record(context) for param in command.params])
    yield from _list({name: text for name, text in options if name.startswith("-")})


def _list(entries: dict[str, str]) -> Iterator[str]:
    for name, text in entries.items():
        yield from (".TP", f".B {_text(name)}", _text(" ".join(text.split())))


def _text(text: str) -> str:
    """Return text escaped for roff: backslashes, hyphens, leading dots, letters beyond ASCII."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
