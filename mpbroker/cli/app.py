"""Typer's application, with a plainer usage line and only the commands that a call needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

_Function = TypeVar("_Function", bound=Callable[..., Any])


# Options whose value may be left out, and what it is then. Typer has no such options.
OPTIONAL_VALUES = {"--wait": "60"}


class _Command(TyperCommand):
    """Write required arguments bare in the usage line; later versions of Typer put them in braces.

    Let options of `OPTIONAL_VALUES` stand without a value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled = [
            f"{one}={OPTIONAL_VALUES[one]}" if one in OPTIONAL_VALUES and _is_option(following) else one
            for one, following in zip(args, [*args[1:], "-"], strict=False)
        ]
        return super().parse_args(ctx, filled)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def _is_option(word: str) -> bool:
    return word.startswith("-")


class App(typer.Typer):
    """A Typer application or group whose commands are `_Command`s."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **settings)

    def only(self, words: Sequence[str]) -> App:
        """Return a copy with only the command or group that the first word names, or `self` if it names none.

        Making all of them takes 20 ms of every call, a broker's start included.
        """
        word = next(iter(words), "")
        narrowed = copy(self)
        narrowed.registered_commands = [
            one
            for one in self.registered_commands
            if one.callback and (one.name or one.callback.__name__) == word
        ]
        narrowed.registered_groups = [one for one in self.registered_groups if one.name == word]
        return narrowed if narrowed.registered_commands or narrowed.registered_groups else self
