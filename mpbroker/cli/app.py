"""Typer's application, with a plainer usage line and only the commands that a call needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import CommandInfo, TyperInfo

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Options whose value is optional, and its default. Typer has no such options.
OPTIONAL_VALUES = {"--wait": "60"}
# Options that users of other tools try, and the ones to use here.
_TOPIC_FIRST = "the topic is the first argument: mpbroker {} TOPIC"
INSTEAD = {
    ("serve", "--port"): "the port is part of --listeners PLAINTEXT://127.0.0.1:9092",
    ("consume", "--topic"): _TOPIC_FIRST.format("consume"),
    ("produce", "--topic"): _TOPIC_FIRST.format("produce"),
}


class _Command(TyperCommand):
    """A command whose usage line lacks the braces that later Typer versions put around required arguments.

    Options in `OPTIONAL_VALUES` need no value. Errors about options in `INSTEAD` name a replacement.
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


def _with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with each parameter that is a group of flags replaced by the group's flags.

    A group is a NamedTuple whose fields declare the flags.
    """
    declared = signature(command, eval_str=True)
    groups = {one.name: one.annotation for one in declared.parameters.values() if _is_group(one.annotation)}
    if not groups:
        return command

    @wraps(command)
    def called(**given: Any) -> Any:
        made = {name: of(*(given.pop(field) for field in of._fields)) for name, of in groups.items()}
        return command(**made, **given)

    parameters = [
        flag.replace(kind=Parameter.KEYWORD_ONLY)
        for one in declared.parameters.values()
        for flag in (_flags_of(groups[one.name]) if one.name in groups else (one,))
    ]
    called.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple)


def _flags_of(group: Any) -> list[Parameter]:
    hints, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name, Parameter.empty), annotation=hint)
        for name, hint in hints.items()
    ]


class Part(NamedTuple):
    """A command (a function) or group of commands (an App): `attribute` of `module`, imported when needed."""

    name: str
    module: str
    attribute: str
    help: str
    settings: dict[str, Any] | None = None

    @property
    def is_group(self) -> bool:
        return self.attribute.endswith("_app")

    def group(self, *, is_outline: bool) -> TyperInfo:
        app = App() if is_outline else getattr(import_module(self.module), self.attribute)
        app.info.help = self.help
        return TyperInfo(app, name=self.name)

    def command(self, *, is_outline: bool) -> CommandInfo:
        if is_outline:
            return CommandInfo(self.name, cls=_Command, callback=lambda: None, help=self.help)
        callback = _with_flags(getattr(import_module(self.module), self.attribute))
        return CommandInfo(self.name, cls=_Command, callback=callback, context_settings=self.settings)


class App(typer.Typer):
    """A Typer application or group of `_Command`s. Its parts (`Part`) are imported when they are needed."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._commands: list[CommandInfo] = []
        self._groups: list[TyperInfo] = []
        self._parts: list[Part] = []
        self._is_outline = False
        super().__init__(*arguments, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Register a command. A parameter that is a group of flags is replaced by the group's flags."""

        def registered(command: _Function) -> _Function:
            callback = _with_flags(command)
            self._commands.append(CommandInfo(name, cls=_Command, callback=callback, **settings))
            return command

        return registered

    def add_part(self, part: Part) -> None:
        self._parts.append(part)

    @property
    def registered_commands(self) -> list[CommandInfo]:
        parts = [part for part in self._parts if not part.is_group]
        return [*self._commands, *(part.command(is_outline=self._is_outline) for part in parts)]

    @registered_commands.setter
    def registered_commands(self, commands: list[CommandInfo]) -> None:
        self._commands = commands

    @property
    def registered_groups(self) -> list[TyperInfo]:
        parts = [part for part in self._parts if part.is_group]
        # Typer appends to the list of an application without parts.
        loaded = [part.group(is_outline=self._is_outline) for part in parts]
        return [*self._groups, *loaded] if loaded else self._groups

    @registered_groups.setter
    def registered_groups(self, groups: list[TyperInfo]) -> None:
        self._groups = groups

    def only(self, words: Sequence[str]) -> App:
        """Return a copy with only the command or group that the first of `words` names.

        If that word names none, the copy has all commands, but of its parts only the names and help texts.
        Importing all parts would add about 50 ms to each call, also to a broker's start.
        """
        word = next((one for one in words if one != "--"), "")
        narrowed = copy(self)
        narrowed._commands = [
            one for one in self._commands if word in (one.name, getattr(one.callback, "__name__", ""))
        ]
        narrowed._parts = [part for part in self._parts if part.name == word]
        if not narrowed._commands and not narrowed._parts:
            narrowed._commands, narrowed._parts, narrowed._is_outline = self._commands, self._parts, True
        return narrowed
