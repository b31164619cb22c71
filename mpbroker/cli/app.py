"""Typer's application, with a plainer usage line and only the commands that a call needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import TyperInfo

_Function = TypeVar("_Function", bound=Callable[..., Any])


# Options whose value may be left out, and what it is then. Typer has no such options.
OPTIONAL_VALUES = {"--wait": "60"}
# Options that users of other tools try, and what says it here.
_TOPIC_FIRST = "the topic is the first argument: mpbroker {} TOPIC"
INSTEAD = {
    ("serve", "--port"): "the port is part of --listeners PLAINTEXT://127.0.0.1:9092",
    ("consume", "--topic"): _TOPIC_FIRST.format("consume"),
    ("produce", "--topic"): _TOPIC_FIRST.format("produce"),
}


class _Command(TyperCommand):
    """Write required arguments bare in the usage line; later versions of Typer put them in braces.

    Let options of `OPTIONAL_VALUES` stand without a value, and explain those of `INSTEAD`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = {name for one in self.params for name in one.opts} & set(OPTIONAL_VALUES)
        filled = [
            f"{one}={OPTIONAL_VALUES[one]}" if one in ours and _is_option(following) else one
            for one, following in zip(args, [*args[1:], "-"], strict=False)
        ]
        try:
            return super().parse_args(ctx, filled)
        except Exception as error:
            # Typer does not export the class of this error.
            instead = INSTEAD.get((self.name or "", getattr(error, "option_name", "")))
            if instead is not None:
                error.message += f"; {instead}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def _is_option(word: str) -> bool:
    return word.startswith("-")


class Part(NamedTuple):
    """A group of commands whose module is imported when a call names it; `attribute` is its App there."""

    name: str
    module: str
    attribute: str
    help: str

    def load(self) -> App:
        found: App = getattr(import_module(self.module), self.attribute)
        found.info.help = self.help
        return found

    def outline(self) -> App:
        """Return what a list of all commands needs of this part."""
        return App(help=self.help)


class App(typer.Typer):
    """A Typer application or group whose commands are `_Command`s, with parts that are loaded when needed."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._parts: list[Part] = []
        self._groups: list[TyperInfo] | None = None
        self._own_groups: list[TyperInfo] = []
        super().__init__(*arguments, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **settings)

    def add_part(self, name: str, module: str, attribute: str, help: str) -> None:  # noqa: A002
        self._parts.append(Part(name, module, attribute, help))

    @property
    def registered_groups(self) -> list[TyperInfo]:
        """Return the groups, with all parts loaded unless `only` has chosen."""
        if self._groups is not None:
            return self._groups
        if self._parts:
            return [*self._own_groups, *(TyperInfo(part.load(), name=part.name) for part in self._parts)]
        return self._own_groups

    @registered_groups.setter
    def registered_groups(self, groups: list[TyperInfo]) -> None:
        self._own_groups = groups

    def only(self, words: Sequence[str]) -> App:
        """Return a copy with only the command or group that the first word names.

        If it names none, all are there, the parts in outline: enough to list them. Making all of them takes
        some 50 ms of every call, a broker's start included.
        """
        word = next(iter(words), "")
        narrowed = copy(self)
        commands = [
            one for one in self.registered_commands if one.name == word or _name_of(one.callback) == word
        ]
        named = [TyperInfo(part.load(), name=part.name) for part in self._parts if part.name == word]
        if commands or named:
            narrowed.registered_commands = commands
            narrowed._groups = named
        else:
            narrowed._groups = [TyperInfo(part.outline(), name=part.name) for part in self._parts]
        return narrowed


def _name_of(callback: Callable[..., Any] | None) -> str:
    """Return the name that Typer gives a command which has none of its own."""
    return "" if callback is None else callback.__name__.replace("_", "-")
