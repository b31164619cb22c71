"""What Typer makes of commands, and what is different here: the usage line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """Arguments that are required stand bare, as everywhere; later versions of Typer put them in braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class App(typer.Typer):
    """Makes its commands of the class above."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **settings)
