"""Ends the swap of a segment at any step, as a kill does it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from mpbroker.log.partition import segment_swap


class Killed(BaseException):
    """Nothing that follows happens."""


class Steps:
    """The calls that change a directory, the n-th of which does not happen any more."""

    NAMES = ("rename", "link", "unlink", "fsync")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> None:
        self.left = -1
        self.before = before
        for name in self.NAMES:
            monkeypatch.setattr(segment_swap.os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            self.before()
            if self.left == 0:
                raise Killed
            self.left -= 1
            real(*args, **kwargs)

        return call
