"""Typer's application, with a plainer usage line and only the commands that a call needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import TyperInfo

from mpbroker.cli.flags import DEFAULT_BOOTSTRAP, Bootstrap, ClusterAddress, CommandConfig

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Options whose value is optional, and its default. Typer has no such options.
OPTIONAL_VALUES = {"--wait": "60"}


class _Command(TyperCommand):
    """Write required arguments bare in the usage line; later versions of Typer put them in braces.

    Let options of `OPTIONAL_VALUES` stand without a value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = {name for one in self.params for name in one.opts} & set(OPTIONAL_VALUES)
        filled = [
            f"{one}={OPTIONAL_VALUES[one]}" if one in ours and _is_option(following) else one
            for one, following in zip(args, [*args[1:], "-"], strict=False)
        ]
        return super().parse_args(ctx, filled)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _with_cluster_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the flags that name a cluster in place of its parameter `where`."""
    declared = signature(command, eval_str=True)
    if "where" not in declared.parameters:
        return command

    @wraps(command)
    def called(*, bootstrap: str, command_config: Path | None, **given: Any) -> Any:
        return command(where=ClusterAddress(bootstrap, command_config), **given)

    flags = (
        Parameter("bootstrap", Parameter.KEYWORD_ONLY, default=DEFAULT_BOOTSTRAP, annotation=Bootstrap),
        Parameter("command_config", Parameter.KEYWORD_ONLY, default=None, annotation=CommandConfig),
    )
    parameters = [
        flag.replace(kind=Parameter.KEYWORD_ONLY)
        for one in declared.parameters.values()
        for flag in (flags if one.name == "where" else (one,))
    ]
    called.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


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
        """Register a command. Its parameter `where` becomes the flags that name a cluster."""
        register = super().command(name, cls=_Command, **settings)

        def registered(command: _Function) -> _Function:
            register(_with_cluster_flags(command))
            return command

        return registered

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
