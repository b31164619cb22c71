"""Requests with something in each of their lists, for tests that go through all APIs."""

from __future__ import annotations

from typing import get_args, get_origin, get_type_hints

from mpbroker.protocol import messages as m
from mpbroker.protocol.messages import Message


def filled(cls: type[Message]) -> Message:
    """A message with one entry in each of its lists, so that its error response has places for the error."""
    made = cls()
    for name, hint in get_type_hints(cls, vars(m)).items():
        inner = next((each for each in (hint, *get_args(hint)) if get_origin(each) is list), None)
        if inner is None:
            continue
        (of,) = get_args(inner)
        if isinstance(of, type) and issubclass(of, Message):
            setattr(made, name, [filled(of)])
        elif of is str:
            setattr(made, name, ["x"])
        elif of is int:
            setattr(made, name, [0])
    return made
