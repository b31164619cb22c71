"""What Typer makes of commands, and what is different here: the usage line, and how texts are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _AsGiven:
    """A text, or a path, is what the shell gave. (Typer from 0.29 on asks Pydantic, whose import takes half
    as long as that of the broker, and each of its processes would be forked with it.)
    """

    def __init__(self, kind: type[str | Path] | None) -> None:
        self._kind = kind

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        is_one = not (param.multiple or param.nargs != 1)
        if value is None:
            return None if is_one else ()
        if self._kind is None:
            vars(param)[_COERCES] = None
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        return self._kind(value) if is_one else [self._kind(one) for one in value]


# The attribute of a parameter; earlier versions of Typer have none, and know no Pydantic.
_COERCES = "_runtime_param"
# Of others the value is taken if there is one.
_KINDS: dict[Any, type[str | Path]] = {str: str, list[str]: str, Path: Path, list[Path]: Path}


def _as_given(params: list[Any]) -> list[Any]:
    for param in params:
        if vars(param).get(_COERCES, param) is None:
            vars(param)[_COERCES] = _AsGiven(_KINDS.get(param.type_descriptor.annotation))
    return params


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_given(super().get_params(ctx))


class _Command(TyperCommand):
    """Arguments that are required stand bare, as everywhere; later versions of Typer put them in braces."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_given(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class App(typer.Typer):
    """Makes its commands of the classes above."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **settings)

    def only(self, words: Sequence[str]) -> App:
        """With nothing but the command or the group that the first word calls, if it is one: to make all of
        them takes 20 ms, also of a broker's start.
        """
        word = next(iter(words), "")
        narrowed = copy(self)
        narrowed.registered_commands = [
            one for one in self.registered_commands if one.callback and one.callback.__name__ == word
        ]
        narrowed.registered_groups = [one for one in self.registered_groups if one.name == word]
        return narrowed if narrowed.registered_commands or narrowed.registered_groups else self
